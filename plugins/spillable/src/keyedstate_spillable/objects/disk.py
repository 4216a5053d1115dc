"""The rows of a table's entries on disk: one row per entry, in the order of key groups.

A row's value is the entry's stamp (`CopyOnWriteStateMap.coldest`), 32 bits, and the bytes of its value; no
bytes stand for None.  A list or a map is one row too, because it comes back to memory as a whole.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress
from typing import Any, NamedTuple

import numpy as np

from keyedstate.backend import EntryBatch, StateMeta
from keyedstate.ordered import ValueCodec, end_of
from keyedstate_spillable.store.database import SpillSpace
from keyedstate_spillable.store.rows import DiskRows, chunks

_log = logging.getLogger(__name__)

_STAMP, _STAMPS = struct.Struct(">i"), np.dtype(">i4")
#: Rows of a scan that are decoded together.
_READ_TOGETHER = 1024
#: Keys without a row that are remembered: those of the last chunks of rows, which may write them next.
_ABSENT_KEYS = 4_000


class LeavingEntries(NamedTuple):
    """Entries that are written to disk, as columns of the same length."""

    key_groups: Sequence[int]
    namespaces: Sequence[Any]
    keys: Sequence[Any]
    values: Sequence[Any]
    stamps: Sequence[int]


class SpilledEntry(NamedTuple):
    """An entry on disk."""

    row: bytes
    namespace: Any
    key: Any
    value: Any
    stamp: int


def batch_of(entries: Sequence[SpilledEntry]) -> EntryBatch[Any, Any, Any]:
    """Return entries as columns."""
    return EntryBatch(
        [entry.namespace for entry in entries],
        [entry.key for entry in entries],
        [entry.value for entry in entries],
    )


class EntryRows:
    """How entries become rows and rows entries; for one thread, as the serializers of its `meta`."""

    def __init__(self, meta: StateMeta, max_parallelism: int) -> None:
        self._values = ValueCodec(meta, max_parallelism)
        self.layout = self._values.layout
        # The map finds the one NaN that all keys have, and not one that was read.
        key = meta.key_serializer
        self._canonical = key.canonical if key.needs_canonical else None

    def encode(self, entries: LeavingEntries) -> tuple[list[bytes], list[bytes]]:
        """Return the keys and the values of the rows of entries."""
        rows = self.layout.each_address(entries.key_groups, entries.keys, entries.namespaces)
        made = self._values.encode_many(list(entries.values))
        # Most entries have one of a few stamps.
        heads = {stamp: _STAMP.pack(stamp) for stamp in set(entries.stamps)}
        return rows, [heads[stamp] + data for stamp, data in zip(entries.stamps, made, strict=True)]

    def decode(self, data: bytes) -> tuple[Any, int]:
        """Return the value and the stamp of a row."""
        (stamp,) = _STAMP.unpack_from(data)
        return self._values.decode(data[_STAMP.size :]), stamp

    def decode_many(self, data: Sequence[bytes]) -> tuple[list[Any], list[int]]:
        """Return the values and the stamps of several rows."""
        size = _STAMP.size
        stamps = np.frombuffer(b"".join([one[:size] for one in data]), _STAMPS).tolist()
        return self._values.decode_many([one[size:] for one in data]), stamps

    def scan(self, rows: Iterator[tuple[bytes, bytes]]) -> Iterator[list[SpilledEntry]]:
        """Yield the entries of rows, several at a time."""
        for keys, data in chunks(rows, _READ_TOGETHER):
            yield self.entries(keys, data)

    def entries(self, rows: list[bytes], data: Sequence[bytes]) -> list[SpilledEntry]:
        """Return the entries of rows."""
        keys, namespaces = self.layout.parse_many(rows)
        if self._canonical is not None:
            keys = list(map(self._canonical, keys))
        values, stamps = self.decode_many(data)
        return list(map(SpilledEntry, rows, namespaces, keys, values, stamps))


class SpilledRows(DiskRows):
    """The rows of entries that are objects; for the owner thread of their table.

    Parameters
    ----------
    meta : StateMeta
    max_parallelism : int
    space : SpillSpace

    Attributes
    ----------
    asked : int
        How often an access looked for an entry here.
    """

    def __init__(self, meta: StateMeta, max_parallelism: int, space: SpillSpace) -> None:
        super().__init__(space)
        self._max_parallelism = max_parallelism
        #: Key groups and keys of one namespace that were looked up and have no row, until a row is written.
        self._absent: set[tuple[int, Any]] = set()
        self._absent_in: Any = None
        #: Whether it was logged that an entry cannot be written.
        self._warned = False
        self.asked = 0
        self.adopt(meta)

    def adopt(self, meta: StateMeta) -> None:
        """Use other serializers, which read and write the same bytes."""
        self._meta = meta
        self.of = EntryRows(meta, self._max_parallelism)
        self.address = self.of.layout.address

    def note_absent(self, addresses: Iterable[tuple[int, Any]], namespace: Any) -> None:
        """Note key groups and keys that have no row: a read is often followed by a write."""
        if namespace != self._absent_in or len(self._absent) > _ABSENT_KEYS:
            self._absent.clear()
        self._absent_in = namespace
        self._absent.update(addresses)

    def is_absent(self, key_group: int, key: Any, namespace: Any) -> bool:
        """Return whether an address is known to have no row."""
        return (key_group, key) in self._absent and namespace == self._absent_in

    def without_absent(
        self, key_groups: list[int], keys: list[Any], namespace: Any
    ) -> tuple[list[int], list[Any]]:
        """Return those of several addresses that are not known to have no row."""
        if not self._absent or namespace != self._absent_in:
            return key_groups, keys
        known = self._absent
        exist = [address not in known for address in zip(key_groups, keys, strict=True)]
        return list(compress(key_groups, exist)), list(compress(keys, exist))

    def reading(self) -> EntryRows:
        """Return a codec for another thread."""
        return EntryRows(self._meta.duplicate(), self._max_parallelism)

    def encode_possible(self, entries: LeavingEntries) -> list[tuple[bytes, bytes] | None]:
        """Return the row of each entry as its key and value; None for one that cannot be serialized."""
        try:
            return list(zip(*self.of.encode(entries), strict=True))
        except MemoryError:
            raise
        except Exception:  # whatever a serializer raises
            return [self._encode_one(LeavingEntries(*zip(one))) for one in zip(*entries, strict=True)]

    def _encode_one(self, entry: LeavingEntries) -> tuple[bytes, bytes] | None:
        try:
            (row,), (data,) = self.of.encode(entry)
        except MemoryError:
            raise
        except Exception as error:  # whatever a serializer raises
            if not self._warned:
                self._warned = True
                _log.warning(
                    "spillable: the entry of key %.100r in the state %r cannot be serialized and stays in "
                    "memory, and so do others like it: %s",
                    entry.keys[0],
                    self._meta.name,
                    error,
                )
            return None
        return row, data

    def put(self, rows: Sequence[bytes], data: Sequence[bytes]) -> None:
        """Write rows at once and atomically."""
        self._absent.clear()
        super().put(rows, data)

    def discard(self, key_group: int, key: Any, namespace: Any) -> None:
        """Remove the row of an address."""
        self.remove(self.address(key_group, key, namespace))

    def find(self, key_group: int, key: Any, namespace: Any) -> tuple[Any, int] | None:
        """Return the value and the stamp of the row of an address, or None."""
        data = self.get(self.address(key_group, key, namespace))
        return None if data is None else self.of.decode(data)

    def load(self, key_group: int, key: Any, namespace: Any) -> tuple[Any, int] | None:
        """Do what `find` does for an access to the entry, which counts."""
        if self.is_absent(key_group, key, namespace):
            return None
        self.asked += 1
        return self.find(key_group, key, namespace)

    def contains(self, key_group: int, key: Any, namespace: Any) -> bool:
        """Return whether an address has a row, for an access to the entry, which counts."""
        self.asked += 1
        return self.get(self.address(key_group, key, namespace)) is not None

    def entries_of(self, key_group: int, after: bytes = b"") -> Iterator[list[SpilledEntry]]:
        """Yield the entries of a key group in the order of rows, those after a row, several at a time."""
        prefix = self.of.layout.group_prefix(key_group)
        return self.entries_between(after + b"\0" if after else prefix, end_of(prefix))

    def entries_between(self, start: bytes, end: bytes | None) -> Iterator[list[SpilledEntry]]:
        """Yield the entries of a range of rows, several at a time; end it before the next change."""
        return self.of.scan(self.scan(start, end))
