"""Durations as users write them: ``"7 days"``, ``"90 min"``, a timedelta, or milliseconds."""

from __future__ import annotations

import datetime as dt
import re

from keyedstate.errors import InvalidDurationError

_UNITS_MS = {
    "ms": 1,
    "millisecond": 1,
    "s": 1000,
    "second": 1000,
    "min": 60_000,
    "minute": 60_000,
    "h": 3_600_000,
    "hour": 3_600_000,
    "d": 86_400_000,
    "day": 86_400_000,
    "week": 604_800_000,
}
_TEXT = re.compile(r"\s*([+-]?\d+)\s*([a-z]+?)(s?)\s*", re.ASCII)

Duration = str | int | dt.timedelta


def milliseconds(duration: object) -> int:
    """Return a duration in milliseconds, rounded down; raises `InvalidDurationError`."""
    if isinstance(duration, dt.timedelta):
        return duration // dt.timedelta(milliseconds=1)
    if duration.__class__ is int:
        return duration
    match = _TEXT.fullmatch(duration.lower()) if isinstance(duration, str) else None
    if match is not None:
        number, unit, plural = match.groups()
        factor = _UNITS_MS.get(unit) or _UNITS_MS.get(unit + plural)
        if factor is not None:
            return int(number) * factor
    raise InvalidDurationError(duration)
