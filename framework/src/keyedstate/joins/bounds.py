"""The interval of an interval join: its bounds are distances from a left row's time, or columns of it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from keyedstate.durations import Duration, milliseconds
from keyedstate.errors import InvalidJoinError, did_you_mean

#: The sum of a time and a bound is a time.
_LARGEST_BOUND_MS = 2**62
_1970 = dt.datetime(1970, 1, 1)
_MS = dt.timedelta(milliseconds=1)


@dataclass(frozen=True)
class LeftColumn:
    """A bound of an interval join in a column of the left row: ``interval_join(0, LeftColumn("expires"))``.

    The column is a time, or a duration relative to the time of the row.  A left row in which it is null is
    joined with no row.
    """

    name: str


#: A bound as users give it.
Bound: TypeAlias = "Duration | LeftColumn"
#: Returns a bound as a time, of a left row and its time; None where it is null.
_TimeOf: TypeAlias = "Callable[[Any, int], int | None]"


@dataclass(frozen=True)
class Interval:
    """The times of right rows that a left row is joined with, in whole milliseconds, both bounds included.

    Attributes
    ----------
    lower, upper : int or LeftColumn
        A number of milliseconds is relative to the time of the left row.
    inward : tuple of int
        How many milliseconds further in columns' bounds are: 1 where they are excluded.
    lookback : int
        How far before the time of a left row a column may put its lower bound.
    """

    lower: int | LeftColumn
    upper: int | LeftColumn
    inward: tuple[int, int] = (0, 0)
    lookback: int = 0

    @classmethod
    def of(
        cls, lower: Bound, upper: Bound, *, lower_exclusive: bool, upper_exclusive: bool, lookback: Duration
    ) -> Interval:
        """Return the interval that a user declares; raises `InvalidJoinError` and `InvalidDurationError`."""
        interval = f"the interval from {lower!r} to {upper!r}"
        inward = (int(bool(lower_exclusive)), int(bool(upper_exclusive)))
        # Times are whole milliseconds: an open bound is a closed one a millisecond further in.
        low = lower if isinstance(lower, LeftColumn) else milliseconds(lower) + inward[0]
        high = upper if isinstance(upper, LeftColumn) else milliseconds(upper) - inward[1]
        for bound in (low, high):
            if isinstance(bound, int) and abs(bound) > _LARGEST_BOUND_MS:
                raise InvalidJoinError(interval, "no two times are so far apart", "Give nearer bounds.")
        if isinstance(low, int) and isinstance(high, int):
            if low - inward[0] > high + inward[1]:
                raise InvalidJoinError(interval, "it ends before it begins", "Give the lower bound first.")
            if low > high:
                raise InvalidJoinError(
                    interval, "it is empty without its bounds", "Let it include one of them, or both."
                )
        back = milliseconds(lookback)
        if back < 0:
            raise InvalidJoinError(f"lookback={lookback!r}", "it is negative", "Give 0 or more.")
        if back and not isinstance(low, LeftColumn):
            raise InvalidJoinError(
                f"lookback={lookback!r}", "the lower bound is no column and says it", "Leave it out."
            )
        return cls(low, high, inward, back)

    @property
    def distances(self) -> tuple[int, int] | None:
        """Both bounds, where neither is a column."""
        if isinstance(self.lower, int) and isinstance(self.upper, int):
            return self.lower, self.upper
        return None

    @property
    def left_life(self) -> int | None:
        """How long after its time a left row can be joined with right rows; None where a column says it."""
        return max(self.upper, 0) if isinstance(self.upper, int) else None

    @property
    def right_life(self) -> int:
        """How long after its time a right row can be joined with left rows."""
        return max(-self.lower, 0) if isinstance(self.lower, int) else self.lookback

    def of_rows(self, left: pa.Schema) -> Callable[[Any, int], tuple[int, int] | None]:
        """Return a function of a left row and its time that returns the first and the last time.

        It returns None where the row can be joined with none.  Raises `InvalidJoinError`.
        """
        lower, upper = (
            _time_of(bound, inward, left)
            for bound, inward in ((self.lower, self.inward[0]), (self.upper, -self.inward[1]))
        )
        limit = self.lookback if isinstance(self.lower, LeftColumn) else None

        def of_row(row: Any, time: int) -> tuple[int, int] | None:
            first, last = lower(row, time), upper(row, time)
            if first is None or last is None:
                return None
            if limit is not None and first < time - limit:
                first = time - limit
            return (first, last) if first <= last else None

        return of_row


def _time_of(bound: int | LeftColumn, inward: int, left: pa.Schema) -> _TimeOf:
    if isinstance(bound, int):
        return lambda row, time: time + bound
    name = bound.name
    if name not in left.names:
        raise InvalidJoinError(
            repr(bound),
            f"the left rows have no such column, but {', '.join(left.names)}",
            f"Name one with a time or a duration.{did_you_mean(name, left.names)}",
        )
    place: int = left.names.index(name)
    type_ = left.field(place).type
    if pa.types.is_duration(type_):
        return lambda row, time: None if row[place] is None else time + row[place] // _MS + inward
    if pa.types.is_timestamp(type_):
        # A naive time counts as UTC, as event times do.
        zone = None if type_.tz is None else dt.timezone.utc
        since = _1970.replace(tzinfo=zone)
        return lambda row, time: None if row[place] is None else (row[place] - since) // _MS + inward
    if pa.types.is_date(type_):
        day, ordinal = 86_400_000, _1970.toordinal()
        return lambda row, time: (
            None if row[place] is None else (row[place].toordinal() - ordinal) * day + inward
        )
    raise InvalidJoinError(
        repr(bound), f"the column has the type {type_}", "Name one with a time or a duration."
    )
