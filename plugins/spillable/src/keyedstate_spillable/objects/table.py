"""The table of two tiers: copy-on-write maps in memory, and rows on disk.

Every entry is in one tier.  An entry of a map is in memory, whatever row its address has; a row is an entry
only where the map has none.  A look-up that misses in a map loads the entry from its row, and the row stays:
an entry that leaves the memory unchanged is not written again.  All reads and changes happen in memory, so a
table that has spilled nothing reads no row.

The invariants, for each address of a table:

1. An entry of a map with the mark `STORED` may have a row; one without has none.
2. An entry with the mark `CLEAN` has a row with its value.
3. An entry leaves a map only after its row was written, and its row is removed before the entry is.
4. `elsewhere` of a map is the number of rows of its key group whose address has no entry in the map.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import compress
from typing import Any, TypeVar

from keyedstate.backend import (
    AddressBatch,
    EntryBatch,
    ExpiryCleanup,
    SpillableGroup,
    StateMeta,
    TableChanges,
    TableSnapshot,
)
from keyedstate.keygroups import KeyGroupRange
from keyedstate.ordered import RewritingTable
from keyedstate.tables import converted_entries
from keyedstate.types import VOID_NAMESPACE
from keyedstate_heap_cow import CopyOnWriteTable, MapsSnapshot
from keyedstate_spillable.accesses import Accesses, CountingTable
from keyedstate_spillable.objects.disk import LeavingEntries, SpilledRows, batch_of
from keyedstate_spillable.objects.eviction import Eviction
from keyedstate_spillable.objects.expiry import ExpirySweep
from keyedstate_spillable.objects.snapshot import MemoryChanges, TieredChanges, TieredSnapshot
from keyedstate_spillable.objects.visitor import WalkedTiers
from keyedstate_spillable.store.database import SpillSpace

K = TypeVar("K")
N = TypeVar("N")
V = TypeVar("V")

#: Above every period of use.
_ANY_PERIOD = 2**30
#: Steps without a cold entry after which warm ones are spilled too.
_PATIENCE = 4
#: Entries that are rewritten together.
_REWRITE_ENTRIES = 4096


class _Tier:
    """The rows of one key group, as its map uses them (`CopyOnWriteStateMap.use_tier`)."""

    __slots__ = ("contains", "discard", "load")

    def __init__(self, key_group: int, rows: SpilledRows) -> None:
        self.load = partial(rows.load, key_group)
        self.contains = partial(rows.contains, key_group)
        self.discard = partial(rows.discard, key_group)


class TieredTable(
    WalkedTiers[K, N, V], CopyOnWriteTable[K, N, V], CountingTable, RewritingTable, ExpiryCleanup
):
    """A table whose entries are in memory or on disk.

    Parameters
    ----------
    meta : StateMeta
    key_groups : KeyGroupRange
    max_parallelism : int
    open_space : callable
        Returns a new, empty space of rows.
    entry_bytes : callable
        Takes this table and returns how many bytes an entry of it occupies in memory, as an estimate.
    compiled : bool, optional
        As for `CopyOnWriteTable`.

    Attributes
    ----------
    rows : SpilledRows
    """

    keeps_objects = True

    def __init__(
        self,
        meta: StateMeta,
        key_groups: KeyGroupRange,
        max_parallelism: int,
        open_space: Callable[[], SpillSpace],
        entry_bytes: Callable[[TieredTable[Any, Any, Any]], float],
        *,
        compiled: bool = True,
    ) -> None:
        super().__init__(meta, key_groups, compiled=compiled)
        self._compiled = compiled
        self._max_parallelism = max_parallelism
        self._open_space = open_space
        self._entry_bytes = entry_bytes
        #: What that has returned last; 0 where no entry was in memory.
        self._measured = 0.0
        self.rows = SpilledRows(meta, max_parallelism, open_space())
        #: The running epoch; None before the first one, when changes are not tracked.
        self._epoch: int | None = None
        self._begin_tiers()

    def _begin_tiers(self) -> None:
        for key_group, state_map in zip(self.key_groups, self.maps, strict=True):
            state_map.use_tier(_Tier(key_group, self.rows))
        #: Where each walk of `spill` and `load` continues.
        self._positions: dict[int, int] = {}
        self._loaded: dict[int, bytes] = {}
        #: Where the walk of `spill_coldest` continues: a map, and a position in it.
        self._hand, self._hand_position = 0, 0
        #: The period of use since which it looks for cold entries of that map.
        self._period = _ANY_PERIOD
        #: Its steps since the last one that has found a cold entry.
        self._fruitless = 0
        #: For each map that the walk has passed, the period of use that began then.
        self._passed: dict[int, int] = {}
        #: Accesses before the last keys of `read_ahead`, the number of these keys, and whether a bulk
        #: operation came since: that loads what it needs.
        self._accesses_before, self._expected, self._in_bulk = 0, 0, False
        #: The walk of `drop_expired`.
        self._sweep = ExpirySweep(self.key_groups, self.maps, self.rows)

    @property
    def _spilled(self) -> list[int]:
        """The key groups with entries that only the disk has."""
        return [group for group, each in zip(self.key_groups, self.maps, strict=True) if each.elsewhere]

    @property
    def memory_bytes(self) -> int:
        """The entries in memory by the last measured size: measuring takes longer than counting."""
        entries = sum(map(len, self.maps))
        if entries and not self._measured:
            self._measured = self._entry_bytes(self)
        return round(entries * self._measured)

    @property
    def accesses(self) -> Accesses:
        return Accesses(sum(each.uses for each in self.maps), self.rows.asked)

    # -- moving ---------------------------------------------------------------------------------------------

    def spillable_groups(self) -> Sequence[SpillableGroup]:
        self._measured = size = self._entry_bytes(self)
        return [
            SpillableGroup(key_group, len(each), each.elsewhere, round(len(each) * size), each.uses)
            for key_group, each in zip(self.key_groups, self.maps, strict=True)
            if len(each) or each.elsewhere
        ]

    def spill(self, key_group: int, limit: int) -> int:
        state_map = self.maps[key_group - self.key_groups.start]
        position, moved = self._positions.get(key_group, 0), 0
        idle = 0  # passes that have ended since an entry moved
        while moved < limit and len(state_map) and idle < 2:
            leaving = Eviction(self.rows, self.module)
            following = leaving.collect(key_group, state_map, position, _ANY_PERIOD, limit - moved)
            some = leaving.finish()
            moved += some
            idle = 0 if some else idle + (following is None)
            position = following or 0
        self._positions[key_group] = position
        return moved

    def spill_coldest(self, limit: int) -> int:
        """Move entries that were not used since the walk over all maps passed them last (second chance).

        The first pass moves what it finds, and so does one that has found only warm entries for a while.
        """
        # A step of the walk is as long as what it may take: the last entries would need many steps.
        moved, enough = 0, limit - limit // 8
        self._fruitless = 0
        idle = 0  # maps whose walk has ended since an entry moved: what they have cannot be written
        while moved < enough and any(map(len, self.maps)) and idle <= len(self.maps) + _PATIENCE:
            some, ended = self._spill_pass(limit - moved, enough - moved)
            moved += some
            idle = 0 if some else idle + ended
        return moved

    def _spill_pass(self, limit: int, enough: int) -> tuple[int, int]:
        """Continue the walk through each map at most once; return the entries moved, and the maps ended."""
        leaving, ended = Eviction(self.rows, self.module), 0
        while leaving.collected < enough and ended < len(self.maps):
            state_map = self.maps[self._hand]
            if not len(state_map):
                self._hand, self._hand_position = (self._hand + 1) % len(self.maps), 0
                ended += 1
                continue
            if self._hand_position == 0:
                self._period = self._passed.get(self._hand, _ANY_PERIOD)
                self._passed[self._hand] = state_map.begin_uses()
            before = leaving.collected
            following = leaving.collect(
                self.key_groups.start + self._hand,
                state_map,
                self._hand_position,
                self._period if self._fruitless < _PATIENCE else _ANY_PERIOD,
                limit - before,
            )
            self._fruitless = 0 if leaving.collected > before else self._fruitless + 1
            self._hand_position = following or 0
            if following is None:
                self._hand = (self._hand + 1) % len(self.maps)
                ended += 1
        return leaving.finish(), ended

    def load(self, key_group: int, limit: int) -> int:
        state_map = self.maps[key_group - self.key_groups.start]
        before = state_map.elsewhere
        left: int | None = None
        while state_map.elsewhere and before - state_map.elsewhere < limit:
            row, taken_out = self._loaded.get(key_group, b""), state_map.taken_out
            entries = next(self.rows.entries_of(key_group, row), None)
            if entries is None:
                # Again from the first row: entries were spilled after the walk had passed their rows.
                self._loaded.pop(key_group, None)
                if left == state_map.elsewhere:
                    break  # a whole pass has found nothing: two rows have keys that are equal in memory
                left = state_map.elsewhere
                continue
            for entry in entries:
                if not state_map.admit(entry.key, entry.namespace, entry.value, entry.stamp, taken_out):
                    break  # user code has removed entries since the rows were read, so read again
                self._loaded[key_group] = entry.row
                if before - state_map.elsewhere == limit:
                    break
        return int(before - state_map.elsewhere)

    # -- several entries ------------------------------------------------------------------------------------

    @contextmanager
    def _in_memory(
        self, key_groups: Iterable[int], keys: Iterable[K], namespace: N
    ) -> Iterator[tuple[Iterable[int], Iterable[K]]]:
        """Load those of several entries that are on disk, all at once, for one operation on all of them."""
        self._in_bulk = True
        if not self._spilled:
            yield key_groups, keys
            return
        groups, wanted = list(key_groups), list(keys)
        missing = self.module.find_missing(self.maps, self.key_groups.start, groups, wanted, namespace)
        if missing:
            some = [groups[i] for i in missing], [wanted[i] for i in missing]
            self._load_many(*self.rows.without_absent(*some, namespace), namespace)
        yield groups, wanted

    def _load_many(self, key_groups: list[int], keys: list[K], namespace: N) -> None:
        """Load entries that maps do not have, and note which of them have no row."""
        if not keys:
            return
        self.rows.asked += len(keys)
        rows = self.rows.of.layout.addresses(key_groups, keys, namespace)
        taken_out = [each.taken_out for each in self.maps]
        found = self.rows.get_many(rows)
        if None in found:
            exist = [data is not None for data in found]
            absent = compress(zip(key_groups, keys, strict=True), [not found for found in exist])
            self.rows.note_absent(absent, namespace)
            key_groups, keys = list(compress(key_groups, exist)), list(compress(keys, exist))
        values, stamps = self.rows.of.decode_many([data for data in found if data is not None])
        self.module.admit_many(
            self.maps, self.key_groups.start, key_groups, keys, namespace, values, stamps, taken_out
        )

    def read_ahead(self, key_groups: list[int], keys: list[Any]) -> None:
        if self.rows.unused:
            return
        accesses = sum(each.uses for each in self.maps)
        likely = not self._in_bulk and accesses - self._accesses_before >= self._expected
        if likely:
            none: Any = VOID_NAMESPACE
            with self._in_memory(key_groups, keys, none):
                pass
        self._accesses_before, self._expected, self._in_bulk = accesses, len(keys), False

    def get_many(self, key_groups: Iterable[int], keys: Iterable[K], namespace: N) -> list[V | None]:
        with self._in_memory(key_groups, keys, namespace) as (groups, wanted):
            return super().get_many(groups, wanted, namespace)

    def get_many_for_update(
        self, key_groups: Iterable[int], keys: Iterable[K], namespace: N
    ) -> list[V | None]:
        with self._in_memory(key_groups, keys, namespace) as (groups, wanted):
            return super().get_many_for_update(groups, wanted, namespace)

    def put_many(
        self, key_groups: Iterable[int], keys: Iterable[K], namespace: N, values: Iterable[V]
    ) -> None:
        with self._in_memory(key_groups, keys, namespace) as (groups, written):
            super().put_many(groups, written, namespace, values)

    def remove_many(self, key_groups: Iterable[int], keys: Iterable[K], namespace: N) -> None:
        with self._in_memory(key_groups, keys, namespace) as (groups, removed):
            super().remove_many(groups, removed, namespace)

    def restore_entries(self, key_group: int, batch: EntryBatch[K, N, V]) -> None:
        """Add entries in memory; on disk where a restore has spilled some already, for want of memory."""
        if self._epoch is not None or not self._spilled:
            super().restore_entries(key_group, batch)
            return
        self._restore_to_disk(key_group, batch)

    def _restore_to_disk(self, key_group: int, batch: EntryBatch[Any, Any, Any]) -> None:
        groups, stamps = [key_group] * len(batch), [0] * len(batch)
        entries = LeavingEntries(groups, batch.namespaces, batch.keys, batch.values, stamps)
        self.rows.put(*self.rows.of.encode(entries))
        self.maps[key_group - self.key_groups.start].add_elsewhere(len(batch))

    # -- all entries ----------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return sum(len(each) + each.elsewhere for each in self.maps)

    def keys_and_namespaces(self) -> Iterator[tuple[K, N]]:
        for key_group in self.key_groups:
            yield from self._addresses_of(key_group)

    def _addresses_of(self, key_group: int) -> list[tuple[K, N]]:
        state_map = self.maps[key_group - self.key_groups.start]
        found = [(key, namespace) for key, namespace, _ in state_map]
        if state_map.elsewhere:
            for entries in self.rows.entries_of(key_group):
                found += [
                    (entry.key, entry.namespace)
                    for entry in entries
                    if not state_map.holds(entry.key, entry.namespace)
                ]
        return found

    def peek(self, key_group: int, key: K, namespace: N) -> tuple[V | None] | None:
        state_map = self.maps[key_group - self.key_groups.start]
        if state_map.holds(key, namespace):
            return (state_map.get(key, namespace),)
        found = self.rows.find(key_group, key, namespace) if state_map.elsewhere else None
        return None if found is None else (found[0],)

    # -- snapshots and changes ------------------------------------------------------------------------------

    def snapshot(self) -> TableSnapshot[K, N, V]:
        spilled = self._spilled
        memory: MapsSnapshot[Any, Any, Any] = MapsSnapshot(self.maps, self.key_groups.start)
        try:
            copy = self.rows.copy() if spilled else None
            return TieredSnapshot(memory, spilled, self.rows.reading(), copy)
        except BaseException:
            memory.release()
            raise

    def trim(self, since: float) -> None:
        self.rows.trim()
        super().trim(since)

    def begin_epoch(self, epoch: int) -> None:
        super().begin_epoch(epoch)
        self._epoch = epoch

    def changes_since(self, epoch: int) -> TableChanges[K, N, V]:
        if not self._spilled:
            return super().changes_since(epoch)
        groups: dict[int, MemoryChanges] = {}
        held: list[tuple[Any, int]] = []

        def release() -> None:
            for state_map, version in held:
                state_map.release_version(version)

        try:
            for key_group, state_map in zip(self.key_groups, self.maps, strict=True):
                written_namespaces, written_keys, values, *missing = state_map.changes_since(epoch)
                old_namespaces, old_keys, new_namespaces, new_keys = missing
                if values or old_keys or new_keys:
                    groups[key_group] = MemoryChanges(
                        EntryBatch(written_namespaces, written_keys, values),
                        AddressBatch(old_namespaces + new_namespaces, old_keys + new_keys),
                        len(old_keys),
                    )
                if values and self._mutable:
                    held.append((state_map, state_map.hold()))
            return TieredChanges(groups, self.rows.reading(), self.rows.copy(), release)
        except BaseException:
            release()
            raise

    # -- expiry ---------------------------------------------------------------------------------------------

    def drop_expired(self) -> None:
        """Drop what is expired of the next entries in memory, and of the next ones on disk."""
        expiry = self.meta.expiry
        if expiry is None:
            return
        for key_group, key, namespace, value in self._sweep.next_entries():
            if value is None or expiry.live(value) is value:
                continue
            # User code that ran meanwhile, such as serializers, may have changed it.
            present: Any = self.get(key_group, key, namespace)
            living: Any = None if present is None else expiry.live(present)
            if living is present:
                continue
            if living is None:
                self.remove(key_group, key, namespace)
            else:
                self.put(key_group, key, namespace, living)

    # -- other serializers ----------------------------------------------------------------------------------

    def replace_meta(self, meta: StateMeta) -> None:
        super().replace_meta(meta)
        self.rows.adopt(meta)

    def rewrite(
        self,
        meta: StateMeta,
        of_keys: Callable[[Any], Any] | None,
        of_namespaces: Callable[[Any], Any] | None,
        of_values: Callable[[Any], Any] | None,
    ) -> None:
        """Convert the entries of both tiers into a second table, and continue with its maps and rows."""
        made: TieredTable[Any, Any, Any] = TieredTable(
            meta,
            self.key_groups,
            self._max_parallelism,
            self._open_space,
            self._entry_bytes,
            compiled=self._compiled,
        )
        for key_group, state_map in zip(self.key_groups, self.maps, strict=True):
            in_memory = list(state_map)
            for start in range(0, len(in_memory), _REWRITE_ENTRIES):
                keys, namespaces, values = zip(*in_memory[start : start + _REWRITE_ENTRIES], strict=True)
                batch: EntryBatch[Any, Any, Any] = EntryBatch(namespaces, keys, values)
                made.restore_entries(key_group, converted_entries(batch, of_keys, of_namespaces, of_values))
        for key_group in self._spilled:
            state_map = self.maps[key_group - self.key_groups.start]
            for entries in self.rows.entries_of(key_group):
                found = [each for each in entries if not state_map.holds(each.key, each.namespace)]
                made._restore_to_disk(
                    key_group, converted_entries(batch_of(found), of_keys, of_namespaces, of_values)
                )
        super().replace_meta(meta)
        old_rows = self.rows
        self.maps, self.rows, self._mutable = made.maps, made.rows, made._mutable
        self._begin_tiers()
        if self._epoch is not None:
            super().begin_epoch(self._epoch)
        old_rows.clear()
