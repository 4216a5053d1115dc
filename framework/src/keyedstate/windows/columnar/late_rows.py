"""What windows that are aggregated by columns share: rows that go aside, and results as columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from keyedstate.aggregates.function import OUTPUT_ROWS, Aggregation
from keyedstate.errors import MissingTimestampError
from keyedstate.runtime.event_time import DROP, FAIL, LATE, MISSING, TIMELESS, event_time_array
from keyedstate.runtime.function import Context
from keyedstate.runtime.vectorized import KeyedBatch, VectorizedProcessFunction
from keyedstate.types import from_arrow_type, nullable
from keyedstate.windows.declaration.definition import WindowDefinition
from keyedstate.windows.row.process_function import WINDOW_END, WINDOW_START

Times = npt.NDArray[np.int64]

#: Instants as Spark has them.
_INSTANT = pa.timestamp("us", "UTC")
#: The milliseconds in which the years 1 to 9999 begin and end.
_YEARS = -62_135_596_800_000, 253_402_300_799_999


class ColumnarWindows(VectorizedProcessFunction):
    """Aggregates of windows in event time, by columns; made by `DeclaredAggregation`."""

    batch_rows = Aggregation.batch_rows
    batch_bytes = Aggregation.batch_bytes

    def __init__(
        self,
        definition: WindowDefinition,
        aggregation: Aggregation,
        schema: pa.Schema,
        time_column: str,
        *,
        side_outputs: Mapping[str, Any],
        late: str | None,
        missing: str,
    ) -> None:
        self._assigner_name = definition.assigner.name
        self._lateness = definition.allowed_lateness
        self._aggregation = aggregation
        self._key_columns = aggregation.key_columns
        self.side_outputs = side_outputs
        self._time_column = time_column
        self._late = late
        self._missing = missing
        keys = len(self._key_columns)
        fields = list(aggregation.output)
        bounds = [pa.field(WINDOW_START, _INSTANT), pa.field(WINDOW_END, _INSTANT)]
        self._main = pa.schema([*fields[:keys], *bounds, *fields[keys:]])

    # -- rows ---------------------------------------------------------------------------------------------

    def process_batch(self, batch: KeyedBatch, ctx: Context) -> Iterator[pa.RecordBatch]:
        times, missing = event_time_array(batch.column(self._time_column))
        rows: Times = np.arange(len(times))
        if missing is not None:
            self._without_time(batch.rows, np.flatnonzero(missing), ctx)
            rows = np.flatnonzero(~missing)
        yield from self._add(batch, rows, times, ctx)

    def _add(self, batch: KeyedBatch, rows: Times, times: Times, ctx: Context) -> Iterator[pa.RecordBatch]:
        """Bring those rows into state that have an event time."""
        raise NotImplementedError

    def _without_time(self, batch: pa.RecordBatch, rows: Times, ctx: Context) -> None:
        if self._missing == FAIL:
            raise MissingTimestampError(self._assigner_name)
        output = None if self._missing == DROP else MISSING
        ctx._set_aside(output, TIMELESS, batch.take(pa.array(rows)), len(rows))

    def _too_late(self, batch: pa.RecordBatch, rows: Times, ctx: Context) -> None:
        if len(rows):
            ctx._set_aside(self._late, LATE, batch.take(pa.array(rows)), len(rows))

    # -- output -------------------------------------------------------------------------------------------

    def _as_columns(self, keys: list[Any]) -> list[pa.Array]:
        types = self._aggregation.key_types
        columns = [keys] if len(types) == 1 else list(zip(*keys, strict=True))
        return [
            nullable(from_arrow_type(type_)).to_arrow(list(values)).cast(type_)
            for type_, values in zip(types, columns, strict=True)
        ]

    def _fired(
        self, keys: list[pa.Array], starts: Times, ends: Times, results: list[pa.Array]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the results of windows.

        Parameters
        ----------
        keys : list of pyarrow.Array
            The key columns, with the key of each window.
        starts, ends : ndarray of int64
        results : list of pyarrow.Array
            Those of the aggregates.
        """
        for begin in range(0, len(starts), OUTPUT_ROWS):
            some = slice(begin, begin + OUTPUT_ROWS)
            bounds = _instants(starts[some]), _instants(ends[some])
            columns = [
                *(column[some] for column in keys),
                *bounds,
                *(column[some] for column in results),
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=self._main)


def _instants(times: Times) -> pa.Array:
    """Return milliseconds as instants, null for what is outside the years 1 to 9999."""
    first, last = _YEARS
    outside = (times < first) | (times > last)
    if not outside.any():
        return pa.array(times * 1000).view(_INSTANT)
    return pa.array(np.where(outside, 0, times) * 1000, mask=outside).view(_INSTANT)
