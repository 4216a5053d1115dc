"""The interval join as a function of two inputs (Flink's ``IntervalJoinOperator``).

A row of either input is put into the buffer of its side, under its time, and joined with the rows in the
other buffer whose times are in the interval.  So each pair is found once, when the second row comes.  A timer
removes a time from a buffer when the watermark has passed all times that could be joined with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import itemgetter
from typing import Any

from keyedstate.joins.bounds import Interval
from keyedstate.joins.columns import Fold, JoinedColumn, JoinedRows, joined_columns
from keyedstate.joins.join_function import LEFT, NULL_KEY, RIGHT, JoinFunction
from keyedstate.runtime.functions.connected_inputs import ConnectedInputs
from keyedstate.runtime.functions.keyed import Context
from keyedstate.runtime.functions.row_runs import OUTPUT_ROWS, RowRun, RunEntries, RunFunction
from keyedstate.state import MapState, StateDescriptor
from keyedstate.state.clock import END_OF_TIME
from keyedstate.state.kinds.accessor import declared_states
from keyedstate.time import Timer
from keyedstate.types import INT64, STRING, list_of, tuple_of

#: The timer service of cleanup.  The namespace is the side, and a number that has no meaning any more.
TIMERS = "interval-join"
_TIMERS_OF = tuple_of(STRING, INT64)
_TIME = itemgetter(0)
#: Times, and the rows of each.
_Found = list[tuple[int, list[Any]]]
#: The spans of time for which a key has one timer, in an interval.
_SPANS = 4
#: Such a span, in milliseconds, where each row has an interval of its own.
_SPAN_OF_COLUMNS = 1000
#: The metric of left rows dropped because a bound is null, or the upper one before the lower one.
NO_INTERVAL = "no interval"


class JoinContext:
    """What the function of a join may ask for.

    Attributes
    ----------
    key : object
        The current key.
    left_timestamp, right_timestamp : int
        The event times of the two rows in milliseconds since 1970 UTC.
    """

    __slots__ = ("_context", "key", "left_timestamp", "right_timestamp")

    def __init__(self, context: Context) -> None:
        self._context = context
        self.key: Any = None
        self.left_timestamp = self.right_timestamp = 0

    @property
    def timestamp(self) -> int:
        """The event time of the pair: the later one of both."""
        return max(self.left_timestamp, self.right_timestamp)

    @property
    def watermark(self) -> int:
        """The event time up to which all rows of both inputs have come; -2**63 where none is known."""
        return self._context.watermark

    def output(self, name: str, row: Any) -> None:
        """Emit a row to a side output.

        Raises
        ------
        UndeclaredSideOutputError
        """
        self._context.output(name, row)


class ProcessJoinFunction:
    """Yields rows for a joined pair (Flink's ``ProcessJoinFunction``).

    States that are declared as class attributes belong to the key.
    """

    def process(self, left: Any, right: Any, ctx: JoinContext) -> Iterable[Any] | None:
        """Handle a row of the first and a row of the second input.

        Parameters
        ----------
        left, right : tuple
            As in `KeyedProcessFunction.process`.
        ctx : JoinContext

        Returns
        -------
        iterable of rows, or None
            Usually a generator.
        """
        raise NotImplementedError

    def open(self) -> None:
        """Prepare; called once before the first row. Declared states are bound already."""

    def close(self) -> None:
        """Clean up; called once after the last row and after an error."""


class JoinedRow(ProcessJoinFunction):
    """Emits the columns of both rows, as `joined_columns` names them."""

    def __init__(self, rows: JoinedRows | None = None) -> None:
        self._rows = rows

    @property
    def rows(self) -> JoinedRows:
        """What makes the rows."""
        assert self._rows is not None, "bound"
        return self._rows

    def process(self, left: Any, right: Any, ctx: JoinContext) -> Iterable[Any]:
        return [self.rows.of_left(left) + self.rows.of_right(right)]


class _Buffer(RunEntries):
    """The kept rows of one side by their time: lists."""

    #: All entries; None as long as none was asked.
    _read: dict[int, list[Any]] | None

    def rows(self) -> dict[int, list[Any]]:
        """Return the rows by their time, which must not be changed."""
        if self._read is None:
            self._read = {**dict(self.state.items()), **self._changed}
        return self._read

    def add(self, time: int, row: Any) -> None:
        """Keep a row."""
        known = self._changed.get(time)
        if known is not None:
            known.append(row)
            return
        stored = self.state.get(time) if self._read is None else self._read.get(time)
        # Not in place: a snapshot that is being written may share the list.
        self._changed[time] = made = [*(stored or ()), row]
        if self._read is not None:
            self._read[time] = made


class IntervalJoinFunction(JoinFunction, RunFunction):
    """Joins rows of two inputs by their key and their event times; made by `interval_join`."""

    _declared_by = "interval_join()"

    def __init__(
        self,
        interval: Interval,
        function: ProcessJoinFunction,
        side_outputs: Mapping[str, Any],
        missing: str,
    ) -> None:
        super().__init__(side_outputs, missing)
        self._interval = interval
        self._function = function

    def for_inputs(self, inputs: ConnectedInputs) -> IntervalJoinFunction:
        """Return the function for rows of these columns.

        Raises
        ------
        InvalidJoinError
            Where they have no event times, or the left ones no column of a bound.
        """
        self._need_event_time(inputs, "the interval", "rows are joined by their event times")
        bound = self._bound(inputs)
        self._interval.of_rows(inputs.first.schema)
        if isinstance(self._function, JoinedRow):
            bound._function = JoinedRow(JoinedRows(inputs))
        return bound

    def states(self) -> list[StateDescriptor[Any]]:
        """Return the states that are no attributes: both buffers, and those of the pairs' function."""
        return [*self._buffers(), *declared_states(self._function)]

    def _buffers(self) -> list[MapState[int, list[Any]]]:
        return [MapState(f"{name}-buffer", INT64, list_of(type_)) for name, type_ in self._row_types()]

    def open(self, ctx: Context) -> None:
        function = self._function
        for descriptor in declared_states(function):
            descriptor.bind(function, ctx.state(descriptor))
        left, right = (_Buffer(ctx.state(buffer)) for buffer in self._buffers())
        self._buffers_of_sides = left, right
        self._timers = ctx._timers.service(TIMERS, self, _TIMERS_OF)
        self._pair = JoinContext(ctx)
        assert self._inputs is not None, "it has buffers"
        self._times_of = self._interval.of_rows(self._inputs.first.schema)
        self._distances = self._interval.distances
        # A key has a timer for each span of time, and not one for each row: rows are kept a little longer.
        self._span = _SPAN_OF_COLUMNS
        if self._distances is not None:
            lower, upper = self._distances
            self._span = max((upper - lower) // _SPANS, 1)
        self._current = ctx._backend.current
        function.open()

    def close(self) -> None:
        self._function.close()

    def _process_run(self, run: RowRun, ctx: Context) -> list[Any]:
        left, right = self._buffers_of_sides
        left.begin()
        right.begin()
        out: list[Any] = []
        for of_right, row in run.rows:
            time = self._time_in_order(row, ctx, of_right=bool(of_right))
            if time is None:
                continue
            found = self._found_by_right(row, time) if of_right else self._found_by_left(row, time, ctx)
            if found:
                out += self._pairs(row, time, found, ctx, of_right=bool(of_right))
                if len(out) >= OUTPUT_ROWS:
                    break
        left.end(self._current)
        right.end(self._current)
        return out

    def _found_by_left(self, row: Any, time: int, ctx: Context) -> _Found:
        """Keep a left row, and return the right rows that it is joined with."""
        left, right = self._buffers_of_sides
        times = self._times_of(row, time)
        if times is None:
            ctx._dropped[NO_INTERVAL] += 1
            return []
        first, last = times
        left.add(time, row)
        self._clean_up_at(LEFT, max(time, last))
        return [(other, rows) for other, rows in right.rows().items() if first <= other <= last]

    def _found_by_right(self, row: Any, time: int) -> _Found:
        """Keep a right row, and return the left rows that it is joined with."""
        left, right = self._buffers_of_sides
        right.add(time, row)
        self._clean_up_at(RIGHT, time + self._interval.right_life)
        if self._distances is None:
            return [(other, self._around(time, other, rows)) for other, rows in left.rows().items()]
        lower, upper = self._distances
        first, last = time - upper, time - lower
        return [(other, rows) for other, rows in left.rows().items() if first <= other <= last]

    def _time_in_order(self, row: Any, ctx: Context, *, of_right: bool) -> int | None:
        """Return the time of a row that can be joined; any other is set aside."""
        time = ctx.timestamp
        if time is None or self._null_in_key(ctx):
            if time is not None or self._time_of(row, ctx, of_right) is not None:
                ctx._dropped[NULL_KEY] += 1
            return None
        if time < ctx.watermark:
            self._set_late_aside(row, ctx, of_right)
            return None
        return time

    def _around(self, time: int, of_rows: int, rows: Iterable[Any]) -> list[Any]:
        """Return those of several left rows of one time whose interval has the time of a right row."""
        times = [(row, self._times_of(row, of_rows)) for row in rows]
        return [row for row, bounds in times if bounds is not None and bounds[0] <= time <= bounds[1]]

    def _pairs(self, row: Any, time: int, found: _Found, ctx: Context, *, of_right: bool) -> list[Any]:
        """Return what is made of a row and the rows that it is joined with."""
        found.sort(key=_TIME)
        function = self._function
        if isinstance(function, JoinedRow):
            return _joined(function.rows, row, found, of_right)
        pair, process = self._pair, function.process
        pair.key = ctx.key
        out: list[Any] = []
        for other, rows in found:
            pair.left_timestamp, pair.right_timestamp = (other, time) if of_right else (time, other)
            for found_row in rows:
                left, right = (found_row, row) if of_right else (row, found_row)
                _extend(out, process(left, right, pair))
        return out

    def on_event_time(self, timer: Timer) -> None:
        """Remove the rows of a side that can be joined with no row to come."""
        side = timer.namespace[0]
        of_right = side == RIGHT
        buffer = self._buffers_of_sides[of_right].state
        life = self._interval.right_life if of_right else self._interval.left_life
        now = self._timers.current_watermark
        over, next_end, others = [], END_OF_TIME, False
        # Of rows that all live as long, only the times are read.
        stored = ((time, ()) for time in list(buffer.keys())) if life is not None else list(buffer.items())
        for time, rows in stored:
            if life is not None:
                end = time + life
            else:
                ends = [self._end_of(row, time) for row in rows or ()]
                end = max(ends)
                if min(ends) <= now < end:
                    kept = [
                        (row, of_row) for row, of_row in zip(rows or (), ends, strict=True) if of_row > now
                    ]
                    buffer.put(time, [row for row, _ in kept])
                    end = min(of_row for _, of_row in kept)
            if end <= now:
                over.append(time)
            else:
                next_end, others = min(end, next_end), True
        if over:
            # All times were read, so no look-up is needed.
            buffer._drop(over, others=others)
        if next_end < END_OF_TIME:
            # The interval may have been another one when the timers of these rows were registered.
            self._clean_up_at(side, next_end)

    def _end_of(self, row: Any, time: int) -> int:
        """Return the watermark from which on a left row can be joined with no row to come."""
        times = self._times_of(row, time)
        return time if times is None else max(time, times[1])

    def _clean_up_at(self, side: str, end: int) -> None:
        """Register a timer of the current key at the end of the span of a time."""
        time = min(-(-end // self._span) * self._span, END_OF_TIME)
        self._timers.register_event_time_timer((side, 0), time)

    def on_processing_time(self, timer: Timer) -> None:
        """Do nothing: a join registers none."""

    def output_columns(self, inputs: ConnectedInputs, fold: Fold) -> list[JoinedColumn] | None:
        return joined_columns(inputs, fold) if isinstance(self._function, JoinedRow) else None


def _joined(joined: JoinedRows, row: Any, found: _Found, of_right: bool) -> list[Any]:
    """Return the joined rows for a row and all rows that it is joined with."""
    if of_right:
        right, of_left = joined.of_right(row), joined.of_left
        return [of_left(other) + right for _, rows in found for other in rows]
    left, of_other = joined.of_left(row), joined.of_right
    return [left + of_other(other) for _, rows in found for other in rows]


def _extend(out: list[Any], rows: Iterable[Any] | None) -> None:
    if rows is None:
        return
    if isinstance(rows, (tuple, dict, str, bytes)):
        raise TypeError(f"process() must yield its rows or return a list of them, not {rows!r}")
    out.extend(rows)
