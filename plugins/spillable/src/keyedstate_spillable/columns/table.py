"""The table of columns in two tiers; `MovingColumns` moves its entries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import numpy as np

from keyedstate.backend import EntryBatch, StateMeta, TableChanges, TableSnapshot
from keyedstate.keygroups import KeyGroupRange
from keyedstate.ordered import RewritingTable
from keyedstate.tables import converted_entries
from keyedstate_heap_cow import GONE
from keyedstate_spillable.columns.moves import AWAY, STORED, MovingColumns
from keyedstate_spillable.columns.rows import ColumnRows
from keyedstate_spillable.columns.snapshot import TieredColumnsChanges, TieredColumnsSnapshot
from keyedstate_spillable.objects.table import TieredTable
from keyedstate_spillable.objects.visitor import WalkedTiers
from keyedstate_spillable.store.database import SpillSpace

K = TypeVar("K")
N = TypeVar("N")
V = TypeVar("V")

Tiered: TypeAlias = "TieredTable[Any, Any, Any] | TieredColumns[Any, Any, Any]"

#: Entries of a step of an iteration.
_STEP = 4096
#: The places of arrays among those that snapshots read.
_LIVENESS, _MARKS = 0, -1


class TieredColumns(WalkedTiers[K, N, V], MovingColumns[K, N, V], RewritingTable):
    """A table of columns whose entries are in memory or on disk.

    Parameters
    ----------
    meta, key_groups, open_space
        As of `MovingColumns`.
    create_table : callable
        Makes an empty table of other types.
    """

    def __init__(
        self,
        meta: StateMeta,
        key_groups: KeyGroupRange,
        open_space: Callable[[], SpillSpace],
        create_table: Callable[[StateMeta], Tiered],
    ) -> None:
        super().__init__(meta, key_groups, open_space)
        self._create_table = create_table
        self._successor: Tiered = self

    def restore_entries(self, key_group: int, batch: EntryBatch[K, N, V]) -> None:
        """Add entries in memory, or on disk where the key group has spilled entries already."""
        if not len(batch):
            return
        slots = self._restore(key_group, batch)
        if self._away[key_group - self._first] and self._epoch is None:
            self._move_out(np.unique(slots))
            self._renumber_unused()

    # -- all entries --------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._count + self._away_count

    def peek(self, key_group: int, key: K, namespace: N) -> tuple[V | None] | None:
        slots = super()._find((key_group,), (key,), namespace)
        if slots[0] >= 0 and self._live[slots[0]] != GONE:
            return (self._values_at(slots)[0],)
        if not self._away[key_group - self._first]:
            return None
        rows = self._codec.of_keys(
            self._bytes_of((key,)), np.array([key_group]), [namespace], np.zeros(1, np.int32)
        )
        found = self.rows.get(rows[0])
        return None if found is None else (self._codec.batch(rows, [found]).values[0],)

    def _addresses_of(self, key_group: int) -> list[tuple[K, N]]:
        snapshot = self.snapshot()
        try:
            return [
                address
                for batch in snapshot.batches(key_group, _STEP)
                for address in zip(batch.keys, batch.namespaces, strict=True)
            ]
        finally:
            snapshot.release()

    # -- snapshots and changes ----------------------------------------------------------------------------

    def snapshot(self) -> TableSnapshot[K, N, V]:
        arrays = self._freeze()
        memory = self._snapshot_of(arrays)
        if not self._away_count:
            return memory
        try:
            return TieredColumnsSnapshot(
                memory,
                self._addresses(),
                lambda: arrays.where(
                    lambda live, marks: (live != GONE) & (marks & STORED != 0), [_LIVENESS, _MARKS]
                ),
                self._spilled,
                ColumnRows(self._meta.duplicate()),
                self.rows.copy(),
            )
        except BaseException:
            memory.release()
            raise

    def trim(self, since: float) -> None:
        self.rows.trim()
        super().trim(since)

    def changes_since(self, epoch: int) -> TableChanges[K, N, V]:
        written, removed = self._changed_since(epoch)
        memory = self._captured(written, removed[self._marks[removed] & AWAY == 0])
        on_disk = self._noted.count_since(epoch)
        if not on_disk:
            return memory
        self._noted.flush()
        stored = written[self._marks[written] & STORED != 0]
        codec = ColumnRows(self._meta.duplicate())
        return TieredColumnsChanges(
            memory, self._addresses(), stored, codec, self.rows.copy(), epoch, on_disk
        )

    def forget_changes(self, epoch: int) -> None:
        super().forget_changes(epoch)
        self._release_later()  # numbers of removed entries
        self._noted.forget(epoch if self._epoch is None else min(epoch, self._epoch - 1))

    # -- other serializers --------------------------------------------------------------------------------

    def replace_meta(self, meta: StateMeta) -> None:
        super().replace_meta(meta)
        self._codec = ColumnRows(meta)

    def rewrite(
        self,
        meta: StateMeta,
        of_keys: Callable[[Any], Any] | None,
        of_namespaces: Callable[[Any], Any] | None,
        of_values: Callable[[Any], Any] | None,
    ) -> None:
        """Convert the entries into another table, which is the successor; spilled key groups stay spilled."""
        made = self._create_table(meta)
        snapshot = self.snapshot()
        try:
            # Those in memory first: a table that has spilled restores the rest to disk.
            for key_group in sorted(self.key_groups, key=lambda group: self._away[group - self._first] > 0):
                for batch in snapshot.batches(key_group, _STEP):
                    made.restore_entries(
                        key_group, converted_entries(batch, of_keys, of_namespaces, of_values)
                    )
                    if self._away[key_group - self._first]:
                        made.spill(key_group, len(batch))
        finally:
            snapshot.release()
        self._successor = made
        self.rows.clear()

    def successor(self) -> Tiered:
        return self._successor
