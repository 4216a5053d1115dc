"""The function behind windows that are aggregated by columns: skipped rows, and results as columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from keyedstate.aggregates.function import OUTPUT_ROWS, Aggregation
from keyedstate.errors import MissingTimestampError
from keyedstate.runtime.event_time import event_time_array
from keyedstate.runtime.functions.keyed import Context
from keyedstate.runtime.functions.vectorized import KeyedBatch, VectorizedProcessFunction
from keyedstate.types import from_arrow_type, nullable
from keyedstate.types.contract.transposing import transposed
from keyedstate.windows.declaration.definition import WindowDefinition
from keyedstate.windows.declaration.skipped_rows import SkippedRows
from keyedstate.windows.row.process_function import WINDOW_END, WINDOW_START

Integers = npt.NDArray[np.int64]

#: Spark's timestamp.
_INSTANT = pa.timestamp("us", "UTC")
#: The milliseconds in which the years 1 to 9999 begin and end.
_YEARS = -62_135_596_800_000, 253_402_300_799_999


class ColumnarWindowFunction(VectorizedProcessFunction):
    """Aggregates of windows, by columns; made by `DeclaredAggregation`."""

    batch_rows = Aggregation.batch_rows
    batch_bytes = Aggregation.batch_bytes

    def __init__(
        self,
        definition: WindowDefinition,
        aggregation: Aggregation,
        time_column: str | None,
        skipped: SkippedRows,
    ) -> None:
        self._assigner_name = definition.assigner.name
        self._lateness = definition.allowed_lateness
        self._aggregation = aggregation
        self._key_columns = aggregation.key_columns
        self._time_column = time_column
        self._skipped = skipped
        self.side_outputs = skipped.side_outputs
        keys = len(self._key_columns)
        fields = list(aggregation.output)
        bounds = [pa.field(WINDOW_START, _INSTANT), pa.field(WINDOW_END, _INSTANT)]
        self._main = pa.schema([*fields[:keys], *bounds, *fields[keys:]])

    def process_batch(self, batch: KeyedBatch, ctx: Context) -> Iterator[pa.RecordBatch]:
        assert self._time_column is not None, "or the windows would not be in event time"
        times, missing = event_time_array(batch.column(self._time_column))
        rows: Integers = np.arange(len(times))
        if missing is not None:
            timeless = batch.rows.take(pa.array(np.flatnonzero(missing)))
            error = MissingTimestampError(self._assigner_name)
            self._skipped.put_timeless(ctx, timeless, error, len(timeless))
            rows = np.flatnonzero(~missing)
        yield from self._add(batch, rows, times, ctx)

    def _add(
        self, batch: KeyedBatch, rows: Integers, times: Integers, ctx: Context
    ) -> Iterator[pa.RecordBatch]:
        """Add the rows of a batch that have an event time to the state."""
        raise NotImplementedError

    def _put_late(self, batch: pa.RecordBatch, rows: Integers, ctx: Context) -> None:
        if len(rows):
            self._skipped.put_late(ctx, batch.take(pa.array(rows)), len(rows))

    def _as_columns(self, keys: list[Any]) -> list[pa.Array]:
        types = self._aggregation.key_types
        columns = [keys] if len(types) == 1 else transposed(keys, len(types))
        return [
            nullable(from_arrow_type(type_)).to_arrow(values).cast(type_)
            for type_, values in zip(types, columns, strict=True)
        ]

    def _results(
        self, keys: list[pa.Array], starts: Integers, ends: Integers, results: list[pa.Array]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the results of windows: their keys, bounds in milliseconds, and aggregates, as batches."""
        for begin in range(0, len(starts), OUTPUT_ROWS):
            some = slice(begin, begin + OUTPUT_ROWS)
            columns = [
                *(column[some] for column in keys),
                _instants(starts[some]),
                _instants(ends[some]),
                *(column[some] for column in results),
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=self._main)


def _instants(times: Integers) -> pa.Array:
    """Return milliseconds as instants, null for what is outside the years 1 to 9999."""
    first, last = _YEARS
    outside = (times < first) | (times > last)
    if not outside.any():
        return pa.array(times * 1000).view(_INSTANT)
    return pa.array(np.where(outside, 0, times) * 1000, mask=outside).view(_INSTANT)
