"""Kinds of Arrow types, where Arrow has several types for one of Spark's."""

from __future__ import annotations

import pyarrow as pa

MAX_LONG_DIGITS = 18
"""Decimals up to this precision are hashed as a long, wider ones as bytes (Spark's ``Decimal``)."""

MAX_DECIMAL_DIGITS = 38
"""The largest precision of a decimal in Spark."""


def spark_time_type(arrow_type: pa.DataType) -> pa.DataType | None:
    """Return the type of a time in Spark's unit; None if it is no time."""
    if pa.types.is_timestamp(arrow_type):
        return pa.timestamp("us", arrow_type.tz)
    if pa.types.is_duration(arrow_type):
        return pa.duration("us")
    return pa.time64("ns") if pa.types.is_time64(arrow_type) else None


def is_text(arrow_type: pa.DataType) -> bool:
    """Return whether values are strings, in any of Arrow's layouts."""
    types = pa.types
    return bool(
        types.is_string(arrow_type) or types.is_large_string(arrow_type) or types.is_string_view(arrow_type)
    )


def is_binary(arrow_type: pa.DataType) -> bool:
    """Return whether values are bytes, in any of Arrow's layouts."""
    types = pa.types
    return bool(
        types.is_binary(arrow_type)
        or types.is_large_binary(arrow_type)
        or types.is_binary_view(arrow_type)
        or types.is_fixed_size_binary(arrow_type)
    )


def is_list(arrow_type: pa.DataType) -> bool:
    """Return whether values are arrays in Spark's sense."""
    types = pa.types
    return bool(
        types.is_list(arrow_type) or types.is_large_list(arrow_type) or types.is_fixed_size_list(arrow_type)
    )
