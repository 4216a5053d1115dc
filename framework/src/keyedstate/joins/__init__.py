"""Interval joins: rows of two inputs whose event times are not far apart."""

from keyedstate.joins.builder import IntervalJoin, interval_join
from keyedstate.joins.function import (
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
    "JoinContext",
    "JoinedColumn",
    "ProcessJoinFunction",
    "interval_join",
    "joined_columns",
]
