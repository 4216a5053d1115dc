"""Values of states: what a processor gives and gets, and what is stored.

A processor gives and gets what it would with Spark, which converts without checks: a value of another type
than the field's becomes None, a whole number of too many bits loses its first ones, and a string field has
the text of any value.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from functools import partial
from typing import Any

import numpy as np
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import types as spark_types
from pyspark.sql.types import ArrayType, DataType, DecimalType, MapType, Row, StructType

from keyedstate.spark.drop_in.row_class import row_maker
from keyedstate.types import (
    TypeSerializer,
    accumulators_of,
    infer,
    list_of,
    map_of,
    nullable,
    row_of,
    row_type,
    tuple_of,
)
from keyedstate.types.contract.record_code import generated_function

Convert = Callable[[Any], Any]

_BITS: dict[type[DataType], int] = {
    spark_types.ByteType: 8,
    spark_types.ShortType: 16,
    spark_types.IntegerType: 32,
    spark_types.LongType: 64,
}
#: Types whose values are stored as they are given, where they have the type's own class.
_AS_GIVEN: tuple[type[DataType], ...] = (
    *_BITS,
    spark_types.BooleanType,
    spark_types.DoubleType,
    spark_types.StringType,
    spark_types.BinaryType,
)


class StructValues:
    """The tuples of one schema.

    Attributes
    ----------
    encode : callable
        Takes a tuple as a processor gives it and the beginning of an error's message, and returns the tuple
        as it is stored.  Raises PySparkRuntimeError where it has not as many parts as the schema has fields.
    decode : callable, optional
        Returns a stored tuple as a processor gets it; None where that is the same.
    """

    def __init__(self, schema: StructType) -> None:
        self._schema = schema
        self.encode = _struct_encoder(schema)
        self.decode = _struct_decoder(schema)
        self._row = row_maker(tuple(schema.names))

    @property
    def value_type(self) -> TypeSerializer[Any]:
        """The type of stored tuples: fields have names and may be None, so a schema may change."""
        return accumulators_of(
            {field.name: nullable(_serializer(field.dataType)) for field in self._schema.fields}
        )

    @property
    def key_type(self) -> TypeSerializer[Any]:
        """The type of stored tuples that are keys of a map."""
        return tuple_of(*(nullable(_serializer(field.dataType)) for field in self._schema.fields))

    def row(self, value: tuple[Any, ...]) -> Row:
        """Return a stored tuple as a row, which only one of Spark's methods returns."""
        return self._row(value if self.decode is None else self.decode(value))


def _struct_encoder(schema: StructType) -> Callable[[Any, str], tuple[Any, ...]]:
    """Return `StructValues.encode`, generated for the fields: a part of its field's class costs no call."""
    given: dict[str, Any] = {"wrong_length": partial(_wrong_length, len(schema.fields))}
    names, parts = [], []
    for place, field in enumerate(schema.fields):
        name, convert = f"part{place}", f"convert{place}"
        given[convert] = partial(_converted, _encoder(field.dataType))
        part = f"{convert}({name})"
        if isinstance(field.dataType, _AS_GIVEN):
            part = f"{name} if {infer(field.dataType).condition(name, name, given)} else {part}"
        names.append(name)
        parts.append(f"None if {name} is None else {part}, ")
    lines = [
        "try:",
        f"    {''.join(f'{name}, ' for name in names)}= value",
        "except ValueError:",
        "    raise wrong_length(value, failure) from None",
        f"return ({''.join(parts)})",
    ]
    return generated_function("encode", ["value", "failure"], lines, given)


def _struct_decoder(schema: StructType) -> Callable[[tuple[Any, ...]], tuple[Any, ...]] | None:
    """Return `StructValues.decode`, generated for the fields."""
    decoders = [_decoder(field.dataType) for field in schema.fields]
    if not any(decoders):
        return None
    names = [f"part{place}" for place in range(len(decoders))]
    given = {f"decode_{name}": decoder for name, decoder in zip(names, decoders, strict=True)}
    parts = [
        name if decoder is None else f"None if {name} is None else decode_{name}({name})"
        for name, decoder in zip(names, decoders, strict=True)
    ]
    lines = [f"{', '.join(names)}, = value", f"return ({', '.join(parts)},)"]
    return generated_function("decode", ["value"], lines, given)


def _wrong_length(needed: int, value: Any, failure: str) -> PySparkRuntimeError:
    return PySparkRuntimeError(
        f"{failure}: [STRUCT_ARRAY_LENGTH_MISMATCH] Input row doesn't have expected number of values "
        f"required by the schema. {needed} fields are required while {len(tuple(value))} values are "
        "provided. SQLSTATE: 2201E"
    )


def _converted(convert: Convert, value: Any) -> Any:
    value = _plain(value)
    return None if value is None else convert(value)


def _plain(value: Any) -> Any:
    """Return a value without the classes of NumPy and pandas."""
    if isinstance(value, np.generic):
        return value.item()
    if hasattr(value, "to_pydatetime"):
        return value.to_pydatetime()
    return value


def _serializer(declared: DataType) -> TypeSerializer[Any]:
    if isinstance(declared, ArrayType):
        return list_of(nullable(_serializer(declared.elementType)))
    if isinstance(declared, MapType):
        return map_of(_serializer(declared.keyType), _serializer(declared.valueType))
    if isinstance(declared, StructType):
        return row_of({field.name: nullable(_serializer(field.dataType)) for field in declared.fields})
    return infer(declared)


def _encoder(declared: DataType) -> Convert:
    """Return what converts a value that is not None."""
    if type(declared) in _BITS:
        return partial(_whole_number, _BITS[type(declared)])
    if isinstance(declared, DecimalType):
        return partial(_decimal, declared.precision, declared.scale)
    if isinstance(declared, ArrayType):
        element = _encoder(declared.elementType)
        return partial(_array, element)
    if isinstance(declared, MapType):
        return partial(_map, _encoder(declared.keyType), _encoder(declared.valueType))
    if isinstance(declared, StructType):
        names = tuple(declared.names)
        encoders = [_encoder(field.dataType) for field in declared.fields]
        return partial(_struct, names, encoders)
    return _ENCODERS.get(type(declared), _same)


def _decoder(declared: DataType) -> Convert | None:
    """Return what converts a stored value that is not None; None if it needs no conversion."""
    if isinstance(declared, spark_types.TimestampType):
        return lambda value: value.astimezone().replace(tzinfo=None)
    if isinstance(declared, ArrayType):
        element = _decoder(declared.elementType) or _same
        return lambda values: [None if value is None else element(value) for value in values]
    if isinstance(declared, MapType):
        of_key, of_value = _decoder(declared.keyType) or _same, _decoder(declared.valueType) or _same
        return lambda entries: {
            of_key(key): None if value is None else of_value(value) for key, value in entries.items()
        }
    if isinstance(declared, StructType):
        make = row_maker(tuple(declared.names))
        decoders = [_decoder(field.dataType) or _same for field in declared.fields]

        def struct_of(values: tuple[Any, ...]) -> Row:
            return make(
                None if value is None else decode(value)
                for decode, value in zip(decoders, values, strict=True)
            )

        return struct_of
    return None


def _same(value: Any) -> Any:
    return value


def _whole_number(bits: int, value: Any) -> int | None:
    if value.__class__ is not int or not -(1 << 63) <= value < 1 << 63:
        return None
    half = 1 << bits - 1
    return (value + half) % (2 * half) - half


def _float(value: Any) -> float | None:
    if value.__class__ is not float:
        return None
    return float(np.float32(value))


def _double(value: Any) -> float | None:
    return value if value.__class__ is float else None


def _boolean(value: Any) -> bool | None:
    return value if value.__class__ is bool else None


def _string(value: Any) -> str:
    if isinstance(value, str):
        return str(value)
    return str(value).lower() if value.__class__ is bool else str(value)


def _binary(value: Any) -> bytes | None:
    if isinstance(value, str):
        return value.encode()
    return bytes(value) if isinstance(value, (bytes, bytearray)) else None


def _date(value: Any) -> dt.date:
    return dt.date.fromordinal(value.toordinal())


def _instant(value: Any) -> dt.datetime:
    # One without a zone has that of the machine, as in Spark.
    return value.astimezone(dt.timezone.utc)  # type: ignore[no-any-return]


def _local_time(value: Any) -> dt.datetime:
    return value.replace(tzinfo=None)  # type: ignore[no-any-return]


def _decimal(precision: int, scale: int, value: Any) -> Decimal | None:
    if not isinstance(value, Decimal):
        return None
    try:
        rounded = value.quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP)
    except InvalidOperation:
        return None
    return rounded if len(rounded.as_tuple().digits) <= precision else None


def _array(element: Convert, value: Any) -> list[Any] | None:
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if not isinstance(value, (list, tuple)):
        return None
    return [None if part is None else element(part) for part in map(_plain, value)]


def _map(of_key: Convert, of_value: Convert, value: Any) -> dict[Any, Any] | None:
    if not isinstance(value, Mapping):
        return None
    entries = ((_plain(key), _plain(part)) for key, part in value.items())
    return {of_key(key): None if part is None else of_value(part) for key, part in entries}


def _struct(names: tuple[str, ...], encoders: list[Convert], value: Any) -> Any:
    parts = [value.get(name) for name in names] if isinstance(value, Mapping) else list(value)
    encoded = [
        None if part is None else encode(part)
        for encode, part in zip(encoders, map(_plain, parts), strict=True)
    ]
    return tuple.__new__(row_type(names), encoded)


_ENCODERS: dict[type[DataType], Convert] = {
    spark_types.FloatType: _float,
    spark_types.DoubleType: _double,
    spark_types.BooleanType: _boolean,
    spark_types.StringType: _string,
    spark_types.BinaryType: _binary,
    spark_types.DateType: _date,
    spark_types.TimestampType: _instant,
    spark_types.TimestampNTZType: _local_time,
}
