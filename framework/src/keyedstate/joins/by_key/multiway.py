"""The inner join of three and more inputs: a row meets all combinations of the live rows of the others.

A chain of joins of two inputs keeps the rows of what it has joined so far, too; here each row is kept once
(Flink's multi-way join).  A row is kept for its time to live; then a timer removes it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

from keyedstate.errors import MissingTimestampError
from keyedstate.joins.columns import Fold, JoinedColumn, getter, several_joined_columns
from keyedstate.joins.join_function import JoinFunction
from keyedstate.runtime.event_time import FAIL, LATE, TIMELESS
from keyedstate.runtime.functions.connected_inputs import ConnectedInputs, ordinal
from keyedstate.runtime.functions.keyed import Context
from keyedstate.state import MapState, StateDescriptor, Ttl, TtlClock, ValueState
from keyedstate.state.clock import END_OF_TIME
from keyedstate.time import Timer
from keyedstate.types import INT64, infer, tuple_of

#: The timer service of the ends of rows.  The namespace is the number of the row, which no two rows of a key
#: share, so that timers mean the same with another number of inputs.
TIMERS = "join"
_NUMBER = itemgetter(0)


class MultiwayJoinFunction(JoinFunction):
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
        *self._rows, self._next = (ctx.state(state) for state in self.states())
        places: list[list[int]] = [[] for _ in self._rows]
        for column in several_joined_columns(self._known):
            places[column.side].append(column.place)
        self._values_of = [getter(each) for each in places]
        self._timers = ctx._timers.service(TIMERS, self, INT64)

    def process1(self, row: Any, ctx: Context) -> Iterable[Any] | None:
        return self._process(0, row, ctx)

    def process2(self, row: Any, ctx: Context) -> Iterable[Any] | None:
        return self._process(1, row, ctx)

    def _processes(self) -> Sequence[Callable[[Any, Context], Any]]:
        return [partial(self._process, number) for number in range(self._count)]

    def _process(self, of: int, row: Any, ctx: Context) -> Iterable[Any] | None:
        end = self._end_of(of, row, ctx)
        if end is None or self._has_null_key(ctx):
            return None
        number = self._next.value() or 0
        self._next.update(number + 1)
        self._rows[of].put(number, (end, row))
        if self._by_watermark:
            self._timers.register_event_time_timer(number, end)
        elif self._ttl is not None:
            self._timers.register_processing_time_timer(number, end)
        if any(rows.is_empty() for rows in self._rows):
            return None
        parts = [
            [values(row)]
            if place == of
            else [values(kept) for _, (_, kept) in sorted(rows.items(), key=_NUMBER)]
            for place, (values, rows) in enumerate(zip(self._values_of, self._rows, strict=True))
        ]
        return [tuple(itertools.chain.from_iterable(each)) for each in itertools.product(*parts)]

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
            rows.remove(timer.namespace)
        if all(rows.is_empty() for rows in self._rows):
            self._next.clear()

    on_event_time = on_processing_time = _on_timer
