"""Rows: named tuples of the columns of a Spark or Arrow schema.

The layout is that of Flink's ``RowSerializer``: a mask of two bits for the kind of row, always those of an
insertion, and one bit for each field that is None, the highest bit of the first byte first; then the fields
that are not None.

Accumulators, of several aggregates of one key, have the same layout.  They are plain tuples: each epoch makes
one for each key, and Python's cycle collector untracks plain tuples of numbers, never named ones.
"""

from __future__ import annotations

import struct
from collections import namedtuple
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache, cached_property, partial
from itertools import repeat
from operator import itemgetter
from typing import Any

import numpy as np

from keyedstate.errors import UnsupportedTypeError, ValueTypeError
from keyedstate.memory.views import DataInputView, DataOutputView
from keyedstate.types.contract.compiled_bytes import CompiledBytes
from keyedstate.types.contract.composite import NUMPY_CODES, compose, restore_inner
from keyedstate.types.contract.record_code import all_of, value_checker
from keyedstate.types.contract.registry import restorable
from keyedstate.types.contract.serializer import Compatibility, SerializerSnapshot, TypeSerializer
from keyedstate.types.contract.transposing import transposed
from keyedstate.types.records.row_code import RowCode, row_code
from keyedstate.types.records.structs import Default, StructSerializer, none_default

_KIND_BITS = 2
_CLASSES = {"b": int, "h": int, "i": int, "q": int, "d": float}


def row_type(names: tuple[str, ...]) -> type[tuple[Any, ...]]:
    """Return the class of rows with these column names, a named tuple.

    A column whose name is no Python identifier is read by position (``row[2]``) or with ``row.as_dict()``,
    which has every column under its own name.
    """
    return record_row_type(names, "")


@cache  # never evicted: a row of an evicted class would no longer be a value
def record_row_type(names: tuple[str, ...], of: str) -> type[tuple[Any, ...]]:
    """Return the class of rows that stand for the records of one class, whose name is `of`."""
    base = namedtuple("Row", names, rename=True)  # type: ignore[misc]

    def as_dict(self: tuple[Any, ...]) -> dict[str, Any]:
        """Return the row as a dict by column name."""
        return dict(zip(names, self, strict=True))

    def reduce(self: tuple[Any, ...]) -> tuple[Any, ...]:
        return _row, (names, of, tuple(self))

    return type("Row", (base,), {"__slots__": (), "as_dict": as_dict, "__reduce__": reduce})


def _row(names: tuple[str, ...], of: str, values: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple.__new__(record_row_type(names, of), values)


@restorable
class RowSerializer(CompiledBytes[tuple[Any, ...]], StructSerializer[tuple[Any, ...]]):
    """Rows, in columns an Arrow struct with the fields' own names.

    Make a row with ``serializer.python_type(1, "a")``, or keep one that a process function received.
    """

    type_name = "row"

    def __init__(self, names: Sequence[str], fields: Sequence[TypeSerializer[Any]]) -> None:
        super().__init__(names, fields)
        self.python_type = row_type(self.names)
        self.make = partial(tuple.__new__, self.python_type)
        self._is_value = value_checker(self)
        bits = _KIND_BITS + len(self.names)
        self._mask_bytes = -(-bits // 8)
        self._padding = self._mask_bytes * 8 - bits
        self._mask = self._mask_bytes, self._padding
        #: The bytes of a row without a None, where they are always as many; for bulk calls.
        codes = [bare.fixed_code for bare in self.bare_serializers]
        self._packed: struct.Struct | None = None
        if all(codes):
            self._packed = struct.Struct(f">{self._mask_bytes}s{''.join(codes)}")  # type: ignore[arg-type]
            columns = [(f"f{place}", ">" + NUMPY_CODES[code]) for place, code in enumerate(codes)]  # type: ignore[index]
            self._record = np.dtype([("mask", np.uint8, (self._mask_bytes,)), *columns])

    def parts(self) -> tuple[object, ...]:
        return self.names, self.field_serializers

    def __repr__(self) -> str:
        return f"{self.type_name}_of({dict(zip(self.names, self.field_serializers, strict=True))!r})"

    @classmethod
    def restore(cls, document: Mapping[str, Any]) -> TypeSerializer[Any]:
        names = document["names"]
        if not names or not all(isinstance(name, str) for name in names):
            raise TypeError("the names of fields are strings, and a row has some")
        return cls(names, [restore_inner(field) for field in document["fields"]])

    def rebuild(self, inners: Sequence[TypeSerializer[Any]]) -> RowSerializer:
        return type(self)(self.names, inners)

    def values_of(self, value: tuple[Any, ...]) -> Sequence[Any]:
        return value

    def is_value(self, value: object) -> bool:
        return self._is_value(value)

    def condition(self, first: str, value: str, given: dict[str, Any]) -> str:
        cls = f"class{len(given)}"
        given[cls] = self.python_type
        fields = [(f"{value}[{index}]", field) for index, field in enumerate(self.field_serializers)]
        return all_of([f"{first}.__class__ is {cls}", f"len({value}) == {len(fields)}"], fields, given)

    def check_parts(self) -> tuple[Any, ...]:
        return ("tuple", self.python_type, *(field.check_parts() for field in self.field_serializers))

    def default_of(self, name: str) -> Default | None:
        return none_default if self.may_be_null[self.names.index(name)] else None

    def mismatch(self, value: object) -> ValueTypeError:
        if isinstance(value, tuple):
            way_out = "Make it with the python_type of this type, which takes the fields in their order."
            return ValueTypeError.of(f"{self!r} (a Row)", value, way_out)
        return super().mismatch(value)

    @cached_property
    def _code(self) -> RowCode:
        """What writes and reads rows in plain Python; made when the first one is."""
        loops = RowCode(self._serialize_fields, self._deserialize_fields)
        return row_code(self.python_type, self.make, self.bare_serializers, bytes(self._mask_bytes), loops)

    def _fields(self) -> list[tuple[TypeSerializer[Any], bool]]:
        return list(zip(self.bare_serializers, self.may_be_null, strict=True))

    def _write(self, value: tuple[Any, ...], out: DataOutputView) -> None:
        self._code.serialize(value, out)

    def _read(self, source: DataInputView) -> tuple[Any, ...]:
        return self._code.deserialize(source)  # type: ignore[no-any-return]

    def _serialize_fields(self, value: tuple[Any, ...], out: DataOutputView) -> None:
        if value.__class__ is not self.python_type:
            raise self.mismatch(value)
        mask = 0
        for part, may_be_null, field in zip(value, self.may_be_null, self.field_serializers, strict=True):
            if part is None and not may_be_null:
                field.check(None)
            mask = mask << 1 | (part is None)
        out.write((mask << self._padding).to_bytes(self._mask_bytes, "big"))
        for part, bare in zip(value, self.bare_serializers, strict=True):
            if part is not None:
                bare.serialize(part, out)

    def _deserialize_fields(self, source: DataInputView) -> tuple[Any, ...]:
        mask = int.from_bytes(source.read(self._mask_bytes), "big")
        if mask & (1 << self._padding) - 1 or mask >> self._mask_bytes * 8 - _KIND_BITS:
            raise source.corrupt("a row that is no insertion, or whose mask has more bits than it has fields")
        bit = 1 << self._padding + len(self.names)
        values: list[Any] = []
        for name, may_be_null, bare in zip(self.names, self.may_be_null, self.bare_serializers, strict=True):
            bit >>= 1
            if not mask & bit:
                values.append(bare.deserialize(source))
            elif may_be_null:
                values.append(None)
            else:
                raise source.corrupt(f"no value in the field {name!r}, which is {bare!r}")
        return self.make(values)

    def _write_many(self, values: Sequence[tuple[Any, ...]]) -> list[bytes]:
        if self._packed is None or not values or not {self.python_type}.issuperset(map(type, values)):
            return super()._write_many(values)
        columns = list(map(list, self.columns_of(values)))
        for bare, column in zip(self.bare_serializers, columns, strict=True):
            kinds = set(map(type, column))
            if type(None) in kinds or (float in kinds and np.isnan(column).any()):
                return super()._write_many(values)  # None has no bytes, and every NaN the same ones
            if kinds != {_CLASSES[bare.fixed_code]}:  # type: ignore[index]
                return super()._write_many(values)
        mask = bytes(self._mask_bytes)
        try:
            return list(map(self._packed.pack, repeat(mask, len(values)), *columns))
        except struct.error:
            return super()._write_many(values)  # says which value it is

    def _read_many(self, data: Sequence[bytes]) -> list[tuple[Any, ...]]:
        if self._packed is None or not {self._packed.size}.issuperset(map(len, data)):
            return super()._read_many(data)
        records = np.frombuffer(b"".join(data), self._record)
        if records["mask"].any():
            return super()._read_many(data)
        columns = [records[name].tolist() for name in self._record.names[1:]]  # type: ignore[index]
        made = zip(*columns, strict=True)
        return list(made) if self.python_type is tuple else list(map(self.make, made))

    def resolve_compatibility(self, old: SerializerSnapshot) -> Compatibility:
        if old.type_name != self.type_name:
            return Compatibility.incompatible(f"{old} cannot be read as {self!r}")
        verdict = self.resolve_fields(old)
        if sorted(old.content["names"]) == sorted(self.names) and tuple(old.content["names"]) != self.names:
            outer = Compatibility.after_migration("the fields are in another order")
            return compose([("", self, verdict)], lambda inners: inners[0], outer)
        return verdict


def row_of(fields: Mapping[str, TypeSerializer[Any]]) -> RowSerializer:
    """Return the type of rows with these fields; one that may be None needs ``nullable(...)``.

    `infer` makes it from a Spark ``StructType`` or an Arrow schema.

    Raises `UnsupportedTypeError` without any field.
    """
    if not fields:
        raise UnsupportedTypeError("a row without fields", "it has no columns", "Use VOID for no value.")
    return RowSerializer(tuple(fields), tuple(fields.values()))


@restorable
class AccumulatorsSerializer(RowSerializer):
    """Plain tuples with one accumulator each, in columns an Arrow struct with the accumulators' names.

    Each of them may be None: older values lack an accumulator that is added later.
    """

    type_name = "accumulators"

    def __init__(self, names: Sequence[str], fields: Sequence[TypeSerializer[Any]]) -> None:
        super().__init__(names, fields)
        self.python_type = tuple
        self.make = tuple
        self._is_value = value_checker(self)

    @classmethod
    def restore(cls, document: Mapping[str, Any]) -> TypeSerializer[Any]:
        fields = map(restore_inner, document["fields"])
        return accumulators_of(dict(zip(document["names"], fields, strict=True)))

    def mismatch(self, value: object) -> ValueTypeError:
        if value.__class__ is tuple:
            return ValueTypeError.of(
                f"{self!r} (a tuple of {len(self.names)})", value, "Give one accumulator for each name."
            )
        return super().mismatch(value)

    def values_of(self, value: tuple[Any, ...]) -> Sequence[Any]:
        if len(value) != len(self.names):
            raise self.mismatch(value)
        return value

    def serialize(self, value: tuple[Any, ...], out: Any) -> None:
        if value.__class__ is tuple:
            self.values_of(value)
        super().serialize(value, out)

    def columns_of(self, values: Sequence[tuple[Any, ...]]) -> Iterable[Sequence[Any]]:
        try:
            return transposed(values, len(self.names))
        except ValueError:
            return super().columns_of(values)  # says which value it is

    def are_values(self, values: Collection[Any]) -> bool:
        if not {tuple}.issuperset(map(type, values)) or not {len(self.names)}.issuperset(map(len, values)):
            return False
        return all(
            field.are_values(list(map(itemgetter(index), values)))
            for index, field in enumerate(self.field_serializers)
        )


def accumulators_of(fields: Mapping[str, TypeSerializer[Any]]) -> AccumulatorsSerializer:
    """Return the type of tuples of accumulators with these names; each is ``nullable(...)``.

    Raises `UnsupportedTypeError` without any field, and for one that may not be None.
    """
    if not fields:
        raise UnsupportedTypeError("no accumulator", "there is nothing to keep", "Use VOID for no value.")
    serializer = AccumulatorsSerializer(tuple(fields), tuple(fields.values()))
    for name, may_be_null in zip(serializer.names, serializer.may_be_null, strict=True):
        if not may_be_null:
            raise UnsupportedTypeError(
                f"the accumulator {name!r}", "older values may lack it", "Make its type nullable(...)."
            )
    return serializer
