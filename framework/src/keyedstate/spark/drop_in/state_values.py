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
    as_given : bool
        Whether tuples whose parts have the fields' own classes are stored as they are given.
    """

    def __init__(self, schema: StructType) -> None:
        self._schema = schema
        self._encoders = [_encoder(field.dataType) for field in schema.fields]
        self._decoders = [_decoder(field.dataType) for field in schema.fields]
        self.as_given = all(isinstance(field.dataType, _AS_GIVEN) for field in schema.fields)
        self._decodes = any(decoder is not None for decoder in self._decoders)

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

    def encode(self, value: Any, failure: str) -> tuple[Any, ...]:
        """Return a tuple as it is stored; `failure` begins the message of an error.

        Raises
        ------
        PySparkRuntimeError
            Where the tuple has not as many parts as the schema has fields.
        """
        parts = tuple(value)
        if len(parts) != len(self._encoders):
            raise PySparkRuntimeError(
                f"{failure}: [STRUCT_ARRAY_LENGTH_MISMATCH] Input row doesn't have expected number of values "
                f"required by the schema. {len(self._encoders)} fields are required while {len(parts)} "
                "values are provided. SQLSTATE: 2201E"
            )
        return tuple(
            None if part is None else encode(part)
            for encode, part in zip(self._encoders, map(_plain, parts), strict=True)
        )

    def decode(self, value: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return a stored tuple as a processor gets it."""
        if not self._decodes:
            return value
        return tuple(
            part if part is None or decode is None else decode(part)
            for decode, part in zip(self._decoders, value, strict=True)
        )

    def row(self, value: tuple[Any, ...]) -> Row:
        """Return a stored tuple as a row, which only one of Spark's methods returns."""
        return make_row(self._schema.names, self.decode(value))


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
        names = list(declared.names)
        decoders = [_decoder(field.dataType) or _same for field in declared.fields]

        def struct_of(values: tuple[Any, ...]) -> Row:
            return make_row(
                names,
                [
                    None if value is None else decode(value)
                    for decode, value in zip(decoders, values, strict=True)
                ],
            )

        return struct_of
    return None


def make_row(names: list[str], values: Any) -> Row:
    """Return a row with these names."""
    row: Row = tuple.__new__(Row, values)
    row.__fields__ = names
    return row


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
