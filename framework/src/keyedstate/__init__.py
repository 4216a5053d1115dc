"""keyedstate: Flink's keyed state for PySpark jobs, over a state backend that configuration picks.

``import keyedstate as ks`` has what a job needs, imported at its first use. More public names are in
`keyedstate.types`, `windows`, `aggregates`, `joins`, `sinks`, `savepoints`, `testing` and `errors`; the
authors of plugins have `hooks`, `backend` and `ordered`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from keyedstate.version import __version__ as __version__

if TYPE_CHECKING:
    from keyedstate import aggregates, errors, joins, savepoints, sinks, testing, types, windows
    from keyedstate.errors import KeyedStateError, UserFunctionError, user_function_error
    from keyedstate.runtime import (
        Context,
        KeyedBatch,
        KeyedBroadcastProcessFunction,
        KeyedCoProcessFunction,
        KeyedProcessFunction,
        OnTimerContext,
        TimerBatch,
        VectorizedProcessFunction,
    )
    from keyedstate.spark.dataframe.connected import ConnectedFrame, connect
    from keyedstate.spark.dataframe.frame import KeyedFrame, keyed
    from keyedstate.spark.dataframe.side_outputs import split
    from keyedstate.spark.datasource.registration import register
    from keyedstate.spark.plan.metrics import EpochListener, epoch_metrics, metrics_of
    from keyedstate.state import (
        AggregateFunction,
        AggregatingState,
        BroadcastState,
        FoldingState,
        ListState,
        MapState,
        OperatorListState,
        ReducingState,
        Ttl,
        TtlClock,
        UnionListState,
        UpdateType,
        ValueState,
        Visibility,
    )
    from keyedstate.time import EventTime

__all__ = [
    "AggregateFunction",
    "AggregatingState",
    "BroadcastState",
    "ConnectedFrame",
    "Context",
    "EpochListener",
    "EventTime",
    "FoldingState",
    "KeyedBatch",
    "KeyedBroadcastProcessFunction",
    "KeyedCoProcessFunction",
    "KeyedFrame",
    "KeyedProcessFunction",
    "KeyedStateError",
    "ListState",
    "MapState",
    "OnTimerContext",
    "OperatorListState",
    "ReducingState",
    "TimerBatch",
    "Ttl",
    "TtlClock",
    "UnionListState",
    "UpdateType",
    "UserFunctionError",
    "ValueState",
    "VectorizedProcessFunction",
    "Visibility",
    "WindowedRows",
    "aggregates",
    "connect",
    "epoch_metrics",
    "errors",
    "joins",
    "keyed",
    "metrics_of",
    "register",
    "savepoints",
    "sinks",
    "split",
    "testing",
    "types",
    "user_function_error",
    "window_all",
    "windows",
]

#: The modules of the names; the others are in `keyedstate.state`.
_HOMES = {
    "keyedstate.spark.dataframe.frame": ("KeyedFrame", "keyed"),
    "keyedstate.spark.dataframe.connected": ("ConnectedFrame", "connect"),
    "keyedstate.spark.dataframe.side_outputs": ("split",),
    "keyedstate.spark.dataframe.window_all": ("WindowedRows", "window_all"),
    "keyedstate.spark.datasource.registration": ("register",),
    "keyedstate.spark.plan.metrics": ("EpochListener", "epoch_metrics", "metrics_of"),
    "keyedstate.errors": ("KeyedStateError", "UserFunctionError", "user_function_error"),
    "keyedstate.runtime": (
        "Context",
        "KeyedBatch",
        "KeyedBroadcastProcessFunction",
        "KeyedCoProcessFunction",
        "KeyedProcessFunction",
        "OnTimerContext",
        "TimerBatch",
        "VectorizedProcessFunction",
    ),
    "keyedstate.time": ("EventTime",),
}
_MODULES = ("aggregates", "errors", "joins", "savepoints", "sinks", "testing", "types", "windows")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _MODULES:
        return import_module(f"keyedstate.{name}")
    home = next((module for module, names in _HOMES.items() if name in names), "keyedstate.state")
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
