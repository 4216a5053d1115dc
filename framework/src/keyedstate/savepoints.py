"""Savepoints: taken of queries, made from DataFrames, edited, forked and deleted.

Importing this needs no PySpark; what works on DataFrames or running queries does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keyedstate.spark.query.fork import Fork
from keyedstate.spark.savepoint.savepoint import Savepoint, StoppedQuery

if TYPE_CHECKING:
    from keyedstate.spark.conversion.replacements import aggregate_states, deduplicate_states, join_states
    from keyedstate.spark.conversion.savepoint import from_spark
    from keyedstate.spark.savepoint.edit import SavepointEdit

__all__ = [
    "Fork",
    "Savepoint",
    "SavepointEdit",
    "StoppedQuery",
    "aggregate_states",
    "deduplicate_states",
    "from_spark",
    "join_states",
]

_REPLACEMENTS = ("aggregate_states", "deduplicate_states", "join_states")


def __getattr__(name: str) -> Any:
    if name == "SavepointEdit":
        from keyedstate.spark.savepoint.edit import SavepointEdit

        return SavepointEdit
    if name == "from_spark":
        from keyedstate.spark.conversion.savepoint import from_spark

        return from_spark
    if name in _REPLACEMENTS:
        from keyedstate.spark.conversion import replacements

        return getattr(replacements, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
