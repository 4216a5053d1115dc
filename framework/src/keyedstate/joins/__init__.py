"""Joins: rows of two inputs with one key, by their times, in windows, or for as long as they live."""

from keyedstate.joins.bounds import LeftColumn
from keyedstate.joins.broadcast import BroadcastJoinableRows, BroadcastJoinFunction, broadcast_join
from keyedstate.joins.by_key.changing import ChangingJoinFunction
from keyedstate.joins.by_key.declaration import join
from keyedstate.joins.by_key.key_join import KeyJoinFunction
from keyedstate.joins.by_key.regular import RegularJoinFunction
from keyedstate.joins.columns import JoinedColumn, JoinType, RowKindColumn, WindowColumn, joined_columns
from keyedstate.joins.interval import IntervalJoinFunction, JoinContext, ProcessJoinFunction
from keyedstate.joins.interval_builder import IntervalJoin, interval_join
from keyedstate.joins.join_function import (
    LATE_LEFT,
    LATE_RIGHT,
    MISSING_LEFT,
    MISSING_RIGHT,
    JoinFunction,
)
from keyedstate.joins.versioned import VersionedJoinFunction, versioned_join
from keyedstate.joins.window_builder import WindowedInputs, windowed
from keyedstate.joins.windowed import CoGroupFunction, WindowedJoinFunction

__all__ = [
    "LATE_LEFT",
    "LATE_RIGHT",
    "MISSING_LEFT",
    "MISSING_RIGHT",
    "BroadcastJoinFunction",
    "BroadcastJoinableRows",
    "ChangingJoinFunction",
    "CoGroupFunction",
    "IntervalJoin",
    "IntervalJoinFunction",
    "JoinContext",
    "JoinFunction",
    "JoinType",
    "JoinedColumn",
    "KeyJoinFunction",
    "LeftColumn",
    "ProcessJoinFunction",
    "RegularJoinFunction",
    "RowKindColumn",
    "VersionedJoinFunction",
    "WindowColumn",
    "WindowedInputs",
    "WindowedJoinFunction",
    "broadcast_join",
    "interval_join",
    "join",
    "joined_columns",
    "versioned_join",
    "windowed",
]
