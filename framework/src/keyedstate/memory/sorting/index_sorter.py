"""What the sorters in pages share: an index whose entries end with normalized keys."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Final, Generic, Protocol, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from keyedstate.errors import SortMemoryError
from keyedstate.memory.segments import MemorySegment
from keyedstate.memory.sorting.index_pages import Entries, IndexPages
from keyedstate.memory.sorting.index_sort import Places, WholeKeys, sorted_places
from keyedstate.memory.sorting.keys import NormalizedKeys

T = TypeVar("T")

#: One page for the index, one for records, and one for whichever is full first.
MIN_PAGES: Final = 3
#: Records that are serialized, or deserialized, together.
_CHUNK: Final = 8192


class RecordOrder(Protocol[T]):
    """What a sorter has to know about its records; `keyedstate.types.orders.RecordOrder` implements it."""

    #: The length of the normalized keys, at least 1.
    key_bytes: int
    #: Whether records with equal normalized keys are always equal.
    decides: bool

    def serialize(self, records: Sequence[T]) -> list[bytes]:
        """Return the bytes of each record."""

    def deserialize(self, data: Sequence[bytes]) -> list[T]:
        """Return the records of bytes."""

    def normalized_keys(self, records: Sequence[T]) -> NormalizedKeys:
        """Return the normalized keys of records."""

    def whole_keys(self, records: Sequence[T]) -> pa.LargeBinaryArray:
        """Return keys that always decide, in the same order."""


class IndexSorter(ABC, Generic[T]):
    """Records in pages, and an index of them, which is sorted.

    An entry of the index consists of its content, by which a subclass finds the record, and of the record's
    normalized key.

    The pages, at least `MIN_PAGES` of one size, belong to the sorter until the caller releases them. Raises
    `SortMemoryError` for fewer.
    """

    def __init__(self, order: RecordOrder[T], pages: Sequence[MemorySegment], content_bytes: int) -> None:
        width = content_bytes + order.key_bytes
        if len(pages) < MIN_PAGES or pages[0].size < width:
            least = MIN_PAGES * max(width, pages[0].size if pages else 1)
            raise SortMemoryError(sum(page.size for page in pages), least)
        self._order = order
        self._content_bytes = content_bytes
        self._page_bytes = pages[0].size
        self._free = list(pages)
        self._index = IndexPages(width, self._page_bytes)

    def __len__(self) -> int:
        return len(self._index)

    @property
    def sort_bytes(self) -> int:
        """About how much memory outside of the pages `sort` takes for each record while it runs."""
        width = self._content_bytes + self._order.key_bytes
        # The entries and their sorted copy, the keys as numbers, the places, and arrays of ties.
        return 2 * width + 8 * (-(-self._order.key_bytes // 8) + 6)

    def write(self, record: T) -> bool:
        """Add a record; False where the pages are used up, and it was not added.

        Raises as `write_many`, which takes a fraction of the time for each record.
        """
        return self.write_many((record,)) == 1

    def write_many(self, records: Sequence[T]) -> int:
        """Add records in their order, and return how many of them: fewer where the pages are used up.

        Raises
        ------
        ValueTypeError
            For a record that is not of the type; some of those before it were added.
        """
        written = 0
        while written < len(records):
            chunk = records[written : written + _CHUNK]
            keys = self._order.normalized_keys(chunk)
            contents = self._store(self._order.serialize(chunk))
            stored = len(contents)
            if keys.prefix_only is not None:
                self._mark(contents, keys.prefix_only[:stored])
            self._index.append(np.hstack([contents, keys.data[:stored]]))
            written += stored
            if stored < len(chunk):
                break
        return written

    def sort(self) -> None:
        """Sort the records; equal ones keep their order."""
        entries = self._index.entries()
        self._index.overwrite(entries[sorted_places(self._keys(entries), self._whole_keys_of(entries))])

    def compare(self, first: int, second: int) -> int:
        """Return -1, 0 or 1: whether a record comes before another one, both given by their index."""
        entries = np.concatenate([self._entry(first), self._entry(second)])
        keys = self._keys(entries)
        mine: bytes = keys.data[0].tobytes()
        theirs: bytes = keys.data[1].tobytes()
        if mine == theirs and keys.prefix_only is not None:
            mine, theirs = self._whole_keys_of(entries)(np.arange(2)).to_pylist()
        return int(mine > theirs) - int(mine < theirs)

    def swap(self, first: int, second: int) -> None:
        """Exchange two records, given by their index."""
        self._index.swap(self._checked(first), self._checked(second))

    def read(self, index: int) -> T:
        """Return a record: in the order of writing before `sort`, in the sorted one afterwards."""
        return self._order.deserialize(self._read(self._contents(self._entry(index))))[0]

    def __iter__(self) -> Iterator[T]:
        for entries in self._chunks():
            yield from self._order.deserialize(self._read(self._contents(entries)))

    def blocks(self, block_bytes: int) -> Iterator[pa.RecordBatch]:
        """Yield the entries for a run on disk, about so many bytes at a time.

        The columns are those of `keyedstate.memory.sorting.run_files.record_schema`.
        """
        start = 0
        while start < len(self):
            entries = self._index.entries(start, start + _CHUNK)
            sizes = np.cumsum(self._sizes(self._contents(entries)) + entries.shape[1])
            while len(entries):
                count = max(1, int(np.searchsorted(sizes, block_bytes, "right")))
                yield self._block(entries[:count])
                start += count
                entries, sizes = entries[count:], sizes[count:] - sizes[count - 1]

    def reset(self) -> None:
        """Drop all records; the pages are free for others."""
        self._free += self._index.clear()

    # -- how a subclass finds records ---------------------------------------------------------------

    @abstractmethod
    def _store(self, data: Sequence[bytes]) -> Entries:
        """Store as many records as there is room for, and return the contents of their entries."""

    @abstractmethod
    def _read(self, contents: Entries) -> list[bytes]:
        """Return the bytes of the records with some contents."""

    @abstractmethod
    def _sizes(self, contents: Entries) -> NDArray[np.int64]:
        """Return the bytes that records take in a run."""

    @abstractmethod
    def _block(self, entries: Entries) -> pa.RecordBatch: ...

    def _mark(self, contents: Entries, prefix_only: NDArray[np.bool_]) -> None:
        """Note in contents which keys are only prefixes."""

    def _prefix_only(self, contents: Entries) -> NDArray[np.bool_] | None:
        """Return which keys are only prefixes; None where all decide."""
        return None

    # -- entries --------------------------------------------------------------------------------------

    def _room(self, wanted: int) -> int:
        """Return for how many of some more entries there is room in the index, which may get pages."""
        while self._index.room < wanted and self._free:
            self._index.add_page(self._free.pop())
        return min(wanted, self._index.room)

    def _chunks(self) -> Iterator[Entries]:
        for start in range(0, len(self), _CHUNK):
            yield self._index.entries(start, start + _CHUNK)

    def _entry(self, index: int) -> Entries:
        return self._index.entries(self._checked(index), index + 1)

    def _checked(self, index: int) -> int:
        if not 0 <= index < len(self):
            raise IndexError(f"there is no record {index}: the sorter has {len(self)}")
        return index

    def _contents(self, entries: Entries) -> Entries:
        return entries[:, : self._content_bytes]

    def _keys(self, entries: Entries) -> NormalizedKeys:
        return NormalizedKeys(entries[:, self._content_bytes :], self._prefix_only(self._contents(entries)))

    def _whole_keys_of(self, entries: Entries) -> WholeKeys:
        def whole_keys(places: Places) -> pa.LargeBinaryArray:
            contents = self._contents(entries)[places]
            # Of the records themselves, only a chunk is in memory at a time.
            return pa.concat_arrays(
                self._order.whole_keys(self._order.deserialize(self._read(contents[start : start + _CHUNK])))
                for start in range(0, len(contents), _CHUNK)
            )

        return whole_keys
