"""The hook specifications: everything that the framework asks of a plugin.

A plugin is a module whose functions carry `hookimpl`.  Backends are found through the entry-point group
``keyedstate.backends``, where the entry point's name is the backend's name; other plugins through the group
``keyedstate.plugins``.  Hooks run when something is created or completed, never per record.

The hooks with ``firstresult`` belong to a backend: the framework calls those of the chosen backend alone.
Every other hook is called in all plugins, backends or not.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import pluggy
from pyarrow.fs import FileSystem

from keyedstate.backend import (
    AnyStateTable,
    BackendContext,
    BackendDescription,
    RestoreOperation,
    SnapshotStrategy,
    SpillManager,
    StateHandle,
    StateMeta,
)
from keyedstate.metrics import EpochMetrics
from keyedstate.types import TypeSerializer

PROJECT = "keyedstate"
ENTRY_POINT_GROUP = "keyedstate.backends"
#: The entry points of plugins that are no backends.
PLUGIN_GROUP = "keyedstate.plugins"
#: The hook API versions that this kernel calls, oldest and newest; a change that breaks a plugin raises both.
HOOK_API = (1, 1)

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec(firstresult=True)
def keyedstate_describe_backend() -> BackendDescription:
    """Return the backend's name, version, hook API range, capabilities and options. Required."""
    raise NotImplementedError


@hookspec(firstresult=True)
def keyedstate_create_state_table(meta: StateMeta, context: BackendContext) -> AnyStateTable:
    """Return an empty table for one registered state over the context's key groups. Required."""
    raise NotImplementedError


@hookspec(firstresult=True)
def keyedstate_create_snapshot_strategy(context: BackendContext) -> SnapshotStrategy:
    """Return how snapshots of this instance are taken. Required."""
    raise NotImplementedError


@hookspec(firstresult=True)
def keyedstate_create_restore_operation(
    handles: Sequence[StateHandle], context: BackendContext
) -> RestoreOperation:
    """Return the operation that restores state from handles; no handle means an empty start. Required."""
    raise NotImplementedError


@hookspec(firstresult=True)
def keyedstate_create_spill_manager(context: BackendContext) -> SpillManager | None:
    """Return what moves key groups between memory and disk, or None. Optional."""


@hookspec
def keyedstate_serializers() -> Mapping[str, Callable[[Mapping[str, Any]], TypeSerializer[Any]]]:
    """Return serializer types by name, each with a factory from its JSON snapshot.

    Called in each process that loads the plugin, before a type is refused as unknown. Optional.
    """
    raise NotImplementedError


@hookspec
def keyedstate_checkpoint_completed(uid: str, epoch: int, location: str, data_files: Collection[str]) -> None:
    """Called on the driver when the checkpoint of an operator's epoch was published, with its data files.

    The paths are relative to `location`, the URI of the operator's folder. The call is made in the
    background, once for each publication: a second evaluation of a micro-batch publishes other files under
    the same epoch. An error raised here is logged and otherwise ignored. Optional.
    """
    raise NotImplementedError


@hookspec
def keyedstate_checkpoint_aborted(uid: str, epoch: int, reason: str) -> None:
    """Called on the driver when the checkpoint of an epoch was aborted, with the reason.

    The epoch may still be completed: where Spark has committed it, tasks of the next epoch publish it. So
    delete nothing; the clean-up knows which files are still needed. Optional.
    """
    raise NotImplementedError


@hookspec
def keyedstate_checkpoint_subsumed(uid: str, epoch: int) -> None:
    """Called on the driver when a checkpoint was deleted because enough newer ones exist. Optional."""


@hookspec
def keyedstate_checkpoint_storage(uri: str, options: Mapping[str, str]) -> tuple[FileSystem, str] | None:
    """Return the file system for a URI and the path in it that the URI names; None for another scheme.

    Called for every URI, ``file:`` too, on the driver and in tasks, before pyarrow's own file systems.  A
    path that is appended to the URI, before its ``?``, must be appended to the path in the file system.
    `options` is the value of the option ``storage.options``.  Optional.
    """


@hookspec
def keyedstate_metric_reporter(options: Mapping[str, str]) -> Callable[[EpochMetrics], None] | None:
    """Return a function that takes the metrics of each epoch; None where `options` ask for nothing.

    Called on the driver when an operator of a streaming query is built.  A background thread of each operator
    calls the function in the order of its epochs, and once for an epoch that a run of the query evaluates
    repeatedly.  An error that it raises is logged and otherwise ignored.  `options` is the value of the
    option ``metrics.options``.  Optional.
    """
