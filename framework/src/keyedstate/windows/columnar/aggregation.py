"""Declared aggregates of tumbling and sliding event-time windows, by columns.

Rows are assigned with NumPy, reduced to one value for each key and window, and brought into state with one
bulk call for each window; so are the timers.  What comes out is what the window operator gives with an
`EventTimeTrigger`, row by row, but for late rows: those of one batch make one late firing of their window.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from keyedstate.aggregates import Aggregate
from keyedstate.aggregates.declaration import Part
from keyedstate.aggregates.function import Aggregation
from keyedstate.backend import ColumnTable
from keyedstate.errors import InvalidAggregateError, MissingTimestampError
from keyedstate.runtime.function import Context, KeyedFunction
from keyedstate.runtime.grouping import GroupedRows, keys_of
from keyedstate.runtime.timers import TimerBatch
from keyedstate.runtime.vectorized import KeyedBatch
from keyedstate.state import ValueState
from keyedstate.state.clock import BEFORE_TIME, END_OF_TIME
from keyedstate.types import TIME_WINDOW, TimeWindow, infer, nullable
from keyedstate.windows.columnar.late_rows import ColumnarWindows, Times
from keyedstate.windows.columnar.session_aggregation import SessionAggregation
from keyedstate.windows.declaration.assigners import Sliding, Tumbling
from keyedstate.windows.declaration.contents import CONTENTS, AllRows
from keyedstate.windows.declaration.definition import WindowDefinition
from keyedstate.windows.declaration.function import ProcessWindowFunction, WindowContext
from keyedstate.windows.declaration.sessions import Session
from keyedstate.windows.declaration.triggers import EventTimeTrigger
from keyedstate.windows.row.process_function import (
    WINDOW_END,
    WINDOW_START,
    WindowedFunction,
    has_bounds,
    window_bounds,
)

#: So many more windows between the first and the last than rows are looked for one by one.
_FEW_WINDOWS = 1024


class DeclaredAggregation(KeyedFunction):
    """Declared aggregates of windows, before the columns are known: `for_rows` gives what runs."""

    def __init__(
        self,
        definition: WindowDefinition,
        aggregates: Mapping[str, Aggregate],
        side_outputs: Mapping[str, Any],
        late: str | None,
        missing: str,
    ) -> None:
        self._definition = definition
        self._aggregates = dict(aggregates)
        self.side_outputs = side_outputs
        self._late = late
        self._missing = missing

    def for_rows(
        self, schema: pa.Schema, key_columns: Sequence[str], time_column: str | None
    ) -> KeyedFunction:
        """Return the function for rows of these columns: by columns where that is possible.

        Raises
        ------
        InvalidAggregateError
        """
        bounds = (WINDOW_START, WINDOW_END) if has_bounds(self._definition) else ()
        for name in self._aggregates:
            if name in bounds:
                raise InvalidAggregateError(name, "the window's bounds are named so; give it another name")
        aggregation = self.bound_to(schema, key_columns)
        sides: Any = {"side_outputs": self.side_outputs, "late": self._late, "missing": self._missing}
        if by_columns(self._definition):
            if time_column is None:
                raise MissingTimestampError(self._definition.assigner.name)
            sessions = isinstance(self._definition.assigner, Session)
            made_of: type[ColumnarWindows] = SessionAggregation if sessions else WindowedAggregation
            return made_of(self._definition, aggregation, schema, time_column, **sides)
        function = _AggregatedWindow(self._definition, aggregation, schema)
        made = WindowedFunction(self._definition, AllRows(), function, **sides)
        return made.for_rows(schema, key_columns, time_column)

    def result_fields(self, schema: pa.Schema, key_columns: Sequence[str]) -> list[pa.Field]:
        """Return the columns of the results.

        Raises
        ------
        InvalidAggregateError
        """
        return list(self.bound_to(schema, key_columns).output)[len(key_columns) :]

    def bound_to(self, schema: pa.Schema, key_columns: Sequence[str]) -> Aggregation:
        """Return the aggregates of columns of these types.

        Raises
        ------
        InvalidAggregateError
        """
        types = dict(zip(schema.names, schema.types, strict=True))
        for name, aggregate in self._aggregates.items():
            for column in getattr(aggregate, "columns", ()):
                if column not in types:
                    raise InvalidAggregateError(
                        name, f"there is no column {column!r}, but {', '.join(schema.names)}"
                    )
        return Aggregation(key_columns, types, self._aggregates)


def by_columns(definition: WindowDefinition) -> bool:
    """Return whether windows can be aggregated by columns: those of event time that fire at their end.

    Not sessions whose gap a function takes from each row.
    """
    assigner = definition.assigner
    return (
        (type(assigner) in (Tumbling, Sliding) or (type(assigner) is Session and assigner.gap is not None))
        and assigner.is_event_time
        and type(definition.trigger) is EventTimeTrigger
        and definition.evictor is None
    )


class WindowedAggregation(ColumnarWindows):
    """Aggregates of aligned windows in event time; made by `DeclaredAggregation`."""

    def __init__(self, definition: WindowDefinition, *given: Any, **sides: Any) -> None:
        super().__init__(definition, *given, **sides)
        assigner = definition.assigner
        assert isinstance(assigner, (Tumbling, Sliding))
        self._size, self._offset = assigner.size, assigner.offset
        self._slide = assigner.slide if isinstance(assigner, Sliding) else assigner.size

    def open(self, ctx: Context) -> None:
        descriptor = ValueState(CONTENTS, self._aggregation.accumulator_type)
        self._contents = ctx._backend.get_state(descriptor, TimeWindow(0, 0), TIME_WINDOW)
        self._aggregation.accumulators = self._contents

    # -- rows ---------------------------------------------------------------------------------------------

    def _add(self, batch: KeyedBatch, rows: Times, times: Times, ctx: Context) -> Iterator[pa.RecordBatch]:
        rows, starts, late = self._assigned(times, rows, ctx.watermark)
        self._too_late(batch.rows, late, ctx)
        if len(rows):
            yield from self._add_to(batch, rows, starts, ctx)

    def _assigned(self, times: Times, rows: Times, watermark: int) -> tuple[Times, Times, Times]:
        """Return rows and the starts of their windows, each pair once, and the rows that are too late.

        Windows that are over are left out.
        """
        lasts = times - np.mod(times - self._offset, self._slide)
        some_rows, some_starts = [], []
        taken = np.zeros(len(times), np.bool_)
        # The latest start of windows that are over.
        over = max(watermark - self._lateness + 1 - self._size, BEFORE_TIME)
        for back in range(-(-self._size // self._slide)):
            starts = lasts[rows] - back * self._slide
            inside = (starts > times[rows] - self._size) & (starts > over)
            chosen = rows[inside]
            taken[chosen] = True
            some_rows.append(chosen)
            some_starts.append(starts[inside])
        skipped = rows[~taken[rows]]
        late = skipped[times[skipped] <= max(watermark - self._lateness, BEFORE_TIME)]
        return np.concatenate(some_rows), np.concatenate(some_starts), late

    def _add_to(
        self, batch: KeyedBatch, rows: Times, starts: Times, ctx: Context
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
        ends = np.flatnonzero(np.diff(window_starts[order], append=window_starts[order[-1]] + 1)) + 1
        first = 0
        for end in ends.tolist():
            some = order[first:end]
            first = end
            start = int(window_starts[some[0]])
            in_window = [[part[place] for place in some.tolist()] for part in parts]
            some_keys = [keys[place] for place in some.tolist()]
            groups = pairs.key_groups[some]
            now = self._merged(TimeWindow(start, start + self._size), some_keys, groups, in_window, ctx)
            if now is not None:
                found = [column.take(pa.array(some)) for column in pairs.key_columns[:-1]]
                yield from self._ended(start, found, self._aggregation.results(now))

    def _add_columns(
        self,
        table: ColumnTable[TimeWindow],
        rows: pa.RecordBatch,
        keys: list[pa.Array],
        key_groups: npt.NDArray[np.int32],
        starts: Times,
        ctx: Context,
    ) -> Iterator[pa.RecordBatch]:
        """Bring rows into all their windows at once, in a table of columns."""
        distinct, which = self._numbered(starts)
        windows = [TimeWindow(start, start + self._size) for start in distinct.tolist()]
        entries = table.locate(self._aggregation.keys_for(keys), key_groups, windows, which)
        pairs = GroupedRows(keys, key_groups, (entries.codes, entries.first_rows))
        new = ~entries.exist
        now = self._aggregation.merge_columns(entries, pairs, rows)
        of = which[entries.first_rows]
        order = np.argsort(of, kind="stable")
        bounds = np.searchsorted(of[order], np.arange(len(windows) + 1)).tolist()
        for window, first, end in zip(windows, bounds, bounds[1:], strict=False):
            some = order[first:end]
            last = window.max_timestamp
            ended = last <= ctx.watermark
            if not ended:
                # The timer of one that was there is there, too.
                self._register(pairs, some[new[some]], last, ctx)
            if self._lateness and last + self._lateness < END_OF_TIME:
                self._register(pairs, some, last + self._lateness, ctx)
            if ended:
                found = [column.take(pa.array(some)) for column in pairs.key_columns]
                results = self._aggregation.results_of([part.take(some) for part in now])
                yield from self._ended(window.start, found, results)

    def _numbered(self, starts: Times) -> tuple[Times, npt.NDArray[np.int32]]:
        """Return the distinct starts of windows, ascending, and which of them each one is."""
        steps = (starts - starts.min()) // self._slide
        length = int(steps.max()) + 1
        if length > len(starts) + _FEW_WINDOWS:
            distinct, which = np.unique(starts, return_inverse=True)
            return distinct, which.reshape(-1).astype(np.int32)
        there = np.bincount(steps, minlength=length) > 0
        distinct = starts.min() + np.flatnonzero(there) * self._slide
        return distinct, (np.cumsum(there) - 1).astype(np.int32)[steps]

    def _register(self, pairs: GroupedRows, some: Times, time: int, ctx: Context) -> None:
        if len(some):
            keys = keys_of([column.take(pa.array(some)) for column in pairs.key_columns])
            ctx.timer_service.register_event_time_timers(keys, time, pairs.key_groups[some])

    def _merged(
        self, window: TimeWindow, keys: list[Any], key_groups: Any, new: list[Part], ctx: Context
    ) -> list[Part] | None:
        """Bring parts into the state of a window; return what it holds where the window has ended."""
        self._contents.set_namespace(window)
        now = self._aggregation.merge(keys, key_groups, new)
        end, timers = window.max_timestamp, ctx.timer_service
        ended = end <= ctx.watermark
        if not ended:
            timers.register_event_time_timers(keys, end, key_groups)
        if self._lateness and end + self._lateness < END_OF_TIME:
            timers.register_event_time_timers(keys, end + self._lateness, key_groups)
        return now if ended else None

    # -- timers -------------------------------------------------------------------------------------------

    def on_timers(self, timers: TimerBatch, ctx: Context) -> Iterator[pa.RecordBatch]:
        times = timers.times
        ends = np.flatnonzero(np.diff(times, append=times[-1] - 1)) + 1
        first = 0
        for end in ends.tolist():
            # Timers tell no window: at their time one ends, and one that ended before is over.
            keys, groups = timers.keys[first:end], timers.key_groups[first:end]
            last = int(times[first])
            first = end
            window = TimeWindow(last + 1 - self._size, last + 1)
            if (window.start - self._offset) % self._slide == 0:
                yield from self._fire(window, keys, groups)
            over = last - self._lateness
            if self._lateness and (over + 1 - self._size - self._offset) % self._slide == 0:
                self._contents.set_namespace(TimeWindow(over + 1 - self._size, over + 1))
                self._contents.clear_many(keys, groups)

    def _fire(self, window: TimeWindow, keys: list[Any], groups: list[int]) -> Iterator[pa.RecordBatch]:
        table = self._aggregation.column_table
        if table is not None:
            yield from self._fire_columns(table, window, keys, groups)
            return
        self._contents.set_namespace(window)
        found: list[Any] = self._contents.get_many(keys, groups)
        if None in found:
            # A timer may be there for a window that is over alone.
            there = [place for place, one in enumerate(found) if one is not None]
            keys, groups = [keys[place] for place in there], [groups[place] for place in there]
            found = [found[place] for place in there]
        if keys:
            results = self._aggregation.results(self._aggregation.parts_of(found))
            yield from self._ended(window.start, self._as_columns(keys), results)
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
            # The rows leave the table before anybody may come in between.
            if not self._lateness:
                entries.remove()
            yield from self._ended(window.start, [column.take(rows) for column in columns], results)

    def _ended(self, start: int, keys: list[pa.Array], results: list[pa.Array]) -> Iterator[pa.RecordBatch]:
        starts = np.full(len(keys[0]), start)
        return self._fired(keys, starts, starts + self._size, results)


class _AggregatedWindow(ProcessWindowFunction):
    """Declared aggregates of the rows of one window, for windows that are not aggregated by columns."""

    def __init__(self, definition: WindowDefinition, aggregation: Aggregation, schema: pa.Schema) -> None:
        self._bounded = has_bounds(definition)
        self._single_key = len(aggregation.key_columns) == 1
        self._aggregation = aggregation
        self._schema = schema

    def process(self, elements: Any, ctx: WindowContext) -> Iterable[Any]:
        columns = [
            nullable(infer(field.type)).to_arrow([row[place] for row in elements])
            for place, field in enumerate(self._schema)
        ]
        batch = pa.RecordBatch.from_arrays(columns, names=self._schema.names)
        one_key = GroupedRows([pa.repeat(0, len(elements))], np.zeros(len(elements), np.int32))
        parts = self._aggregation.reduce(batch, one_key)
        values = [column.to_pylist()[0] for column in self._aggregation.results(parts)]
        key = (ctx.key,) if self._single_key else ctx.key
        bounds = window_bounds(ctx.window) if self._bounded else ()
        return ((*key, *bounds, *values),)
