"""The hooks of the backend ``spillable``."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from keyedstate.backend import (
    AnyStateTable,
    BackendContext,
    BackendDescription,
    Capability,
    Level,
    RestoreOperation,
    SnapshotStrategy,
    SpillManager,
    StateHandle,
    StateMeta,
    holds_timers,
)
from keyedstate.hooks import hookimpl
from keyedstate.ordered import WriteBuffer, create_ordered_table, store_of
from keyedstate.tables import FullRestoreOperation, FullSnapshotStrategy
from keyedstate_heap_cow import COLUMNS
from keyedstate_spillable.manager import manager_of
from keyedstate_spillable.objects.table import TieredTable
from keyedstate_spillable.options import BACKEND, OPTIONS, SAMPLES
from keyedstate_spillable.sizes import EntrySizes
from keyedstate_spillable.store.database import open_space, open_store

if COLUMNS:
    from keyedstate_heap_cow import fits
    from keyedstate_spillable.columns.table import TieredColumns


@hookimpl
def keyedstate_describe_backend() -> BackendDescription:
    """Claim what two tiers can do; an entry that comes back from disk is another object."""
    return BackendDescription(
        name=BACKEND,
        version=version("keyedstate-spillable"),
        # Constants, not the kernel's: the versions that this source was written for.
        hook_api=(1, 1),
        summary="Objects in memory up to a budget, and the entries that are rarely used on disk.",
        capabilities={
            Capability.STATE_KINDS: Level.FULL,
            Capability.ASYNC_SNAPSHOT: Level.FULL,
            Capability.RESCALING: Level.FULL,
            Capability.OBJECTS_BY_REFERENCE: Level.NEVER,
            Capability.TIMERS_IN_ORDER: Level.FULL,
            Capability.LARGER_THAN_MEMORY: Level.FULL,
        },
        options=OPTIONS,
    )


@hookimpl
def keyedstate_create_state_table(meta: StateMeta, context: BackendContext) -> AnyStateTable:
    """Return an empty table of two tiers; timers are on disk, in the order of time."""
    if holds_timers(meta):
        store = store_of(context, open_store)
        buffer = WriteBuffer(store.open_space(meta.name))
        return create_ordered_table(meta, context.key_groups, context.max_parallelism, buffer, store.objects)
    return _create_tiered_table(meta, context)


def _create_tiered_table(
    meta: StateMeta, context: BackendContext
) -> TieredTable[Any, Any, Any] | TieredColumns[Any, Any, Any]:
    """Return an empty table of columns where heap-cow would, else one of objects."""
    if COLUMNS and fits(meta):
        return TieredColumns(
            meta,
            context.key_groups,
            lambda: open_space(meta, context),
            lambda other: _create_tiered_table(other, context),
        )
    sizes = EntrySizes(context.options[SAMPLES.name])
    return TieredTable(
        meta,
        context.key_groups,
        context.max_parallelism,
        lambda: open_space(meta, context),
        lambda table: sizes.measure(table.maps, compiled=table.module.COMPILED),
    )


@hookimpl
def keyedstate_create_spill_manager(context: BackendContext) -> SpillManager:
    """Return the manager that carries out what the chosen policy decides."""
    return manager_of(context)


@hookimpl
def keyedstate_create_snapshot_strategy(context: BackendContext) -> SnapshotStrategy:
    """Return the contract's full snapshot; another thread may write it."""
    return FullSnapshotStrategy(context)


@hookimpl
def keyedstate_create_restore_operation(
    handles: Sequence[StateHandle], context: BackendContext
) -> RestoreOperation:
    """Return the contract's full restore, which spills entries where memory is short."""
    manager = manager_of(context)
    return FullRestoreOperation(
        handles,
        context,
        keyedstate_create_state_table,
        lambda tables: manager.balance(tables, lambda: 0),
    )
