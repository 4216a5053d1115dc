"""The interval join as a function of two inputs (Flink's ``IntervalJoinOperator``).

A row of either input is put into the buffer of its side, under its time, and joined with the rows in the
other buffer whose times are in the interval.  So each pair is found once, when the second row comes.  A timer
removes a time from a buffer when the watermark has passed all times that could be joined with it.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from keyedstate.joins.bounds import Interval
from keyedstate.joins.columns import Fold, JoinedColumn, JoinedRows, joined_columns
from keyedstate.joins.join_function import LEFT, NULL_KEY, RIGHT, JoinFunction
from keyedstate.runtime.functions.connected_inputs import ConnectedInputs
from keyedstate.runtime.functions.keyed import Context
from keyedstate.runtime.functions.row_runs import OUTPUT_ROWS, RowRun, RunEntries, RunFunction
from keyedstate.state import MapState, MapStateAccessor, StateDescriptor
from keyedstate.state.clock import END_OF_TIME
from keyedstate.state.kinds.accessor import declared_states
from keyedstate.time import Timer
from keyedstate.types import INT64, STRING, list_of, tuple_of

#: The timer service of cleanup.  The namespace is the side, and a number that has no meaning any more.
TIMERS = "interval-join"
_TIMERS_OF = tuple_of(STRING, INT64)
#: An interval without any time.
_NO_TIMES = (1, 0)
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
    """The kept rows of one side by their time: lists.

    Parameters
    ----------
    rows : MapStateAccessor
    item_of : callable
        Returns what a run needs of a kept row with that time.
    """

    #: The times of all rows, in order, and their items; None as long as none was asked.
    _read: tuple[list[int], list[Any]] | None

    def __init__(self, rows: Any, item_of: Callable[[int, Any], Any]) -> None:
        super().__init__(rows)
        self._item_of = item_of

    def between(self, first: int, last: int) -> list[Any]:
        """Return the items of the rows between two times, inclusive and in order."""
        times, items = self._all()
        return items[bisect_left(times, first) : bisect_right(times, last)]

    def items(self) -> list[Any]:
        """Return the items of all rows, in order."""
        return self._all()[1]

    def add(self, time: int, row: Any) -> None:
        """Keep a row."""
        is_new_time = False
        if self._read is not None:
            times, items = self._read
            place = bisect_right(times, time)
            is_new_time = not place or times[place - 1] != time
            times.insert(place, time)
            items.insert(place, self._item_of(time, row))
        known = self._changed.get(time)
        if known is None:
            stored = None if is_new_time else self.state.get(time)
            # Not in place: a snapshot that is being written may share the list.
            known = self._changed[time] = [*(stored or ())]
        known.append(row)

    def _all(self) -> tuple[list[int], list[Any]]:
        if self._read is None:
            rows_by_time = {**dict(self.state.items()), **self._changed}
            times = sorted(rows_by_time)
            found = [(time, row) for time in times for row in rows_by_time[time]]
            self._read = [time for time, _ in found], list(itertools.starmap(self._item_of, found))
        return self._read


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
        self._timers = ctx._timers.service(TIMERS, self, _TIMERS_OF)
        self._pair = JoinContext(ctx)
        assert self._inputs is not None, "it has buffers"
        self._times_of = self._interval.of_rows(self._inputs.first.schema)
        self._distances = self._interval.distances
        left, right = map(ctx.state, self._buffers())
        self._buffers_of_sides = (
            _Buffer(left, self._item_of(of_right=False)),
            _Buffer(right, self._item_of(of_right=True)),
        )
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
            if found:
                out += self._pairs(row, time, found, ctx, of_right=bool(of_right))
                if len(out) >= OUTPUT_ROWS:
                    break
        left.end(self._current)
        right.end(self._current)
        for side, time in self._clean_ups:
            self._timers.register_event_time_timer((side, 0), time)
        return out

    def _item_of(self, *, of_right: bool) -> Callable[[int, Any], Any]:
        """Return a function of the time of a kept row and the row that returns what pairs need of it.

        That is its part of the joined row, or time and row for a function of the user.  Where each left row
        has an interval of its own, that comes first.
        """
        item_of: Callable[[int, Any], Any] = _time_and_row
        if isinstance(self._function, JoinedRow):
            rows = self._function.rows
            values_of = rows.of_right if of_right else rows.of_left

            def item_of(time: int, row: Any) -> Any:
                return values_of(row)

        if of_right or self._distances is not None:
            return item_of
        return lambda time, row: (*(self._times_of(row, time) or _NO_TIMES), item_of(time, row))

    def _found_by_left(self, row: Any, time: int, ctx: Context) -> list[Any]:
        """Keep a left row, and return the items of the right rows that it is joined with."""
        left, right = self._buffers_of_sides
        times = self._times_of(row, time)
        if times is None:
            ctx._dropped[NO_INTERVAL] += 1
            return []
        first, last = times
        left.add(time, row)
        self._clean_ups[LEFT, self._clean_up_time(max(time, last))] = None
        return right.between(first, last)

    def _found_by_right(self, row: Any, time: int) -> list[Any]:
        """Keep a right row, and return the items of the left rows that it is joined with."""
        left, right = self._buffers_of_sides
        right.add(time, row)
        self._clean_ups[RIGHT, self._clean_up_time(time + self._interval.right_life)] = None
        if self._distances is None:
            return [item for first, last, item in left.items() if first <= time <= last]
        lower, upper = self._distances
        return left.between(time - upper, time - lower)

    def _leave_out(self, row: Any, ctx: Context, *, of_right: bool) -> None:
        """Set a row aside that cannot be joined: it has no time, a null in its key, or is late."""
        if self._time_of(row, ctx, of_right) is None:
            return
        if self._null_in_key(ctx):
            ctx._dropped[NULL_KEY] += 1
        else:
            self._set_late_aside(row, ctx, of_right)

    def _pairs(self, row: Any, time: int, found: list[Any], ctx: Context, *, of_right: bool) -> list[Any]:
        """Return what is made of a row and the items of the rows that it is joined with."""
        function = self._function
        if isinstance(function, JoinedRow):
            if of_right:
                right = function.rows.of_right(row)
                return [left + right for left in found]
            left = function.rows.of_left(row)
            return [left + right for right in found]
        pair, process = self._pair, function.process
        pair.key = ctx.key
        out: list[Any] = []
        for other_time, other in found:
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


def _time_and_row(time: int, row: Any) -> tuple[int, Any]:
    return time, row


def _extend(out: list[Any], rows: Iterable[Any] | None) -> None:
    if rows is None:
        return
    if isinstance(rows, (tuple, dict, str, bytes)):
        raise TypeError(f"process() must yield its rows or return a list of them, not {rows!r}")
    out.extend(rows)
