"""Entries in columns of two tiers: heap-cow's arrays in memory, and rows on disk.

As in `TieredTable` every entry is in one tier, a look-up loads what memory lacks, and the row of a loaded
entry stays: an entry that leaves the memory unchanged is not written again.  Whatever moves, moves many
entries by a few operations on arrays.

The invariants, for each number of an entry in the arrays:

1. A live entry with the mark `STORED` may have a row; one without has none.
2. A live entry with the mark `_CLEAN` has a row with its value and its epochs.
3. A number without an entry has the mark `AWAY` where its entry is on disk.  Without the mark there is no
   row: what gives a number looks for the row too.  So a number that was released has the mark.
4. A live entry that was changed after the last forgotten epoch is among the numbers noted for that epoch; one
   that is only on disk is among the notes on disk (`ChangedRows`), and so is one with the mark `_NOTED`.
5. An entry leaves the arrays only after its row was written, and its row is removed with the entry.
6. A number is released only where no snapshot or changes exist that may read the entry that it was of, no
   renumbering has copied it, and no tracked removal is of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import compress
from typing import Any, ClassVar, TypeVar
from weakref import WeakSet

import numpy as np
import numpy.typing as npt

from keyedstate.backend import Column, SpillableGroup, StateMeta
from keyedstate.keygroups import KeyGroupRange
from keyedstate.ordered import end_of
from keyedstate_heap_cow import (
    BEFORE,
    GONE,
    Addresses,
    CopyOnWriteColumns,
    Keys,
    Numbering,
    Slots,
    flags_of,
)
from keyedstate_spillable.accesses import Accesses, CountingTable
from keyedstate_spillable.columns.change_rows import ChangedRows, epochs_in
from keyedstate_spillable.columns.rows import ColumnRows
from keyedstate_spillable.store.database import SpillSpace
from keyedstate_spillable.store.rows import DiskRows, chunks

K = TypeVar("K")
N = TypeVar("N")
V = TypeVar("V")

STORED, _CLEAN, AWAY, _NOTED, _RELEASED = 1, 2, 4, 8, 16
#: Numbers that a step of `spill` looks at.
_PASSED = 65_536
#: Numbers that a step of `spill_coldest` looks at for each entry that it may move.
_PASSED_PER_ENTRY = 16
#: A walk of `spill_coldest` moves the coldest of so many parts of the entries, found in a sample.
_PARTS = 8
_SAMPLE = 4096
#: Rows of a look-up by which the uses of key groups are counted.
_COUNTED = 1024
#: Numbers among which a step looks for those that could not be released at once.
_PASSED_LATE = 16_384
#: Bytes of keys that may always be lost.
_FEW_BYTES = 65_536
#: Rows that a step of `load` reads at least.
_READ = 256


Counts = npt.NDArray[np.int64]


class MovingColumns(CopyOnWriteColumns[K, N, V], CountingTable):
    """A table of columns that moves its entries.

    Parameters
    ----------
    meta : StateMeta
        One for which heap-cow's `fits` is true.
    key_groups : KeyGroupRange
    open_space : callable
        Returns a new, empty space of rows.

    Attributes
    ----------
    rows : DiskRows
    """

    #: About three milliseconds: an entry takes less time in larger steps.
    step_entries: ClassVar[int] = 4096
    #: Of the numbers that cannot be given again.  Fewer than in heap-cow: an index leaves room for half as
    #: many entries more, which growing would double.
    most_unused: ClassVar[float] = 0.25
    #: Of all numbers: renumbering copies the others, which takes as much memory again.
    most_free: ClassVar[float] = 0.75
    #: Fewer than in heap-cow: a slice follows each step of a move, and rows wait for both.
    renumbered_together: ClassVar[int] = 8_192

    def __init__(
        self,
        meta: StateMeta,
        key_groups: KeyGroupRange,
        open_space: Callable[[], SpillSpace],
    ) -> None:
        super().__init__(meta, key_groups)
        self.rows = DiskRows(open_space())
        self._codec = ColumnRows(meta)
        self._noted = ChangedRows(self.rows)
        #: The marks of each number; snapshots read it, as `_live`.
        self._marks = np.zeros(len(self._live), np.uint8)
        #: The last use of each number, and that of the last call: what was used last is the warmest.
        self._last_uses = np.zeros(len(self._live), np.int64)
        self._use = 0
        self._first = key_groups.start
        #: By key group the entries in memory, those only on disk, and the uses.
        self._held, self._away, self._uses = (np.zeros(len(key_groups), np.int64) for _ in range(3))
        #: Accesses that looked for an entry on disk.
        self._asked_disk = 0
        #: Entries that are only on disk, and whether any row exists.
        self._away_count = 0
        self._any_rows = False
        #: What may read the index by numbers, in any thread.
        self._readers: WeakSet[Addresses] = WeakSet()
        #: From which number on there may be evicted entries whose numbers could not be released at once.
        self._late: int | None = None
        #: Namespaces with numbers at which the entries are renumbered: most were of entries that have left.
        self._most_spaces = self.few_unused
        #: Where the walks of `spill` and `load` continue.
        self._positions: dict[int, int] = {}
        self._loaded: dict[int, bytes] = {}
        #: Where the walk of `spill_coldest` is, and the last use up to which it moves entries.
        self._hand, self._coldest_use = 0, -1

    def _by_group(self, slots: Slots) -> Counts:
        groups = self._index.entries["group"][slots] - self._first
        counts: Counts = np.bincount(groups, minlength=len(self._held))
        return counts

    def _rows_of(self, slots: Slots) -> list[bytes]:
        """Return the keys of the rows of entries."""
        index = self._index
        return self._codec.of_entries(index.bytes, index.entries[slots], self._spaces)

    @property
    def _spilled(self) -> list[int]:
        """The key groups with entries that only the disk has."""
        return (np.flatnonzero(self._away) + self._first).tolist() if self._away_count else []

    # -- finding ------------------------------------------------------------------------------------------

    def number(
        self, keys: Keys, spaces: npt.NDArray[np.int32], groups: npt.NDArray[np.int32]
    ) -> tuple[Slots, Slots, Slots]:
        """Find the entries of rows, and load those that are on disk; new ones get numbers."""
        known = self._index.count
        found = super().number(keys, spaces, groups)
        # Of many rows a few are counted, each for several.
        each = len(groups) // _COUNTED + 1
        self._uses += each * np.bincount(groups[::each] - self._first, minlength=len(self._uses))
        if self._away_count:
            self._load_missing(found[1], known)
        return found

    def _number(
        self, keys: Keys, spaces: npt.NDArray[np.int32], groups: npt.NDArray[np.int32]
    ) -> tuple[Slots, Slots, Slots]:
        found = super()._number(keys, spaces, groups)
        self._note_uses(found[1])
        return found

    def _note_uses(self, slots: Slots) -> None:
        self._use += 1
        self._last_uses[slots] = self._use

    def _load_missing(self, slots: Slots, known: int) -> None:
        """Load those entries that are on disk; numbers from `known` on were given just now."""
        missing = slots[self._live[slots] == GONE]
        missing = missing[(missing >= known) | (self._marks[missing] & AWAY != 0)]
        missing = missing[self._away[self._index.entries["group"][missing] - self._first] != 0]
        if not len(missing):
            return
        self._asked_disk += len(missing)
        # Until it is known that there is no row, also where the look-up raises.
        self._marks[missing] = AWAY
        data = self.rows.get_many(self._rows_of(missing))
        if None in data:
            exist = np.fromiter((one is not None for one in data), np.bool_, len(data))
            self._marks[missing[~exist]] = 0
            missing = missing[exist]
        self._admit(missing, [one for one in data if one is not None])

    def _admit(self, slots: Slots, data: list[bytes]) -> None:
        """Add entries to the arrays from the values of their rows."""
        if not data:
            return
        values = self._codec.decode(data)
        changed = self._noted.needed(values.changed, BEFORE)
        self.admit(slots, values.columns, values.nones, values.born, changed)
        noted = changed != BEFORE
        self._marks[slots] = np.where(noted, STORED | _CLEAN | _NOTED, STORED | _CLEAN)
        self._noted.count(changed[noted], -1)
        self._away -= self._by_group(slots)
        self._away_count -= len(slots)

    def _find(self, key_groups: Sequence[int], keys: Sequence[K], namespace: N) -> Slots:
        if not self._away_count or not len(keys):
            known = super()._find(key_groups, keys, namespace)
            self._note_uses(known[known >= 0])
            return known
        self._renumber_unused()
        spaces = np.array([self._space(namespace)], np.int32)
        groups = np.fromiter(key_groups, np.int32, len(keys))
        codes, slots, _ = self.number(self._bytes_of(keys), spaces, groups)
        found: Slots = slots[codes]
        return found

    # -- numbers ------------------------------------------------------------------------------------------

    def _has_many_unused(self) -> bool:
        index = self._index
        if (
            index.lost > max(self.most_unused * index.used, _FEW_BYTES)
            or len(self._spaces) > self._most_spaces
        ):
            return True
        kept = self._gone - index.free > self.most_unused * index.count
        return self._gone > self._most_gone and (kept or self._gone > self.most_free * index.count)

    def _addresses(self) -> Addresses:
        made = super()._addresses()
        self._readers.add(made)
        return made

    def _release(self, slots: Slots) -> None:
        """Let new entries have the numbers of evicted ones, as soon as nothing may read these any more."""
        if self._readers or self._renumbering is not None:
            self._release_later()
            return
        if self._late is not None:
            end = min(self._late + _PASSED_LATE, self._index.count)
            part = slice(self._late, end)
            evicted = (self._live[part] == GONE) & (self._marks[part] & (AWAY | _RELEASED) == AWAY)
            slots = np.union1d(slots, np.flatnonzero(evicted) + self._late)
            self._late = None if end == self._index.count else end
        if self._removed:
            slots = slots[~self._tracked_removals()[slots]]
        self._index.release(slots)
        self._born[slots] = self._changed[slots] = 0
        self._marks[slots] = AWAY | _RELEASED

    def _release_later(self) -> None:
        """Look for numbers of evicted entries again when entries move."""
        self._late = 0

    # -- arrays -------------------------------------------------------------------------------------------

    def _arrays(self) -> list[npt.NDArray[Any]]:
        return [*super()._arrays(), self._marks, self._last_uses]

    def _set_arrays(self, arrays: list[npt.NDArray[Any]]) -> None:
        *others, self._marks, self._last_uses = arrays
        super()._set_arrays(others)

    def _shared(self) -> list[npt.NDArray[Any]]:
        return [*super()._shared(), self._marks]

    def _exchange(self, made: Numbering[N]) -> None:
        hand = int(np.count_nonzero(made.numbers[: self._hand] >= 0))
        super()._exchange(made)
        # Entries that have left meanwhile have numbers, and only those of tracked removals are needed.
        self._release_later()
        count = self._index.count
        needed = np.count_nonzero((self._live[:count] == GONE) & (self._marks[:count] & AWAY == 0))
        self._most_gone = 2 * int(needed) + self.few_unused
        self._most_spaces = 2 * len(self._spaces) + self.few_unused
        self._hand = hand
        self._positions.clear()
        self._note_once()

    def _note_once(self) -> None:
        """Drop what is noted of entries that have left or were changed again; note the others once."""
        for epoch, written in self._written.items():
            slots = np.flatnonzero(flags_of(self._index.count, written))
            last = self._epochs(self._changed[slots]) == epoch
            self._written[epoch] = [slots[last & (self._live[slots] != GONE)]]

    def _set(self, slots: Slots, columns: Sequence[Column], nones: npt.NDArray[np.bool_] | None) -> Slots:
        new = super()._set(slots, columns, nones)
        if len(new):
            self._marks[new] = 0
            self._held += self._by_group(new)
        return new

    def write(self, slots: Slots, columns: Sequence[Column], nones: npt.NDArray[np.bool_] | None) -> None:
        """Write distinct entries; `nones` says which of them have the value None."""
        if self._any_rows:
            self._keep_images(slots)
            marks = self._marks[slots] & ~np.uint8(_CLEAN)
            marks[~self._changed_now(slots)] &= ~np.uint8(_NOTED)
            self._marks[slots] = marks
        super().write(slots, columns, nones)

    def take_out(self, slots: Slots) -> None:
        """Remove those of distinct entries that exist, with their rows."""
        slots = slots[self._live[slots] != GONE]
        super().take_out(slots)
        if self._any_rows:
            stored = slots[self._marks[slots] & STORED != 0]
            self.rows.remove_many(self._rows_of(stored))
            self._marks[slots] = 0

    def _clear(self, slots: Slots) -> None:
        super()._clear(slots)
        self._held -= self._by_group(slots)

    @property
    def memory_bytes(self) -> int:
        return round(int(self._held.sum()) * self.nbytes / max(self._index.count, 1))

    @property
    def accesses(self) -> Accesses:
        return Accesses(int(self._uses.sum()), self._asked_disk)

    # -- moving -------------------------------------------------------------------------------------------

    def spillable_groups(self) -> Sequence[SpillableGroup]:
        # Numbers without an entry do not count: new entries get them.
        size = self.nbytes / max(self._index.count, 1)
        return [
            SpillableGroup(self._first + group, held, away, round(held * size), uses)
            for group, (held, away, uses) in enumerate(
                zip(self._held.tolist(), self._away.tolist(), self._uses.tolist(), strict=True)
            )
            if held or away
        ]

    @property
    def nbytes(self) -> int:
        """The size of all arrays."""
        return self._index.nbytes + sum(array.nbytes for array in self._arrays())

    def spill(self, key_group: int, limit: int) -> int:
        moved = 0
        position = self._positions.get(key_group, 0)
        while moved < limit and self._held[key_group - self._first]:
            if position >= self._index.count:
                position = 0
            end = min(position + _PASSED, self._index.count)
            part = slice(position, end)
            mine = self._index.entries["group"][part] == key_group
            found = np.flatnonzero(mine & (self._live[part] != GONE))[: limit - moved] + position
            self._move_out(found)
            moved += len(found)
            position = int(found[-1]) + 1 if moved == limit else end
        self._positions[key_group] = position
        self._renumber_unused()
        return moved

    def spill_coldest(self, limit: int) -> int:
        """Move entries that were not used for longest: the index of keys knows the last use of each."""
        moved = 0
        while moved < limit and self._count:
            if self._coldest_use < 0 or self._hand >= self._index.count:
                self._hand, self._coldest_use = 0, self._use_of_coldest(limit - moved)
            end = min(self._hand + _PASSED_PER_ENTRY * max(limit, _SAMPLE), self._index.count)
            part = slice(self._hand, end)
            cold = (self._last_uses[part] <= self._coldest_use) & (self._live[part] != GONE)
            found = np.flatnonzero(cold)[: limit - moved] + self._hand
            self._move_out(found)
            moved += len(found)
            self._hand = int(found[-1]) + 1 if moved == limit else end
        self._renumber_unused()
        return moved

    def _use_of_coldest(self, wanted: int) -> int:
        """Return the last use of the warmest entry among the coldest ones, from a sample of all."""
        living = np.flatnonzero(self._live[: self._index.count])
        sample = living[:: len(living) // _SAMPLE + 1]
        uses = np.sort(self._last_uses[sample])
        part = max(1 / _PARTS, wanted / len(living))
        return int(uses[min(int(part * len(uses)), len(uses) - 1)])

    def _move_out(self, slots: Slots) -> None:
        """Write the rows of entries that have none with their value, and drop the entries from the arrays."""
        if not len(slots):
            return
        self._noted.make_room()
        self._keep_images(slots)
        marks = self._marks[slots]
        born, changed = self.epochs_of(slots)
        changed = self._noted.needed(changed, BEFORE)
        counted = changed != BEFORE
        dirty, new = marks & _CLEAN == 0, counted & (marks & _NOTED == 0)
        used = dirty | new
        rows = self._rows_of(slots[used])
        if dirty.any():
            written = slots[dirty]
            data = self._codec.encode(self.read(written), self.live(written), born[dirty], changed[dirty])
            self.rows.put(_chosen(rows, dirty[used]), data)
            self._any_rows = True
        self._noted.count(changed[counted], 1)
        for epoch in epochs_in(changed[new]):
            self._noted.note(epoch, _chosen(rows, (new & (changed == epoch))[used]))
        self.evict(slots)
        self._marks[slots] = AWAY
        self._away += self._by_group(slots)
        self._away_count += len(slots)
        self._release(slots)
        noted = sum(len(part) for written in self._written.values() for part in written)
        if noted > 2 * self._index.count + self.few_unused:
            self._note_once()

    def load(self, key_group: int, limit: int) -> int:
        group, moved = key_group - self._first, 0
        end = end_of(self._codec.group_prefix(key_group))
        while moved < limit and self._away[group]:
            start = self._loaded.get(key_group)
            start = self._codec.group_prefix(key_group) if start is None else start + b"\0"
            rows, data = next(chunks(self.rows.scan(start, end), max(limit - moved, _READ)), ([], []))
            if not rows:
                # Again from the first row: entries were spilled after the walk had passed their rows.
                self._loaded.pop(key_group, None)
                continue
            slots = self._numbers_of(rows)
            missing = np.flatnonzero(self._live[slots] == GONE)
            self._marks[slots[missing]] = AWAY
            last = -1
            if len(missing) > limit - moved:
                missing = missing[: limit - moved]
                last = int(missing[-1])
            self._loaded[key_group] = rows[last]
            self._admit(slots[missing], [data[place] for place in missing.tolist()])
            moved += len(missing)
        return moved

    def _numbers_of(self, rows: Sequence[bytes]) -> Slots:
        """Return the numbers of entries, by the keys of their rows; nothing is looked up on disk."""
        found = self._codec.addresses(rows)
        spaces = np.fromiter(map(self._space, self._codec.namespaces(found)), np.int32)
        codes, slots, _ = self._number(found.keys, spaces[found.which], found.groups)
        numbers: Slots = slots[codes]
        return numbers


def _chosen(rows: list[bytes], flags: npt.NDArray[np.bool_]) -> list[bytes]:
    """Return those rows of which the flag is set."""
    return rows if flags.all() else list(compress(rows, flags.tolist()))
