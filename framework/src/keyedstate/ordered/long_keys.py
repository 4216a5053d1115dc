"""Keys of any length over a store that limits their length: the order of rows stays what it is.

A key that fits is a row as ever.  Of a longer one the first bytes, as many as fit, are the key of a *link*:
its value is the number of a *part*, in which the rest of the key is a row, or a link again.  Links are longer
than all other rows' keys by one byte, a zero, so that they come right behind the key that has the same bytes
and before all others; a scan that reads a part in the place of its link yields the order of whole keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from keyedstate.ordered.store import RowCopy, RowReader, RowSpace, end_of

Get: TypeAlias = "Callable[[bytes], bytes | None]"

#: What the keys of parts begin with; those of other rows begin with a key group, of which there are 32,768.
_PARTS = b"\xff"
_NUMBER_BYTES = 8
#: A part's rows need room for a piece of the key behind the part's number.
LEAST_LIMIT = 32


class _Reader(RowReader):
    """Reads whole keys.

    Parameters
    ----------
    rows : RowReader
        The rows with short keys.
    limit : int
        The longest key that they may have.
    """

    def __init__(self, rows: RowReader, limit: int) -> None:
        if limit < LEAST_LIMIT:
            raise ValueError(f"max_key_bytes is {limit}; keys of rows need at least {LEAST_LIMIT} bytes")
        self._rows = rows
        self._most = limit - 1

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        most = self._most
        if all(len(key) <= most for key in keys):
            return self._rows.get_many(keys)
        found = [key if len(key) <= most else self._place(key, self._look_up) for key in keys]
        values = iter(self._rows.get_many([place for place in found if place is not None]))
        return [None if place is None else next(values) for place in found]

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

    def _place(self, key: bytes, get: Get) -> bytes | None:
        """Return the key of the row that has the value under a key; None where a link is missing."""
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
        """Give the copy up."""
        self._copy.release()


class LongKeySpace(_Reader, RowSpace):
    """A space for keys of any length.

    Parameters
    ----------
    space : RowSpace
        An empty one with `max_key_bytes`.
    """

    def __init__(self, space: RowSpace) -> None:
        assert space.max_key_bytes is not None
        super().__init__(space, space.max_key_bytes)
        self._space = space
        self._limit = space.max_key_bytes
        self._parts = 0

    def get(self, key: bytes) -> bytes | None:
        if len(key) <= self._most:
            return self._space.get(key)
        place = self._place(key, self._space.get)
        return None if place is None else self._space.get(place)

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
                place = self._place(key, self._space.get)
                if place is not None:
                    batch[place] = None
                    removed.append(key)
        try:
            self._space.write(batch)
        except BaseException:
            self._parts = parts
            raise
        for key in removed:
            self._unlink(key)

    def copy(self) -> RowCopy:
        return _Copy(self._space.copy(), self._limit)

    def _linked(self, key: bytes, batch: dict[bytes, bytes | None]) -> bytes:
        """Return the key of the row that gets the value under a key, and add missing links to the batch."""

        def number(link: bytes) -> bytes:
            found = batch.get(link) or self._space.get(link)
            if found is None:
                self._parts += 1
                found = batch[link] = self._parts.to_bytes(_NUMBER_BYTES, "big")
            return found

        place = self._place(key, number)
        assert place is not None
        return place

    def _unlink(self, key: bytes) -> None:
        """Remove the links of a key to parts that are empty now, the last one first."""
        links: list[tuple[bytes, bytes]] = []

        def remembered(link: bytes) -> bytes | None:
            number = self._space.get(link)
            if number is not None:
                links.append((link, _PARTS + number))
            return number

        self._place(key, remembered)
        for link, part in reversed(links):
            if any(True for _ in self._space.scan(part, end_of(part))):
                return
            self._space.write({link: None})
