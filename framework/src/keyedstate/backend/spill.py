"""Moving entries between memory and disk, in backends that use both: tables move, a manager decides."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from keyedstate.backend.table import AnyStateTable


@dataclass(frozen=True, slots=True)
class SpillableGroup:
    """The entries of one key group: how many are in memory, and on disk only.

    `memory_bytes` estimates what those in memory occupy; `requests` counts uses of entries since the table
    was made.
    """

    key_group: int
    in_memory: int
    on_disk: int
    memory_bytes: int
    requests: int


class SpillableTable(ABC):
    """A table that moves entries, in addition to `StateTable` and `ChangeTracking`.

    A move is no change: reads, and snapshots, captured changes and visitors from before it, show the same.
    """

    @abstractmethod
    def spillable_groups(self) -> Sequence[SpillableGroup]:
        """Return the key groups that have entries."""

    @abstractmethod
    def spill(self, key_group: int, limit: int) -> int:
        """Move at most `limit` entries of a key group to disk; fewer are moved only where no more exist."""

    @abstractmethod
    def load(self, key_group: int, limit: int) -> int:
        """Move at most `limit` entries of a key group to memory; returns as `spill`."""

    @abstractmethod
    def spill_coldest(self, limit: int) -> int:
        """Move about `limit` entries that were not used for longest; 0 only where none is in memory."""


class SpillManager(ABC):
    """Decides which entries live in memory and which on disk, and has them moved."""

    @abstractmethod
    def balance(self, tables: Mapping[str, AnyStateTable], cancel_snapshots: Callable[[], int]) -> None:
        """Move entries of the `SpillableTable`s; called in the owner's thread between two chunks of rows.

        So it returns at once where nothing is due, and after a bounded part of a long move.
        `cancel_snapshots` cancels full snapshots in the background, which frees what they have captured, and
        returns how many; deltas are unaffected.
        """

    def read_ahead(self, keys: list[Any], key_groups: list[int]) -> None:
        """Load what rows of these keys need, all at once; called before a chunk of rows."""
        return

    def metrics(self) -> Mapping[str, int]:
        """Return what was decided and moved since the last call, as `SnapshotStrategy.metrics`."""
        return {}

    @abstractmethod
    def close(self) -> None:
        """Stop and free everything; calling it again does nothing."""
