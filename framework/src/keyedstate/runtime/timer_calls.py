"""How the timers of a function that handles rows one by one are called."""

from __future__ import annotations

from typing import Any

from keyedstate.runtime.function import Context, KeyedFunction, KeyedProcessFunction, OnTimerContext
from keyedstate.runtime.runners.connected import KeyedCoProcessFunction
from keyedstate.runtime.runners.vectorized import VectorizedProcessFunction
from keyedstate.runtime.timers import TimeDomain
from keyedstate.time import Timer

#: Functions that handle one row after the other.
PER_RECORD = (KeyedProcessFunction, KeyedCoProcessFunction)


class OnTimer:
    """Tells a per-record function of its timers; a vectorised one is asked for many at once."""

    def __init__(self, function: KeyedFunction, context: Context) -> None:
        self._on_timer = getattr(function, "on_timer", None)
        self._function_context = context
        self._context: OnTimerContext | None = None

    def on_event_time(self, timer: Timer) -> Any:
        """Return what the function gives for a timer of event time."""
        return self._tell(timer, TimeDomain.EVENT_TIME)

    def on_processing_time(self, timer: Timer) -> Any:
        """Return what the function gives for a timer of processing time."""
        return self._tell(timer, TimeDomain.PROCESSING_TIME)

    def _tell(self, timer: Timer, domain: TimeDomain) -> Any:
        context = self._context
        if context is None:
            context = self._context = OnTimerContext(self._function_context)
        context.epoch = self._function_context.epoch
        context.key, context._time, context.time_domain = timer.key, timer.time, domain
        assert self._on_timer is not None, "a vectorised function is asked for many timers at once"
        return self._on_timer(timer.time, context)


def handles_timers(function: KeyedFunction) -> bool:
    """Return whether a function says what shall happen when a timer fires."""
    own: Any = type(function)
    if isinstance(function, VectorizedProcessFunction):
        return own.on_timers is not VectorizedProcessFunction.on_timers
    bases = (base for base in PER_RECORD if isinstance(function, base))
    return any(own.on_timer is not base.on_timer for base in bases)
