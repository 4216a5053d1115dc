"""What Spark's own methods run on: keyedstate where the drop-in is on, else Spark.

The methods of ``GroupedData`` are replaced when this module is imported; off, they do what they did.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache, wraps
from typing import Any

from pyspark.sql import DataFrame, GroupedData
from pyspark.sql.utils import is_remote

from keyedstate.options import DROP_IN, Configuration
from keyedstate.spark.drop_in.group_operator import apply_in_pandas_with_state
from keyedstate.spark.drop_in.operators import transform_with_state, transform_with_state_in_pandas
from keyedstate.spark.plan.configuration import spark_settings

#: What `enable` and `disable` have set; None to follow the configuration.
_chosen: bool | None = None


class Switched(AbstractContextManager[None]):
    """The drop-in is on or off; at the end of a ``with`` statement it is what it was before."""

    def __init__(self, on: bool) -> None:
        global _chosen
        self._before = _chosen
        _chosen = on
        switch_methods()

    def __exit__(self, *error: object) -> None:
        global _chosen
        _chosen = self._before


def enable() -> Switched:
    """Let Spark's stateful methods run on keyedstate from now on.

    They are ``transformWithState``, ``transformWithStateInPandas`` and ``applyInPandasWithState``. Operators
    that exist stay what they are.  On Spark Connect call it after the session is made.
    ``with drop_in.enable():`` does it for some lines.  Without a call the
    option ``spark.keyedstate.drop-in`` of the session decides.
    """
    return Switched(True)


def disable() -> Switched:
    """Let these methods run on Spark from now on, whatever the option says; also for a ``with`` statement."""
    return Switched(False)


def _is_on(grouped: GroupedData) -> bool:
    if _chosen is not None:
        return _chosen
    settings = spark_settings(grouped._df.sparkSession)
    return bool(Configuration(None, spark=settings).get(DROP_IN))


@cache
def _switch_methods_of(kind: type[Any]) -> None:
    """Replace the methods of one of both classes of grouped DataFrames."""
    for name, ours in _METHODS.items():
        if hasattr(kind, name):  # transformWithState came with Spark 4.1
            _switch(kind, name, ours)


def _switch(kind: type[Any], name: str, ours: Callable[..., DataFrame]) -> None:
    spark_method = getattr(kind, name)

    @wraps(spark_method)
    def method(self: GroupedData, *arguments: Any, **named: Any) -> DataFrame:
        if _is_on(self):
            return ours(self, *arguments, **named)
        of_spark: DataFrame = spark_method(self, *arguments, **named)
        return of_spark

    setattr(kind, name, method)


def switch_methods() -> None:
    """Replace the methods, those of Spark Connect where the program uses it: it is slow to import."""
    _switch_methods_of(GroupedData)
    if is_remote() or "pyspark.sql.connect.group" in sys.modules:
        from pyspark.sql.connect.group import GroupedData as GroupedDataOfConnect

        _switch_methods_of(GroupedDataOfConnect)


_METHODS: dict[str, Callable[..., DataFrame]] = {
    "transformWithState": transform_with_state,
    "transformWithStateInPandas": transform_with_state_in_pandas,
    "applyInPandasWithState": apply_in_pandas_with_state,
}
switch_methods()
