"""Kinds of Arrow types, where Arrow has several types for one of Spark's."""

from __future__ import annotations

import pyarrow as pa
from pyarrow import types

MAX_LONG_DIGITS = 18
"""Decimals up to this precision are hashed as a long, wider ones as bytes (Spark's ``Decimal``)."""

MAX_DECIMAL_DIGITS = 38
"""The largest precision of a decimal in Spark."""

_TEXT = types.is_string, types.is_large_string, types.is_string_view
_BINARY = types.is_binary, types.is_large_binary, types.is_binary_view, types.is_fixed_size_binary
_LISTS = types.is_list, types.is_large_list, types.is_fixed_size_list


def spark_time_type(arrow_type: pa.DataType) -> pa.DataType | None:
    """Return the type of a time in Spark's unit; None if it is no time."""
    if types.is_timestamp(arrow_type):
        return pa.timestamp("us", arrow_type.tz)
    if types.is_duration(arrow_type):
        return pa.duration("us")
    return pa.time64("ns") if types.is_time64(arrow_type) else None


def is_text(arrow_type: pa.DataType) -> bool:
    """Return whether values are strings, in any of Arrow's layouts."""
    return any(is_kind(arrow_type) for is_kind in _TEXT)


def is_binary(arrow_type: pa.DataType) -> bool:
    """Return whether values are bytes, in any of Arrow's layouts."""
    return any(is_kind(arrow_type) for is_kind in _BINARY)


def is_list(arrow_type: pa.DataType) -> bool:
    """Return whether values are arrays in Spark's sense."""
    return any(is_kind(arrow_type) for is_kind in _LISTS)
