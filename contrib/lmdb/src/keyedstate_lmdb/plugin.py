"""The hooks: what keyedstate calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import lmdb

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
from keyedstate.ordered import OrderedTable, WriteBuffer, create_ordered_table, store_of
from keyedstate.tables import FullRestoreOperation, FullSnapshotStrategy
from keyedstate_lmdb.store import MAP_SIZE, LmdbStore


@hookimpl
def keyedstate_describe_backend() -> BackendDescription:
    """Claim what an ordered byte store gives, with copies that another thread may read."""
    return BackendDescription(
        name="lmdb",
        version="0.1.0",
        hook_api=(1, 1),
        summary="An LMDB environment per task: state on disk in a memory-mapped tree.",
        capabilities={
            **dict.fromkeys(Capability, Level.FULL),
            Capability.OBJECTS_BY_REFERENCE: Level.NEVER,
        },
        options=(MAP_SIZE,),
        build=f"lmdb {'.'.join(map(str, lmdb.version()))}",
    )


@hookimpl
def keyedstate_create_state_table(
    meta: StateMeta, context: BackendContext
) -> OrderedTable[Any, Any, Any, Any]:
    """Return an empty table over a new space of the instance's store."""
    space = store_of(context, LmdbStore).open_space(meta.name)
    return create_ordered_table(meta, context.key_groups, context.max_parallelism, WriteBuffer(space))


@hookimpl
def keyedstate_create_snapshot_strategy(context: BackendContext) -> SnapshotStrategy:
    """Return the full snapshot, which reads consistent copies."""
    return FullSnapshotStrategy(context)


@hookimpl
def keyedstate_create_restore_operation(
    handles: Sequence[StateHandle], context: BackendContext
) -> RestoreOperation:
    """Return the full restore."""
    return FullRestoreOperation(handles, context, keyedstate_create_state_table)
