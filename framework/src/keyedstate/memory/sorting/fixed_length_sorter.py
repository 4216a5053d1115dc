"""The sorter of records of one length, which are in the index itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from keyedstate.errors import RecordLengthError
from keyedstate.memory.segments import MemorySegment
from keyedstate.memory.sorting.index_pages import Entries
from keyedstate.memory.sorting.index_sorter import IndexSorter, RecordOrder
from keyedstate.memory.sorting.run_files import key_columns, record_schema

T = TypeVar("T")


class FixedLengthSorter(IndexSorter[T]):
    """A sorter in memory whose entries are the bytes of a record and its normalized key, which decides.

    Flink's ``FixedLengthRecordSorter``. No record is deserialized but for the caller, and none is found by a
    pointer.

    Raises `SortMemoryError` as `IndexSorter`, ValueError for an order whose normalized keys do not decide,
    and, from `write` and `write_many`, `RecordLengthError` for a record of another length.
    """

    def __init__(self, order: RecordOrder[T], pages: Sequence[MemorySegment], record_bytes: int) -> None:
        if not order.decides:
            raise ValueError("a FixedLengthSorter compares normalized keys alone, and these do not decide")
        super().__init__(order, pages, record_bytes)

    def _store(self, data: Sequence[bytes]) -> Entries:
        for record in data:
            if len(record) != self._content_bytes:
                raise RecordLengthError(len(record), self._content_bytes)
        stored = self._room(len(data))
        records = np.frombuffer(b"".join(data[:stored]), np.uint8)
        return records.reshape(stored, self._content_bytes)

    def _read(self, contents: Entries) -> list[bytes]:
        data, width = contents.tobytes(), self._content_bytes
        return [data[start : start + width] for start in range(0, len(data), width)]

    def _sizes(self, contents: Entries) -> NDArray[np.int64]:
        return np.full(len(contents), self._content_bytes, np.int64)

    def _block(self, entries: Entries) -> pa.RecordBatch:
        keys = self._keys(entries)
        records = pa.array(self._read(self._contents(entries)), pa.large_binary())
        return pa.RecordBatch.from_arrays(
            [*key_columns(keys), records, pa.nulls(len(keys), pa.int64())], schema=record_schema(keys.length)
        )
