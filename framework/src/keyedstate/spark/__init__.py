"""Keyed process functions on Spark DataFrames.

Nothing of this needs Spark before it is used: savepoints are made and forked where Spark is not installed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from keyedstate.spark.errors import (
    BootstrapError,
    BroadcastFrameError,
    ClassicSparkRequiredError,
    ConnectedFramesError,
    DataSourceUnavailableError,
    DuplicateUidError,
    FunctionTransportError,
    HeartbeatError,
    KeyColumnError,
    KeyColumnsReorderedError,
    KeyedFrameError,
    MetricReporterError,
    MisroutedRowsError,
    MissingKeyColumnError,
    MissingUidError,
    OutputDeclarationError,
    PreflightError,
    SideOutputError,
    StateFrameError,
    TaskContextError,
)

if TYPE_CHECKING:
    from keyedstate.spark.connected import ConnectedFrame, connect
    from keyedstate.spark.editing import SavepointEdit, edit, new_savepoint
    from keyedstate.spark.exactly_once import ExactlyOnceWarning
    from keyedstate.spark.frame import KeyedFrame, keyed
    from keyedstate.spark.metrics import EpochListener, epoch_metrics, metrics_of
    from keyedstate.spark.registration import register
    from keyedstate.spark.savepoint import create_savepoint, fork_savepoint
    from keyedstate.spark.side_outputs import SplitOutputs, split
    from keyedstate.spark.stopping import stop_with_savepoint

#: What is imported when it is asked for, and where it is.
_WITH_SPARK = {
    "ConnectedFrame": "keyedstate.spark.connected",
    "EpochListener": "keyedstate.spark.metrics",
    "ExactlyOnceWarning": "keyedstate.spark.exactly_once",
    "KeyedFrame": "keyedstate.spark.frame",
    "SavepointEdit": "keyedstate.spark.editing",
    "SplitOutputs": "keyedstate.spark.side_outputs",
    "connect": "keyedstate.spark.connected",
    "create_savepoint": "keyedstate.spark.savepoint",
    "edit": "keyedstate.spark.editing",
    "epoch_metrics": "keyedstate.spark.metrics",
    "fork_savepoint": "keyedstate.spark.savepoint",
    "keyed": "keyedstate.spark.frame",
    "metrics_of": "keyedstate.spark.metrics",
    "new_savepoint": "keyedstate.spark.editing",
    "register": "keyedstate.spark.registration",
    "split": "keyedstate.spark.side_outputs",
    "stop_with_savepoint": "keyedstate.spark.stopping",
}

__all__ = [
    "BootstrapError",
    "BroadcastFrameError",
    "ClassicSparkRequiredError",
    "ConnectedFrame",
    "ConnectedFramesError",
    "DataSourceUnavailableError",
    "DuplicateUidError",
    "EpochListener",
    "ExactlyOnceWarning",
    "FunctionTransportError",
    "HeartbeatError",
    "KeyColumnError",
    "KeyColumnsReorderedError",
    "KeyedFrame",
    "KeyedFrameError",
    "MetricReporterError",
    "MisroutedRowsError",
    "MissingKeyColumnError",
    "MissingUidError",
    "OutputDeclarationError",
    "PreflightError",
    "SavepointEdit",
    "SideOutputError",
    "SplitOutputs",
    "StateFrameError",
    "TaskContextError",
    "connect",
    "create_savepoint",
    "edit",
    "epoch_metrics",
    "fork_savepoint",
    "keyed",
    "metrics_of",
    "new_savepoint",
    "register",
    "split",
    "stop_with_savepoint",
]


def __getattr__(name: str) -> Any:
    if name not in _WITH_SPARK:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_WITH_SPARK[name]), name)
