"""pandas timestamps with nanoseconds, in the layout of Flink's ``TimestampDataSerializer`` of precision 9.

The first read of a value imports pandas.
"""

from __future__ import annotations

import importlib
import sys
import zoneinfo
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from keyedstate.errors import CorruptDataError, UnsupportedTypeError
from keyedstate.memory.views import DataInputView, DataOutputView
from keyedstate.types.contract.arrow_columns import plain_numbers, put_nones, require_types
from keyedstate.types.contract.registry import restorable
from keyedstate.types.contract.serializer import Compatibility, SerializerSnapshot, TypeSerializer
from keyedstate.types.scalars.scalar import ScalarSerializer

_MILLISECOND_NS = 1_000_000
#: The smallest 64-bit number stands for pandas' NaT.
_FIRST_NS, _LAST_NS = -(2**63) + 1, 2**63 - 1


@restorable
class PandasTimestampSerializer(ScalarSerializer[Any]):
    """``pandas.Timestamp`` of the years 1677 to 2262 in one zone, or without a zone."""

    type_name = "pandas_timestamp"
    normalized_key_bytes = 8
    key_numbers = pa.int64()

    def __init__(self, tz: str | None) -> None:
        #: Name of the zone; None for wall-clock times.
        self.tz = tz
        self.constraint = f"a pandas.Timestamp {f'in {tz}' if tz else 'without a zone'}, 1677 to 2262"

    def parts(self) -> tuple[object, ...]:
        return (self.tz,)

    def __repr__(self) -> str:
        return f"pandas_timestamp({self.tz!r})"

    def snapshot_content(self) -> dict[str, Any]:
        return {"tz": self.tz}

    @classmethod
    def restore(cls, document: Mapping[str, Any]) -> PandasTimestampSerializer:
        tz = document["tz"]
        if not (tz is None or isinstance(tz, str)):
            raise TypeError("a time zone is a name")
        return cls(tz)

    @property
    def arrow_type(self) -> pa.DataType:
        return pa.timestamp("ns", self.tz)

    def is_value(self, value: object) -> bool:
        pandas = sys.modules.get("pandas")
        if pandas is None or value.__class__ is not pandas.Timestamp:
            return False
        return self._has_zone(value) and _nanoseconds(value) is not None

    def _has_zone(self, value: Any) -> bool:
        return value.tzinfo is None if self.tz is None else str(value.tzinfo) == self.tz

    def way_out(self, value: object) -> str:
        pandas = sys.modules.get("pandas")
        if pandas is not None and value is pandas.NaT:
            return f"Use None, and declare the type as nullable({self!r})."
        if pandas is None or value.__class__ is not pandas.Timestamp:
            if value is None:
                return f"Declare the type as nullable({self!r}) if None is a value."
            return "Convert it with pandas.Timestamp()."
        stamp: Any = value
        if self._has_zone(stamp):
            return "Nanoseconds since 1970 must fit into 64 bits: declare the state as TIMESTAMP."
        if self.tz is None:
            return "Drop the zone with .tz_localize(None), or declare pandas_timestamp with its name."
        method = "tz_localize" if stamp.tzinfo is None else "tz_convert"
        return f"Convert it with .{method}({self.tz!r})."

    def serialize(self, value: Any, out: DataOutputView) -> None:
        if not self.is_value(value):
            raise self.mismatch(value)
        millis, nanos = divmod(_nanoseconds(value) or 0, _MILLISECOND_NS)
        out.write_long(millis)
        out.write_int(nanos)

    def deserialize(self, source: DataInputView) -> Any:
        millis, nanos = source.read_long(), source.read_int()
        total = millis * _MILLISECOND_NS + nanos
        if not (0 <= nanos < _MILLISECOND_NS and _FIRST_NS <= total <= _LAST_NS):
            raise source.corrupt("a timestamp outside the years 1677 to 2262, or with a second's nanoseconds")
        return _pandas().Timestamp(total, unit="ns", tz=self.tz)

    def reads(self, arrow_type: pa.DataType) -> bool:
        return bool(pa.types.is_timestamp(arrow_type) and (arrow_type.tz is None) == (self.tz is None))

    def read_column(self, array: pa.Array) -> list[Any]:
        index_type = _pandas().DatetimeIndex
        try:
            nanos = plain_numbers(array.cast(self.arrow_type).cast(pa.int64()))
        except pa.ArrowInvalid as error:
            raise CorruptDataError(f"a timestamp of another century in a column: {error}", 0) from None
        if len(nanos) and nanos.min() < _FIRST_NS:
            raise CorruptDataError("the mark of no timestamp, not as a null, in a column", 0)
        index = index_type(nanos.astype("datetime64[ns]"))
        if self.tz is not None:
            index = index.tz_localize("UTC").tz_convert(self.tz)
        return put_nones(index.tolist(), array)

    def write_column(self, values: Sequence[Any]) -> pa.Array:
        dense = [value for value in values if value is not None]
        if dense:
            require_types(dense, frozenset((_pandas().Timestamp,)))
        if not all(map(self.is_value, dense)):
            raise ValueError("another zone, or a year beyond 64 bits of nanoseconds")
        nanos = np.fromiter(
            (0 if value is None else _nanoseconds(value) for value in values), np.int64, len(values)
        )
        nulls = np.fromiter((value is None for value in values), np.bool_, len(values))
        return pa.array(nanos, pa.int64(), mask=nulls).cast(self.arrow_type)

    def resolve_compatibility(self, old: SerializerSnapshot) -> Compatibility:
        if old.type_name == self.type_name and None not in (self.tz, old.content["tz"]):
            if self.tz == old.content["tz"]:
                return Compatibility.AS_IS
            return Compatibility.after_migration(f"the instants of {old} are shown in {self.tz}")
        return super().resolve_compatibility(old)

    def conversion_from(self, old: TypeSerializer[Any]) -> Callable[[Any], Any] | None:
        return None if old == self else lambda value: value.tz_convert(self.tz)


def _pandas() -> Any:
    return importlib.import_module("pandas")


def _nanoseconds(value: Any) -> int | None:
    """Return the nanoseconds since 1970 in UTC, or None where they do not fit into 64 bits."""
    if value.unit == "ns":
        return int(value.value)
    try:
        return int(value.as_unit("ns").value)
    except (ValueError, OverflowError):  # pandas' OutOfBoundsDatetime is a ValueError
        return None


def pandas_timestamp(tz: str | None = "UTC") -> PandasTimestampSerializer:
    """Return the type of pandas timestamps in one zone; None for timestamps without a zone.

    `tz` is a name in the IANA database, such as ``Europe/Berlin``; one that is not known here raises
    `UnsupportedTypeError`.
    """
    if tz not in (None, "UTC"):
        try:
            zoneinfo.ZoneInfo(tz)
        except (zoneinfo.ZoneInfoNotFoundError, ValueError, TypeError, OSError):
            raise UnsupportedTypeError(
                f"pandas_timestamp({tz!r})",
                "no time zone of that name is known here",
                "Give a name of the IANA database such as 'Europe/Berlin', or install the package tzdata.",
            ) from None
    return PandasTimestampSerializer(tz)
