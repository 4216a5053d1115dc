"""The hooks of the backend ``rocksdb``."""

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
from keyedstate.ordered import OrderedTable, WriteBuffer, create_ordered_table, store_of
from keyedstate_rocksdb.options import BACKEND, BATCH_BYTES, BATCH_ENTRIES, OPTIONS, SWEEP
from keyedstate_rocksdb.restore import RocksRestoreOperation
from keyedstate_rocksdb.snapshot import RocksSnapshotStrategy
from keyedstate_rocksdb.store import RocksStore


@hookimpl
def keyedstate_describe_backend() -> BackendDescription:
    """Claim what RocksDB can do; a value that is read is never the object that was written."""
    return BackendDescription(
        name=BACKEND,
        version=version("keyedstate-rocksdb"),
        # Constants, not the kernel's: the versions that this source was written for.
        hook_api=(1, 1),
        summary="A RocksDB database per task: state larger than memory, snapshots in the background.",
        capabilities={
            Capability.STATE_KINDS: Level.FULL,
            Capability.ASYNC_SNAPSHOT: Level.FULL,
            Capability.RESCALING: Level.FULL,
            Capability.OBJECTS_BY_REFERENCE: Level.NEVER,
            Capability.TIMERS_IN_ORDER: Level.FULL,
            Capability.LARGER_THAN_MEMORY: Level.FULL,
        },
        options=OPTIONS,
        build=f"rocksdict {version('rocksdict')}",
    )


@hookimpl
def keyedstate_create_state_table(
    meta: StateMeta, context: BackendContext
) -> OrderedTable[Any, Any, Any, Any]:
    """Return an empty table over a new column family."""
    store = store_of(context, RocksStore)
    space = store.open_space(meta.name)
    buffer = WriteBuffer(space, context.options[BATCH_ENTRIES.name], context.options[BATCH_BYTES.name])
    table = create_ordered_table(meta, context.key_groups, context.max_parallelism, buffer, store.objects)
    table.sweep_entries = context.options[SWEEP.name]
    return table


@hookimpl
def keyedstate_create_snapshot_strategy(context: BackendContext) -> SnapshotStrategy:
    """Return the strategy of canonical snapshots and, where the user wants them, native ones."""
    return RocksSnapshotStrategy(context)


@hookimpl
def keyedstate_create_restore_operation(
    handles: Sequence[StateHandle], context: BackendContext
) -> RestoreOperation:
    """Return the restore of canonical and native handles."""
    return RocksRestoreOperation(handles, context, keyedstate_create_state_table)
