"""Which entries left the memory with changes that a delta may need: their addresses, in rows.

A table notes its changed entries by their numbers in memory, which an epoch that is larger than memory cannot
keep.  So an entry that is spilled with a change is noted here by the key of its row.  Notes become rows of
many addresses each, next to the rows of the entries.

A note is never withdrawn: whether the entry is still on disk, and when it was changed last, its row says.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import count

import numpy as np

from keyedstate.ordered import RowReader
from keyedstate_heap_cow import Slots
from keyedstate_spillable.columns.rows import AFTER_ALL_GROUPS
from keyedstate_spillable.store.rows import DiskRows

#: Key group, epoch as an unsigned number, number of the row.
_KEY = struct.Struct(">2sQQ")
_SIGN = 2**63
_COUNT = struct.Struct("<I")
#: Notes that become rows together.
_TOGETHER = 16_384
_GROUP_BYTES = 2


class ChangedRows:
    """The notes of a table; for its owner thread.

    Parameters
    ----------
    rows : DiskRows
        Where the rows of the entries are too.
    """

    def __init__(self, rows: DiskRows) -> None:
        self._rows = rows
        #: The last epoch whose changes nothing needs; None before the first one.
        self._forgotten: int | None = None
        #: By epoch how many entries that were changed in it last are only on disk.
        self._counts: dict[int, int] = {}
        self._pending: dict[int, list[bytes]] = {}
        self._pending_count = 0
        self._numbers = count()
        #: By epoch the keys of its rows of addresses.
        self._keys: dict[int, list[bytes]] = {}

    def needed(self, changed: Slots, before: int) -> Slots:
        """Return the epochs of last changes, with `before` for those that nothing needs."""
        return changed if self._forgotten is None else np.where(changed > self._forgotten, changed, before)

    def count(self, changed: Slots, sign: int) -> None:
        """Count entries that leave the memory (1), or come back (-1), by the epochs of their last changes."""
        for epoch, entries in zip(
            *map(np.ndarray.tolist, np.unique(changed, return_counts=True)), strict=True
        ):
            self._counts[epoch] = self._counts.get(epoch, 0) + sign * entries

    def note(self, epoch: int, rows: Sequence[bytes]) -> None:
        """Note entries that were changed in an epoch, by the keys of their rows."""
        self._pending.setdefault(epoch, []).extend(rows)
        self._pending_count += len(rows)

    def flush(self, least: int = 1) -> None:
        """Write the notes where there are at least so many."""
        if self._pending_count < least:
            return
        keys: list[bytes] = []
        data: list[bytes] = []
        for epoch, rows in self._pending.items():
            for group, addresses in _by_group(rows):
                keys.append(_key(group, epoch, next(self._numbers)))
                data.append(_packed(addresses))
                self._keys.setdefault(epoch, []).append(keys[-1])
        self._rows.put(keys, data)
        self._pending.clear()
        self._pending_count = 0

    def make_room(self) -> None:
        """Write the notes where there are many."""
        self.flush(_TOGETHER)

    def count_since(self, epoch: int) -> int:
        """Return how many entries that were changed after an epoch are only on disk."""
        return sum(entries for at, entries in self._counts.items() if at > epoch)

    def forget(self, epoch: int) -> None:
        """Forget the changes of epochs up to and including one."""
        self._forgotten = epoch if self._forgotten is None else max(self._forgotten, epoch)
        for at in [at for at in self._counts if at <= epoch]:
            del self._counts[at]
        for at in [at for at in self._pending if at <= epoch]:
            self._pending_count -= len(self._pending.pop(at))
        for at in [at for at in self._keys if at <= epoch]:
            self._rows.remove_many(self._keys.pop(at))


def epochs_in(changed: Slots) -> list[int]:
    """Return the distinct epochs of last changes; mostly there is only one."""
    if not len(changed):
        return []
    first = int(changed[0])
    return [first] if (changed == first).all() else np.unique(changed).tolist()


def noted_since(rows: RowReader, group: bytes, epoch: int) -> Iterator[bytes]:
    """Yield what was noted of a key group, given as the prefix of its rows, after an epoch."""
    start, end = _key(group, epoch + 1, 0), _key(group, _SIGN - 1, 2**64 - 1)
    for _, data in rows.scan(start, end):
        yield from _unpacked(data)


def _by_group(rows: list[bytes]) -> Iterator[tuple[bytes, list[bytes]]]:
    """Yield keys of rows by their prefixes, the key groups."""
    sizes = np.fromiter(map(len, rows), np.int64, len(rows))
    starts = np.cumsum(sizes) - sizes
    data = np.frombuffer(b"".join(rows), np.uint8)
    groups = data[starts].astype(np.uint16) << 8 | data[starts + 1]
    order = np.argsort(groups, kind="stable")
    ends = np.flatnonzero(np.diff(groups[order])) + 1
    for part in np.split(order, ends):
        found = [rows[place] for place in part.tolist()]
        yield found[0][:_GROUP_BYTES], found


def _key(group: bytes, epoch: int, number: int) -> bytes:
    return AFTER_ALL_GROUPS + _KEY.pack(group, epoch + _SIGN, number)


def _packed(rows: Sequence[bytes]) -> bytes:
    return b"".join(
        [_COUNT.pack(len(rows)), np.fromiter(map(len, rows), np.uint32, len(rows)).tobytes(), *rows]
    )


def _unpacked(data: bytes) -> list[bytes]:
    (rows,) = _COUNT.unpack_from(data)
    ends = np.cumsum(np.frombuffer(data, np.uint32, rows, _COUNT.size), dtype=np.int64) + _COUNT.size * (
        rows + 1
    )
    starts = [_COUNT.size * (rows + 1), *ends[:-1].tolist()]
    return [data[start:end] for start, end in zip(starts, ends.tolist(), strict=True)]
