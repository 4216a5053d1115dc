"""The regular join as a function of two inputs: each row meets all rows of the other side that still live.

A row is kept for its time to live, by the watermark or by the clock; then a timer removes it.  A pair is
emitted when its second row comes.  Where the join keeps rows without a match, such a row is emitted when it
is removed.  So no emitted row is ever retracted; `keyedstate.joins.by_key.changing` has the join that does.

The namespace of a timer is twice the row's number, plus one for a right row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import Any

from keyedstate.joins.by_key.key_join import KeyJoinFunction
from keyedstate.joins.columns import Fold, JoinedColumn, JoinedRows, joined_columns
from keyedstate.joins.join_function import NULL_KEY
from keyedstate.runtime.functions.connected_inputs import ConnectedInputs
from keyedstate.runtime.functions.keyed import Context
from keyedstate.runtime.functions.row_runs import OUTPUT_ROWS, RowRun, RunEntries, RunFunction
from keyedstate.state import MapState, StateDescriptor, ValueState
from keyedstate.state.clock import END_OF_TIME
from keyedstate.time import Timer
from keyedstate.types import BOOLEAN, INT64, tuple_of

#: A kept row: its end, whether it has met a match, and its values.
_Kept = tuple[int, bool, Any]
_NUMBER = itemgetter(0)


class _Side(RunEntries):
    """The kept rows of one side: (end, whether it has met a match, row) by number.

    Attributes
    ----------
    keeps : bool
        Whether rows without a match come out at their end.
    values_of : callable
        Returns the part of an output row that a row makes.
    """

    #: What live rows add to output rows, in the order in which they came; None as long as none was asked.
    _read: list[tuple[Any, ...]] | None

    def __init__(self, rows: Any, values_of: Callable[[Any], tuple[Any, ...]], *, keeps: bool) -> None:
        super().__init__(rows)
        self.values_of = values_of
        self.keeps = keeps

    def live(self) -> list[tuple[int, _Kept]]:
        """Return the rows in the order in which they came."""
        return sorted(self.state.items(), key=_NUMBER)

    def add(self, number: int, end: int, row: Any, *, matched: bool) -> None:
        """Keep a row; a row of a side that keeps none counts as matched: the next run may keep them."""
        self._changed[number] = (end, matched or not self.keeps, row)
        if self._read is not None:
            # The other side has met all rows of this one, so there is a match of this row.
            self._read.append(self.values_of(row))

    def meet(self) -> list[tuple[Any, ...]]:
        """Return what live rows add to output rows, in the order in which they came; all are matched now."""
        values = self._read
        if values is None:
            # Rows of the run have the greatest numbers.
            live = [*self.live(), *self._changed.items()]
            for number, (end, matched, row) in live:
                if not matched:
                    self._changed[number] = (end, True, row)
            values_of = self.values_of
            values = self._read = [values_of(row) for _, (_, _, row) in live]
        return values


class RegularJoinFunction(KeyJoinFunction, RunFunction):
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
        self._joined = JoinedRows(self._inputs)
        self._sides = (
            _Side(left, self._joined.of_left, keeps=keeps_left),
            _Side(right, self._joined.of_right, keeps=keeps_right),
        )
        self._current = ctx._backend.current
        self._register_timers(ctx)

    def _process_run(self, run: RowRun, ctx: Context) -> list[Any] | None:
        if not self.how.of_pairs or self._null_in_key(ctx):
            number, row = next(run.rows)
            return self._process_one(row, ctx, of_right=bool(number))
        left, right = self._sides
        left.begin()
        right.begin()
        first = number = self._next.value() or 0
        out: list[Any] = []
        for of_right, row in run.rows:
            end = END_OF_TIME if self._ttl is None else self._end_of(row, ctx, bool(of_right))
            if end is None:
                continue
            if of_right:
                met = left.meet()
                right.add(number, end, row, matched=bool(met))
                if met:
                    values = right.values_of(row)
                    out += [of_other + values for of_other in met]
            else:
                met = right.meet()
                left.add(number, end, row, matched=bool(met))
                if met:
                    values = left.values_of(row)
                    out += [values + of_other for of_other in met]
            self._register_timer(self._sides[of_right], 2 * number + of_right, end)
            number += 1
            if len(out) >= OUTPUT_ROWS:
                break
        if number > first:
            self._next.update(number)
        left.end(self._current)
        right.end(self._current)
        return out

    def _process_one(self, row: Any, ctx: Context, *, of_right: bool) -> list[Any] | None:
        """Handle a row that makes no pair: its key is null, or the join is a semi or anti join."""
        end = self._end_of(row, ctx, of_right)
        if end is None:
            return None
        if not self._null_in_key(ctx):
            return self._right_of_semi(row, end) if of_right else self._left_of_semi(row, end)
        if self.how.keeps[of_right]:
            return [self._alone(row, of_right=of_right)]
        ctx._dropped[NULL_KEY] += 1
        return None

    # -- semi and anti joins: a left row is decided when it meets a match ---------------------------------

    def _left_of_semi(self, row: Any, end: int) -> list[Any] | None:
        left, right = self._sides
        if right.state.is_empty():
            self._keep(row, end, of_right=False)
            return None
        return None if left.keeps else [self._joined.of_left(row)]

    def _right_of_semi(self, row: Any, end: int) -> list[Any] | None:
        left, right = self._sides
        decided = left.live()
        for number, (until, _, _) in decided:
            self._forget(number, until, of_right=False)
        # Only the right row that lives longest is needed.
        longest = right.live()
        if all(until < end for _, (until, _, _) in longest):
            for number, (until, _, _) in longest:
                self._forget(number, until, of_right=True)
            self._keep(row, end, of_right=True)
        of_left = self._joined.of_left
        return None if left.keeps else [of_left(other) for _, (_, _, other) in decided]

    # -- the life of a row --------------------------------------------------------------------------------

    def _keep(self, row: Any, end: int, *, of_right: bool) -> None:
        """Keep a row of a semi or anti join: a left one has met no match, a right one needs none."""
        side, number = self._sides[of_right], self._next.value() or 0
        self._next.update(number + 1)
        # Other than in a join of pairs, a left row is unmatched: a next run of another type may need that.
        current = self._current
        side.state._put_entries(current.key_group, current.key, {number: (end, of_right, row)})
        self._register_timer(side, 2 * number + of_right, end)

    def _register_timer(self, side: _Side, namespace: int, end: int) -> None:
        if self._by_watermark:
            self._timers.register_event_time_timer(namespace, end)
        elif self._ttl is not None or side.keeps:
            # Without a time to live a row without a match comes out at the end of a batch.
            self._timers.register_processing_time_timer(namespace, end)

    def _forget(self, number: int, end: int, *, of_right: bool) -> None:
        """Remove a row before its end."""
        self._sides[of_right].state.remove(number)
        self._delete_timers(2 * number + of_right, end)

    def _on_timer(self, timer: Timer) -> Iterable[Any] | None:
        """Remove a row at its end, and emit it where it has found no match."""
        number, of_right = divmod(timer.namespace, 2)
        side = self._sides[of_right]
        kept = side.state.get(number)
        if kept is None:
            return None
        side.state.remove(number)
        if all(each.state.is_empty() for each in self._sides):
            self._next.clear()
        _, matched, row = kept
        return None if matched or not side.keeps else [self._alone(row, of_right=bool(of_right))]
