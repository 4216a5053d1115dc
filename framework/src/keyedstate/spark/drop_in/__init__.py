"""Spark's ``transformWithState`` and ``applyInPandasWithState`` on keyedstate: their code stays as it is.

::

    from keyedstate.spark import drop_in

    drop_in.enable()
    counts = df.groupBy("user").transformWithState(processor, "user string, n long", "update", "none")
"""

from keyedstate.spark.drop_in.functions import keyed_function
from keyedstate.spark.drop_in.group_operator import apply_in_pandas_with_state
from keyedstate.spark.drop_in.operators import transform_with_state, transform_with_state_in_pandas
from keyedstate.spark.drop_in.switch import Switched, disable, enable

__all__ = [
    "Switched",
    "apply_in_pandas_with_state",
    "disable",
    "enable",
    "keyed_function",
    "transform_with_state",
    "transform_with_state_in_pandas",
]
