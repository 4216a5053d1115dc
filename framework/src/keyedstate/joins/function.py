"""The interval join as a function of two inputs (Flink's ``IntervalJoinOperator``).

A row of either input is put into the buffer of its side, under its time, and joined with the rows in the
other buffer whose times lie in the interval.  So each pair is found once: when the second of the two comes.
A timer takes a time out of a buffer when the watermark has passed all times that could be joined with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from types import MappingProxyType
from typing import Any

from keyedstate.errors import InvalidFunctionError, InvalidJoinError, MissingTimestampError
from keyedstate.runtime.event_time import DROP, FAIL, LATE, TIMELESS
from keyedstate.runtime.function import Context
from keyedstate.runtime.two_inputs import ConnectedInputs, KeyedCoProcessFunction
from keyedstate.state import MapState, StateDescriptor
from keyedstate.state.kinds.accessor import declared_states
from keyedstate.time import Timer
from keyedstate.types import INT64, STRING, infer, list_of, tuple_of

#: Why rows are dropped beside `LATE` and `TIMELESS`: a null in the key is equal to none.
NULL_KEY = "null key"
#: The timer service of clean-up, with the side and the time in its buffer as the namespace: what the timer's
#: own time says of that would be another one after a restart with other bounds.
TIMERS = "interval-join"
_TIMERS_OF = tuple_of(STRING, INT64)
LEFT, RIGHT = "left", "right"
#: The side outputs of late rows, and of rows without event time.
LATE_LEFT = "late_left"
LATE_RIGHT = "late_right"
MISSING_LEFT = "missing_left"
MISSING_RIGHT = "missing_right"
#: The time under which rows were found.
_TIME = itemgetter(0)


class JoinContext:
    """What the function of a join is told beside a pair of rows.

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
        """The later one of both event times, which is that of the pair."""
        return max(self.left_timestamp, self.right_timestamp)

    @property
    def watermark(self) -> int:
        """The event time up to which all rows of both inputs have come; -2**63 where none is known."""
        return self._context.watermark

    def output(self, name: str, row: Any) -> None:
        """Put a row out to a side output.

        Raises
        ------
        UndeclaredSideOutputError
        """
        self._context.output(name, row)


class ProcessJoinFunction:
    """Makes rows of a pair that was joined (Flink's ``ProcessJoinFunction``).

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
    """A column that a join puts out by itself.

    Attributes
    ----------
    name : str
    of_right : bool
    place : int
        Among the columns of its input.
    """

    name: str
    of_right: bool
    place: int


def joined_columns(
    inputs: ConnectedInputs, fold: Callable[[str], str] = lambda name: name
) -> list[JoinedColumn]:
    """Return the columns of joined rows: the key's, the others of the left input, the others of the right.

    A name that both sides have beside the key, or that is a key's, gets a prefix: ``left_`` or ``right_``.

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
    """Puts the columns of both rows out, as `joined_columns` names them.

    Attributes
    ----------
    of_left, of_right : callable
        What of a row of that side stands in the joined one.
    """

    def __init__(self, inputs: ConnectedInputs | None = None) -> None:
        columns = [] if inputs is None else joined_columns(inputs)
        self.of_left = _taking([column.place for column in columns if not column.of_right])
        self.of_right = _taking([column.place for column in columns if column.of_right])

    def process(self, left: Any, right: Any, ctx: JoinContext) -> Iterable[Any]:
        return [self.of_left(left) + self.of_right(right)]


def _taking(places: Sequence[int]) -> Callable[[Any], tuple[Any, ...]]:
    """Return what takes the values at some places of a row."""
    if len(places) > 1:
        return itemgetter(*places)
    # Of one place an itemgetter gives no tuple.
    return lambda row: tuple([row[place] for place in places])


class IntervalJoinFunction(KeyedCoProcessFunction):
    """Joins rows of two inputs by their key and their event times; made by `interval_join`."""

    side_inputs = MappingProxyType({LATE_LEFT: 0, MISSING_LEFT: 0, LATE_RIGHT: 1, MISSING_RIGHT: 1})

    def __init__(
        self,
        lower_ms: int,
        upper_ms: int,
        function: ProcessJoinFunction,
        *,
        side_outputs: Mapping[str, Any],
        missing: str,
    ) -> None:
        self.side_outputs = side_outputs
        self._bounds = (lower_ms, upper_ms), (-upper_ms, -lower_ms)
        self._function = function
        self._missing = missing
        self._inputs: ConnectedInputs | None = None
        self._out: list[Any] = []

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
        function = self._function
        if isinstance(function, JoinedRow):
            function = JoinedRow(inputs)
        lower_ms, upper_ms = self._bounds[0]
        bound = IntervalJoinFunction(
            lower_ms, upper_ms, function, side_outputs=self.side_outputs, missing=self._missing
        )
        bound._inputs = inputs
        return bound

    def states(self) -> list[StateDescriptor[Any]]:
        """Return the states that no attribute declares: both buffers, and those of the pairs' function."""
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
        self._out = []
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
            self._without_time(row, ctx, of_right)
            return None
        if key is None or (self._compound_key and None in key):
            ctx._dropped[NULL_KEY] += 1
            return None
        if time < ctx.watermark:
            self._late(row, ctx, of_right)
            return None
        mine, others = (self._right, self._left) if of_right else (self._left, self._right)
        lower, upper = self._bounds[of_right]
        # Not in place: a snapshot that is being written may hold the list.
        mine.put(time, [*(mine.get(time) or ()), row])
        side = RIGHT if of_right else LEFT
        self._timers.register_event_time_timer((side, time), time + max(upper, 0))
        first, last = time + lower, time + upper
        found = [(other, rows) for other, rows in others.items() if first <= other <= last]
        if not found:
            return None
        found.sort(key=_TIME)
        if self.joins_by_itself:
            return self._joined(row, found, of_right)
        pair, process = self._pair, self._function.process
        pair.key = key
        for other, rows in found:
            pair.left_timestamp, pair.right_timestamp = (other, time) if of_right else (time, other)
            for found_row in rows or ():
                left, right = (found_row, row) if of_right else (row, found_row)
                self._emit(process(left, right, pair))
        return self._taken()

    def _joined(self, row: Any, found: list[tuple[int, list[Any] | None]], of_right: bool) -> list[Any]:
        """Return what `JoinedRow` gives of a row and all that it is joined with."""
        function = self._function
        assert isinstance(function, JoinedRow), "checked"
        if of_right:
            right, of_left = function.of_right(row), function.of_left
            return [of_left(other) + right for _, rows in found for other in rows or ()]
        left, of_other = function.of_left(row), function.of_right
        return [left + of_other(other) for _, rows in found for other in rows or ()]

    def on_event_time(self, timer: Timer) -> None:
        """Take a time out of a buffer, unless the interval was a smaller one when it came."""
        side, time = timer.namespace
        of_right = side == RIGHT
        over = time + max(self._bounds[of_right][1], 0)
        if over > self._timers.current_watermark:
            self._timers.register_event_time_timer(timer.namespace, over)
        else:
            (self._right if of_right else self._left).remove(time)

    def on_processing_time(self, timer: Timer) -> None:
        """Do nothing: there are none."""

    @property
    def joins_by_itself(self) -> bool:
        """Whether the columns of both rows come out, and no function of the user makes rows of them."""
        return isinstance(self._function, JoinedRow)

    # -- output -------------------------------------------------------------------------------------------

    def _without_time(self, row: Any, ctx: Context, of_right: bool) -> None:
        if self._missing == FAIL:
            raise MissingTimestampError(f"the {RIGHT if of_right else LEFT} input of the join")
        output = MISSING_RIGHT if of_right else MISSING_LEFT
        ctx._set_aside(None if self._missing == DROP else output, TIMELESS, row)

    def _late(self, row: Any, ctx: Context, of_right: bool) -> None:
        name = LATE_RIGHT if of_right else LATE_LEFT
        ctx._set_aside(name if name in self.side_outputs else None, LATE, row)

    def _taken(self) -> list[Any]:
        taken, self._out = self._out, []
        return taken

    def _emit(self, rows: Iterable[Any] | None) -> None:
        if rows is None:
            return
        if isinstance(rows, (tuple, dict, str, bytes)):
            raise TypeError(f"process() must yield its rows or return a list of them, not {rows!r}")
        self._out.extend(rows)
