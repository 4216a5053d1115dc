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
from keyedstate.runtime.grouping import GroupedRows
from keyedstate.runtime.runners.connected import (
    ConnectedInput,
    ConnectedInputs,
    KeyedCoProcessFunction,
    check_inputs,
)
from keyedstate.runtime.runners.operator import KeyedOperator, key_serializer_for
from keyedstate.runtime.runners.vectorized import KeyedBatch, VectorizedProcessFunction
from keyedstate.runtime.timers import AtEnd, KeyTimers, TimeDomain, TimerBatch

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
    "KeyedOperator",
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
