"""The interval join as a function of two inputs (Flink's ``IntervalJoinOperator``).

A row of either input is put into the buffer of its side, under its time, and joined with the rows in the
other buffer whose times are in the interval.  So each pair is found once, when the second row comes.  A timer
removes a time from a buffer when the watermark has passed all times that could be joined with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import itemgetter
from typing import Any

from keyedstate.joins.columns import Fold, JoinedColumn, JoinedRows, joined_columns
from keyedstate.joins.join_function import LEFT, RIGHT, JoinFunction
from keyedstate.runtime.functions.keyed import Context
from keyedstate.runtime.functions.two_inputs import ConnectedInputs
from keyedstate.state import MapState, StateDescriptor
from keyedstate.state.kinds.accessor import declared_states
from keyedstate.time import Timer
from keyedstate.types import INT64, STRING, list_of, tuple_of

#: The timer service of cleanup.  The namespace is the side and the time in its buffer, which does not follow
#: from the timer's time after a restart with other bounds.
TIMERS = "interval-join"
_TIMERS_OF = tuple_of(STRING, INT64)
_TIME = itemgetter(0)


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


class IntervalJoinFunction(JoinFunction):
    """Joins rows of two inputs by their key and their event times; made by `interval_join`."""

    def __init__(
        self,
        lower_ms: int,
        upper_ms: int,
        function: ProcessJoinFunction,
        side_outputs: Mapping[str, Any],
        missing: str,
    ) -> None:
        super().__init__(side_outputs, missing)
        self._bounds = (lower_ms, upper_ms), (-upper_ms, -lower_ms)
        self._function = function

    def for_inputs(self, inputs: ConnectedInputs) -> IntervalJoinFunction:
        """Return the function for rows of these columns.

        Raises
        ------
        InvalidJoinError
            Where they have no event times.
        """
        self._need_event_time(inputs, "the interval", "rows are joined by their event times")
        bound = self._bound(inputs)
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
        self._left, self._right = (ctx.state(buffer) for buffer in self._buffers())
        self._timers = ctx._timers.service(TIMERS, self, _TIMERS_OF)
        self._pair = JoinContext(ctx)
        function.open()

    def close(self) -> None:
        self._function.close()

    def process1(self, row: Any, ctx: Context) -> Iterable[Any] | None:
        return self._process(row, ctx, of_right=False)

    def process2(self, row: Any, ctx: Context) -> Iterable[Any] | None:
        return self._process(row, ctx, of_right=True)

    def _process(self, row: Any, ctx: Context, *, of_right: bool) -> Iterable[Any] | None:
        time = self._time_of(row, ctx, of_right)
        if time is None or self._has_null_key(ctx):
            return None
        if time < ctx.watermark:
            self._set_late_aside(row, ctx, of_right)
            return None
        mine, others = (self._right, self._left) if of_right else (self._left, self._right)
        lower, upper = self._bounds[of_right]
        # Not in place: a snapshot that is being written may share the list.
        mine.put(time, [*(mine.get(time) or ()), row])
        side = RIGHT if of_right else LEFT
        self._timers.register_event_time_timer((side, time), time + max(upper, 0))
        first, last = time + lower, time + upper
        found = [(other, rows) for other, rows in others.items() if first <= other <= last]
        if not found:
            return None
        found.sort(key=_TIME)
        function = self._function
        if isinstance(function, JoinedRow):
            return _joined(function.rows, row, found, of_right)
        pair, process = self._pair, function.process
        pair.key = ctx.key
        out: list[Any] = []
        for other, rows in found:
            pair.left_timestamp, pair.right_timestamp = (other, time) if of_right else (time, other)
            for found_row in rows or ():
                left, right = (found_row, row) if of_right else (row, found_row)
                _extend(out, process(left, right, pair))
        return out

    def on_event_time(self, timer: Timer) -> None:
        """Remove a time from its buffer, unless the interval is larger than when the timer was registered."""
        side, time = timer.namespace
        of_right = side == RIGHT
        over = time + max(self._bounds[of_right][1], 0)
        if over > self._timers.current_watermark:
            self._timers.register_event_time_timer(timer.namespace, over)
        else:
            (self._right if of_right else self._left).remove(time)

    def on_processing_time(self, timer: Timer) -> None:
        """Do nothing: a join registers none."""

    def output_columns(self, inputs: ConnectedInputs, fold: Fold) -> list[JoinedColumn] | None:
        return joined_columns(inputs, fold) if isinstance(self._function, JoinedRow) else None


def _joined(
    joined: JoinedRows, row: Any, found: list[tuple[int, list[Any] | None]], of_right: bool
) -> list[Any]:
    """Return the joined rows for a row and all rows that it is joined with."""
    if of_right:
        right, of_left = joined.of_right(row), joined.of_left
        return [of_left(other) + right for _, rows in found for other in rows or ()]
    left, of_other = joined.of_left(row), joined.of_right
    return [left + of_other(other) for _, rows in found for other in rows or ()]


def _extend(out: list[Any], rows: Iterable[Any] | None) -> None:
    if rows is None:
        return
    if isinstance(rows, (tuple, dict, str, bytes)):
        raise TypeError(f"process() must yield its rows or return a list of them, not {rows!r}")
    out.extend(rows)
