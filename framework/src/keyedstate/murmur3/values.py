"""Functions that fold one Python value into a hash, one function for each Arrow type."""

from __future__ import annotations

import datetime
import math
import struct
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import lru_cache
from operator import index as exact_int
from typing import Any, TypeAlias

import pyarrow as pa

from keyedstate.errors import UnsupportedKeyTypeError
from keyedstate.murmur3.mixing import hash_bytes, hash_int, hash_long
from keyedstate.murmur3.types import (
    MAX_DECIMAL_DIGITS,
    MAX_LONG_DIGITS,
    is_binary,
    is_list,
    is_text,
    spark_time_type,
)

Fold: TypeAlias = Callable[[Any, int], int]
"""Takes a value or None and the unsigned hash so far, and returns the new one."""

_EPOCH_DAY = datetime.date(1970, 1, 1).toordinal()
_EPOCH = datetime.datetime(1970, 1, 1)
_EPOCH_UTC = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
_MICROSECOND = datetime.timedelta(microseconds=1)


@lru_cache(maxsize=1024)
def value_fold(arrow_type: pa.DataType) -> Fold:
    """Return the function that folds values of a type; raises `UnsupportedKeyTypeError` if it has no hash.

    The function raises Python's own errors for a value that does not fit the type.
    """
    fold = _present_value_fold(arrow_type)
    return lambda value, h: h if value is None else fold(value, h)


def _present_value_fold(arrow_type: pa.DataType) -> Fold:
    types = pa.types
    if types.is_null(arrow_type):
        return _refuse_value
    if types.is_boolean(arrow_type):
        return lambda value, h: hash_int(_truth(value), h)
    if types.is_signed_integer(arrow_type):
        return _integer_fold(arrow_type.bit_width)
    if types.is_float32(arrow_type):
        return lambda value, h: hash_int(_float_bits(value, "<f", "<i"), h)
    if types.is_float64(arrow_type):
        return lambda value, h: hash_long(_float_bits(value, "<d", "<q"), h)
    if types.is_date32(arrow_type):
        return lambda value, h: hash_int(value.toordinal() - _EPOCH_DAY, h)
    if (spark_type := spark_time_type(arrow_type)) is not None:
        return _time_fold(spark_type)
    if types.is_decimal(arrow_type) and arrow_type.precision <= MAX_DECIMAL_DIGITS:
        return _decimal_fold(arrow_type.precision, arrow_type.scale)
    if is_text(arrow_type):
        return lambda value, h: hash_bytes(value.encode("utf-8"), h)
    if is_binary(arrow_type):
        return lambda value, h: hash_bytes(memoryview(value).tobytes(), h)
    if types.is_struct(arrow_type):
        return _struct_fold(arrow_type)
    if is_list(arrow_type):
        return _list_fold(value_fold(arrow_type.value_type))
    if types.is_dictionary(arrow_type):
        return value_fold(arrow_type.value_type)
    raise UnsupportedKeyTypeError(arrow_type)


def _refuse_value(value: object, h: int) -> int:
    raise ValueError("give None")


def _truth(value: Any) -> int:
    if value not in (True, False):
        raise ValueError("give True or False")
    return int(value)


def _integer_fold(bits: int) -> Fold:
    smallest, largest = -(1 << bits - 1), (1 << bits - 1) - 1
    hash_number = hash_long if bits == 64 else hash_int

    def fold(value: Any, h: int) -> int:
        number = exact_int(value)
        if not smallest <= number <= largest:
            raise ValueError(f"give a number from {smallest} to {largest}")
        return hash_number(number, h)

    return fold


def _float_bits(value: Any, float_format: str, bits_format: str) -> int:
    # Adding 0.0 turns -0.0 into 0.0; Java hashes one NaN, the one that math.nan is.
    number = math.nan if value != value else float(value) + 0.0
    return int(struct.unpack(bits_format, struct.pack(float_format, number))[0])


def _time_fold(spark_type: pa.DataType) -> Fold:
    if pa.types.is_time64(spark_type):
        return lambda value, h: hash_long(_nanoseconds_of_day(value), h)
    if pa.types.is_duration(spark_type):
        return lambda value, h: hash_long(_microseconds(value), h)
    aware = spark_type.tz is not None

    def fold(value: Any, h: int) -> int:
        # A guessed time zone would be a guessed key group.
        if (value.utcoffset() is not None) != aware:
            raise ValueError(f"give a datetime {'with' if aware else 'without'} a time zone")
        return hash_long(_microseconds(value - (_EPOCH_UTC if aware else _EPOCH)), h)

    return fold


def _microseconds(span: datetime.timedelta) -> int:
    whole, rest = divmod(span, _MICROSECOND)
    if rest:
        raise ValueError("Spark keeps microseconds; round the value to them")
    return whole


def _nanoseconds_of_day(value: datetime.time) -> int:
    seconds = (value.hour * 60 + value.minute) * 60 + value.second
    return (seconds * 1_000_000 + value.microsecond) * 1_000


def _decimal_fold(precision: int, scale: int) -> Fold:
    limit = 10**precision

    def fold(value: Any, h: int) -> int:
        unscaled = _unscaled(value, scale)
        if not -limit < unscaled < limit:
            raise ValueError(f"give a number of at most {precision} digits, {scale} of them behind the point")
        if precision <= MAX_LONG_DIGITS:
            return hash_long(unscaled, h)
        # Java's BigInteger.toByteArray: the fewest bytes that hold the value and its sign.
        length = (unscaled if unscaled >= 0 else ~unscaled).bit_length() // 8 + 1
        return hash_bytes(unscaled.to_bytes(length, "big", signed=True), h)

    return fold


def _unscaled(value: Any, scale: int) -> int:
    # A float would have all the digits of its binary fraction.
    if not isinstance(value, (Decimal, int)):
        raise TypeError("give a Decimal or an int")
    # On digits and not with Decimal's arithmetic, which rounds to the 28 digits of its context.
    sign, digits, exponent = Decimal(value).as_tuple()
    if not isinstance(exponent, int):
        raise ValueError("give a finite number")
    number = int("".join(map(str, digits)))
    shift = exponent + scale
    if shift < 0:
        number, rest = divmod(number, 10**-shift)
        if rest:
            raise ValueError(f"give a number with at most {scale} digits behind the point")
    elif number:
        number *= 10**shift
    return -number if sign else number


def _struct_fold(arrow_type: pa.DataType) -> Fold:
    fields = [arrow_type.field(position) for position in range(arrow_type.num_fields)]
    names = [field.name for field in fields]
    folds = [value_fold(field.type) for field in fields]

    def fold(value: Any, h: int) -> int:
        if isinstance(value, Mapping):
            if unknown := set(value).difference(names):
                raise ValueError(f"the struct has no field {', '.join(sorted(map(repr, unknown)))}")
            parts = [value.get(name) for name in names]
        else:
            parts = list(value)
        if len(parts) != len(folds):
            raise ValueError(f"give a value for each of the fields {', '.join(names)}")
        for part, fold_part in zip(parts, folds, strict=True):
            h = fold_part(part, h)
        return h

    return fold


def _list_fold(fold_element: Fold) -> Fold:
    def fold(value: Any, h: int) -> int:
        if isinstance(value, (str, bytes, Mapping)):
            raise ValueError("give a list")
        for element in value:
            h = fold_element(element, h)
        return h

    return fold
