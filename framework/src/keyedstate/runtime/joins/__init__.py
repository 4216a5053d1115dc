"""Interval joins: rows of two inputs whose event times are not far apart."""

from keyedstate.runtime.joins.builder import IntervalJoin, JoinOutput, interval_join
from keyedstate.runtime.joins.errors import InvalidJoinError, MissingJoinTimeError
from keyedstate.runtime.joins.function import (
    LATE_LEFT,
    LATE_RIGHT,
    MISSING_LEFT,
    MISSING_RIGHT,
    IntervalJoinFunction,
    JoinContext,
    JoinedColumn,
    ProcessJoinFunction,
    joined_columns,
)

__all__ = [
    "LATE_LEFT",
    "LATE_RIGHT",
    "MISSING_LEFT",
    "MISSING_RIGHT",
    "IntervalJoin",
    "IntervalJoinFunction",
    "InvalidJoinError",
    "JoinContext",
    "JoinOutput",
    "JoinedColumn",
    "MissingJoinTimeError",
    "ProcessJoinFunction",
    "interval_join",
    "joined_columns",
]
