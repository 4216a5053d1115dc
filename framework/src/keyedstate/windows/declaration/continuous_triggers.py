"""Triggers that fire at every interval while a window is open, by the watermark or by the clock."""

from __future__ import annotations

from typing import Any, TypeVar

from keyedstate.durations import Duration
from keyedstate.state import ReducingState
from keyedstate.types import INT64
from keyedstate.windows.declaration.checks import positive
from keyedstate.windows.declaration.contexts import OnMergeContext, TriggerContext
from keyedstate.windows.declaration.triggers import Trigger, TriggerResult

T = TypeVar("T", bound="_ContinuousTrigger")


class _ContinuousTrigger(Trigger[Any]):
    """Keeps the next time at which a window fires in state; for merged windows the earliest one."""

    can_merge = True
    _in_event_time: bool

    def __init__(self, interval: int) -> None:
        self.interval = interval
        self._next = ReducingState("fire-time", min, INT64)

    @classmethod
    def of(cls: type[T], interval: Duration) -> T:
        """Return the trigger of an interval: ``"10 min"``, a timedelta or milliseconds."""
        return cls(positive(cls.__name__, "the interval", interval))

    def _register(self, time: int, ctx: TriggerContext) -> None:
        if self._in_event_time:
            ctx.register_event_time_timer(time)
        else:
            ctx.register_processing_time_timer(time)

    def _delete(self, time: int, ctx: TriggerContext) -> None:
        if self._in_event_time:
            ctx.delete_event_time_timer(time)
        else:
            ctx.delete_processing_time_timer(time)

    def _begin(self, now: int, window: Any, ctx: TriggerContext) -> None:
        """Wait for the first multiple of the interval after a time, unless the window waits already."""
        if ctx.state(self._next).get() is None:
            self._wait(now - now % self.interval, window, ctx)

    def _wait(self, time: int, window: Any, ctx: TriggerContext) -> None:
        """Wait for an interval after a time, or for the window's end where that comes first."""
        following, end = time + self.interval, window.max_timestamp
        # By the clock an event-time window may have ended long before; then it has no end to wait for.
        following = min(following, end) if time < end else following
        ctx.state(self._next).add(following)
        self._register(following, ctx)

    def _fire_if_due(self, time: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        due = ctx.state(self._next)
        if due.get() != time:
            return TriggerResult.CONTINUE
        due.clear()
        self._wait(time, window, ctx)
        return TriggerResult.FIRE

    def on_merge(self, window: Any, ctx: OnMergeContext) -> None:
        ctx.merge_state(self._next)
        following = ctx.state(self._next).get()
        if following is not None:
            self._register(following, ctx)

    def clear(self, window: Any, ctx: TriggerContext) -> None:
        due = ctx.state(self._next)
        following = due.get()
        if following is not None:
            self._delete(following, ctx)
            due.clear()

    def __repr__(self) -> str:
        return f"{type(self).__name__}.of({self.interval})"


class ContinuousEventTimeTrigger(_ContinuousTrigger):
    """Fires when the watermark passes a multiple of an interval, and at the end of the window; use `of`.

    At the end of bounded input a window fires at the multiple that it waits for and at its end.  No timers
    are registered then, and no rows come in between.
    """

    _in_event_time = True

    def on_element(
        self, element: Any, timestamp: int | None, window: Any, ctx: TriggerContext
    ) -> TriggerResult:
        end = window.max_timestamp
        if end <= ctx.current_watermark:
            return TriggerResult.FIRE
        ctx.register_event_time_timer(end)
        self._begin(ctx.current_watermark if timestamp is None else timestamp, window, ctx)
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        if time == window.max_timestamp:
            return TriggerResult.FIRE
        return self._fire_if_due(time, window, ctx)

    def clear(self, window: Any, ctx: TriggerContext) -> None:
        ctx.delete_event_time_timer(window.max_timestamp)
        super().clear(window, ctx)


class ContinuousProcessingTimeTrigger(_ContinuousTrigger):
    """Fires when the clock passes a multiple of an interval, and at the end of the window; use `of`."""

    _in_event_time = False

    def on_element(
        self, element: Any, timestamp: int | None, window: Any, ctx: TriggerContext
    ) -> TriggerResult:
        self._begin(ctx.current_processing_time, window, ctx)
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: Any, ctx: TriggerContext) -> TriggerResult:
        return self._fire_if_due(time, window, ctx)
