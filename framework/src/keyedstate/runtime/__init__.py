"""Process functions, what they are given, and the operators that run them over one partition."""

from keyedstate.runtime.function import (
    BroadcastContext,
    Context,
    KeyedBroadcastProcessFunction,
    KeyedFunction,
    KeyedProcessFunction,
    OnTimerContext,
)
from keyedstate.runtime.grouping import GroupedRows
from keyedstate.runtime.timers import KeyTimers, TimeDomain, TimerBatch
from keyedstate.runtime.two_inputs import KeyedCoProcessFunction
from keyedstate.runtime.vectorized import KeyedBatch, VectorizedProcessFunction

__all__ = [
    "BroadcastContext",
    "Context",
    "GroupedRows",
    "KeyTimers",
    "KeyedBatch",
    "KeyedBroadcastProcessFunction",
    "KeyedCoProcessFunction",
    "KeyedFunction",
    "KeyedProcessFunction",
    "OnTimerContext",
    "TimeDomain",
    "TimerBatch",
    "VectorizedProcessFunction",
]
