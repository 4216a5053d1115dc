"""Keys of any length over a store that limits their length, in the same order.

A key that fits is the key of a row.  Of a longer one, the first bytes, as many as fit, are the key of a
*link*: its value is the number of a *part*, in which the rest of the key is a row, or a link again.  The key
of a link is one byte longer than any row's, a zero, so that it directly follows the key with the same bytes.
A scan that reads a part in the place of its link therefore yields the order of whole keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from keyedstate.ordered.store import RowCopy, RowReader, RowSpace, end_of

Get: TypeAlias = "Callable[[bytes], bytes | None]"

#: What the keys of parts begin with; other keys begin with a key group, which is below 32,768.
_PARTS = b"\xff"
_NUMBER_BYTES = 8
#: The keys of a part need room for a piece of the key after the part's number.
LEAST_LIMIT = 32


class _Reader(RowReader):
    """Reads whole keys from rows whose keys have at most `limit` bytes."""

    def __init__(self, rows: RowReader, limit: int) -> None:
        if limit < LEAST_LIMIT:
            raise ValueError(f"max_key_bytes is {limit}; keys of rows need at least {LEAST_LIMIT} bytes")
        self._rows = rows
        self._most = limit - 1

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        most = self._most
        if all(len(key) <= most for key in keys):
            return self._rows.get_many(keys)
        found = [key if len(key) <= most else self._row_of(key, self._look_up) for key in keys]
        values = iter(self._rows.get_many([row for row in found if row is not None]))
        return [None if row is None else next(values) for row in found]

    def scan(self, start: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """Yield the rows of a range in the order of their whole keys."""
        return self._scan(b"", start, _PARTS if end is None else end)

    def _scan(self, part: bytes, start: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        skipped, room = len(part), self._most - len(part)
        first = part + start[:room]
        last = end_of(part) if end is None else part + (end if len(end) <= room else end[:room] + b"\1")
        for row, value in self._rows.scan(first, last):
            if len(row) <= self._most:
                key = row[skipped:]
                if key >= start:
                    yield key, value
                continue
            stem = row[skipped:-1]
            below = start[room:] if start.startswith(stem) else b""
            above = end[room:] if end is not None and len(end) > room and end.startswith(stem) else None
            for rest, found in self._scan(_PARTS + value, below, above):
                yield stem + rest, found

    def _look_up(self, key: bytes) -> bytes | None:
        return self._rows.get_many([key])[0]

    def _row_of(self, key: bytes, get: Get) -> bytes | None:
        """Return the key of the row with the value under a whole key; None where a link is missing."""
        part, most = b"", self._most
        while len(part) + len(key) > most:
            room = most - len(part)
            number = get(part + key[:room] + b"\0")
            if number is None:
                return None
            part, key = _PARTS + number, key[room:]
        return part + key


class _Copy(_Reader, RowCopy):
    def __init__(self, copy: RowCopy, limit: int) -> None:
        super().__init__(copy, limit)
        self._copy = copy

    def release(self) -> None:
        self._copy.release()


class LongKeySpace(_Reader, RowSpace):
    """A space for keys of any length, over an empty one with `max_key_bytes`."""

    def __init__(self, space: RowSpace) -> None:
        assert space.max_key_bytes is not None
        super().__init__(space, space.max_key_bytes)
        self._space = space
        self._limit = space.max_key_bytes
        self._parts = 0

    def get(self, key: bytes) -> bytes | None:
        if len(key) <= self._most:
            return self._space.get(key)
        row = self._row_of(key, self._space.get)
        return None if row is None else self._space.get(row)

    def write(self, rows: Mapping[bytes, bytes | None]) -> None:
        """Write rows as one batch, with the links that they need."""
        if all(len(key) <= self._most for key in rows):
            self._space.write(rows)
            return
        batch: dict[bytes, bytes | None] = {}
        parts, removed = self._parts, []
        for key, value in rows.items():
            if len(key) <= self._most:
                batch[key] = value
            elif value is not None:
                batch[self._linked(key, batch)] = value
            else:
                row = self._row_of(key, self._space.get)
                if row is not None:
                    batch[row] = None
                    removed.append(key)
        try:
            self._space.write(batch)
        except BaseException:
            self._parts = parts
            raise
        for key in removed:
            self._unlink(key)

    def trim(self) -> None:
        self._space.trim()

    def copy(self) -> RowCopy:
        return _Copy(self._space.copy(), self._limit)

    def _linked(self, key: bytes, batch: dict[bytes, bytes | None]) -> bytes:
        """Return the key of the row for the value under a whole key, and add missing links to the batch."""

        def number(link: bytes) -> bytes:
            found = batch.get(link) or self._space.get(link)
            if found is None:
                self._parts += 1
                found = batch[link] = self._parts.to_bytes(_NUMBER_BYTES, "big")
            return found

        row = self._row_of(key, number)
        assert row is not None
        return row

    def _unlink(self, key: bytes) -> None:
        """Remove the links of a key to parts that have become empty, the last one first."""
        links: list[tuple[bytes, bytes]] = []

        def remembered(link: bytes) -> bytes | None:
            number = self._space.get(link)
            if number is not None:
                links.append((link, _PARTS + number))
            return number

        self._row_of(key, remembered)
        for link, part in reversed(links):
            if any(True for _ in self._space.scan(part, end_of(part))):
                return
            self._space.write({link: None})
