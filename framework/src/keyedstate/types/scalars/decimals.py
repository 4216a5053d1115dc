"""Decimal numbers of a declared precision and scale, in the layout of Flink's ``DecimalDataSerializer``."""

from __future__ import annotations

import decimal as pydecimal
from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Any

import pyarrow as pa

from keyedstate.errors import UnsupportedTypeError
from keyedstate.memory.sorting.keys import NormalizedKeys
from keyedstate.memory.views import DataInputView, DataOutputView
from keyedstate.types.contract.arrow_columns import drop_none, require_types, spread_column
from keyedstate.types.contract.normalized_keys import decimal_keys
from keyedstate.types.contract.registry import restorable
from keyedstate.types.scalars.scalar import ScalarSerializer

Decimal = pydecimal.Decimal

#: Spark's and Arrow's decimal128 end here.
MAX_PRECISION = 38
#: Up to this precision the unscaled value fits into 64 bits (Flink's ``DecimalData.MAX_COMPACT_PRECISION``).
_COMPACT_PRECISION = 18


@restorable
class DecimalSerializer(ScalarSerializer[Decimal]):
    """Finite ``decimal.Decimal`` of at most `precision` digits, `scale` of them after the point.

    The unscaled value is a 64-bit number up to precision 18, beyond that a 32-bit length and the fewest bytes
    of its two's complement (Java's ``BigInteger.toByteArray``).  The exponent is not kept: with scale 2, 1.5
    is restored as 1.50, which is equal and has the same hash.
    """

    type_name = "decimal"
    python_type = Decimal

    def __init__(self, precision: int, scale: int) -> None:
        digits = type(precision) is int and type(scale) is int
        if not (digits and 1 <= precision <= MAX_PRECISION and 0 <= scale <= precision):
            raise UnsupportedTypeError(
                f"decimal({precision!r}, {scale!r})",
                "a precision from 1 to 38 and a scale from 0 to the precision are needed",
                "Choose other digits, or STRING for longer numbers.",
            )
        self.precision = precision
        self.scale = scale
        self.constraint = (
            f"a finite Decimal of up to {precision - scale} digits before the point, {scale} after"
        )
        self._compact = precision <= _COMPACT_PRECISION
        self.normalized_key_bytes = 8 if self._compact else 16
        self._unit = Decimal((0, (1,), -scale))
        #: Quantizing in it fails exactly for the numbers that do not fit.  Threads may share it: its flags
        #: are not read.
        self._context = pydecimal.Context(
            prec=precision, traps=[pydecimal.Inexact, pydecimal.InvalidOperation, pydecimal.Overflow]
        )

    def __repr__(self) -> str:
        return f"decimal({self.precision}, {self.scale})"

    def parts(self) -> tuple[object, ...]:
        return self.precision, self.scale

    def snapshot_content(self) -> dict[str, Any]:
        return {"precision": self.precision, "scale": self.scale}

    @classmethod
    def restore(cls, document: Mapping[str, Any]) -> DecimalSerializer:
        return cls(document["precision"], document["scale"])

    @property
    def arrow_type(self) -> pa.DataType:
        return pa.decimal128(self.precision, self.scale)

    def is_value(self, value: object) -> bool:
        if value.__class__ is not Decimal:
            return False
        number: Decimal = value
        if not number.is_finite():
            return False
        try:
            number.quantize(self._unit, context=self._context)
        except pydecimal.DecimalException:
            return False
        return True

    def way_out(self, value: object) -> str:
        if value.__class__ is Decimal:
            return "Round it with .quantize(), or declare the state with more digits."
        if value.__class__ is float:
            return "Convert it with Decimal(str(value)).quantize(...), or declare the state as FLOAT64."
        return super().way_out(value)

    def serialize(self, value: Decimal, out: DataOutputView) -> None:
        if value.__class__ is not Decimal or not value.is_finite():
            raise self.mismatch(value)
        try:
            number = value.quantize(self._unit, context=self._context)
        except pydecimal.DecimalException:
            raise self.mismatch(value) from None
        sign, digits, _ = number.as_tuple()
        unscaled = int("".join(map(str, digits))) * (-1 if sign else 1)
        if self._compact:
            out.write_long(unscaled)
        else:
            # ~n has as many significant bits as the negative n has in two's complement, the sign aside.
            bits = (unscaled if unscaled >= 0 else ~unscaled).bit_length()
            out.write_bytes(unscaled.to_bytes(bits // 8 + 1, "big", signed=True))

    def deserialize(self, source: DataInputView) -> Decimal:
        if self._compact:
            unscaled = source.read_long()
        else:
            unscaled = int.from_bytes(source.read_bytes(), "big", signed=True)
        if abs(unscaled) >= 10**self.precision:
            raise source.corrupt(f"a decimal of more than {self.precision} digits")
        return Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -self.scale))

    def write_column(self, values: Sequence[Decimal | None]) -> pa.Array:
        require_types(values, frozenset((Decimal, type(None))))
        # Fitted first: pyarrow refuses 0E+99, and writes 0.00 for 1.5 followed by sixty zeros.
        dense = drop_none(values)
        fitted = pa.array(list(map(self._context.quantize, dense, repeat(self._unit))), self.arrow_type)
        return spread_column(fitted, values)

    def key_column(self, array: pa.Array) -> NormalizedKeys:
        return decimal_keys(array, self._compact)


def decimal(precision: int, scale: int) -> DecimalSerializer:
    """Return the type of decimals of up to `precision` digits, `scale` of them after the point.

    Raises `UnsupportedTypeError` unless 1 <= precision <= 38 and 0 <= scale <= precision.
    """
    return DecimalSerializer(precision, scale)
