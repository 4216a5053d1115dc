"""The regular join as a function of two inputs: each row meets all rows of the other side that still live.

A row is kept for its time to live, by the watermark or by the clock; then a timer removes it.  A pair is
emitted when its second row comes.  Where the join keeps rows without a match, such a row is emitted when it
is removed.  So no emitted row is ever retracted, other than in Flink's regular join.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import itemgetter
from typing import Any

from keyedstate.errors import InvalidJoinError
from keyedstate.joins.columns import Fold, JoinedColumn, JoinedRows, JoinType, joined_columns
from keyedstate.joins.join_function import NULL_KEY, JoinFunction, declared_side_outputs
from keyedstate.runtime.functions.connected_inputs import ConnectedInputs
from keyedstate.runtime.functions.keyed import Context
from keyedstate.state import MapState, StateDescriptor, Ttl, TtlClock, ValueState
from keyedstate.state.clock import END_OF_TIME
from keyedstate.time import Timer
from keyedstate.types import BOOLEAN, INT64, tuple_of

#: The timer service of the ends of rows.  The namespace is twice the row's number, plus one for a right row.
TIMERS = "join"
_NUMBER = itemgetter(0)
_NO_TTL = END_OF_TIME


class _Side:
    """The kept rows of one side of the current key: (end, whether it has met a match, row) by number."""

    def __init__(self, rows: Any, *, of_right: bool, keeps: bool) -> None:
        self.rows = rows
        self.of_right = of_right
        #: Whether rows without a match come out at their end.
        self.keeps = keeps

    def live(self) -> list[tuple[int, tuple[int, bool, Any]]]:
        """Return the rows in the order in which they came."""
        return sorted(self.rows.items(), key=_NUMBER)


class RegularJoinFunction(JoinFunction):
    """Joins rows of two inputs by their key alone; made by `keyedstate.joins.join`."""

    def __init__(self, how: JoinType, ttl: Ttl | None, side_outputs: Mapping[str, Any], missing: str) -> None:
        super().__init__(side_outputs, missing)
        self.how = how
        self._ttl = ttl
        self._by_watermark = ttl is not None and ttl.clock is TtlClock.EVENT_TIME

    def for_inputs(self, inputs: ConnectedInputs) -> RegularJoinFunction:
        """Return the function for rows of these columns.

        Raises
        ------
        InvalidJoinError
            Where they have no event times, and rows live by the watermark.
        """
        if self._by_watermark:
            self._need_event_time(inputs, "the time to live of the join", "it is in event time")
        return self._bound(inputs)

    def output_columns(self, inputs: ConnectedInputs, fold: Fold) -> list[JoinedColumn]:
        return joined_columns(inputs, fold, self.how)

    def states(self) -> list[StateDescriptor[Any]]:
        """Return the states, which are no attributes: the rows of both sides, and the number of the next."""
        rows = [
            MapState(f"{name}-rows", INT64, tuple_of(INT64, BOOLEAN, type_))
            for name, type_ in self._row_types()
        ]
        return [*rows, ValueState("next-row", INT64)]

    def open(self, ctx: Context) -> None:
        left, right, self._next = (ctx.state(state) for state in self.states())
        assert self._inputs is not None, "it has states"
        keeps_left, keeps_right = self.how.keeps
        self._sides = (
            _Side(left, of_right=False, keeps=keeps_left),
            _Side(right, of_right=True, keeps=keeps_right),
        )
        self._joined = JoinedRows(self._inputs)
        self._timers = ctx._timers.service(TIMERS, self, INT64)

    def process1(self, row: Any, ctx: Context) -> Iterable[Any] | None:
        return self._process(row, ctx, *self._sides)

    def process2(self, row: Any, ctx: Context) -> Iterable[Any] | None:
        right, left = reversed(self._sides)
        return self._process(row, ctx, right, left)

    def _process(self, row: Any, ctx: Context, mine: _Side, others: _Side) -> Iterable[Any] | None:
        end = self._end_of(row, ctx, mine.of_right)
        if end is None:
            return None
        if self._null_in_key(ctx):
            if mine.keeps:
                return [self._alone(row, mine)]
            ctx._dropped[NULL_KEY] += 1
            return None
        if not self.how.of_pairs:
            return self._right_of_semi(row, end) if mine.of_right else self._left_of_semi(row, end)
        found = others.live()
        # A row of a side that keeps none counts as matched: the next run may keep them.
        self._keep(mine, end, bool(found) or not mine.keeps, row)
        for number, (until, matched, other) in found:
            if not matched:
                others.rows.put(number, (until, True, other))
        of_left, of_right = self._joined.of_left, self._joined.of_right
        if mine.of_right:
            right = of_right(row)
            return [of_left(other) + right for _, (_, _, other) in found]
        left = of_left(row)
        return [left + of_right(other) for _, (_, _, other) in found]

    # -- semi and anti joins: a left row is decided when it meets a match ---------------------------------

    def _left_of_semi(self, row: Any, end: int) -> Iterable[Any] | None:
        left, right = self._sides
        if right.rows.is_empty():
            self._keep(left, end, False, row)
            return None
        return None if left.keeps else [self._joined.of_left(row)]

    def _right_of_semi(self, row: Any, end: int) -> Iterable[Any] | None:
        left, right = self._sides
        decided = left.live()
        for number, (until, _, _) in decided:
            self._forget(left, number, until)
        # Only the right row that lives longest is needed.
        longest = right.live()
        if all(until < end for _, (until, _, _) in longest):
            for number, (until, _, _) in longest:
                self._forget(right, number, until)
            self._keep(right, end, True, row)
        of_left = self._joined.of_left
        return None if left.keeps else [of_left(other) for _, (_, _, other) in decided]

    # -- the life of a row --------------------------------------------------------------------------------

    def _end_of(self, row: Any, ctx: Context, of_right: bool) -> int | None:
        """Return when a row is removed; None where it has been set aside."""
        if self._ttl is None:
            return _NO_TTL
        if not self._by_watermark:
            return min(self._timers.current_processing_time + self._ttl.ms, END_OF_TIME)
        time = self._time_of(row, ctx, of_right)
        if time is None:
            return None
        end = min(time + self._ttl.ms, END_OF_TIME)
        if end <= self._timers.current_watermark:
            self._set_late_aside(row, ctx, of_right)
            return None
        return end

    def _keep(self, side: _Side, end: int, matched: bool, row: Any) -> None:
        number = self._next.value() or 0
        self._next.update(number + 1)
        side.rows.put(number, (end, matched, row))
        namespace = 2 * number + side.of_right
        if self._by_watermark:
            self._timers.register_event_time_timer(namespace, end)
        elif self._ttl is not None or side.keeps:
            # Without a time to live a row without a match comes out at the end of a batch.
            self._timers.register_processing_time_timer(namespace, end)

    def _forget(self, side: _Side, number: int, end: int) -> None:
        """Remove a row before its end."""
        side.rows.remove(number)
        namespace = 2 * number + side.of_right
        # A run before this one may have had the other clock.
        self._timers.delete_event_time_timer(namespace, end)
        self._timers.delete_processing_time_timer(namespace, end)

    def _alone(self, row: Any, side: _Side) -> tuple[Any, ...]:
        if not self.how.of_pairs:
            return self._joined.of_left(row)
        return self._joined.alone(row, of_right=side.of_right)

    def _on_timer(self, timer: Timer) -> Iterable[Any] | None:
        """Remove a row at its end, and emit it where it has found no match."""
        number, of_right = divmod(timer.namespace, 2)
        side = self._sides[of_right]
        kept = side.rows.get(number)
        if kept is None:
            return None
        side.rows.remove(number)
        if all(each.rows.is_empty() for each in self._sides):
            self._next.clear()
        _, matched, row = kept
        return None if matched or not side.keeps else [self._alone(row, side)]

    on_event_time = on_processing_time = _on_timer


def checked_ttl(ttl: Ttl | None) -> Ttl | None:
    """Return the time to live of the rows of a join; raises `InvalidJoinError`."""
    if ttl is None:
        return None
    if not isinstance(ttl, Ttl):
        raise InvalidJoinError(f"ttl={ttl!r}", "it is no time to live", "Give ttl=Ttl.of('1 day').")
    if ttl != Ttl(ttl.ms, clock=ttl.clock):
        raise InvalidJoinError(
            f"the time to live of {ttl}",
            "a timer removes each row of a join, and its life begins once",
            "Give a duration and a clock alone, as in Ttl.of('1 day', clock=TtlClock.EVENT_TIME).",
        )
    return ttl


def join(
    how: str = "inner", *, ttl: Ttl | None = None, late: str = "drop", missing: str = "fail"
) -> RegularJoinFunction:
    """Declare a join by key without Spark; the result is a function of two inputs, for a test harness.

    Parameters
    ----------
    how : {"inner", "left", "right", "full", "semi", "anti"}, optional
    ttl : Ttl, optional
        How long a row lives: after its event time by the watermark, or by the clock after it came.  Without
        it rows live until the end of the input.
    late : {"drop", "side output"}, optional
        What happens to rows whose life in event time is over when they come.
    missing : {"fail", "drop", "side output"}, optional
        What happens to rows without an event time, if they live by the watermark.

    Raises
    ------
    InvalidJoinError
    """
    chosen, ttl = JoinType.of(how), checked_ttl(ttl)
    sides, policy = declared_side_outputs(late, missing)
    if sides and (ttl is None or ttl.clock is not TtlClock.EVENT_TIME):
        raise InvalidJoinError(
            f"the side output {min(sides)!r}",
            "rows that live by the clock, or for ever, are never late and need no event time",
            "Leave it out, or give a time to live with clock=TtlClock.EVENT_TIME.",
        )
    return RegularJoinFunction(chosen, ttl, sides, policy)
