"""The backend spillable as ``restless``: before each access of a table some entries move."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps
from random import Random
from typing import Any

from keyedstate.backend import (
    AnyStateTable,
    BackendContext,
    BackendDescription,
    Capability,
    Level,
    RestoreOperation,
    SpillableTable,
    StateHandle,
    StateMeta,
    holds_timers,
)
from keyedstate.hooks import hookimpl
from keyedstate.tables import FullRestoreOperation
from keyedstate_spillable import plugin as spillable
from keyedstate_spillable.columns.table import TieredColumns
from keyedstate_spillable.objects.table import TieredTable

_ACCESSES = (
    "get",
    "get_for_update",
    "contains",
    "put",
    "put_and_get_old",
    "remove",
    "remove_and_get_old",
    "transform",
    "__len__",
    "keys",
    "visitor",
    "snapshot",
    "begin_epoch",
    "changes_since",
    "forget_changes",
    "restore_entries",
    "get_many",
    "get_many_for_update",
    "put_many",
    "remove_many",
    "replace_meta",
    "rewrite",
    "drop_expired",
    "locate",
)


def _restless(method: Any) -> Callable[..., Any]:
    @wraps(method)
    def moved_before(table: Moving, *args: Any, **named: Any) -> Any:
        table.move()
        return method(table, *args, **named)

    return moved_before


class Moving(SpillableTable):
    """A table whose entries move."""

    random: Random

    def move(self) -> None:
        """Spill or load a few entries, as seeded chance will have it."""
        random = self.__dict__.setdefault("random", Random(0))
        limit = random.choice((1, 3, 1000))
        match random.randrange(4):
            case 0:
                self.spill_coldest(limit)
            case 1:
                for group in self.spillable_groups():
                    self.spill(group.key_group, limit)
            case 2:
                for group in self.spillable_groups():
                    self.load(group.key_group, limit)


class RestlessTable(TieredTable[Any, Any, Any], Moving):
    """A table of objects whose entries move before each access."""


class RestlessColumns(TieredColumns[Any, Any, Any], Moving):
    """A table of columns whose entries move before each access, and get other numbers after a few moves."""

    few_unused = 4
    renumbered_together = 3

    def successor(self) -> Any:
        """Return a table that moves, too."""
        return restless(super().successor())


for _name in _ACCESSES:
    for _table in (RestlessTable, RestlessColumns):
        if hasattr(_table, _name):
            setattr(_table, _name, _restless(getattr(_table, _name)))


def restless(table: Any) -> Any:
    """Let the entries of a table move."""
    if isinstance(table, TieredColumns):
        table.__class__, table._most_gone = RestlessColumns, RestlessColumns.few_unused
    else:
        table.__class__ = RestlessTable
    return table


@hookimpl
def keyedstate_describe_backend() -> BackendDescription:
    description = spillable.keyedstate_describe_backend()
    # Chance moves its entries, whatever memory there is.
    capabilities = {**description.capabilities, Capability.LARGER_THAN_MEMORY: Level.NEVER}
    return replace(description, name="restless", options=(), capabilities=capabilities)


@hookimpl
def keyedstate_create_state_table(meta: StateMeta, context: BackendContext) -> AnyStateTable:
    context = replace_options(context)
    table = spillable.keyedstate_create_state_table(meta, context)
    return table if holds_timers(meta) else restless(table)


def replace_options(context: BackendContext) -> BackendContext:
    """Give the context of the other name the options of spillable."""
    if "spillable.disk-memory" not in context.options:
        options = {option.name: option.default for option in spillable.keyedstate_describe_backend().options}
        object.__setattr__(context, "options", options)
    return context


keyedstate_create_snapshot_strategy = spillable.keyedstate_create_snapshot_strategy


@hookimpl
def keyedstate_create_restore_operation(
    handles: Sequence[StateHandle], context: BackendContext
) -> RestoreOperation:
    return FullRestoreOperation(handles, context, keyedstate_create_state_table)
