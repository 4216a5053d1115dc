"""What the joins of two inputs by their key alone have in common: the lives of rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from keyedstate.joins.columns import JoinedRows, JoinType
from keyedstate.joins.join_function import JoinFunction
from keyedstate.runtime.functions.connected_inputs import ConnectedInputs
from keyedstate.runtime.functions.keyed import Context
from keyedstate.state import Ttl, TtlClock
from keyedstate.state.clock import END_OF_TIME
from keyedstate.time import Timer, TimerService
from keyedstate.types import INT64

if TYPE_CHECKING:
    from typing_extensions import Self

#: The timer service of the ends of rows.
TIMERS = "join"


class KeyJoinFunction(JoinFunction):
    """Joins rows of two inputs by their key alone; made by `keyedstate.joins.join`."""

    _timers: TimerService
    _joined: JoinedRows

    def __init__(self, how: JoinType, ttl: Ttl | None, side_outputs: Mapping[str, Any], missing: str) -> None:
        super().__init__(side_outputs, missing)
        self.how = how
        self._ttl = ttl
        self._by_watermark = ttl is not None and ttl.clock is TtlClock.EVENT_TIME

    def for_inputs(self, inputs: ConnectedInputs) -> Self:
        """Return the function for rows of these columns.

        Raises
        ------
        InvalidJoinError
            Where they have no event times, and rows live by the watermark.
        RowKindError
        """
        if self._by_watermark:
            self._need_event_time(inputs, "the time to live of the join", "it is in event time")
        return self._bound(inputs)

    def _register_timers(self, ctx: Context) -> None:
        self._timers = ctx._timers.service(TIMERS, self, INT64)

    def _end_of(self, row: Any, ctx: Context, of_right: bool) -> int | None:
        """Return when a row is removed; None where it has been set aside."""
        if self._ttl is None:
            return END_OF_TIME
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

    def _delete_timers(self, namespace: int, end: int) -> None:
        # A run before this one may have had the other clock.
        self._timers.delete_event_time_timer(namespace, end)
        self._timers.delete_processing_time_timer(namespace, end)

    def _alone(self, row: Any, *, of_right: bool) -> tuple[Any, ...]:
        """Return the output row of a row without a match, or of a left row of a semi or anti join."""
        if not self.how.of_pairs:
            return self._joined.of_left(row)
        return self._joined.alone(row, of_right=of_right)

    def _on_timer(self, timer: Timer) -> Iterable[Any] | None:
        """Handle the end of a row."""
        raise NotImplementedError

    def on_event_time(self, timer: Timer) -> Iterable[Any] | None:
        """Handle the end of a row that lives by the watermark."""
        return self._on_timer(timer)

    def on_processing_time(self, timer: Timer) -> Iterable[Any] | None:
        """Handle the end of a row that lives by the clock."""
        return self._on_timer(timer)
