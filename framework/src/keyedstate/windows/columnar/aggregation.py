"""Declared aggregates of tumbling and sliding windows, by columns.

Rows are assigned to windows with NumPy and reduced to one value for each key and window.  The state of a
window takes one bulk call, and so do its timers.  The results are those of the window operator with the
assigner's trigger, row by row, but for late rows: those of one batch make one late firing of their window.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, starmap
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from keyedstate.aggregates import Aggregate
from keyedstate.aggregates.declaration import over_columns
from keyedstate.aggregates.function import Aggregation
from keyedstate.backend import ColumnTable
from keyedstate.errors import InvalidAggregateError, MissingTimestampError
from keyedstate.runtime.functions.keyed import Context, KeyedFunction
from keyedstate.runtime.functions.vectorized import KeyedBatch
from keyedstate.runtime.grouping import GroupedRows, keys_of
from keyedstate.runtime.timers import TimerBatch
from keyedstate.state import ValueState
from keyedstate.state.clock import BEFORE_TIME, END_OF_TIME
from keyedstate.types import BOOLEAN, TIME_WINDOW, RowSerializer, TimeWindow, infer, nullable, row_of
from keyedstate.windows.columnar.function import ColumnarWindowFunction, Integers
from keyedstate.windows.columnar.session_aggregation import SessionAggregation
from keyedstate.windows.declaration.assigners import Sliding, Tumbling, WindowStagger
from keyedstate.windows.declaration.contents import CONTENTS, AllRows
from keyedstate.windows.declaration.definition import WindowDefinition
from keyedstate.windows.declaration.sessions import Session
from keyedstate.windows.declaration.skipped_rows import SkippedRows
from keyedstate.windows.declaration.triggers import EventTimeTrigger, ProcessingTimeTrigger
from keyedstate.windows.row.process_function import WINDOW_END, WINDOW_START, WindowedFunction, WindowRow

#: A state without entries: its type names the windows of all runs, so that those of earlier runs end, too.
KNOWN_WINDOWS = "known-windows"
#: Windows are numbered by a table up to so many windows more than rows.
_FEW_WINDOWS = 1024


class DeclaredAggregation(KeyedFunction):
    """Declared aggregates of windows before the columns are known; `for_rows` returns the function to run."""

    def __init__(
        self, definition: WindowDefinition, aggregates: Mapping[str, Aggregate], skipped: SkippedRows
    ) -> None:
        self._definition = definition
        self._aggregates = dict(aggregates)
        self._skipped = skipped
        self.side_outputs = skipped.side_outputs

    def for_rows(
        self, schema: pa.Schema, key_columns: Sequence[str], time_column: str | None
    ) -> KeyedFunction:
        """Return the function for rows of these columns: by columns where that is possible."""
        definition, skipped = self._definition, self._skipped
        bounds = (WINDOW_START, WINDOW_END) if definition.has_bounds else ()
        for name in self._aggregates:
            if name in bounds:
                raise InvalidAggregateError(name, "the window's bounds are named so; give it another name")
        aggregation = self._aggregation(schema, key_columns)
        if not by_columns(definition):
            function = _AggregatedRow(definition, aggregation, schema)
            windowed = WindowedFunction(definition, AllRows(), function, skipped)
            return windowed.for_rows(schema, key_columns, time_column)
        if time_column is None and definition.assigner.is_event_time:
            raise MissingTimestampError(definition.assigner.name)
        if isinstance(definition.assigner, Session):
            return SessionAggregation(definition, aggregation, time_column, skipped)
        return WindowedAggregation(definition, aggregation, time_column, skipped)

    def result_fields(self, schema: pa.Schema, key_columns: Sequence[str]) -> list[pa.Field]:
        """Return the columns of the results."""
        return list(self._aggregation(schema, key_columns).output)[len(key_columns) :]

    def _aggregation(self, schema: pa.Schema, key_columns: Sequence[str]) -> Aggregation:
        types = dict(zip(schema.names, schema.types, strict=True))
        return Aggregation(key_columns, types, over_columns(self._aggregates, schema.names))


def by_columns(definition: WindowDefinition) -> bool:
    """Return whether windows can be aggregated by columns: those that fire at their end.

    Not sessions in processing time, or whose gap a function takes from each row, and not staggered windows.
    """
    assigner = definition.assigner
    if isinstance(assigner, Session):
        aligned = assigner.gap is not None and assigner.is_event_time
    else:
        aligned = type(assigner) is Sliding or (
            type(assigner) is Tumbling and assigner.stagger is WindowStagger.ALIGNED
        )
    at_end = EventTimeTrigger if assigner.is_event_time else ProcessingTimeTrigger
    return aligned and type(definition.trigger) is at_end and definition.evictor is None


class WindowedAggregation(ColumnarWindowFunction):
    """Aggregates of aligned windows; made by `DeclaredAggregation`."""

    def __init__(self, definition: WindowDefinition, *given: Any) -> None:
        super().__init__(definition, *given)
        assigner = definition.assigner
        assert isinstance(assigner, (Tumbling, Sliding))
        self._size, self._offset = assigner.size, assigner.offset
        self._slide = assigner.slide if isinstance(assigner, Sliding) else assigner.size
        self._is_event_time = assigner.is_event_time

    def open(self, ctx: Context) -> None:
        self._known = _known_windows(ctx, self._size, self._slide, self._offset)
        descriptor = ValueState(CONTENTS, self._aggregation.accumulator_type)
        self._contents = ctx._backend.get_state(descriptor, TimeWindow(0, 0), TIME_WINDOW)
        self._aggregation.accumulators = self._contents

    # -- rows ---------------------------------------------------------------------------------------------

    def process_batch(self, batch: KeyedBatch, ctx: Context) -> Iterator[pa.RecordBatch]:
        if self._is_event_time:
            yield from super().process_batch(batch, ctx)
        else:
            times = np.full(len(batch), ctx.timer_service.current_processing_time)
            yield from self._add(batch, np.arange(len(batch)), times, ctx)

    def _passed(self, ctx: Context) -> int:
        """Return the last millisecond of the windows that are over."""
        return ctx.watermark if self._is_event_time else ctx.timer_service.current_processing_time - 1

    def _fire_at(self, time: int, keys: list[Any], groups: npt.NDArray[np.int32], ctx: Context) -> None:
        timers = ctx.timer_service
        if self._is_event_time:
            timers.register_event_time_timers(keys, time, groups)
        else:
            timers.register_processing_time_timers(keys, time, groups)

    def _add(
        self, batch: KeyedBatch, rows: Integers, times: Integers, ctx: Context
    ) -> Iterator[pa.RecordBatch]:
        rows, starts, late = self._assigned(times, rows, self._passed(ctx))
        self._put_late(batch.rows, late, ctx)
        if len(rows):
            yield from self._add_to(batch, rows, starts, ctx)

    def _assigned(
        self, times: Integers, rows: Integers, watermark: int
    ) -> tuple[Integers, Integers, Integers]:
        """Return rows with the starts of their windows that are not over, and the rows that are too late."""
        lasts = times - np.mod(times - self._offset, self._slide)
        some_rows, some_starts = [], []
        assigned = np.zeros(len(times), np.bool_)
        # The latest start of windows that are over.
        over = max(watermark - self._lateness + 1 - self._size, BEFORE_TIME)
        for back in range(-(-self._size // self._slide)):
            starts = lasts[rows] - back * self._slide
            inside = (starts > times[rows] - self._size) & (starts > over)
            chosen = rows[inside]
            assigned[chosen] = True
            some_rows.append(chosen)
            some_starts.append(starts[inside])
        skipped = rows[~assigned[rows]]
        late = skipped[times[skipped] <= max(watermark - self._lateness, BEFORE_TIME)]
        return np.concatenate(some_rows), np.concatenate(some_starts), late

    def _add_to(
        self, batch: KeyedBatch, rows: Integers, starts: Integers, ctx: Context
    ) -> Iterator[pa.RecordBatch]:
        chosen = batch.rows
        if len(rows) != len(batch) or self._slide < self._size:
            chosen = chosen.take(pa.array(rows))
        columns = [chosen.column(name) for name in self._key_columns]
        table = self._aggregation.column_table
        if table is not None:
            yield from self._add_columns(table, chosen, columns, batch.key_groups[rows], starts, ctx)
            return
        pairs = GroupedRows([*columns, pa.array(starts)], batch.key_groups[rows])
        parts = self._aggregation.reduce(chosen, pairs)
        keys = keys_of(pairs.key_columns[:-1])
        window_starts = pairs.key_columns[-1].to_numpy()
        order = np.argsort(window_starts, kind="stable")
        for run in _runs(window_starts[order]):
            some = order[run]
            start = int(window_starts[some[0]])
            in_window = [[part[place] for place in some.tolist()] for part in parts]
            some_keys = [keys[place] for place in some.tolist()]
            groups = pairs.key_groups[some]
            window = TimeWindow(start, start + self._size)
            self._contents.set_namespace(window)
            now = self._aggregation.merge(some_keys, groups, in_window)
            end, passed = window.max_timestamp, self._passed(ctx)
            if end > passed:
                self._fire_at(end, some_keys, groups, ctx)
            if self._lateness and end + self._lateness < END_OF_TIME:
                self._fire_at(end + self._lateness, some_keys, groups, ctx)
            if end <= passed:
                found = [column.take(pa.array(some)) for column in pairs.key_columns[:-1]]
                yield from self._ended(window, found, self._aggregation.results(now))

    def _add_columns(
        self,
        table: ColumnTable[TimeWindow],
        rows: pa.RecordBatch,
        keys: list[pa.Array],
        key_groups: npt.NDArray[np.int32],
        starts: Integers,
        ctx: Context,
    ) -> Iterator[pa.RecordBatch]:
        """Add rows to all their windows at once, in a table of columns."""
        distinct, which = self._numbered(starts)
        windows = [TimeWindow(start, start + self._size) for start in distinct.tolist()]
        entries = table.locate(self._aggregation.keys_for(keys), key_groups, windows, which)
        pairs = GroupedRows(keys, key_groups, (entries.codes, entries.first_rows))
        new = ~entries.exist
        now = self._aggregation.merge_columns(entries, pairs, rows)
        of = which[entries.first_rows]
        order = np.argsort(of, kind="stable")
        bounds = np.searchsorted(of[order], np.arange(len(windows) + 1)).tolist()
        passed = self._passed(ctx)
        for window, first, end in zip(windows, bounds, bounds[1:], strict=False):
            some = order[first:end]
            last = window.max_timestamp
            if last > passed:
                # An entry that existed before has its timer already.
                self._register(pairs, some[new[some]], last, ctx)
            if self._lateness and last + self._lateness < END_OF_TIME:
                self._register(pairs, some, last + self._lateness, ctx)
            if last <= passed:
                found = [column.take(pa.array(some)) for column in pairs.key_columns]
                results = self._aggregation.results_of([part.take(some) for part in now])
                yield from self._ended(window, found, results)

    def _numbered(self, starts: Integers) -> tuple[Integers, npt.NDArray[np.int32]]:
        """Return the distinct starts of windows, ascending, and the number of each start among them."""
        steps = (starts - starts.min()) // self._slide
        length = int(steps.max()) + 1
        if length > len(starts) + _FEW_WINDOWS:
            distinct, which = np.unique(starts, return_inverse=True)
            return distinct, which.reshape(-1).astype(np.int32)
        occurs = np.bincount(steps, minlength=length) > 0
        distinct = starts.min() + np.flatnonzero(occurs) * self._slide
        return distinct, (np.cumsum(occurs) - 1).astype(np.int32)[steps]

    def _register(self, pairs: GroupedRows, some: Integers, time: int, ctx: Context) -> None:
        if len(some):
            keys = keys_of([column.take(pa.array(some)) for column in pairs.key_columns])
            self._fire_at(time, keys, pairs.key_groups[some], ctx)

    # -- timers -------------------------------------------------------------------------------------------

    def on_timers(self, timers: TimerBatch, ctx: Context) -> Iterator[pa.RecordBatch]:
        for run in _runs(timers.times):
            # A timer has no window: at its time one ends, and the lateness of an earlier one may be over.
            keys, groups = timers.keys[run], timers.key_groups[run]
            last = int(timers.times[run.start])
            for window in self._ending(last + 1):
                yield from self._fire(window, keys, groups)
            for window in self._ending(last + 1 - self._lateness) if self._lateness else ():
                self._contents.set_namespace(window)
                self._contents.clear_many(keys, groups)

    def _ending(self, end: int) -> Iterator[TimeWindow]:
        """Yield the windows that end at a time, each once."""
        for size in {size for size, slide, offset in self._known if (end - size - offset) % slide == 0}:
            yield TimeWindow(end - size, end)

    def _fire(self, window: TimeWindow, keys: list[Any], groups: list[int]) -> Iterator[pa.RecordBatch]:
        table = self._aggregation.column_table
        if table is not None:
            yield from self._fire_columns(table, window, keys, groups)
            return
        self._contents.set_namespace(window)
        found: list[Any] = self._contents.get_many(keys, groups)
        if None in found:
            # A timer may be for the lateness of an earlier window only.
            there = [place for place, one in enumerate(found) if one is not None]
            keys, groups, found = ([column[place] for place in there] for column in (keys, groups, found))
        if keys:
            results = self._aggregation.results(self._aggregation.parts_of(found))
            yield from self._ended(window, self._as_columns(keys), results)
            if not self._lateness:
                self._contents.set_namespace(window)
                self._contents.clear_many(keys, groups)

    def _fire_columns(
        self, table: ColumnTable[TimeWindow], window: TimeWindow, keys: list[Any], groups: list[int]
    ) -> Iterator[pa.RecordBatch]:
        columns = self._as_columns(keys)
        entries = table.locate(self._aggregation.keys_for(columns), np.array(groups, np.int32), [window])
        there = np.flatnonzero(entries.exist)
        if len(there):
            results = self._aggregation.results_of([part.take(there) for part in entries.read()])
            rows = pa.array(entries.first_rows[there])
            # Before the results are yielded, since the caller may change the table then.
            if not self._lateness:
                entries.remove()
            yield from self._ended(window, [column.take(rows) for column in columns], results)

    def _ended(
        self, window: TimeWindow, keys: list[pa.Array], results: list[pa.Array]
    ) -> Iterator[pa.RecordBatch]:
        starts, ends = (np.full(len(keys[0]), time) for time in window)
        return self._results(keys, starts, ends, results)


def _known_windows(ctx: Context, *own: int) -> list[tuple[int, ...]]:
    """Return size, slide and offset of the windows of this run and of earlier ones.

    A timer has no window.  Without them, windows that an earlier run has begun would never end.
    """
    stored = [meta.value_serializer for meta in ctx._backend.metas() if meta.name == KNOWN_WINDOWS]
    names = [name for type in stored if isinstance(type, RowSerializer) for name in type.names]
    names = list(dict.fromkeys([*names, " ".join(map(str, own))]))
    known = row_of(dict.fromkeys(names, nullable(BOOLEAN)))
    ctx._backend.get_state(ValueState(KNOWN_WINDOWS, known))
    return [tuple(map(int, name.split())) for name in names]


class _AggregatedRow(WindowRow):
    """Yields the declared aggregates of the rows of a window that is not aggregated by columns."""

    def __init__(self, definition: WindowDefinition, aggregation: Aggregation, schema: pa.Schema) -> None:
        super().__init__(definition)
        self._aggregation = aggregation
        self._schema = schema

    def _values(self, elements: Any) -> list[Any]:
        columns = [
            nullable(infer(field.type)).to_arrow([row[place] for row in elements])
            for place, field in enumerate(self._schema)
        ]
        batch = pa.RecordBatch.from_arrays(columns, names=self._schema.names)
        one_key = GroupedRows([pa.repeat(0, len(elements))], np.zeros(len(elements), np.int32))
        results = self._aggregation.results(self._aggregation.reduce(batch, one_key))
        return [column.to_pylist()[0] for column in results]


def _runs(values: npt.NDArray[Any]) -> Iterator[slice]:
    """Yield where consecutive values are equal; there is at least one value."""
    ends = (np.flatnonzero(np.diff(values)) + 1).tolist()
    return starmap(slice, pairwise([0, *ends, len(values)]))
