"""Process functions, what they are given, and the operators that run them over one partition."""

from keyedstate.runtime.functions.connected_inputs import KeyedCoProcessFunction
from keyedstate.runtime.functions.keyed import (
    BroadcastContext,
    Context,
    KeyedBroadcastProcessFunction,
    KeyedFunction,
    KeyedProcessFunction,
    OnTimerContext,
)
from keyedstate.runtime.functions.vectorized import (
    KeyedBatch,
    VectorizedBroadcastProcessFunction,
    VectorizedProcessFunction,
)
from keyedstate.runtime.grouping import GroupedRows
from keyedstate.runtime.timers import KeyTimers, TimeDomain, TimerBatch

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
    "VectorizedBroadcastProcessFunction",
    "VectorizedProcessFunction",
]
