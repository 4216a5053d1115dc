"""Timers in event and processing time, and watermarks."""

from keyedstate.time.event_time import EventTime
from keyedstate.time.heap_queue import HeapTimerQueue
from keyedstate.time.instants import datetime_of, milliseconds_of
from keyedstate.time.ordered_queue import OrderedTimerQueue
from keyedstate.time.queue import DueTimers, TimerQueue
from keyedstate.time.service import (
    EVENT_TIMERS,
    PROCESSING_TIMERS,
    Timer,
    TimerService,
    TimerTarget,
    check_timer_queue,
)
from keyedstate.time.services import TimerServices
from keyedstate.time.watermarks import InputTime, bounded_out_of_orderness, watermark_of_inputs

__all__ = [
    "EVENT_TIMERS",
    "PROCESSING_TIMERS",
    "DueTimers",
    "EventTime",
    "HeapTimerQueue",
    "InputTime",
    "OrderedTimerQueue",
    "Timer",
    "TimerQueue",
    "TimerService",
    "TimerServices",
    "TimerTarget",
    "bounded_out_of_orderness",
    "check_timer_queue",
    "datetime_of",
    "milliseconds_of",
    "watermark_of_inputs",
]
