"""Keyed process functions on Spark DataFrames."""

from keyedstate.spark.errors import (
    BroadcastFrameError,
    ClassicSparkRequiredError,
    DuplicateUidError,
    FunctionTransportError,
    KeyColumnError,
    KeyColumnsReorderedError,
    KeyedFrameError,
    MisroutedRowsError,
    MissingKeyColumnError,
    MissingUidError,
    OutputDeclarationError,
    PreflightError,
    TaskContextError,
)
from keyedstate.spark.frame import KeyedFrame, keyed

__all__ = [
    "BroadcastFrameError",
    "ClassicSparkRequiredError",
    "DuplicateUidError",
    "FunctionTransportError",
    "KeyColumnError",
    "KeyColumnsReorderedError",
    "KeyedFrame",
    "KeyedFrameError",
    "MisroutedRowsError",
    "MissingKeyColumnError",
    "MissingUidError",
    "OutputDeclarationError",
    "PreflightError",
    "TaskContextError",
    "keyed",
]
