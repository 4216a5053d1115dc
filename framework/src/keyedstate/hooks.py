"""The hook specifications: everything that a plugin can be asked for, on one screen.

A plugin is a module whose functions carry `hookimpl`.  Backends are found through the entry-point group
``keyedstate.backends``, where the entry point's name is the backend's name; other plugins through the group
``keyedstate.plugins``.  Hooks run when something is created or completed, never per record.

The hooks with ``firstresult`` are those of a backend: they are called of the chosen one alone, so that none
of them has to ask whether it is meant.  Every other hook is called of all plugins, backends or not.
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
#: Entry points of plugins that are no backends.
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
    """Return the operation that brings state back from handles; no handle means an empty start. Required."""
    raise NotImplementedError


@hookspec(firstresult=True)
def keyedstate_create_spill_manager(context: BackendContext) -> SpillManager | None:
    """Return who moves key groups between memory and disk, or None. Optional."""


@hookspec
def keyedstate_serializers() -> Mapping[str, Callable[[Mapping[str, Any]], TypeSerializer[Any]]]:
    """Return serializer types by name, each with a factory from its JSON snapshot.

    Called in each process that loads the plugin, at the latest before a type is refused as unknown. Optional.
    """
    raise NotImplementedError


@hookspec
def keyedstate_checkpoint_completed(uid: str, epoch: int, location: str, data_files: Collection[str]) -> None:
    """Called on the driver when the checkpoint of an operator's epoch was published, with its data files.

    The paths are relative to `location`, the URI of the operator's folder. The call comes in the background,
    and once for each publication: a second evaluation of a micro-batch publishes other files under the same
    epoch. An error raised here is logged and does no harm. Optional.
    """
    raise NotImplementedError


@hookspec
def keyedstate_checkpoint_aborted(uid: str, epoch: int, reason: str) -> None:
    """Called on the driver when the checkpoint of an epoch was aborted, with the reason.

    Build nothing on it, and delete nothing either: clean-up knows what still needs its files. Where Spark
    has committed the epoch all the same, tasks of the next one publish it, and its completion follows.
    Optional.
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
    `options` is what the option ``storage.options`` holds.  Optional.
    """


@hookspec
def keyedstate_metric_reporter(options: Mapping[str, str]) -> Callable[[EpochMetrics], None] | None:
    """Return a function that takes the metrics of each epoch; None where `options` ask for nothing.

    Called on the driver when an operator of a streaming query is built.  The function is called in the
    background, by a thread of each operator in the order of its epochs, and once for an epoch that a run of
    the query evaluates more than once; an error that it raises is logged and does no harm.  `options` is
    what the option ``metrics.options`` holds.  Optional.
    """
