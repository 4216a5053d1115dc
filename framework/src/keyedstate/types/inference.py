"""The serializer that an Arrow column of keys asks for."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from keyedstate.types.decimals import decimal
from keyedstate.types.errors import UnsupportedTypeError
from keyedstate.types.nullable import nullable
from keyedstate.types.numbers import BOOLEAN, FLOAT32, FLOAT64, INT8, INT16, INT32, INT64
from keyedstate.types.serializer import TypeSerializer
from keyedstate.types.temporal import DATE, TIMESTAMP, TIMESTAMP_NTZ
from keyedstate.types.text import BYTES, STRING
from keyedstate.types.tuples import tuple_of

_EXACT: dict[pa.DataType, TypeSerializer[Any]] = {
    pa.bool_(): BOOLEAN,
    pa.int8(): INT8,
    pa.int16(): INT16,
    pa.int32(): INT32,
    pa.int64(): INT64,
    pa.float32(): FLOAT32,
    pa.float64(): FLOAT64,
    pa.string(): STRING,
    pa.large_string(): STRING,
    pa.binary(): BYTES,
    pa.large_binary(): BYTES,
    pa.date32(): DATE,
}


def from_arrow_type(arrow_type: pa.DataType) -> TypeSerializer[Any]:
    """Return the serializer for a key column, as Spark hands it over.

    All types by which Spark can group and whose values Python can hash are supported: booleans, signed
    integers, floats, strings, binary, dates, both timestamps, decimals, and structs of these, which become
    tuples with a nullable field for every nullable one.  Dictionary-encoded columns have their values' type.

    Parameters
    ----------
    arrow_type : pyarrow.DataType
        Its own nullability is not part of it: wrap the result in `nullable` where the column may hold nulls.

    Raises
    ------
    UnsupportedTypeError
        For any other type; a nested one is named.
    """
    if pa.types.is_dictionary(arrow_type):
        return from_arrow_type(arrow_type.value_type)
    serializer = _EXACT.get(arrow_type)
    if serializer is not None:
        return serializer
    if pa.types.is_timestamp(arrow_type) and arrow_type.unit != "ns":
        return TIMESTAMP_NTZ if arrow_type.tz is None else TIMESTAMP
    if pa.types.is_decimal128(arrow_type) and arrow_type.scale >= 0:
        return decimal(arrow_type.precision, arrow_type.scale)
    if pa.types.is_struct(arrow_type) and arrow_type.num_fields:
        fields = [arrow_type.field(index) for index in range(arrow_type.num_fields)]
        types = [(field.nullable, from_arrow_type(field.type)) for field in fields]
        return tuple_of(*(nullable(inner) if may_be_null else inner for may_be_null, inner in types))
    raise UnsupportedTypeError(f"a key of the Arrow type {arrow_type}", *_refusal(arrow_type))


def _refusal(arrow_type: pa.DataType) -> tuple[str, str]:
    types = pa.types
    if types.is_nested(arrow_type) and not types.is_struct(arrow_type):
        return "its values have no hash in Python", "Use a struct, or a string made with to_json()."
    if types.is_unsigned_integer(arrow_type):
        return "Spark has no unsigned integers", "Cast the column to a signed integer."
    if types.is_timestamp(arrow_type):
        return "Python's datetime has no nanoseconds", "Cast the column to microseconds."
    return "it is no type by which Spark groups", "Cast the column, for example to a string."
