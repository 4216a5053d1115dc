"""The rows of a table on disk, as bytes: removals are collected, and every read knows them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from keyedstate.ordered import RowCopy, WriteBuffer
from keyedstate_spillable.store.database import SpillSpace

#: Removals that are written together.
_REMOVED_TOGETHER = 500


def chunks(rows: Iterator[tuple[bytes, bytes]], size: int) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """Yield the keys and the values of several rows at a time."""
    while found := list(islice(rows, size)):
        yield [row for row, _ in found], [data for _, data in found]


class DiskRows:
    """The rows of a table; for its owner thread.

    A row may be older than the entry in memory that has its address: memory counts.

    Parameters
    ----------
    space : SpillSpace
    """

    def __init__(self, space: SpillSpace) -> None:
        self._space = space
        # Every batch is written at once: an entry leaves the memory only after that.
        self._rows = WriteBuffer(space, rows=1)
        #: Rows to be removed.
        self._removed: dict[bytes, None] = {}

    @property
    def unused(self) -> bool:
        """Whether there has never been a row."""
        return self._space.unused

    def put(self, rows: Sequence[bytes], data: Sequence[bytes]) -> None:
        """Write rows at once and atomically."""
        self.flush()
        self._rows.put_columns(rows, data)

    def get(self, row: bytes) -> bytes | None:
        """Return the bytes of a row; None where it does not exist."""
        return None if row in self._removed else self._rows.get(row)

    def get_many(self, rows: Sequence[bytes]) -> list[bytes | None]:
        """Return the bytes of several rows."""
        found = self._rows.get_many(rows)
        if not self._removed:
            return found
        removed = self._removed
        return [None if row in removed else data for row, data in zip(rows, found, strict=True)]

    def remove(self, row: bytes) -> None:
        """Remove a row."""
        self.remove_many((row,))

    def remove_many(self, rows: Sequence[bytes]) -> None:
        """Remove rows."""
        if len(self._removed) + len(rows) > _REMOVED_TOGETHER:
            self.flush()
        self._removed.update(dict.fromkeys(rows))
        if len(rows) > _REMOVED_TOGETHER:
            self.flush()

    def flush(self) -> None:
        """Write the removals."""
        if self._removed:
            self._rows.put_many(dict(self._removed))
            self._removed.clear()

    def trim(self) -> None:
        """Let the database give back memory."""
        self.flush()
        self._rows.trim()

    def scan(self, start: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """Yield the rows of a range; end it before the next change."""
        self.flush()
        return self._rows.scan_all(start, end)

    def copy(self) -> RowCopy:
        """Return a consistent copy of the rows."""
        self.flush()
        return self._rows.copy()

    def clear(self) -> None:
        """Remove all rows of a table that has become another one."""
        self._removed.clear()
        self._space.clear()
