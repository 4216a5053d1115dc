"""Aggregates of windows without a key, in two parts: of each input partition, and then of all.

Windows consist of panes, which are as long as the greatest common divisor of their length and their slide.
The local part reduces the rows of a pane to accumulators and their latest event time.  All rows of a pane are
in the same windows, so the global part assigns accumulators to windows by that time, as if they were rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import gcd
from typing import Any

import numpy as np
import pyarrow as pa

from keyedstate.aggregates import Aggregate
from keyedstate.aggregates.declaration import BoundAggregate, Part
from keyedstate.aggregates.function import Aggregation
from keyedstate.aggregates.number_columns import TooLargeError
from keyedstate.aggregates.running import columns_after_each_row, parts_after_each_row
from keyedstate.backend import Column
from keyedstate.errors import AggregateOverflowError, MissingTimestampError
from keyedstate.runtime.event_time import DROP, event_time_array
from keyedstate.runtime.functions.keyed import Context
from keyedstate.runtime.grouping import GroupedRows
from keyedstate.tables import column_of
from keyedstate.types import INT64, TypeSerializer
from keyedstate.types.contract.transposing import transposed
from keyedstate.windows.columnar.aggregation import WindowedAggregation
from keyedstate.windows.columnar.function import Integers
from keyedstate.windows.declaration.assigners import Sliding, Tumbling
from keyedstate.windows.declaration.definition import WindowDefinition
from keyedstate.windows.declaration.skipped_rows import SkippedRows

#: The columns of the accumulators: the one key, the latest event time of the rows, and how many there are.
KEY, TIME, ROWS = "__keyedstate_all", "__keyedstate_time", "__keyedstate_rows"
_INSTANT = pa.timestamp("us", "UTC")


class MergedAggregation(Aggregation):
    """Aggregates over accumulators of the local parts, in place of rows; the types are those of the rows."""

    def __init__(self, types: Mapping[str, pa.DataType], aggregates: Mapping[str, Aggregate]) -> None:
        super().__init__([KEY], {**types, KEY: pa.int32()}, aggregates)

    @property
    def accumulators_schema(self) -> pa.Schema:
        """The columns of the accumulators."""
        parts = [(f"part_{place}", type.arrow_type) for place, (_, type) in enumerate(self._all_parts())]
        return pa.schema([(KEY, pa.int32()), (TIME, _INSTANT), (ROWS, pa.int64()), *parts])

    def _all_parts(self) -> Iterator[tuple[BoundAggregate, TypeSerializer[Any]]]:
        for bound in self._kept.values():
            for type in bound.parts.values():
                yield bound, type

    def of_parts(self, times: Sequence[int], counts: Sequence[int], parts: list[Part]) -> pa.RecordBatch:
        """Return accumulators as columns; raises `AggregateOverflowError` for sums that are too large."""
        columns = [
            pa.repeat(pa.scalar(0, pa.int32()), len(times)),
            pa.array(np.asarray(times, np.int64) * 1000).view(_INSTANT),
            pa.array(counts, pa.int64()),
        ]
        for (bound, type), part in zip(self._all_parts(), parts, strict=True):
            is_exact = pa.types.is_integer(type.arrow_type) or pa.types.is_decimal(type.arrow_type)
            if is_exact and not all(value is None or type.is_value(value) for value in part):
                raise AggregateOverflowError(bound.name, repr(type), None)
            columns.append(type.to_arrow(part))
        return pa.RecordBatch.from_arrays(columns, schema=self.accumulators_schema)

    def reduce(self, batch: pa.RecordBatch, rows: GroupedRows) -> list[Part]:
        last_rows = rows.last_rows.tolist()
        merged: list[Part] = []
        for bound, columns in self._stored_parts(batch):
            new = [
                type.from_arrow(column) for column, type in zip(columns, bound.parts.values(), strict=True)
            ]
            after = parts_after_each_row(bound, [[None] * len(rows) for _ in new], new, rows)
            merged += [[part[row] for row in last_rows] for part in after]
        return merged

    def reduce_columns(self, batch: pa.RecordBatch, rows: GroupedRows) -> list[Column]:
        merged: list[Column] = []
        for bound, columns in self._stored_parts(batch):
            new = list(map(column_of, columns))
            nothing = np.zeros(len(rows), np.bool_)
            stored = [Column(np.zeros(len(rows), column.values.dtype), nothing) for column in new]
            try:
                after = columns_after_each_row(bound, stored, new, rows)
            except TooLargeError as error:
                raise AggregateOverflowError(bound.name, repr(INT64), None) from error
            merged += [column.take(rows.last_rows) for column in after]
        return merged

    def _stored_parts(self, batch: pa.RecordBatch) -> Iterator[tuple[BoundAggregate, list[pa.Array]]]:
        for bound in self._kept.values():
            place = self._places[bound.name]
            yield bound, [batch.column(f"part_{number}") for number in range(place.start, place.stop)]


class LocalPart:
    """Reduces the rows of one input partition to accumulators of panes."""

    def __init__(
        self,
        definition: WindowDefinition,
        types: Mapping[str, pa.DataType],
        aggregates: Mapping[str, Aggregate],
        time_column: str,
        missing: str,
    ) -> None:
        assigner = definition.assigner
        assert isinstance(assigner, (Tumbling, Sliding)), "checked"
        self._name = assigner.name
        self._offset = assigner.offset
        self._pane = gcd(assigner.size, assigner.slide) if isinstance(assigner, Sliding) else assigner.size
        self._of_rows = Aggregation([KEY], {**types, KEY: pa.int32()}, aggregates)
        self._merged = MergedAggregation(types, aggregates)
        self._time_column = time_column
        self._missing = missing

    @property
    def output(self) -> pa.Schema:
        """The columns of the accumulators."""
        return self._merged.accumulators_schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the accumulators of all rows, one for each pane."""
        latest: dict[int, int] = {}
        counts: dict[int, int] = {}
        parts: dict[int, tuple[Any, ...]] = {}
        nothing = (None,) * (len(self.output) - 3)
        for batch in batches:
            times, missing = event_time_array(batch.column(self._time_column))
            if missing is not None:
                if self._missing != DROP:
                    raise MissingTimestampError(self._name)
                batch, times = batch.filter(pa.array(~missing)), times[~missing]
            if not len(times):
                continue
            panes = (times - self._offset) // self._pane
            rows = GroupedRows([pa.array(panes)], np.zeros(len(panes), np.int32))
            last_times = np.full(len(rows), times.min())
            np.maximum.at(last_times, rows.codes, times)
            new = self._of_rows.reduce(batch, rows)
            stored = [parts.get(pane, nothing) for pane in rows.keys]
            merged = self._of_rows.merged(transposed(stored, len(new)), new)
            numbers = np.bincount(rows.codes, minlength=len(rows)).tolist()
            for pane, time, number, values in zip(
                rows.keys, last_times.tolist(), numbers, zip(*merged, strict=True), strict=True
            ):
                latest[pane] = max(latest.get(pane, time), time)
                counts[pane] = counts.get(pane, 0) + number
                parts[pane] = values
        if latest:
            columns = [list(part) for part in zip(*parts.values(), strict=True)]
            yield self._merged.of_parts(list(latest.values()), list(counts.values()), columns)


class GlobalPart(WindowedAggregation):
    """Merges the accumulators of all partitions in their windows; its output has no key."""

    def __init__(
        self,
        definition: WindowDefinition,
        types: Mapping[str, pa.DataType],
        aggregates: Mapping[str, Aggregate],
    ) -> None:
        aggregation = MergedAggregation(types, aggregates)
        super().__init__(definition, aggregation, TIME, SkippedRows({}, None, DROP))

    @property
    def output(self) -> pa.Schema:
        """The window's start and end, then the results."""
        return self._main.remove(0)

    def _put_late(self, batch: pa.RecordBatch, rows: Integers, ctx: Context) -> None:
        if len(rows):
            late = batch.take(pa.array(rows))
            self._skipped.put_late(ctx, late, sum(late.column(ROWS).to_pylist()))

    def _results(
        self, keys: list[pa.Array], starts: Integers, ends: Integers, results: list[pa.Array]
    ) -> Iterator[pa.RecordBatch]:
        for batch in super()._results(keys, starts, ends, results):
            yield batch.select(self.output.names)
