"""Running a process function over one partition, without knowing Spark."""

from keyedstate.runtime.errors import InvalidFunctionError, ProcessFunctionError
from keyedstate.runtime.function import (
    BroadcastContext,
    Context,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    check_function,
)
from keyedstate.runtime.operator import KeyedOperator, key_serializer_for

__all__ = [
    "BroadcastContext",
    "Context",
    "InvalidFunctionError",
    "KeyedBroadcastProcessFunction",
    "KeyedOperator",
    "KeyedProcessFunction",
    "ProcessFunctionError",
    "check_function",
    "key_serializer_for",
]
