"""Columns of state in Spark's types: a type that Spark lacks becomes the nearest one."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StringType, StructField, StructType

from keyedstate.columns.spark_types import WIDER_NUMBERS


def spark_type_of(arrow_type: pa.DataType) -> Any:
    """Return the Spark type of a column of state.

    Unsigned numbers become wider ones, UUIDs binary; the void namespace and types that this Spark lacks
    (times of day before Spark 4.1) become strings.
    """
    if pa.types.is_struct(arrow_type):
        return StructType([StructField(field.name, spark_type_of(field.type)) for field in arrow_type])
    if _is_list(arrow_type):
        return ArrayType(spark_type_of(arrow_type.value_type))
    if pa.types.is_map(arrow_type):
        return MapType(spark_type_of(arrow_type.key_type), spark_type_of(arrow_type.item_type))
    if pa.types.is_null(arrow_type):
        return StringType()
    if pa.types.is_fixed_size_binary(arrow_type):
        return BinaryType()
    try:
        wider = WIDER_NUMBERS.get(arrow_type, arrow_type)
        found: DataType = from_arrow_type(wider, prefer_timestamp_ntz=True)
    except PySparkException:
        return StringType()
    return found


def fitted(column: pa.Array, target: pa.DataType) -> pa.Array:
    """Return a column of state with the Arrow type of its Spark type.

    Nanoseconds are truncated to microseconds. Raises `pyarrow.ArrowInvalid` for a value outside Spark's
    range.
    """
    if column.type == target:
        return column
    mask = column.is_null() if column.null_count else None
    if pa.types.is_struct(target):
        parts = [fitted(part, field.type) for part, field in zip(column.flatten(), target, strict=True)]
        if not parts:
            return pa.array(
                [None if valid is False else {} for valid in column.is_valid().to_pylist()], target
            )
        return pa.StructArray.from_arrays(parts, fields=list(target), mask=mask)
    if _is_list(target):
        child, offsets = fitted(column.values, target.value_type), _offsets(column)
        return pa.ListArray.from_arrays(offsets, child, type=target, mask=mask)
    if pa.types.is_map(target):
        keys, items = fitted(column.keys, target.key_type), fitted(column.items, target.item_type)
        return pa.MapArray.from_arrays(_offsets(column), keys, items, type=target, mask=mask)
    if pa.types.is_timestamp(target) and pa.types.is_timestamp(column.type) and column.type.unit == "ns":
        return column.cast(target, safe=False)
    return column.cast(target)


def _offsets(column: pa.Array) -> pa.Array:
    # The offsets of a slice are a slice too, which Arrow refuses together with a mask.
    return pa.array(column.offsets.to_numpy()) if column.offset else column.offsets


def _is_list(arrow_type: pa.DataType) -> bool:
    return bool(pa.types.is_list(arrow_type) or pa.types.is_large_list(arrow_type))
