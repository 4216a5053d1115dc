"""The table of declared operators: a run has one of them, together with one that works row by row."""

from __future__ import annotations

import importlib.util

from faults.operators.joins import JOINS
from faults.operators.per_key import PER_KEY
from faults.operators.windows import WINDOWS

#: Before Spark 4.2 no source in Python has a part in ``availableNow``, so no query fires at its end.
_HAS_END = importlib.util.find_spec("pyspark.sql.streaming.datasource") is not None

TABLE = {
    name: operator
    for name, operator in {**JOINS, **PER_KEY, **WINDOWS}.items()
    if _HAS_END or not operator.fires_at_end
}
#: The uids of the operators of all queries.
UIDS = sorted({*TABLE, *(uid for operator in TABLE.values() for uid in operator.state)})
