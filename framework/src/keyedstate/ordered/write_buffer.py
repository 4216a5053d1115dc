"""Pending rows: reads see them before the rows of the space, and they are written in batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Final

from keyedstate.ordered.long_keys import LongKeySpace
from keyedstate.ordered.store import RowCopy, RowSpace, end_of

#: A batch is written at so many rows or bytes (Flink's ``RocksDBWriteBatchWrapper``).
BATCH_ROWS = 500
BATCH_BYTES = 2 << 20

ABSENT: Final = object()


class WriteBuffer:
    """The rows of a space and those that are not written yet; a batch is written at so many rows or bytes."""

    def __init__(self, space: RowSpace, rows: int = BATCH_ROWS, size: int = BATCH_BYTES) -> None:
        if space.max_key_bytes is not None:
            space = LongKeySpace(space)
        #: The values that are not written yet, by key; None for a row to be removed.
        self.pending: dict[bytes, bytes | None] = {}
        #: Looks up a key in the space alone.
        self.stored = space.get
        self._space = space
        self._rows = rows
        self._size = size
        self._bytes = 0
        #: Prefixes of pending rows, None for rows without one: a scan of another prefix needs no write.
        self._prefixes: set[bytes | None] = set()

    def get(self, key: bytes) -> bytes | None:
        """Return the value under a key, or None."""
        found = self.pending.get(key, ABSENT)
        return self._space.get(key) if found is ABSENT else found  # type: ignore[return-value]

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values under several keys."""
        pending = self.pending
        if not pending:
            return self._space.get_many(keys)
        found = list(map(pending.get, keys, repeat(ABSENT)))
        missing = [key for key, value in zip(keys, found, strict=True) if value is ABSENT]
        if missing:
            stored = iter(self._space.get_many(missing))
            return [next(stored) if value is ABSENT else value for value in found]  # type: ignore[misc]
        return found  # type: ignore[return-value]

    def put(self, key: bytes, value: bytes | None, prefix: bytes | None = None) -> None:
        """Write a row, or remove it where the value is None; `prefix` is what `scan` may be called with."""
        pending = self.pending
        pending[key] = value
        self._prefixes.add(prefix)
        self._bytes += len(key) if value is None else len(key) + len(value)
        if len(pending) >= self._rows or self._bytes >= self._size:
            self.flush()

    def put_many(self, rows: dict[bytes, bytes | None]) -> None:
        """Write several rows at once; as many as a batch are a batch of their own."""
        if len(rows) >= self._rows:
            self.flush()
            self._space.write(rows)
            return
        for key, value in rows.items():
            self.put(key, value)

    def put_columns(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Write several rows without a prefix, as columns."""
        if len(keys) >= self._rows:
            self.flush()
            self._space.put_many(keys, values)
            return
        for key, value in zip(keys, values, strict=True):
            self.put(key, value)

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the rows under a prefix given to `put`; end the iteration before the next change."""
        if prefix in self._prefixes or None in self._prefixes:
            self.flush()
        return self._space.scan(prefix, end_of(prefix))

    def scan_all(self, start: bytes = b"", end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Yield all rows of a range; end the iteration before the next change."""
        self.flush()
        return self._space.scan(start, end)

    def flush(self) -> None:
        """Write the pending rows; where that raises, they stay pending."""
        if self.pending:
            self._space.write(self.pending)
            self.pending = {}
            self._prefixes.clear()
            self._bytes = 0

    def trim(self) -> None:
        """Write the pending rows, and let the space give back memory."""
        self.flush()
        self._space.trim()

    def copy(self) -> RowCopy:
        """Return a consistent copy of all rows, pending ones included."""
        self.flush()
        return self._space.copy()
