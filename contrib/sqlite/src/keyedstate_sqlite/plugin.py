"""The hooks: what keyedstate calls."""

from __future__ import annotations

import sqlite3
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
from keyedstate.config import integer
from keyedstate.hooks import hookimpl
from keyedstate.ordered import OrderedTable, WriteBuffer, create_ordered_table, store_of
from keyedstate.tables import FullRestoreOperation, FullSnapshotStrategy
from keyedstate_sqlite.store import SqliteStore

BATCH_ROWS = integer(
    "sqlite.batch-rows",
    500,
    "Rows that are written in one transaction; until then they are in memory.",
    low=1,
)


@hookimpl
def keyedstate_describe_backend() -> BackendDescription:
    """Claim what an ordered byte store gives, with copies that another thread may read."""
    return BackendDescription(
        name="sqlite",
        version=version("keyedstate-sqlite"),
        hook_api=(1, 1),
        summary="A SQLite database per task: state larger than memory with nothing to install.",
        capabilities={
            Capability.STATE_KINDS: Level.FULL,
            Capability.ASYNC_SNAPSHOT: Level.FULL,
            Capability.RESCALING: Level.FULL,
            Capability.OBJECTS_BY_REFERENCE: Level.NEVER,
            Capability.TIMERS_IN_ORDER: Level.FULL,
            Capability.LARGER_THAN_MEMORY: Level.FULL,
        },
        options=(BATCH_ROWS,),
        build=f"sqlite {sqlite3.sqlite_version}",
    )


@hookimpl
def keyedstate_create_state_table(
    meta: StateMeta, context: BackendContext
) -> OrderedTable[Any, Any, Any, Any]:
    """Return an empty table over a new space of the instance's store."""
    space = store_of(context, SqliteStore).open_space(meta.name)
    buffer = WriteBuffer(space, rows=context.options[BATCH_ROWS.name])
    return create_ordered_table(meta, context.key_groups, context.max_parallelism, buffer)


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
