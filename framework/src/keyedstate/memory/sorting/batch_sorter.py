"""The external sorter of rows in columns: sorted runs of record batches are spilled to disk, and merged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol

import pyarrow as pa

from keyedstate.errors import SortMemoryError
from keyedstate.memory.manager import MemoryManager
from keyedstate.memory.sorting.keys import NormalizedKeys
from keyedstate.memory.sorting.merging import sorted_rows
from keyedstate.memory.sorting.run_files import KEY_COLUMNS, key_columns, run_schema
from keyedstate.memory.sorting.spilled_runs import FAN_IN, SpilledRuns, SpillingSorter

#: The least memory of a sorter: some batches of a usual size.
MIN_MEMORY_BYTES: Final = 1 << 20
#: Rows in memory, their sorted copy, and the keys with the arrays that a sort takes.
_COPIES: Final = 3
#: Arrow's columns of strings and bytes end at 2 GiB.
_LARGEST_RUN: Final = 1 << 30


class RowOrder(Protocol):
    """The order of rows; `keyedstate.types.orders.ColumnOrder` implements it."""

    #: The length of the normalized keys, at least 1.
    key_bytes: int

    def normalized_keys(self, columns: Sequence[pa.Array]) -> NormalizedKeys:
        """Return the normalized keys of rows."""

    def whole_keys(self, columns: Sequence[pa.Array]) -> pa.LargeBinaryArray:
        """Return keys that always decide, in the same order."""


class BatchSorter(SpillingSorter):
    """A sorter of any number of rows, in a limited memory.

    Rows stay in columns: none becomes a Python object. They are sorted by the columns at some places, in the
    order that `order` has them. No column may be a dictionary, for which ValueError is raised: batches in a
    file have none.

    Rows, their keys and a merge take together what the sorter reserves, at least `MIN_MEMORY_BYTES`. Runs and
    errors are those of `ExternalSorter`.
    """

    def __init__(
        self,
        order: RowOrder,
        columns: Sequence[int],
        schema: pa.Schema,
        memory: MemoryManager,
        memory_bytes: int,
        folder: Path,
        *,
        fan_in: int = FAN_IN,
    ) -> None:
        if memory_bytes < MIN_MEMORY_BYTES:
            raise SortMemoryError(memory_bytes, MIN_MEMORY_BYTES)
        for field in schema:
            if pa.types.is_dictionary(field.type):
                raise ValueError(f"the column {field.name!r} is a dictionary; decode it before it is sorted")
        self._order = order
        self._columns = tuple(columns)
        self._schema = run_schema(order.key_bytes, schema)
        self._rows_schema = schema
        self._most_waiting = min(memory_bytes // _COPIES, _LARGEST_RUN)
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        super().__init__(SpilledRuns(folder, self._schema, self._whole_keys, memory_bytes, fan_in))
        self._memory = memory
        memory.reserve(self, memory_bytes)

    def __str__(self) -> str:
        return "a sorter of rows"

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows.

        Raises
        ------
        ColumnTypeError, ValueTypeError
            From `RowOrder.normalized_keys`, for rows that cannot be compared.
        SpillError
            Where a run cannot be written; the sorter is closed then.
        SorterClosedError
            After `sorted` or `close`.
        """
        self._check_unread()
        if not batch.num_rows:
            return
        keys = self._order.normalized_keys([batch.column(place) for place in self._columns])
        keyed = pa.RecordBatch.from_arrays([*key_columns(keys), *batch.columns], schema=self._schema)
        # A batch may be larger than the memory.
        rows = max(1, batch.num_rows * self._most_waiting // (2 * keyed.nbytes))
        for start in range(0, batch.num_rows, rows):
            piece = keyed.slice(start, rows)
            if self._waiting and self._waiting_bytes + piece.nbytes > self._most_waiting:
                self._spill()
            self._waiting.append(piece)
            self._waiting_bytes += piece.nbytes

    def sorted(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows in their order, equal ones in the order of writing; they can be read once.

        Raises `SpillError` and `SorterClosedError` as `write`, the latter also where the sorter is closed
        while it yields, and `RunFileError` for a damaged or missing file.
        """
        self._check_unread()
        self._finished = True
        if self._runs and self._waiting:
            self._spill()
        with self._closed_by_a_failed_write():
            for batch in self._runs.merged() if self._runs else self._sorted():
                yield pa.RecordBatch.from_arrays(batch.columns[KEY_COLUMNS:], schema=self._rows_schema)
                self._check_open()

    def close(self) -> None:
        self._closed = True
        self._memory.release_all(self)
        self._waiting.clear()
        self._runs.close()

    def _spill(self) -> None:
        with self._closed_by_a_failed_write():
            self._runs.add(self._sorted())

    def _sorted(self) -> Iterator[pa.RecordBatch]:
        """Yield the waiting rows in their order, of which none wait then."""
        if not self._waiting:
            return
        size, self._waiting_bytes = self._waiting_bytes, 0
        rows, places = sorted_rows(self._waiting, self._whole_keys)
        self._waiting.clear()
        step = max(1, len(places) * self._runs.batch_bytes // size)
        for start in range(0, len(places), step):
            yield rows.take(pa.array(places[start : start + step]))

    def _whole_keys(self, rows: pa.RecordBatch) -> pa.LargeBinaryArray:
        return self._order.whole_keys([rows.column(KEY_COLUMNS + place) for place in self._columns])
