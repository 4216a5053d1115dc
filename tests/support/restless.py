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
    RestoreOperation,
    StateHandle,
    StateMeta,
    holds_timers,
)
from keyedstate.hooks import hookimpl
from keyedstate.tables import FullRestoreOperation
from keyedstate_spillable import plugin as spillable
from keyedstate_spillable.plugin import TieredTable

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
)


def _restless(name: str) -> Callable[..., Any]:
    method = getattr(TieredTable, name)

    @wraps(method)
    def moved_before(table: RestlessTable, *args: Any, **named: Any) -> Any:
        table.move()
        return method(table, *args, **named)

    return moved_before


class RestlessTable(TieredTable[Any, Any, Any]):
    """A table whose entries move before each access."""

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


for _name in _ACCESSES:
    setattr(RestlessTable, _name, _restless(_name))


@hookimpl
def keyedstate_describe_backend() -> BackendDescription:
    return replace(spillable.keyedstate_describe_backend(), name="restless", options=())


@hookimpl
def keyedstate_create_state_table(meta: StateMeta, context: BackendContext) -> AnyStateTable:
    context = replace_options(context)
    table = spillable.keyedstate_create_state_table(meta, context)
    if not holds_timers(meta):
        table.__class__ = RestlessTable
    return table


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
