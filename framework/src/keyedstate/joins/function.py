"""The interval join as a function of two inputs (Flink's ``IntervalJoinOperator``).

A row of either input is put into the buffer of its side, under its time, and joined with the rows in the
other buffer whose times are in the interval.  So each pair is found once, when the second row comes.  A timer
removes a time from a buffer when the watermark has passed all times that could be joined with it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from types import MappingProxyType
from typing import Any

from keyedstate.errors import InvalidFunctionError, InvalidJoinError, MissingTimestampError
from keyedstate.runtime.event_time import DROP, FAIL, LATE, TIMELESS
from keyedstate.runtime.functions.keyed import Context
from keyedstate.runtime.functions.two_inputs import ConnectedInputs, KeyedCoProcessFunction
from keyedstate.state import MapState, StateDescriptor
from keyedstate.state.kinds.accessor import declared_states
from keyedstate.time import Timer
from keyedstate.types import INT64, STRING, infer, list_of, tuple_of

#: The metric of rows dropped because of a null in the key, which equals no other key.
NULL_KEY = "null key"
#: The timer service of cleanup.  The namespace is the side and the time in its buffer, which does not follow
#: from the timer's time after a restart with other bounds.
TIMERS = "interval-join"
_TIMERS_OF = tuple_of(STRING, INT64)
LEFT, RIGHT = "left", "right"
#: The side outputs of late rows, and of rows without event time.
LATE_LEFT = "late_left"
LATE_RIGHT = "late_right"
MISSING_LEFT = "missing_left"
MISSING_RIGHT = "missing_right"
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


@dataclass(frozen=True)
class JoinedColumn:
    """An output column of a join without a function: the one at `place` in one of its inputs."""

    name: str
    of_right: bool
    place: int


def joined_columns(
    inputs: ConnectedInputs, fold: Callable[[str], str] = lambda name: name
) -> list[JoinedColumn]:
    """Return the columns of joined rows: the key's, the others of the left input, the others of the right.

    A name on both sides other than the key's, or equal to one of the key's, gets the prefix ``left_`` or
    ``right_``.

    Parameters
    ----------
    inputs : ConnectedInputs
    fold : callable, optional
        Returns a name in the form in which names are compared.
    """
    first, second = inputs.first, inputs.second
    keys = [JoinedColumn(name, False, first.schema.names.index(name)) for name in first.key_columns]
    sides = [
        [
            JoinedColumn(name, bool(of_right), place)
            for place, name in enumerate(input_.schema.names)
            if name not in input_.key_columns
        ]
        for of_right, input_ in enumerate((first, second))
    ]
    taken = {fold(column.name) for column in keys}
    names = [{fold(column.name) for column in side} for side in sides]
    common = (names[0] & names[1]) | (taken & (names[0] | names[1]))
    for prefix, side in zip(("left_", "right_"), sides, strict=True):
        keys += [
            JoinedColumn(
                f"{prefix}{column.name}" if fold(column.name) in common else column.name,
                column.of_right,
                column.place,
            )
            for column in side
        ]
    return keys


class JoinedRow(ProcessJoinFunction):
    """Emits the columns of both rows, as `joined_columns` names them."""

    def __init__(self, inputs: ConnectedInputs | None = None) -> None:
        columns = [] if inputs is None else joined_columns(inputs)
        self.of_left, self.of_right = (
            _getter([column.place for column in columns if column.of_right is of_right])
            for of_right in (False, True)
        )

    def process(self, left: Any, right: Any, ctx: JoinContext) -> Iterable[Any]:
        return [self.of_left(left) + self.of_right(right)]


def _getter(places: Sequence[int]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function of a row that returns the values at some places."""
    if len(places) > 1:
        return itemgetter(*places)
    # With one place an itemgetter returns no tuple.
    return lambda row: tuple([row[place] for place in places])


class IntervalJoinFunction(KeyedCoProcessFunction):
    """Joins rows of two inputs by their key and their event times; made by `interval_join`."""

    side_inputs = MappingProxyType({LATE_LEFT: 0, MISSING_LEFT: 0, LATE_RIGHT: 1, MISSING_RIGHT: 1})

    def __init__(
        self,
        lower_ms: int,
        upper_ms: int,
        function: ProcessJoinFunction,
        side_outputs: Mapping[str, Any],
        missing: str,
    ) -> None:
        self.side_outputs = side_outputs
        self._bounds = (lower_ms, upper_ms), (-upper_ms, -lower_ms)
        self._function = function
        self._missing = missing
        self._inputs: ConnectedInputs | None = None

    def for_inputs(self, inputs: ConnectedInputs) -> IntervalJoinFunction:
        """Return the function for rows of these columns.

        Raises
        ------
        InvalidJoinError
            Where they have no event times.
        """
        if not inputs.have_event_time:
            raise InvalidJoinError(
                "the interval",
                "rows are joined by their event times, and no columns are named",
                "Give each, as in keyed(..., event_time=EventTime('ts', delay='10 minutes')).",
            )
        bound = copy.copy(self)
        bound._inputs = inputs
        if isinstance(self._function, JoinedRow):
            bound._function = JoinedRow(inputs)
        return bound

    def states(self) -> list[StateDescriptor[Any]]:
        """Return the states that are no attributes: both buffers, and those of the pairs' function."""
        return [*self._buffers(), *declared_states(self._function)]

    def _buffers(self) -> list[MapState[int, list[Any]]]:
        if self._inputs is None:
            raise InvalidFunctionError(
                type(self).__name__,
                "it does not know the columns of its rows; join with connect(...).interval_join(...)",
            )
        sides = (LEFT, self._inputs.first), (RIGHT, self._inputs.second)
        return [MapState(f"{name}-buffer", INT64, list_of(infer(input_.schema))) for name, input_ in sides]

    def open(self, ctx: Context) -> None:
        function = self._function
        for descriptor in declared_states(function):
            descriptor.bind(function, ctx.state(descriptor))
        self._left, self._right = (ctx.state(buffer) for buffer in self._buffers())
        assert self._inputs is not None, "it has buffers"
        self._compound_key = len(self._inputs.first.key_columns) > 1
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
        time, key = ctx.timestamp, ctx.key
        if time is None:
            if self._missing == FAIL:
                raise MissingTimestampError(f"the {RIGHT if of_right else LEFT} input of the join")
            output = MISSING_RIGHT if of_right else MISSING_LEFT
            ctx._set_aside(None if self._missing == DROP else output, TIMELESS, row)
            return None
        if key is None or (self._compound_key and None in key):
            ctx._dropped[NULL_KEY] += 1
            return None
        if time < ctx.watermark:
            late = LATE_RIGHT if of_right else LATE_LEFT
            ctx._set_aside(late if late in self.side_outputs else None, LATE, row)
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
            return _joined(function, row, found, of_right)
        pair, process = self._pair, function.process
        pair.key = key
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

    @property
    def joins_by_itself(self) -> bool:
        """Whether the output is the columns of both rows, and not the rows of a user's function."""
        return isinstance(self._function, JoinedRow)


def _joined(
    function: JoinedRow, row: Any, found: list[tuple[int, list[Any] | None]], of_right: bool
) -> list[Any]:
    """Return the rows of `JoinedRow` for a row and all rows that it is joined with."""
    if of_right:
        right, of_left = function.of_right(row), function.of_left
        return [of_left(other) + right for _, rows in found for other in rows or ()]
    left, of_other = function.of_left(row), function.of_right
    return [left + of_other(other) for _, rows in found for other in rows or ()]


def _extend(out: list[Any], rows: Iterable[Any] | None) -> None:
    if rows is None:
        return
    if isinstance(rows, (tuple, dict, str, bytes)):
        raise TypeError(f"process() must yield its rows or return a list of them, not {rows!r}")
    out.extend(rows)
