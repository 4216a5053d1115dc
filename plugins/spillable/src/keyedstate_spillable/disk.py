"""The rows of a table's entries on disk: one row per entry, in the order of key groups.

A row's value is the entry's stamp (`CopyOnWriteStateMap.coldest`), 32 bits, and the bytes of its value; no
bytes stand for None.  A list or a map is one row too, because it comes back to memory as a whole.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from keyedstate.backend import EntryBatch, StateMeta
from keyedstate.ordered import RowSpace, ValueCodec, end_of
from keyedstate_spillable.rows import DiskRows, chunks

_log = logging.getLogger(__name__)

_STAMP = struct.Struct(">i")
#: Rows of a scan that are decoded together.
_READ_TOGETHER = 1024
#: Keys without a row that are remembered.
_ABSENT_KEYS = 50_000


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

    def encode(self, values: Sequence[Any], stamps: Sequence[int]) -> list[bytes]:
        """Return the bytes of rows."""
        made = self._values.encode_many(list(values))
        return [_STAMP.pack(stamp) + data for stamp, data in zip(stamps, made, strict=True)]

    def decode(self, data: bytes) -> tuple[Any, int]:
        """Return the value and the stamp of a row."""
        (stamp,) = _STAMP.unpack_from(data)
        return self._values.decode(data[_STAMP.size :]), stamp

    def decode_many(self, data: Sequence[bytes]) -> tuple[list[Any], list[int]]:
        """Return the values and the stamps of several rows."""
        stamps = [_STAMP.unpack_from(one)[0] for one in data]
        return self._values.decode_many([one[_STAMP.size :] for one in data]), stamps

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
    space : RowSpace
    """

    def __init__(self, meta: StateMeta, max_parallelism: int, space: RowSpace) -> None:
        super().__init__(space)
        self._max_parallelism = max_parallelism
        #: Key groups and keys of one namespace that were looked up and have no row, until a row is written.
        self._absent: set[tuple[int, Any]] = set()
        self._absent_in: Any = None
        #: Whether it was logged that an entry cannot be written.
        self._warned = False
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

    def reading(self) -> EntryRows:
        """Return a codec for another thread."""
        return EntryRows(self._meta.duplicate(), self._max_parallelism)

    def write(
        self,
        key_groups: Sequence[int],
        namespaces: Sequence[Any],
        keys: Sequence[Any],
        values: Sequence[Any],
        stamps: Sequence[int],
    ) -> None:
        """Write entries; where it raises, nothing is written."""
        self._write(*self._encode(key_groups, namespaces, keys, values, stamps))

    def write_possible(
        self,
        key_groups: Sequence[int],
        namespaces: Sequence[Any],
        keys: Sequence[Any],
        values: Sequence[Any],
        stamps: Sequence[int],
    ) -> list[bool]:
        """Write those entries that can be serialized; return which ones these are."""
        try:
            rows, data = self._encode(key_groups, namespaces, keys, values, stamps)
            written = [True] * len(keys)
        except MemoryError:
            raise
        except Exception:  # whatever a serializer raises
            encoded = list(map(self._encode_possible, key_groups, namespaces, keys, values, stamps))
            written = [made is not None for made in encoded]
            possible = [made for made in encoded if made is not None]
            rows, data = [row for row, _ in possible], [value for _, value in possible]
        if rows:
            self._write(rows, data)
        return written

    def _encode(
        self,
        key_groups: Sequence[int],
        namespaces: Sequence[Any],
        keys: Sequence[Any],
        values: Sequence[Any],
        stamps: Sequence[int],
    ) -> tuple[list[bytes], list[bytes]]:
        rows = self.of.layout.each_address(key_groups, keys, namespaces)
        return rows, self.of.encode(values, stamps)

    def _encode_possible(
        self, key_group: int, namespace: Any, key: Any, value: Any, stamp: int
    ) -> tuple[bytes, bytes] | None:
        """Return the row of an entry; None where it cannot be serialized."""
        try:
            (row,), (data,) = self._encode([key_group], [namespace], [key], [value], [stamp])
        except MemoryError:
            raise
        except Exception as error:  # whatever a serializer raises
            if not self._warned:
                self._warned = True
                _log.warning(
                    "spillable: the entry of key %.100r in the state %r cannot be serialized and stays in "
                    "memory, and so do others like it: %s",
                    key,
                    self._meta.name,
                    error,
                )
            return None
        return row, data

    def _write(self, rows: list[bytes], data: list[bytes]) -> None:
        self._absent.clear()
        self.put(rows, data)

    def discard(self, key_group: int, key: Any, namespace: Any) -> None:
        """Remove the row of an address."""
        self.remove(self.address(key_group, key, namespace))

    def read(self, row: bytes) -> tuple[Any, int] | None:
        """Return the value and the stamp of the entry under an address, or None."""
        data = self.get(row)
        return None if data is None else self.of.decode(data)

    def contains(self, row: bytes) -> bool:
        """Return whether an address has a row."""
        return self.get(row) is not None

    def entries_of(self, key_group: int, after: bytes = b"") -> Iterator[list[SpilledEntry]]:
        """Yield the entries of a key group in the order of rows, those after a row, several at a time."""
        prefix = self.of.layout.group_prefix(key_group)
        return self.entries_between(after + b"\0" if after else prefix, end_of(prefix))

    def entries_between(self, start: bytes, end: bytes | None) -> Iterator[list[SpilledEntry]]:
        """Yield the entries of a range of rows, several at a time; end it before the next change."""
        return self.of.scan(self.scan(start, end))
