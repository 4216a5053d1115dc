"""The hooks of the backend ``heap-cow``."""

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
from keyedstate.config import choice
from keyedstate.hooks import hookimpl
from keyedstate.tables import FullRestoreOperation, FullSnapshotStrategy
from keyedstate_heap_cow import COLUMNS, CopyOnWriteTable
from keyedstate_heap_cow.compiled_form import build, build_problem

if COLUMNS:
    from keyedstate_heap_cow import CopyOnWriteColumns, fits

COMPILED = choice(
    "heap-cow.compiled",
    "auto",
    ("auto", "never"),
    "Whether to use the compiled map where installation compiled it; the plain Python one does the same, "
    "several times slower.",
)


@hookimpl
def keyedstate_describe_backend() -> BackendDescription:
    """Claim what copy-on-write maps can do: everything in memory, and asynchronous snapshots."""
    return BackendDescription(
        name="heap-cow",
        version=version("keyedstate-heap-cow"),
        # Constants, not the kernel's: the versions that this source was written for.
        hook_api=(1, 1),
        summary="Copy-on-write hash maps in memory; a snapshot is written while the task continues.",
        build=build(),
        build_problem=build_problem(),
        capabilities={
            Capability.STATE_KINDS: Level.FULL,
            Capability.ASYNC_SNAPSHOT: Level.FULL,
            Capability.RESCALING: Level.FULL,
            Capability.OBJECTS_BY_REFERENCE: Level.FULL,
            Capability.TIMERS_IN_ORDER: Level.NEVER,
            Capability.LARGER_THAN_MEMORY: Level.NEVER,
        },
        options=(COMPILED,),
    )


@hookimpl
def keyedstate_create_state_table(
    meta: StateMeta, context: BackendContext
) -> CopyOnWriteTable[Any, Any, Any] | CopyOnWriteColumns[Any, Any, Any]:
    """Return an empty table: of columns where all parts of a value are numbers."""
    compiled = context.options[COMPILED.name] != "never"
    if COLUMNS and compiled and fits(meta):
        return CopyOnWriteColumns(meta, context.key_groups)
    return CopyOnWriteTable(meta, context.key_groups, compiled=compiled)


@hookimpl
def keyedstate_create_snapshot_strategy(context: BackendContext) -> SnapshotStrategy:
    """Return the contract's full snapshot; another thread may write it."""
    return FullSnapshotStrategy(context)


@hookimpl
def keyedstate_create_restore_operation(
    handles: Sequence[StateHandle], context: BackendContext
) -> RestoreOperation:
    """Return the contract's full restore, which puts entries into the tables of this plugin."""
    return FullRestoreOperation(handles, context, keyedstate_create_state_table)
