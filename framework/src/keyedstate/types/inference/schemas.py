"""Types from Arrow's, from Spark's and from annotations.

Spark's come by their JSON representation, without importing PySpark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from keyedstate.errors import UnsupportedTypeError
from keyedstate.types.collections.maps import map_of
from keyedstate.types.collections.nullable import nullable
from keyedstate.types.collections.sequences import list_of
from keyedstate.types.collections.tuples import tuple_of
from keyedstate.types.contract.serializer import TypeSerializer
from keyedstate.types.inference.annotations import from_annotation
from keyedstate.types.inference.spark_syntax import SparkSyntaxError, parse_type
from keyedstate.types.records.rows import row_of
from keyedstate.types.scalars.decimals import decimal
from keyedstate.types.scalars.numbers import BOOLEAN, FLOAT32, FLOAT64, INT8, INT16, INT32, INT64
from keyedstate.types.scalars.temporal import DATE, DURATION, TIME, TIMESTAMP, TIMESTAMP_NTZ
from keyedstate.types.scalars.text import BYTES, STRING

_EXACT: dict[pa.DataType, TypeSerializer[Any]] = {
    pa.large_string(): STRING,
    pa.large_binary(): BYTES,
    **{
        serializer.arrow_type: serializer
        for serializer in (BOOLEAN, INT8, INT16, INT32, INT64, FLOAT32, FLOAT64, STRING, BYTES, DATE)
    },
}


def infer(declared: Any) -> TypeSerializer[Any]:
    """Return the type that a Python annotation, a Spark type or an Arrow type or schema describes.

    Only ``Any`` and ``object`` give the generic type.

    Parameters
    ----------
    declared : object
        An annotation (``int``, ``dict[str, int]``, ``Optional[float]``, a dataclass, an enum, ...), a type of
        ``pyspark.sql.types``, a ``pyarrow.DataType`` or a ``pyarrow.Schema``, or a string in Spark's syntax,
        ``"array<long>"`` or ``"user string, views long"``.  A type of this package is returned as it is.
        Spark's ``StructType``, Arrow's structs and schemas, and columns become rows.

    Raises
    ------
    UnsupportedTypeError
        The message names the field and the way out.
    """
    if isinstance(declared, TypeSerializer):
        return declared
    if isinstance(declared, str):
        return _of_spark_syntax(declared)
    if isinstance(declared, pa.Schema):
        return _any_arrow_type(pa.struct(list(declared)))
    if isinstance(declared, pa.DataType):
        return _any_arrow_type(declared)
    if is_spark_type(declared):
        return from_spark_type(declared)
    return from_annotation(declared)


def _of_spark_syntax(text: str) -> TypeSerializer[Any]:
    try:
        return _any_arrow_type(parse_type(text))
    except SparkSyntaxError as error:
        raise UnsupportedTypeError(
            repr(text),
            f"Spark's syntax has no such type ({error})",
            "Give the class itself, or a type such as 'array<long>'.",
        ) from None


def from_arrow_type(arrow_type: pa.DataType) -> TypeSerializer[Any]:
    """Return the serializer of one of Spark's key columns.

    It supports all types by which Spark can group and whose values Python can hash: booleans, signed
    integers, floats, strings, binary, dates, times of day, both timestamps, day-time intervals, decimals, and
    structs of these, which become tuples with a nullable field for every nullable one.  Dictionary-encoded
    columns have their values' type.  Wrap the result in `nullable` where the column may have nulls.

    Raises `UnsupportedTypeError` for any other type; a nested one is named.
    """
    if pa.types.is_dictionary(arrow_type):
        return from_arrow_type(arrow_type.value_type)
    found = _scalar(arrow_type)
    if found is not None:
        return found
    if pa.types.is_struct(arrow_type) and arrow_type.num_fields:
        return tuple_of(*(_field(field, from_arrow_type) for field in _fields(arrow_type)))
    raise UnsupportedTypeError(f"a key of the Arrow type {arrow_type}", *_refusal(arrow_type))


def _any_arrow_type(arrow_type: pa.DataType) -> TypeSerializer[Any]:
    """Return the type of values; unlike keys they may be lists and maps, and have named fields."""
    types = pa.types
    if types.is_dictionary(arrow_type):
        return _any_arrow_type(arrow_type.value_type)
    found = _scalar(arrow_type)
    if found is not None:
        return found
    if types.is_list(arrow_type) or types.is_large_list(arrow_type):
        return list_of(_field(arrow_type.value_field, _any_arrow_type))
    if types.is_map(arrow_type):
        return map_of(_any_arrow_type(arrow_type.key_type), _any_arrow_type(arrow_type.item_type))
    if types.is_struct(arrow_type) and arrow_type.num_fields:
        fields = _fields(arrow_type)
        found_fields = {field.name: _field(field, _any_arrow_type) for field in fields}
        if len(found_fields) < len(fields):
            raise UnsupportedTypeError(
                f"the Arrow type {arrow_type}", "two of its fields have one name", "Rename one."
            )
        return row_of(found_fields)
    refusal = "its values have no type here", "Cast the column, for example to a string."
    if types.is_unsigned_integer(arrow_type) or types.is_timestamp(arrow_type):
        refusal = _refusal(arrow_type)
    raise UnsupportedTypeError(f"the Arrow type {arrow_type}", *refusal)


def _scalar(arrow_type: pa.DataType) -> TypeSerializer[Any] | None:
    found = _EXACT.get(arrow_type)
    if found is not None:
        return found
    types = pa.types
    if types.is_timestamp(arrow_type) and arrow_type.unit != "ns":
        return TIMESTAMP_NTZ if arrow_type.tz is None else TIMESTAMP
    if types.is_decimal128(arrow_type) and arrow_type.scale >= 0:
        return decimal(arrow_type.precision, arrow_type.scale)
    if types.is_time64(arrow_type):
        return TIME
    if types.is_duration(arrow_type) and arrow_type.unit == "us":
        return DURATION
    return None


def _fields(arrow_type: pa.DataType) -> list[pa.Field]:
    return [arrow_type.field(index) for index in range(arrow_type.num_fields)]


def _field(field: pa.Field, inner_of: Callable[[pa.DataType], TypeSerializer[Any]]) -> TypeSerializer[Any]:
    inner = inner_of(field.type)
    return nullable(inner) if field.nullable else inner


def _refusal(arrow_type: pa.DataType) -> tuple[str, str]:
    types = pa.types
    if types.is_nested(arrow_type) and not types.is_struct(arrow_type):
        return "its values have no hash in Python", "Use a struct, or a string made with to_json()."
    if types.is_unsigned_integer(arrow_type):
        return "Spark has no unsigned integers", "Cast the column to a signed integer."
    if types.is_timestamp(arrow_type):
        return "Python's datetime has no nanoseconds", "Cast the column to microseconds."
    return "it is no type by which Spark groups", "Cast the column, for example to a string."


_SIMPLE: dict[str, TypeSerializer[Any]] = {
    "boolean": BOOLEAN,
    "byte": INT8,
    "short": INT16,
    "integer": INT32,
    "long": INT64,
    "float": FLOAT32,
    "double": FLOAT64,
    "string": STRING,
    "binary": BYTES,
    "date": DATE,
    "timestamp": TIMESTAMP,
    "timestamp_ntz": TIMESTAMP_NTZ,
}
_DECIMAL = re.compile(r"decimal\((\d+),\s*(\d+)\)")
_TEXT = re.compile(r"string collate .+|(?:var)?char\(\d+\)")
_TIME = re.compile(r"time(?:\(\d\))?")
_DAY_TIME_INTERVAL = re.compile(r"interval (?:day|hour|minute|second)(?: to (?:hour|minute|second))?")


def is_spark_type(declared: object) -> bool:
    """Return whether an object is one of ``pyspark.sql.types``."""
    return any(cls.__module__ == "pyspark.sql.types" for cls in type(declared).__mro__)


def from_spark_type(declared: Any) -> TypeSerializer[Any]:
    """Return the type of the values that a Spark type describes; a ``StructType`` gives rows.

    Raises `UnsupportedTypeError` for a type whose values have none, such as intervals of months; a nested one
    is named.
    """
    return _from_json(declared.jsonValue(), declared.simpleString())


def _from_json(document: Any, shown: str) -> TypeSerializer[Any]:
    if isinstance(document, str):
        found = _from_name(document)
        if found is not None:
            return found
    elif isinstance(document, Mapping):
        kind = document.get("type")
        if kind == "array":
            element = _from_json(document["elementType"], shown)
            return list_of(nullable(element) if document["containsNull"] else element)
        if kind == "map":
            return map_of(_from_json(document["keyType"], shown), _from_json(document["valueType"], shown))
        if kind == "struct":
            fields = {}
            for field in document["fields"]:
                inner = _from_json(field["type"], f"{field['name']} in {shown}")
                fields[field["name"]] = nullable(inner) if field["nullable"] else inner
            return row_of(fields)
    name = document if isinstance(document, str) else document.get("type")
    raise UnsupportedTypeError(
        f"the Spark type {name} ({shown})" if name != shown else f"the Spark type {name}",
        "its values have no type here",
        "Cast the column, for example to a string.",
    )


def _from_name(name: str) -> TypeSerializer[Any] | None:
    if name in _SIMPLE:
        return _SIMPLE[name]
    digits = _DECIMAL.fullmatch(name)
    if digits is not None:
        return decimal(int(digits[1]), int(digits[2]))
    if _TEXT.fullmatch(name):
        return STRING
    if _TIME.fullmatch(name):
        return TIME
    return DURATION if _DAY_TIME_INTERVAL.fullmatch(name) else None
