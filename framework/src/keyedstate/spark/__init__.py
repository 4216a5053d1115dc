"""Keyed process functions on Spark DataFrames.

Nothing of this needs Spark before it is used: savepoints are made and forked where Spark is not installed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from keyedstate.spark.frame import KeyedFrame, keyed

#: What imports Spark, and where it is.
_WITH_SPARK = {"KeyedFrame": "keyedstate.spark.frame", "keyed": "keyedstate.spark.frame"}

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


def __getattr__(name: str) -> Any:
    if name not in _WITH_SPARK:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_WITH_SPARK[name]), name)
