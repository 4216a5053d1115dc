"""Joins: rows of two inputs with one key, by their times or for as long as they live."""

from keyedstate.joins.columns import JoinedColumn, JoinType, joined_columns
from keyedstate.joins.interval import IntervalJoinFunction, JoinContext, ProcessJoinFunction
from keyedstate.joins.interval_builder import IntervalJoin, interval_join
from keyedstate.joins.join_function import (
    LATE_LEFT,
    LATE_RIGHT,
    MISSING_LEFT,
    MISSING_RIGHT,
    JoinFunction,
)
from keyedstate.joins.regular import RegularJoinFunction, join

__all__ = [
    "LATE_LEFT",
    "LATE_RIGHT",
    "MISSING_LEFT",
    "MISSING_RIGHT",
    "IntervalJoin",
    "IntervalJoinFunction",
    "JoinContext",
    "JoinFunction",
    "JoinType",
    "JoinedColumn",
    "ProcessJoinFunction",
    "RegularJoinFunction",
    "interval_join",
    "join",
    "joined_columns",
]
