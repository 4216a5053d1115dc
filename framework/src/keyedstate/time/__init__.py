"""Timers in event and processing time, and watermarks."""

from keyedstate.time.errors import (
    InvalidTimerNamespaceError,
    InvalidTimerTimeError,
    KeyGroupOfTimerError,
    NoEventTimeError,
    TimerError,
    TimerServiceMismatchError,
)
from keyedstate.time.queue import DueTimers, TimerQueue
from keyedstate.time.service import (
    EVENT_TIMERS,
    PROCESSING_TIMERS,
    Timer,
    TimerService,
    TimerTarget,
)
from keyedstate.time.services import TimerServices

__all__ = [
    "EVENT_TIMERS",
    "PROCESSING_TIMERS",
    "DueTimers",
    "InvalidTimerNamespaceError",
    "InvalidTimerTimeError",
    "KeyGroupOfTimerError",
    "NoEventTimeError",
    "Timer",
    "TimerError",
    "TimerQueue",
    "TimerService",
    "TimerServiceMismatchError",
    "TimerServices",
    "TimerTarget",
]
