"""Errors about timers and watermarks."""

from __future__ import annotations

from keyedstate.errors.base import KeyedStateError


class TimerError(KeyedStateError):
    """A timer that cannot be registered or deleted."""


class InvalidTimerTimeError(TimerError, ValueError):
    """A time that no timer can have."""

    time: object
    message = (
        "a timer cannot be at {time!r}: give a whole number of milliseconds since 1970 UTC that fits into 64 "
        "bits, such as ctx.timestamp + 60_000."
    )


class InvalidTimerNamespaceError(TimerError, ValueError):
    """A namespace that is not of the type with which a timer service was made."""

    service: str
    namespace: object
    reason: str
    message = "the timer service {service!r} has no timers in {namespace!r}: {reason}."


class NoEventTimeError(TimerError):
    """A timer in event time, in an operator that knows none: it would never fire."""

    service: str
    message = (
        "an event-time timer of {service!r} would never fire: this operator does not know the event time of "
        "its rows. Name the column, as in keyed(..., event_time=EventTime('ts', delay='10 minutes')), or "
        "register a processing-time timer."
    )


class UnorderedTimersError(TimerError):
    """Timers that a backend shall keep in the order of time, which it cannot."""

    backend: str
    message = (
        "the backend {backend!r} does not keep timers in the order of time, which timers.queue=ordered asks "
        "for. Set timers.queue to 'auto', or choose a backend that does, such as 'rocksdb'."
    )


class TimerServiceMismatchError(TimerError):
    """A second look-up of a timer service with another type of namespaces."""

    service: str
    registered: object
    requested: object
    message = (
        "the timer service {service!r} has namespaces of {registered!r}, and was asked for with "
        "{requested!r}. Choose another name, or the same type."
    )


class KeyGroupOfTimerError(TimerError, ValueError):
    """A question about timers of a key group that another instance owns (TM-14)."""

    key_group: int
    owned: object
    message = (
        "key group {key_group} is not among those of this instance, {owned}. Ask the instance that owns it."
    )
