"""The regular join as a function of two inputs: each row meets all rows of the other side that still live.

A row is kept for its time to live, by the watermark or by the clock; then a timer removes it.  A pair is
emitted when its second row comes.  Where the join keeps rows without a match, such a row is emitted when it
is removed.  So no emitted row is ever retracted; `keyedstate.joins.by_key.changing` has the join that does.

The namespace of a timer is twice the row's number, plus one for a right row.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter
from typing import Any

from keyedstate.joins.by_key.key_join import KeyJoinFunction
from keyedstate.joins.columns import Fold, JoinedColumn, JoinedRows, joined_columns
from keyedstate.joins.join_function import NULL_KEY
from keyedstate.runtime.functions.connected_inputs import ConnectedInputs
from keyedstate.runtime.functions.keyed import Context
from keyedstate.state import MapState, StateDescriptor, ValueState
from keyedstate.time import Timer
from keyedstate.types import BOOLEAN, INT64, tuple_of

_NUMBER = itemgetter(0)


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


class RegularJoinFunction(KeyJoinFunction):
    """Joins rows of two inputs by their key alone, with final rows; made by `keyedstate.joins.join`."""

    _declared_by = "join() without row_kind="

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
        self._current = ctx._backend.current
        self._register_timers(ctx)

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
                return [self._alone(row, of_right=mine.of_right)]
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

    def _keep(self, side: _Side, end: int, matched: bool, row: Any) -> None:
        number = self._next.value() or 0
        self._next.update(number + 1)
        current = self._current
        # The row needs no check, because the columns of the input say its type.
        side.rows._put_entries(current.key_group, current.key, {number: (end, matched, row)})
        namespace = 2 * number + side.of_right
        if self._by_watermark:
            self._timers.register_event_time_timer(namespace, end)
        elif self._ttl is not None or side.keeps:
            # Without a time to live a row without a match comes out at the end of a batch.
            self._timers.register_processing_time_timer(namespace, end)

    def _forget(self, side: _Side, number: int, end: int) -> None:
        """Remove a row before its end."""
        side.rows.remove(number)
        self._delete_timers(2 * number + side.of_right, end)

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
        return None if matched or not side.keeps else [self._alone(row, of_right=side.of_right)]
