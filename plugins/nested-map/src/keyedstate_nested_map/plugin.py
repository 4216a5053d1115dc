"""The hooks of the backend ``nested-map``."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from keyedstate.backend import (
    BackendContext,
    BackendDescription,
    Capability,
    Level,
    RestoreOperation,
    SnapshotStrategy,
    StateHandle,
    StateMeta,
)
from keyedstate.hooks import hookimpl
from keyedstate.tables import FullRestoreOperation, FullSnapshotStrategy
from keyedstate_nested_map.table import NestedMapTable


@hookimpl
def keyedstate_describe_backend() -> BackendDescription:
    """Claim what plain dicts can do: everything in memory, and snapshots that pause the task."""
    return BackendDescription(
        name="nested-map",
        version=version("keyedstate-nested-map"),
        # Constants, not the kernel's: the versions that this source was written for.
        hook_api=(1, 1),
        summary="Plain nested dicts in memory; a snapshot pauses the task while it is written.",
        capabilities={
            Capability.STATE_KINDS: Level.FULL,
            Capability.ASYNC_SNAPSHOT: Level.NEVER,
            Capability.RESCALING: Level.FULL,
            Capability.OBJECTS_BY_REFERENCE: Level.FULL,
            Capability.TIMERS_IN_ORDER: Level.NEVER,
            Capability.LARGER_THAN_MEMORY: Level.NEVER,
        },
    )


@hookimpl
def keyedstate_create_state_table(meta: StateMeta, context: BackendContext) -> NestedMapTable[Any, Any, Any]:
    """Return an empty table."""
    return NestedMapTable(meta, context.key_groups)


@hookimpl
def keyedstate_create_snapshot_strategy(context: BackendContext) -> SnapshotStrategy:
    """Return the contract's full snapshot; the owner waits until it is written."""
    return FullSnapshotStrategy(context)


@hookimpl
def keyedstate_create_restore_operation(
    handles: Sequence[StateHandle], context: BackendContext
) -> RestoreOperation:
    """Return the contract's full restore, which puts entries into the tables of this plugin."""
    return FullRestoreOperation(handles, context, keyedstate_create_state_table)
