"""Keyed process functions on Spark DataFrames.

Nothing of this needs Spark before it is used: savepoints are made and forked where Spark is not installed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keyedstate.spark.dataframe.connected import ConnectedFrame, connect
    from keyedstate.spark.dataframe.frame import KeyedFrame, keyed
    from keyedstate.spark.dataframe.side_outputs import SplitOutputs, split
    from keyedstate.spark.datasource.registration import register
    from keyedstate.spark.plan.metrics import EpochListener, epoch_metrics, metrics_of
    from keyedstate.spark.savepoint.edit import SavepointEdit, edit, new_savepoint
    from keyedstate.spark.savepoint.savepoint import create_savepoint, fork_savepoint
    from keyedstate.spark.savepoint.stop import stop_with_savepoint

#: What is imported when it is asked for, and where it is.
_WITH_SPARK = {
    "ConnectedFrame": "keyedstate.spark.dataframe.connected",
    "EpochListener": "keyedstate.spark.plan.metrics",
    "KeyedFrame": "keyedstate.spark.dataframe.frame",
    "SavepointEdit": "keyedstate.spark.savepoint.edit",
    "SplitOutputs": "keyedstate.spark.dataframe.side_outputs",
    "connect": "keyedstate.spark.dataframe.connected",
    "create_savepoint": "keyedstate.spark.savepoint.savepoint",
    "edit": "keyedstate.spark.savepoint.edit",
    "epoch_metrics": "keyedstate.spark.plan.metrics",
    "fork_savepoint": "keyedstate.spark.savepoint.savepoint",
    "keyed": "keyedstate.spark.dataframe.frame",
    "metrics_of": "keyedstate.spark.plan.metrics",
    "new_savepoint": "keyedstate.spark.savepoint.edit",
    "register": "keyedstate.spark.datasource.registration",
    "split": "keyedstate.spark.dataframe.side_outputs",
    "stop_with_savepoint": "keyedstate.spark.savepoint.stop",
}

__all__ = [
    "ConnectedFrame",
    "EpochListener",
    "KeyedFrame",
    "SavepointEdit",
    "SplitOutputs",
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
