"""Instants as datetimes, and as the milliseconds of timers."""

from __future__ import annotations

import datetime as dt

_1970 = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
_MILLISECOND = dt.timedelta(milliseconds=1)


def milliseconds_of(instant: dt.datetime) -> int:
    """Return the milliseconds since 1970 UTC, rounded down as event times; without a zone it is in UTC."""
    if instant.tzinfo is None:
        instant = instant.replace(tzinfo=dt.timezone.utc)
    return (instant - _1970) // _MILLISECOND


def datetime_of(milliseconds: int) -> dt.datetime | None:
    """Return an instant in UTC, such as the time of a timer; None outside of the years 1 to 9999."""
    try:
        return _1970 + dt.timedelta(milliseconds=milliseconds)
    except OverflowError:
        return None
