"""The index of a sorter: entries of one width in pages, none of which spans two."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from keyedstate.memory.segments import MemorySegment

Entries = NDArray[np.uint8]


class IndexPages:
    """A growing sequence of entries, whose width is at most that of a page."""

    def __init__(self, width: int, page_bytes: int) -> None:
        self._width = width
        self._per_page = page_bytes // width
        self._pages: list[MemorySegment] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def room(self) -> int:
        """How many entries fit into the pages that the index has."""
        return len(self._pages) * self._per_page - self._count

    def add_page(self, page: MemorySegment) -> None:
        """Make room for more entries."""
        self._pages.append(page)

    def append(self, entries: Entries) -> None:
        """Add entries, for which there is room."""
        self._write(self._count, entries)
        self._count += len(entries)

    def entries(self, start: int = 0, stop: int | None = None) -> Entries:
        """Return a copy of some entries, or of all; an array of shape (entries, width)."""
        stop = self._count if stop is None else min(stop, self._count)
        copied: Entries = np.empty((max(stop - start, 0), self._width), np.uint8)
        while start < stop:
            page, first = divmod(start, self._per_page)
            count = min(stop - start, self._per_page - first)
            end = len(copied) - (stop - start)
            copied[end : end + count] = self._page(page)[first : first + count]
            start += count
        return copied

    def overwrite(self, entries: Entries) -> None:
        """Replace all entries by as many others."""
        self._write(0, entries)

    def swap(self, first: int, second: int) -> None:
        """Exchange two entries."""
        if first != second:
            mine, theirs = self._place(first), self._place(second)
            mine[0].swap(theirs[0], mine[1], theirs[1], self._width)

    def clear(self) -> list[MemorySegment]:
        """Drop all entries, and return the pages."""
        pages, self._pages, self._count = self._pages, [], 0
        return pages

    def _place(self, entry: int) -> tuple[MemorySegment, int]:
        page, slot = divmod(entry, self._per_page)
        return self._pages[page], slot * self._width

    def _page(self, page: int) -> NDArray[Any]:
        whole = np.frombuffer(self._pages[page].view, np.uint8, self._per_page * self._width)
        return whole.reshape(self._per_page, self._width)

    def _write(self, start: int, entries: Entries) -> None:
        written = 0
        while written < len(entries):
            page, first = divmod(start + written, self._per_page)
            count = min(len(entries) - written, self._per_page - first)
            self._page(page)[first : first + count] = entries[written : written + count]
            written += count
