"""The first rows of each key and window: `top_n` with ``within=``.

A window keeps its first rows as an aggregate, and they become rows with a rank when it ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from keyedstate.aggregates import Aggregate
from keyedstate.errors import InvalidAggregateError, InvalidRankingError
from keyedstate.ranking.deduplication import RowsFunction, check_columns
from keyedstate.runtime.event_time import FAIL
from keyedstate.runtime.functions.keyed import Context
from keyedstate.runtime.functions.vectorized import KeyedBatch
from keyedstate.runtime.timers import TimerBatch
from keyedstate.windows import WINDOW_END, WINDOW_START, WindowAssigner
from keyedstate.windows.columnar.aggregation import DeclaredAggregation
from keyedstate.windows.columnar.function import ColumnarWindowFunction
from keyedstate.windows.declaration.definition import WindowDefinition
from keyedstate.windows.declaration.skipped_rows import SkippedRows

#: The column of the list of rows, which no column of the rows has.
_ROWS = "\0first rows"


class WindowTopN(RowsFunction):
    """Emits the first rows of each key and window with their rank; made by `keyedstate.ranking.top_n`."""

    def __init__(self, aggregate: Aggregate, rank: str, assigner: WindowAssigner[Any]) -> None:
        self._aggregate = aggregate
        self._rank = rank
        self._definition = WindowDefinition.of(assigner)

    def _bound(self, schema: pa.Schema, time_column: str | None) -> WindowTopN:
        for name in (WINDOW_START, WINDOW_END, self._rank):
            if name in schema.names:
                way_out = "Rename it." if name != self._rank else "Name the column of the rank with rank=."
                raise InvalidRankingError("top_n()", f"the rows have a column {name!r} already", way_out)
        check_columns("top_n()", self._aggregate.by, schema)
        others = [name for name in schema.names if name not in self._key_columns]
        aggregate = self._aggregate.over(others or schema.names, str)
        declared = DeclaredAggregation(self._definition, {_ROWS: aggregate}, SkippedRows({}, None, FAIL))
        try:
            windows = declared.for_rows(schema, self._key_columns, time_column)
        except InvalidAggregateError as error:
            raise InvalidRankingError("top_n()", error.reason, "Order by another column.") from error
        if not isinstance(windows, ColumnarWindowFunction):
            raise InvalidRankingError(
                "top_n()",
                f"within={self._definition.assigner!r} is not computed by columns",
                "Give tumbling or sliding windows, or sessions of a fixed gap in event time.",
            )
        self._windows = windows
        self._columns = schema.names
        instant = pa.timestamp("us", "UTC")
        bounds = [pa.field(name, instant) for name in (WINDOW_START, WINDOW_END)]
        self.output = pa.schema([*schema, *bounds, pa.field(self._rank, pa.int32(), nullable=False)])
        return self

    def open(self, ctx: Context) -> None:
        self._windows.open(ctx)

    def process_batch(self, batch: KeyedBatch, ctx: Context) -> Iterator[pa.RecordBatch]:
        return map(self._ranked, self._windows.process_batch(batch, ctx))

    def on_timers(self, timers: TimerBatch, ctx: Context) -> Iterator[pa.RecordBatch]:
        return map(self._ranked, self._windows.on_timers(timers, ctx) or ())

    def _ranked(self, windows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of windows, each of which is a row with a list of them."""
        lists = windows.column(_ROWS)
        counts = pc.list_value_length(lists).to_numpy(zero_copy_only=False)
        window_of = np.repeat(np.arange(len(windows)), counts)
        starts = np.cumsum(counts) - counts
        ranks = np.arange(len(window_of)) - starts[window_of] + 1
        structs, places = lists.flatten(), pa.array(window_of)
        columns = [
            windows.column(name).take(places) if name in self._key_columns else structs.field(name)
            for name in self._columns
        ]
        columns += [windows.column(name).take(places) for name in (WINDOW_START, WINDOW_END)]
        arrays: Sequence[pa.Array] = [*columns, pa.array(ranks, pa.int32())]
        cast = [column.cast(field.type) for column, field in zip(arrays, self.output, strict=True)]
        return pa.RecordBatch.from_arrays(cast, schema=self.output)
