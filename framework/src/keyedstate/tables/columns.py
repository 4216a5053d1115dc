"""Columns of state values: numeric types, `Column` from and to Arrow, and batches of Arrow columns."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from keyedstate.backend import Column, EntryBatch, StateMeta
from keyedstate.types import TypeSerializer


def is_numeric(arrow_type: pa.DataType) -> bool:
    """Return whether a `Column` can contain the values of a type: numbers of at most 64 bits."""
    return bool(
        pa.types.is_signed_integer(arrow_type)
        or pa.types.is_float32(arrow_type)
        or pa.types.is_float64(arrow_type)
        or pa.types.is_boolean(arrow_type)
        or pa.types.is_date32(arrow_type)
        or pa.types.is_timestamp(arrow_type)
        or pa.types.is_duration(arrow_type)
    )


def column_dtype(arrow_type: pa.DataType) -> np.dtype[Any]:
    """Return the dtype of a column of a numeric type: float64 or int64."""
    return np.dtype(np.float64 if pa.types.is_floating(arrow_type) else np.int64)


def column_of(array: pa.Array) -> Column:
    """Return an array of a numeric type as a column: times as numbers of their unit, true as 1."""
    arrow_type = array.type
    present = None if not array.null_count else array.is_valid().to_numpy(zero_copy_only=False)
    if pa.types.is_boolean(arrow_type):
        array = array.cast(pa.int8())
    elif pa.types.is_date32(arrow_type):
        array = array.view(pa.int32())
    elif pa.types.is_timestamp(arrow_type) or pa.types.is_duration(arrow_type):
        array = array.view(pa.int64())
    if present is not None:
        array = array.fill_null(0)
    values = array.to_numpy(zero_copy_only=False)
    return Column(values.astype(column_dtype(arrow_type), copy=False), present)


def array_of(column: Column, arrow_type: pa.DataType) -> pa.Array:
    """Return a column as an array of a numeric type."""
    missing = None if column.present is None or column.present.all() else ~column.present
    array = pa.array(column.values, mask=missing)
    if array.type == arrow_type:
        return array
    if pa.types.is_date32(arrow_type):
        array = array.cast(pa.int32(), safe=False)
        return array.view(arrow_type)
    if pa.types.is_timestamp(arrow_type) or pa.types.is_duration(arrow_type):
        return array.view(arrow_type)
    return array.cast(arrow_type, safe=False)


class ArrowEntryBatch(EntryBatch[Any, Any, Any]):
    """Entries as Arrow columns: namespaces, keys and values, of the types of the serializers of `meta`.

    The lists are made on demand.
    """

    def __init__(self, meta: StateMeta, columns: pa.RecordBatch) -> None:
        # The parent is a frozen dataclass, whose fields are properties here.
        object.__setattr__(self, "meta", meta)
        object.__setattr__(self, "columns", columns)

    meta: StateMeta
    columns: pa.RecordBatch

    def __len__(self) -> int:
        return int(self.columns.num_rows)

    @cached_property
    def namespaces(self) -> list[Any]:
        """The namespaces as objects."""
        return canonical_list(self.meta.namespace_serializer, self.columns.column(0))

    @cached_property
    def keys(self) -> list[Any]:
        """The keys as objects."""
        return canonical_list(self.meta.key_serializer, self.columns.column(1))

    @cached_property
    def values(self) -> list[Any]:
        """The values as objects."""
        return self.meta.value_serializer.from_arrow(self.columns.column(2))


def canonical_list(serializer: TypeSerializer[Any], column: pa.Array) -> list[Any]:
    """Return keys or namespaces as objects in canonical form, by which tables find them."""
    found = serializer.from_arrow(column)
    return list(map(serializer.canonical, found)) if serializer.needs_canonical else found
