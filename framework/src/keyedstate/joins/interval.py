"""The interval join as a function of two inputs (Flink's ``IntervalJoinOperator``).

A row of either input is put into the buffer of its side, under its time, and joined with the rows in the
other buffer whose times are in the interval.  So each pair is found once, when the second row comes.  A timer
removes a time from a buffer when the watermark has passed all times that could be joined with it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from itertools import compress
from typing import Any

from keyedstate.joins.bounds import Interval
from keyedstate.joins.columns import Fold, JoinedColumn, JoinedRows, joined_columns
from keyedstate.joins.join_function import LEFT, RIGHT, JoinFunction
from keyedstate.runtime.functions.connected_inputs import ConnectedInputs
from keyedstate.runtime.functions.keyed import Context
from keyedstate.runtime.functions.row_runs import OUTPUT_ROWS, RowRun, RunEntries, RunFunction
from keyedstate.state import MapState, MapStateAccessor, StateDescriptor
from keyedstate.state.clock import BEFORE_TIME, END_OF_TIME
from keyedstate.state.kinds.accessor import declared_states
from keyedstate.time import Timer
from keyedstate.types import INT64, STRING, list_of, tuple_of

#: The timer service of cleanup.  The namespace is the side, and a number that has no meaning any more.
TIMERS = "interval-join"
_TIMERS_OF = tuple_of(STRING, INT64)
#: Times and a row for each.
_Rows = tuple[list[int], list[Any]]
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

    def begin(self) -> None:
        super().begin()
        #: The times of all rows in order, and the rows; None until a run asks for rows again.
        self._sorted: _Rows | None = None

    def between(self, first: int, last: int) -> _Rows:
        """Return the rows between two times, inclusive, in the order of their times."""
        if self._read is None:
            # A run of one row need not sort all.
            self._read = {**dict(self.state.items()), **self._changed}
            return _in_order(self._read, (time for time in self._read if first <= time <= last))
        if self._sorted is None:
            self._sorted = _in_order(self._read, self._read)
        times, rows = self._sorted
        part = slice(bisect_left(times, first), bisect_right(times, last))
        return times[part], rows[part]

    def add(self, time: int, row: Any) -> None:
        """Keep a row."""
        known = self._changed.get(time)
        if known is None:
            stored = self.state.get(time) if self._read is None else self._read.get(time)
            # Not in place: a snapshot that is being written may share the list.
            known = self._changed[time] = [*(stored or ())]
            if self._read is not None:
                self._read[time] = known
        known.append(row)
        if self._sorted is not None:
            times, rows = self._sorted
            place = bisect_right(times, time)
            times.insert(place, time)
            rows.insert(place, row)


def _in_order(by_time: Mapping[int, list[Any]], times: Iterable[int]) -> _Rows:
    """Return the rows of some times, in order, each with its time."""
    times = sorted(times)
    return [time for time in times for _ in by_time[time]], [row for time in times for row in by_time[time]]


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
        #: The sides and times of the clean-ups that a run needs: keys of a dict, in the order of their rows.
        self._clean_ups: dict[tuple[str, int], None] = {}
        self._current = ctx._backend.current
        function.open()

    def close(self) -> None:
        self._function.close()

    def _process_run(self, run: RowRun, ctx: Context) -> list[Any]:
        left, right = self._buffers_of_sides
        left.begin()
        right.begin()
        self._clean_ups.clear()
        current, watermark, null_in_key = self._current, ctx.watermark, self._null_in_key(ctx)
        out: list[Any] = []
        for of_right, row in run.rows:
            time = current.timestamp
            if time is None or null_in_key or time < watermark:
                self._leave_out(row, ctx, of_right=bool(of_right))
                continue
            found = self._found_by_right(row, time) if of_right else self._found_by_left(row, time, ctx)
            if found[1]:
                out += self._pairs(row, time, found, ctx, of_right=bool(of_right))
                if len(out) >= OUTPUT_ROWS:
                    break
        left.end(self._current)
        right.end(self._current)
        for side, time in self._clean_ups:
            self._timers.register_event_time_timer((side, 0), time)
        return out

    def _found_by_left(self, row: Any, time: int, ctx: Context) -> _Rows:
        """Keep a left row, and return the right rows that it is joined with."""
        left, right = self._buffers_of_sides
        times = self._times_of(row, time)
        if times is None:
            ctx._dropped[NO_INTERVAL] += 1
            return [], []
        first, last = times
        left.add(time, row)
        self._clean_ups[LEFT, self._clean_up_time(max(time, last))] = None
        return right.between(first, last)

    def _found_by_right(self, row: Any, time: int) -> _Rows:
        """Keep a right row, and return the left rows that it is joined with."""
        left, right = self._buffers_of_sides
        right.add(time, row)
        self._clean_ups[RIGHT, self._clean_up_time(time + self._interval.right_life)] = None
        if self._distances is not None:
            lower, upper = self._distances
            return left.between(time - upper, time - lower)
        times, rows = left.between(BEFORE_TIME, END_OF_TIME)
        bounds = map(self._times_of, rows, times)
        chosen = [each is not None and each[0] <= time <= each[1] for each in bounds]
        return list(compress(times, chosen)), list(compress(rows, chosen))

    def _leave_out(self, row: Any, ctx: Context, *, of_right: bool) -> None:
        """Set a row aside that cannot be joined: it has no time, a null in its key, or is late."""
        if self._time_of(row, ctx, of_right) is not None and not self._has_null_key(ctx):
            self._set_late_aside(row, ctx, of_right)

    def _pairs(self, row: Any, time: int, found: _Rows, ctx: Context, *, of_right: bool) -> list[Any]:
        """Return what is made of a row and the rows that it is joined with."""
        function = self._function
        if isinstance(function, JoinedRow):
            of_left, of_other = function.rows.of_left, function.rows.of_right
            if of_right:
                right = of_other(row)
                return [of_left(left) + right for left in found[1]]
            left = of_left(row)
            return [left + of_other(right) for right in found[1]]
        pair, process = self._pair, function.process
        pair.key = ctx.key
        out: list[Any] = []
        for other_time, other in zip(*found, strict=True):
            pair.left_timestamp, pair.right_timestamp = (other_time, time) if of_right else (time, other_time)
            left, right = (other, row) if of_right else (row, other)
            _extend(out, process(left, right, pair))
        return out

    def on_event_time(self, timer: Timer) -> None:
        """Remove the rows of a side that can be joined with no row to come."""
        side = timer.namespace[0]
        of_right = side == RIGHT
        buffer = self._buffers_of_sides[of_right].state
        life = self._interval.right_life if of_right else self._interval.left_life
        now = self._timers.current_watermark
        # Of rows that all live as long, only the times are read.
        ends = (
            self._ends_of_rows(buffer, now) if life is None else {at: at + life for at in list(buffer.keys())}
        )
        over = [time for time, end in ends.items() if end <= now]
        left = [end for end in ends.values() if end > now]
        if over:
            # All times were read, so no look-up is needed.
            buffer._drop(over, others=bool(left))
        if left:
            # The interval may have been another one when the timers of these rows were registered.
            self._timers.register_event_time_timer((side, 0), self._clean_up_time(min(left)))

    def _ends_of_rows(self, buffer: MapStateAccessor[int, list[Any]], now: int) -> dict[int, int]:
        """Remove single left rows whose interval is over, and return when the next row of each time is."""
        found: dict[int, int] = {}
        for time, rows in list(buffer.items()):
            ends = [self._end_of(row, time) for row in rows or ()]
            found[time] = max(ends)
            if min(ends) <= now < found[time]:
                kept = [(row, end) for row, end in zip(rows or (), ends, strict=True) if end > now]
                buffer.put(time, [row for row, _ in kept])
                found[time] = min(end for _, end in kept)
        return found

    def _end_of(self, row: Any, time: int) -> int:
        """Return the watermark from which on a left row can be joined with no row to come."""
        times = self._times_of(row, time)
        return time if times is None else max(time, times[1])

    def _clean_up_time(self, end: int) -> int:
        """Return the end of the span of a time."""
        return min(-(-end // self._span) * self._span, END_OF_TIME)

    def on_processing_time(self, timer: Timer) -> None:
        """Do nothing: a join registers none."""

    def output_columns(self, inputs: ConnectedInputs, fold: Fold) -> list[JoinedColumn] | None:
        return joined_columns(inputs, fold) if isinstance(self._function, JoinedRow) else None


def _extend(out: list[Any], rows: Iterable[Any] | None) -> None:
    if rows is None:
        return
    if isinstance(rows, (tuple, dict, str, bytes)):
        raise TypeError(f"process() must yield its rows or return a list of them, not {rows!r}")
    out.extend(rows)
