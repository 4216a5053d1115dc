"""Running a process function over one partition, without knowing Spark."""

from keyedstate.runtime.function import (
    BroadcastContext,
    Context,
    KeyedBroadcastProcessFunction,
    KeyedFunction,
    KeyedProcessFunction,
    OnTimerContext,
)
from keyedstate.runtime.function_checks import check_function, check_row_classes
from keyedstate.runtime.grouping import GroupedRows, key_serializer_for
from keyedstate.runtime.timers import AtEnd, KeyTimers, TimeDomain, TimerBatch
from keyedstate.runtime.two_inputs import (
    ConnectedInput,
    ConnectedInputs,
    KeyedCoProcessFunction,
    check_inputs,
)
from keyedstate.runtime.vectorized import KeyedBatch, VectorizedProcessFunction

__all__ = [
    "AtEnd",
    "BroadcastContext",
    "ConnectedInput",
    "ConnectedInputs",
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
    "check_function",
    "check_inputs",
    "check_row_classes",
    "key_serializer_for",
]
