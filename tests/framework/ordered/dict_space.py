"""The plainest ordered byte store there can be: a sorted dict."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, Sequence

from keyedstate.ordered import RowCopy, RowSpace


class DictSpace(RowSpace, RowCopy):
    """Counts what is asked of it."""

    def __init__(self, rows: Mapping[bytes, bytes] | None = None) -> None:
        self.rows = dict(rows or {})
        self._keys = sorted(self.rows)
        self.batches: list[int] = []
        self.reads = 0

    def get(self, key: bytes) -> bytes | None:
        self.reads += 1
        return self.rows.get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        self.reads += 1
        return [self.rows.get(key) for key in keys]

    def scan(self, start: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        self.reads += 1
        stop = None if end is None else bisect_left(self._keys, end)
        return iter([(key, self.rows[key]) for key in self._keys[bisect_left(self._keys, start) : stop]])

    def write(self, rows: Mapping[bytes, bytes | None]) -> None:
        self.batches.append(len(rows))
        for key, value in rows.items():
            if value is None:
                if self.rows.pop(key, None) is not None:
                    self._keys.remove(key)
            else:
                if key not in self.rows:
                    insort(self._keys, key)
                self.rows[key] = value

    def copy(self) -> RowCopy:
        return DictSpace(self.rows)

    def release(self) -> None:
        pass
