"""The inner join of three and more inputs: a row meets all combinations of the live rows of the others.

A chain of joins of two inputs keeps the rows of what it has joined so far, too; here each row is kept once
(Flink's multi-way join).  A row is kept for its time to live; then a timer removes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

from keyedstate.errors import MissingTimestampError
from keyedstate.joins.columns import Fold, JoinedColumn, getter, several_joined_columns
from keyedstate.joins.join_function import JoinFunction
from keyedstate.runtime.event_time import FAIL, LATE, TIMELESS
from keyedstate.runtime.functions.connected_inputs import ConnectedInputs, ordinal
from keyedstate.runtime.functions.keyed import Context
from keyedstate.runtime.functions.row_runs import OUTPUT_ROWS, RowRun, RunEntries, RunFunction
from keyedstate.state import MapState, StateDescriptor, Ttl, TtlClock, ValueState
from keyedstate.state.clock import END_OF_TIME
from keyedstate.time import Timer
from keyedstate.types import INT64, infer, tuple_of

#: The timer service of the ends of rows.  The namespace is the number of the row, which no two rows of a key
#: share, so that timers mean the same with another number of inputs.
TIMERS = "join"
_NUMBER = itemgetter(0)


class _Input(RunEntries):
    """The kept rows of one input: (end, row) by number.

    Attributes
    ----------
    values_of : callable
        Returns the part of an output row that a row makes.
    """

    #: What the rows add to output rows, in the order in which they came; None as long as none was asked.
    _read: list[tuple[Any, ...]] | None

    def __init__(self, rows: Any, values_of: Callable[[Any], tuple[Any, ...]]) -> None:
        super().__init__(rows)
        self.values_of = values_of

    def begin(self) -> None:
        super().begin()
        #: Whether there were none when the run began; None as long as none was asked.
        self._was_empty: bool | None = None

    def is_empty(self) -> bool:
        if self._changed:
            return False
        if self._was_empty is None:
            self._was_empty = self.state.is_empty()
        return self._was_empty

    def add(self, number: int, end: int, row: Any) -> None:
        self._changed[number] = (end, row)
        if self._read is not None:
            self._read.append(self.values_of(row))

    def values(self) -> list[tuple[Any, ...]]:
        """Return what the rows add to output rows, in the order in which they came."""
        if self._read is None:
            # Rows of the run have the greatest numbers.
            kept = [*sorted(self.state.items(), key=_NUMBER), *self._changed.items()]
            self._read = [self.values_of(row) for _, (_, row) in kept]
        return self._read


class MultiwayJoinFunction(JoinFunction, RunFunction):
    """Joins rows of several inputs by their key alone; made by `join` of so many inputs."""

    _declared_by = "join() of more than two inputs"

    def __init__(self, count: int, ttl: Ttl | None, missing: str) -> None:
        super().__init__({}, missing)
        self._count = count
        self._ttl = ttl
        self._by_watermark = ttl is not None and ttl.clock is TtlClock.EVENT_TIME

    def for_inputs(self, inputs: ConnectedInputs) -> MultiwayJoinFunction:
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
        return several_joined_columns(inputs, fold)

    def states(self) -> list[StateDescriptor[Any]]:
        """Return the states, which are no attributes: the rows of each input, and the number of the next."""
        rows = [
            MapState(f"rows-{name}", INT64, tuple_of(INT64, infer(each.schema)))
            for name, each in zip(self._known.names, self._known.inputs, strict=True)
        ]
        return [*rows, ValueState("next-row", INT64)]

    def open(self, ctx: Context) -> None:
        *rows, self._next = (ctx.state(state) for state in self.states())
        places: list[list[int]] = [[] for _ in rows]
        for column in several_joined_columns(self._known):
            places[column.side].append(column.place)
        self._rows = [_Input(some, getter(each)) for some, each in zip(rows, places, strict=True)]
        self._current = ctx._backend.current
        self._timers = ctx._timers.service(TIMERS, self, INT64)

    def _processes(self) -> Sequence[Callable[[Any, Context], Any]]:
        return [partial(self._process_row, number) for number in range(self._count)]

    def _process_run(self, run: RowRun, ctx: Context) -> list[Any]:
        for each in self._rows:
            each.begin()
        first = number = self._next.value() or 0
        out: list[Any] = []
        for of, row in run.rows:
            end = self._end_of(of, row, ctx)
            if end is None or self._has_null_key(ctx):
                continue
            self._rows[of].add(number, end, row)
            if self._by_watermark:
                self._timers.register_event_time_timer(number, end)
            elif self._ttl is not None:
                self._timers.register_processing_time_timer(number, end)
            number += 1
            out += self._combinations(of, row)
            if len(out) >= OUTPUT_ROWS:
                break
        if number > first:
            self._next.update(number)
        for each in self._rows:
            each.end(self._current)
        return out

    def _combinations(self, of: int, row: Any) -> list[tuple[Any, ...]]:
        """Return the output rows that a row makes with those of the other inputs."""
        if any(rows.is_empty() for rows in self._rows):
            return []
        made: list[tuple[Any, ...]] = [()]
        for number, rows in enumerate(self._rows):
            values = [rows.values_of(row)] if number == of else rows.values()
            made = [some + more for some in made for more in values]
        return made

    def _end_of(self, of: int, row: Any, ctx: Context) -> int | None:
        """Return when a row is removed; None where it has been dropped."""
        if self._ttl is None:
            return END_OF_TIME
        if not self._by_watermark:
            return min(self._timers.current_processing_time + self._ttl.ms, END_OF_TIME)
        time = ctx.timestamp
        if time is None:
            if self._missing == FAIL:
                raise MissingTimestampError(f"the {ordinal(of)} input of the join")
            ctx._set_aside(None, TIMELESS, row)
            return None
        end = min(time + self._ttl.ms, END_OF_TIME)
        if end <= self._timers.current_watermark:
            ctx._set_aside(None, LATE, row)
            return None
        return end

    def _on_timer(self, timer: Timer) -> None:
        """Remove a row at its end."""
        for rows in self._rows:
            rows.state.remove(timer.namespace)
        if all(rows.state.is_empty() for rows in self._rows):
            self._next.clear()

    on_event_time = on_processing_time = _on_timer
