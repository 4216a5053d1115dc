"""The sorter of records of any length: index entries and records are in different pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from keyedstate.errors import RecordTooLargeError
from keyedstate.memory.segments import MemorySegment
from keyedstate.memory.sorting.index_pages import Entries
from keyedstate.memory.sorting.index_sorter import IndexSorter, RecordOrder
from keyedstate.memory.sorting.keys import NormalizedKeys
from keyedstate.memory.sorting.run_files import LargeRecords, key_columns, record_schema

T = TypeVar("T")
Pointers = NDArray[np.uint64]

_POINTER_BYTES: Final = 8
# A pointer has, from its highest bit on: whether the record is large; whether its key is only a prefix; and
# the page, offset and length of the record, or, of a large one, the offset in its file.
_LARGE: Final = np.uint64(1 << 63)
_PREFIX_ONLY: Final = np.uint64(1 << 62)
_FILE_OFFSET: Final = np.uint64((1 << 62) - 1)
_OFFSET_BITS, _LENGTH_BITS = np.uint64(20), np.uint64(21)
_PAGE_SHIFT: Final = np.uint64(41)
_OFFSET_MASK, _LENGTH_MASK = np.uint64((1 << 20) - 1), np.uint64((1 << 21) - 1)
_PAGE_MASK: Final = np.uint64((1 << 21) - 1)
_MAX_PAGE_BYTES: Final = 1 << 20


class NormalizedKeySorter(IndexSorter[T]):
    """A sorter in memory; entries of its index are an 8-byte pointer to a record and its normalized key.

    Flink's ``NormalizedKeySorter``. Records are deserialized where normalized keys are equal and only
    prefixes, and for the caller. A record does not span pages, which have up to 1 MiB.

    Raises `SortMemoryError` as `IndexSorter`. Without a file for large records, `write` and `write_many`
    raise `RecordTooLargeError` for one that is larger than a page, and with it `SpillError` where it cannot
    be written.
    """

    def __init__(
        self,
        order: RecordOrder[T],
        pages: Sequence[MemorySegment],
        large_records: LargeRecords | None = None,
    ) -> None:
        super().__init__(order, pages, _POINTER_BYTES)
        if self._page_bytes > _MAX_PAGE_BYTES:
            raise ValueError(f"pages of {self._page_bytes} bytes; pointers reach up to {_MAX_PAGE_BYTES}")
        self._large = large_records
        self._records: list[MemorySegment] = []
        #: Bytes of the last record page that are in use.
        self._used = self._page_bytes

    def reset(self) -> None:
        super().reset()
        self._free += self._records
        self._records = []
        self._used = self._page_bytes

    def _store(self, data: Sequence[bytes]) -> Entries:
        sizes = np.fromiter(map(len, data), np.int64, len(data))
        ends = np.cumsum(sizes)
        large = [*np.flatnonzero(sizes > self._page_bytes).tolist(), len(data)]
        pointers: Pointers = np.empty(len(data), np.uint64)
        stored = 0
        while stored < len(data):
            if stored == large[0]:
                if not self._room(stored + 1) > stored:
                    break
                pointers[stored] = np.uint64(self._store_large(data[stored])) | _LARGE
                large.pop(0)
                stored += 1
                continue
            start = int(ends[stored] - sizes[stored])
            room = self._page_bytes - self._used
            stop = min(int(np.searchsorted(ends, start + room, "right")), large[0])
            stop = min(stop, self._room(stop))
            if stop == stored or not self._records:
                # Nothing fits into the page, or into the index, which then has no page left either.
                if not self._free:
                    break
                self._records.append(self._free.pop())
                self._used = 0
                continue
            offsets = (self._used + ends[stored:stop] - sizes[stored:stop] - start).astype(np.uint64)
            page = np.uint64(len(self._records) - 1)
            pointers[stored:stop] = (
                page << _PAGE_SHIFT | offsets << _LENGTH_BITS | sizes[stored:stop].astype(np.uint64)
            )
            joined = b"".join(data[stored:stop])
            self._records[-1].put(self._used, joined)
            self._used += len(joined)
            stored = stop
        return pointers[:stored].view(np.uint8).reshape(stored, _POINTER_BYTES)

    def _store_large(self, data: bytes) -> int:
        if self._large is None:
            raise RecordTooLargeError(len(data), self._page_bytes)
        return self._large.append(data)

    def _read(self, contents: Entries) -> list[bytes]:
        pointers = _pointers(contents)
        large = (pointers & _LARGE) != 0
        if large.any():
            found = iter(self._read_pages(pointers[~large]))
            offsets = (pointers & _FILE_OFFSET).tolist()
            assert self._large is not None, "a large record without their file"
            return [
                self._large.read(offset) if is_large else next(found)
                for is_large, offset in zip(large.tolist(), offsets, strict=True)
            ]
        return self._read_pages(pointers)

    def _read_pages(self, pointers: Pointers) -> list[bytes]:
        views = [page.view for page in self._records]
        pages = (pointers >> _PAGE_SHIFT & _PAGE_MASK).tolist()
        starts = pointers >> _LENGTH_BITS & _OFFSET_MASK
        ends = (starts + (pointers & _LENGTH_MASK)).tolist()
        return [
            views[page][start:end].tobytes()
            for page, start, end in zip(pages, starts.tolist(), ends, strict=True)
        ]

    def _sizes(self, contents: Entries) -> NDArray[np.int64]:
        pointers = _pointers(contents)
        return np.where(pointers & _LARGE, _POINTER_BYTES, pointers & _LENGTH_MASK).astype(np.int64)

    def _mark(self, contents: Entries, prefix_only: NDArray[np.bool_]) -> None:
        contents.view(np.uint64)[prefix_only] |= _PREFIX_ONLY

    def _prefix_only(self, contents: Entries) -> NDArray[np.bool_] | None:
        marked: NDArray[np.bool_] = (_pointers(contents) & _PREFIX_ONLY) != 0
        return marked if marked.any() else None

    def _block(self, entries: Entries) -> pa.RecordBatch:
        keys: NormalizedKeys = self._keys(entries)
        pointers = _pointers(self._contents(entries))
        large = (pointers & _LARGE) != 0
        found = iter(self._read_pages(pointers[~large]))
        data = [None if is_large else next(found) for is_large in large.tolist()]
        offsets = pa.array((pointers & _FILE_OFFSET).astype(np.int64), mask=~large)
        return pa.RecordBatch.from_arrays(
            [*key_columns(keys), pa.array(data, pa.large_binary()), offsets],
            schema=record_schema(keys.length),
        )


def _pointers(contents: Entries) -> Pointers:
    """Return the pointers in contents of entries."""
    pointers: Pointers = np.ascontiguousarray(contents).view(np.uint64)[:, 0]
    return pointers
