"""Dates, instants, times of day and durations.

The layouts are Flink's: a date is the milliseconds of its midnight in UTC (``SqlDateSerializer``), a
timestamp the milliseconds since 1970 and the nanoseconds within the millisecond (``TimestampDataSerializer``
of precision 6), a time of day its hour, minute, second and nanoseconds (``LocalTimeSerializer``).  A duration
is Spark's day-time interval: a 64-bit number of microseconds.
"""

from __future__ import annotations

import datetime as dt
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from keyedstate.errors import ColumnTypeError, CorruptDataError, ValueTypeError
from keyedstate.memory.views import DataInputView, DataOutputView
from keyedstate.row_path import instants_of
from keyedstate.types.contract.arrow_columns import (
    instants_column,
    plain_numbers,
    put_nones,
    require_types,
)
from keyedstate.types.scalars.scalar import ClassSerializer, SingletonSerializer, register_singleton

_DAY_MS = 86_400_000
_EPOCH_DAY = dt.date(1970, 1, 1).toordinal()
_FIRST_DAY, _LAST_DAY = dt.date.min.toordinal() - _EPOCH_DAY, dt.date.max.toordinal() - _EPOCH_DAY
_FIRST_US, _LAST_US = _FIRST_DAY * _DAY_MS * 1000, (_LAST_DAY + 1) * _DAY_MS * 1000 - 1
_NAIVE_EPOCH = dt.datetime(1970, 1, 1)
_UTC_EPOCH = _NAIVE_EPOCH.replace(tzinfo=dt.timezone.utc)
_MICROSECOND = dt.timedelta(microseconds=1)
#: By unit of an Arrow type.
_MICROS = {"s": 1_000_000, "ms": 1000, "us": 1}
#: The shortest duration that 64 bits of microseconds do not hold.
_DURATION_LIMIT = dt.timedelta(microseconds=2**63)


def _require_years(numbers: np.ndarray, low: int, high: int, expected: str) -> None:
    """Refuse days or microseconds outside the years 1 to 9999, which NumPy returns as ints."""
    if len(numbers) and (numbers.min() < low or numbers.max() > high):
        stranger = numbers[(numbers < low) | (numbers > high)][0]
        raise ValueTypeError.of(
            f"{expected} of the years 1 to 9999",
            int(stranger),
            "Python has no other years: filter these rows, or cast the column to a number.",
        )


def _has_microseconds(arrow_type: pa.DataType) -> bool:
    """Whether Python's datetime holds the timestamps of the type without loss."""
    return bool(pa.types.is_timestamp(arrow_type) and arrow_type.unit != "ns")


class DateSerializer(ClassSerializer[dt.date]):
    """``datetime.date``, which a ``datetime.datetime`` is not."""

    type_name = "date"
    python_type = dt.date
    constraint = "a datetime.date"

    arrow_type = pa.date32()
    normalized_key_bytes = 4
    key_numbers = pa.int32()

    advice = ((dt.datetime, "Convert it with .date(), or declare the state as TIMESTAMP or TIMESTAMP_NTZ."),)

    def serialize(self, value: dt.date, out: DataOutputView) -> None:
        if value.__class__ is not dt.date:
            raise self.mismatch(value)
        out.write_long((value.toordinal() - _EPOCH_DAY) * _DAY_MS)

    def deserialize(self, source: DataInputView) -> dt.date:
        day, rest = divmod(source.read_long(), _DAY_MS)
        if rest or not _FIRST_DAY <= day <= _LAST_DAY:
            raise source.corrupt("a date that is no midnight of the years 1 to 9999")
        return dt.date.fromordinal(day + _EPOCH_DAY)

    def read_column(self, array: pa.Array) -> list[dt.date | None]:
        days = plain_numbers(array.cast(pa.int32()))
        _require_years(days, _FIRST_DAY, _LAST_DAY, repr(self))
        return put_nones(days.astype("datetime64[D]").tolist(), array)


class _InstantSerializer(SingletonSerializer[dt.datetime]):
    """What the two kinds of timestamp share; an epoch of the right kind makes the difference."""

    python_type = dt.datetime
    _epoch: dt.datetime
    normalized_key_bytes = 8
    key_numbers = pa.int64()

    @abstractmethod
    def _has_right_zone(self, value: dt.datetime) -> bool: ...

    def is_value(self, value: object) -> bool:
        return value.__class__ is dt.datetime and self._has_right_zone(value)

    def check_parts(self) -> tuple[Any, ...]:
        return "instant", self._epoch.tzinfo, self._has_right_zone

    def serialize(self, value: dt.datetime, out: DataOutputView) -> None:
        if not self.is_value(value):
            raise self.mismatch(value)
        millis, micros = divmod((value - self._epoch) // _MICROSECOND, 1000)
        out.write_long(millis)
        out.write_int(micros * 1000)

    def deserialize(self, source: DataInputView) -> dt.datetime:
        millis, nanos = source.read_long(), source.read_int()
        micros, rest = divmod(nanos, 1000)
        if rest or not 0 <= micros < 1000:
            raise source.corrupt(f"{nanos} nanoseconds are no whole microseconds within a millisecond")
        total = millis * 1000 + micros
        if not _FIRST_US <= total <= _LAST_US:
            raise source.corrupt("a timestamp outside the years 1 to 9999")
        return self._epoch + dt.timedelta(microseconds=total)

    def read_column(self, array: pa.Array) -> list[dt.datetime | None]:
        factor = _MICROS[array.type.unit]
        numbers = plain_numbers(array.cast(pa.int64()))
        # Before the multiplication: seconds beyond these years may exceed 64 bits of microseconds.
        _require_years(numbers, _FIRST_US // factor, _LAST_US // factor, repr(self))
        micros = numbers * factor
        return put_nones(instants_of(micros, self._epoch.tzinfo is not None), array)

    def write_column(self, values: Sequence[dt.datetime | None]) -> pa.Array:
        made = instants_column(values, self.arrow_type)
        if made is not None:
            return made
        require_types(values, frozenset((dt.datetime, type(None))))
        for value in values:
            if value is not None and not self._has_right_zone(value):
                raise TypeError("a zone that pyarrow would convert silently")
        return pa.array(values, self.arrow_type)


class TimestampSerializer(_InstantSerializer):
    """Instants: ``datetime.datetime`` in UTC with microseconds; what is read has ``datetime.timezone.utc``.

    Another zone is refused although it can name the same instant: a restart would lose its wall clock.
    """

    type_name = "timestamp"
    constraint = "a datetime.datetime in UTC"
    _epoch = _UTC_EPOCH

    arrow_type = pa.timestamp("us", "UTC")

    def _has_right_zone(self, value: dt.datetime) -> bool:
        zone = value.tzinfo
        # ZoneInfo("UTC") and pytz.UTC are other objects, but the same zone.
        return zone is dt.timezone.utc or (
            zone is not None and zone.tzname(value) == "UTC" and not zone.utcoffset(value)
        )

    def way_out(self, value: object) -> str:
        if isinstance(value, dt.datetime) and value.tzinfo is None:
            return "Give it a zone with .replace(tzinfo=timezone.utc), or declare the state as TIMESTAMP_NTZ."
        if value.__class__ is dt.datetime:
            return "Convert it with .astimezone(timezone.utc)."
        return super().way_out(value)

    def reads(self, arrow_type: pa.DataType) -> bool:
        # Arrow keeps instants in UTC; the zone of the type is for display, and Spark sets the session's.
        return _has_microseconds(arrow_type) and arrow_type.tz is not None


class TimestampNtzSerializer(_InstantSerializer):
    """Wall-clock times without a zone: naive ``datetime.datetime``, microseconds; ``fold`` is not kept."""

    type_name = "timestamp_ntz"
    constraint = "a datetime.datetime without tzinfo"
    _epoch = _NAIVE_EPOCH

    arrow_type = pa.timestamp("us")

    def _has_right_zone(self, value: dt.datetime) -> bool:
        return value.tzinfo is None

    def way_out(self, value: object) -> str:
        if isinstance(value, dt.datetime) and value.tzinfo is not None:
            return "Declare the state as TIMESTAMP, or drop the zone with .replace(tzinfo=None)."
        return super().way_out(value)

    def reads(self, arrow_type: pa.DataType) -> bool:
        return _has_microseconds(arrow_type) and arrow_type.tz is None


class TimeSerializer(SingletonSerializer[dt.time]):
    """Times of day without a zone: ``datetime.time``, microseconds; ``fold`` is not kept."""

    type_name = "time"
    python_type = dt.time
    constraint = "a datetime.time without tzinfo"

    arrow_type = pa.time64("us")
    normalized_key_bytes = 8
    key_numbers = pa.int64()

    def is_value(self, value: object) -> bool:
        return value.__class__ is dt.time and value.tzinfo is None

    advice = ((dt.datetime, "Convert it with .time(), or declare the state as TIMESTAMP or TIMESTAMP_NTZ."),)
    advice_within = "Drop the zone with .replace(tzinfo=None)."

    def serialize(self, value: dt.time, out: DataOutputView) -> None:
        if not self.is_value(value):
            raise self.mismatch(value)
        out.write_byte(value.hour)
        out.write_byte(value.minute)
        out.write_byte(value.second)
        out.write_int(value.microsecond * 1000)

    def deserialize(self, source: DataInputView) -> dt.time:
        clock = source.read_byte(), source.read_byte(), source.read_byte()
        micros, rest = divmod(source.read_int(), 1000)
        try:
            if not rest:
                return dt.time(*clock, micros)
        except ValueError:
            pass
        raise source.corrupt("a time of day that a clock of microseconds does not show")

    def reads(self, arrow_type: pa.DataType) -> bool:
        return bool(pa.types.is_time(arrow_type))

    def read_column(self, array: pa.Array) -> list[dt.time | None]:
        try:
            micros = plain_numbers(array.cast(pa.time64("us")).cast(pa.int64()))
        except pa.ArrowInvalid:  # nanoseconds beside whole microseconds
            raise ColumnTypeError(repr(self), "time64[us]", f"{array.type} with nanoseconds") from None
        if len(micros) and (micros.min() < 0 or micros.max() >= _DAY_MS * 1000):
            raise CorruptDataError("a time of day beyond 24 hours in a column", 0)
        seconds, micros = np.divmod(micros, 1_000_000)
        minutes, seconds = np.divmod(seconds, 60)
        parts = (*np.divmod(minutes, 60), seconds, micros)
        return put_nones(list(map(dt.time, *(part.tolist() for part in parts))), array)

    def write_column(self, values: Sequence[dt.time | None]) -> pa.Array:
        require_types(values, frozenset((dt.time, type(None))))
        for value in values:
            if value is not None and value.tzinfo is not None:
                raise TypeError("a zone that pyarrow would drop silently")
        return pa.array(values, pa.time64("us"))


class DurationSerializer(SingletonSerializer[dt.timedelta]):
    """``datetime.timedelta`` in a 64-bit number of microseconds, which is up to 292,000 years."""

    type_name = "duration"
    python_type = dt.timedelta
    constraint = "a datetime.timedelta of at most 292,000 years"

    arrow_type = pa.duration("us")
    normalized_key_bytes = 8
    key_numbers = pa.int64()

    def is_value(self, value: object) -> bool:
        return value.__class__ is dt.timedelta and -_DURATION_LIMIT <= value < _DURATION_LIMIT

    def serialize(self, value: dt.timedelta, out: DataOutputView) -> None:
        if not self.is_value(value):
            raise self.mismatch(value)
        out.write_long(value // _MICROSECOND)

    def deserialize(self, source: DataInputView) -> dt.timedelta:
        return dt.timedelta(microseconds=source.read_long())

    def reads(self, arrow_type: pa.DataType) -> bool:
        return bool(pa.types.is_duration(arrow_type) and arrow_type.unit != "ns")

    def read_column(self, array: pa.Array) -> list[dt.timedelta | None]:
        factor = _MICROS[array.type.unit]
        numbers = plain_numbers(array.cast(pa.int64()))
        limit = (2**63 - 1) // factor
        if factor > 1 and len(numbers) and (numbers.min() < -limit or numbers.max() > limit):
            stranger = int(numbers[(numbers < -limit) | (numbers > limit)][0])
            unit = array.type.unit
            raise ValueTypeError.of(
                f"{self!r} ({self.constraint})",
                stranger,
                f"So many {unit} are more: filter these rows, or cast the column to a number.",
            )
        micros = (numbers * factor).tolist()
        return put_nones([dt.timedelta(0, 0, number) for number in micros], array)

    def write_column(self, values: Sequence[dt.timedelta | None]) -> pa.Array:
        require_types(values, frozenset((dt.timedelta, type(None))))
        try:
            return pa.array(values, pa.duration("us"))
        except (pa.ArrowException, OverflowError):
            pass  # pyarrow refuses durations near the ends of 64 bits
        micros = [None if value is None else value // _MICROSECOND for value in values]
        return pa.array(micros, pa.int64()).cast(pa.duration("us"))


DATE = DateSerializer()
TIMESTAMP = TimestampSerializer()
TIMESTAMP_NTZ = TimestampNtzSerializer()
TIME = TimeSerializer()
DURATION = DurationSerializer()

for _serializer in (DATE, TIMESTAMP, TIMESTAMP_NTZ, TIME, DURATION):
    register_singleton(_serializer)
