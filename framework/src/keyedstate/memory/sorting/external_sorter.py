"""The external sorter of records: sorted runs are spilled to disk where the memory is used up, and merged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Generic, TypeVar

import pyarrow as pa

from keyedstate.errors import SortMemoryError
from keyedstate.memory.manager import MemoryManager
from keyedstate.memory.sorting.index_sorter import MIN_PAGES, RecordOrder
from keyedstate.memory.sorting.normalized_key_sorter import NormalizedKeySorter
from keyedstate.memory.sorting.run_files import KEY_COLUMNS, LargeRecords, record_schema
from keyedstate.memory.sorting.spilled_runs import FAN_IN, SpilledRuns, SpillingSorter

T = TypeVar("T")


class ExternalSorter(SpillingSorter, Generic[T]):
    """A sorter of any number of records, in a fixed memory of at least six pages of the manager.

    Half of the memory are pages of a `NormalizedKeySorter`. The other half is reserved for the arrays that a
    sort takes, and later for the merge. A record that is larger than a page is written to a file at once.

    The runs are in a private folder, such as `keyedstate.working_folder.WorkingFolder`; at most `fan_in` of
    them are merged at once. Raises `SortMemoryError` for less memory, and `MemoryBudgetError` where the
    manager does not have it.
    """

    def __init__(
        self,
        order: RecordOrder[T],
        memory: MemoryManager,
        memory_bytes: int,
        folder: Path,
        *,
        fan_in: int = FAN_IN,
    ) -> None:
        pages = memory_bytes // (2 * memory.page_bytes)
        if pages < MIN_PAGES:
            raise SortMemoryError(memory_bytes, 2 * MIN_PAGES * memory.page_bytes)
        self._order = order
        self._memory = memory
        self._reserved = memory_bytes - pages * memory.page_bytes
        schema = record_schema(order.key_bytes)
        super().__init__(SpilledRuns(folder, schema, self._whole_keys, self._reserved, fan_in))
        self._large = LargeRecords(self._runs.path("large"))
        memory.reserve(self, self._reserved)
        try:
            self._pages = memory.allocate_pages(self, pages)
            self._sorter = NormalizedKeySorter(order, self._pages, self._large)
        except BaseException:
            memory.release_all(self)
            raise
        #: How many records a sort has the memory for.
        self._most = max(1, self._reserved // self._sorter.sort_bytes)

    def __str__(self) -> str:
        return "an external sorter"

    @property
    def spilled_bytes(self) -> int:
        """Bytes of all runs that were written, also for passes of a merge."""
        return self._runs.written_bytes

    @property
    def passes(self) -> int:
        """How many passes the merge took; 0 without one."""
        return self._runs.passes

    def write(self, record: T) -> None:
        """Add a record; raises as `write_many`, which takes a fraction of the time for each."""
        self.write_many((record,))

    def write_many(self, records: Sequence[T]) -> None:
        """Add records.

        Raises
        ------
        ValueTypeError
            For a record that is not of the type; some of those before it were added.
        SpillError
            Where a run or a large record cannot be written; the sorter is closed then.
        SorterClosedError
            After `sorted` or `close`.
        """
        self._check_unread()
        written = 0
        while written < len(records):
            chunk = records[written : written + self._most - len(self._sorter)]
            with self._closed_by_a_failed_write():
                stored = self._sorter.write_many(chunk)
            written += stored
            if stored < len(chunk) or len(self._sorter) == self._most:
                self._spill()

    def sorted(self) -> Iterator[T]:
        """Yield the records in their order; equal ones in the order of writing.

        Raises `SpillError` as `write_many`, `SorterClosedError` after `close`, also while it yields, and
        `RunFileError` for a damaged or missing file.
        """
        self._check_open()
        if not self._finished:
            self._finish()
        return self._merged() if self._runs else self._in_memory()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._memory.release_all(self)
            self._runs.close()
            self._large.close()

    def _spill(self) -> None:
        self._sorter.sort()
        with self._closed_by_a_failed_write():
            self._runs.add(self._sorter.blocks(self._runs.batch_bytes))
        self._sorter.reset()

    def _finish(self) -> None:
        """Sort what is in memory, as another run where there are some."""
        if not self._runs:
            self._sorter.sort()
        else:
            if len(self._sorter):
                self._spill()
            self._memory.release(self._pages)
        self._finished = True

    def _in_memory(self) -> Iterator[T]:
        for record in self._sorter:
            yield record
            self._check_open()

    def _merged(self) -> Iterator[T]:
        with self._closed_by_a_failed_write():
            for batch in self._runs.merged():
                for record in self._order.deserialize(self._data(batch)):
                    yield record
                    self._check_open()

    def _whole_keys(self, rows: pa.RecordBatch) -> pa.LargeBinaryArray:
        return self._order.whole_keys(self._order.deserialize(self._data(rows)))

    def _data(self, rows: pa.RecordBatch) -> list[bytes]:
        """Return the bytes of the records in a batch of a run."""
        records, offsets = rows.columns[KEY_COLUMNS:]
        data: list[bytes] = records.to_numpy(zero_copy_only=False).tolist()
        if records.null_count:
            for place in records.is_null().to_numpy(zero_copy_only=False).nonzero()[0].tolist():
                data[place] = self._large.read(offsets[place].as_py())
        return data
