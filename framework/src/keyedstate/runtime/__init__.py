"""Running a process function over one partition, without knowing Spark."""

from keyedstate.runtime.errors import InvalidFunctionError, ProcessFunctionError
from keyedstate.runtime.function import (
    BroadcastContext,
    Context,
    KeyedBroadcastProcessFunction,
    KeyedFunction,
    KeyedProcessFunction,
    OnTimerContext,
    check_function,
)
from keyedstate.runtime.grouping import GroupedRows
from keyedstate.runtime.operator import KeyedOperator, key_serializer_for
from keyedstate.runtime.timers import AtEnd, KeyTimers, TimeDomain, TimerBatch
from keyedstate.runtime.vectorized import KeyedBatch, VectorizedProcessFunction

__all__ = [
    "AtEnd",
    "BroadcastContext",
    "Context",
    "GroupedRows",
    "InvalidFunctionError",
    "KeyTimers",
    "KeyedBatch",
    "KeyedBroadcastProcessFunction",
    "KeyedFunction",
    "KeyedOperator",
    "KeyedProcessFunction",
    "OnTimerContext",
    "ProcessFunctionError",
    "TimeDomain",
    "TimerBatch",
    "VectorizedProcessFunction",
    "check_function",
    "key_serializer_for",
]
