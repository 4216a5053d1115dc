"""The hooks: what keyedstate calls."""

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
from keyedstate.config import integer
from keyedstate.hooks import hookimpl
from keyedstate.tables import FullRestoreOperation, FullSnapshotStrategy
from keyedstate_template.table import TemplateTable

VISITOR_STEP = integer(
    "template.visitor-step",
    1000,
    "Most entries that a visitor shows in one step.",
    low=1,
)


@hookimpl
def keyedstate_describe_backend() -> BackendDescription:
    """Describe the backend and what it can do."""
    return BackendDescription(
        # Equal to the entry point's name in pyproject.toml.
        name="template",
        version=version("keyedstate-template"),
        # The hook versions that this source was written for; raise the second after a test with a newer one.
        hook_api=(1, 1),
        summary="One dict per key group: a backend to copy and change.",
        # The contract kit tests what is claimed here.
        capabilities={
            Capability.STATE_KINDS: Level.FULL,
            Capability.ASYNC_SNAPSHOT: Level.NEVER,
            Capability.RESCALING: Level.FULL,
            Capability.OBJECTS_BY_REFERENCE: Level.FULL,
            Capability.TIMERS_IN_ORDER: Level.NEVER,
            Capability.LARGER_THAN_MEMORY: Level.NEVER,
        },
        options=(VISITOR_STEP,),
    )


@hookimpl
def keyedstate_create_state_table(meta: StateMeta, context: BackendContext) -> TemplateTable[Any, Any, Any]:
    """Return an empty table for one state; objects that tables share belong in ``context.resources``."""
    return TemplateTable(meta, context.key_groups, context.options[VISITOR_STEP.name])


@hookimpl
def keyedstate_create_snapshot_strategy(context: BackendContext) -> SnapshotStrategy:
    """Return the full snapshot, which needs `TemplateTable.snapshot` only."""
    return FullSnapshotStrategy(context)


@hookimpl
def keyedstate_create_restore_operation(
    handles: Sequence[StateHandle], context: BackendContext
) -> RestoreOperation:
    """Return the full restore, which needs `TemplateTable.restore_entries` only."""
    return FullRestoreOperation(handles, context, keyedstate_create_state_table)
