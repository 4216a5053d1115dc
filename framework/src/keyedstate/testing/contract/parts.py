"""The interfaces that the tables of a backend may implement besides `StateTable`."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from pathlib import Path

from keyedstate import types
from keyedstate.backend import (
    ChangeTracking,
    ColumnTable,
    ExpiryCleanup,
    SpillableTable,
    StateKind,
    StateMeta,
)
from keyedstate.keygroups import KeyGroupRange
from keyedstate.testing.instances import open_instance

#: A state whose table may be one of columns, and one whose table is none.
_STATES = [
    StateMeta(
        name=name,
        kind=StateKind.VALUE,
        key_serializer=types.nullable(types.STRING),
        namespace_serializer=types.INT64,
        value_serializer=value,
    )
    for name, value in (
        ("numbers", types.accumulators_of({"count": types.nullable(types.INT64)})),
        ("texts", types.STRING),
    )
]


class TablePart(enum.Enum):
    """One interface that a table may implement."""

    CHANGE_TRACKING = "change tracking"
    COLUMNS = "values in columns"
    EXPIRY_CLEANUP = "expiry clean-up"
    SPILLING = "entries that move to disk"

    @property
    def interface(self) -> type:
        """The abstract class."""
        return _INTERFACES[self]

    def is_in(self, backend: str, options: Mapping[str, object], folder: Path) -> bool:
        """Return whether some tables of an installed backend, opened below a folder, implement it."""
        instance = open_instance(
            backend, folder, options=options, key_groups=KeyGroupRange(0, 1), max_parallelism=2
        )
        try:
            return any(isinstance(instance.table(meta), self.interface) for meta in _STATES)
        finally:
            instance.close()


_INTERFACES: dict[TablePart, type] = {
    TablePart.CHANGE_TRACKING: ChangeTracking,
    TablePart.COLUMNS: ColumnTable,
    TablePart.EXPIRY_CLEANUP: ExpiryCleanup,
    TablePart.SPILLING: SpillableTable,
}
