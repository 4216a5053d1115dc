"""Tuples, in the layout of Flink's ``TupleSerializer``: the fields one after another, none of them null."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from struct import Struct
from typing import Any, TypeGuard

import pyarrow as pa

from keyedstate.errors import UnsupportedTypeError, ValueTypeError
from keyedstate.memory.views import DataInputView, DataOutputView
from keyedstate.types.contract.compiled_bytes import CompiledBytes
from keyedstate.types.contract.composite import (
    ContainerSerializer,
    Conversion,
    FieldsSerializer,
    converted,
    read_inner,
    restore_inner,
    write_inner,
)
from keyedstate.types.contract.record_code import all_of, value_checker
from keyedstate.types.contract.registry import restorable
from keyedstate.types.contract.serializer import TypeSerializer


@restorable
class TupleSerializer(
    CompiledBytes[tuple[Any, ...]], FieldsSerializer[tuple[Any, ...]], ContainerSerializer[tuple[Any, ...]]
):
    """Python tuples of a fixed length; an Arrow struct column with the fields f0, f1 and so on.

    Columns are read by position: the names of their fields do not matter.
    """

    type_name = "tuple"
    python_type = tuple

    def __init__(self, *fields: TypeSerializer[Any]) -> None:
        if not fields:
            raise UnsupportedTypeError(
                "a tuple without fields", "it has no columns", "Use VOID for no value."
            )
        self._set_fields((f"f{index}" for index in range(len(fields))), fields)
        self._is_value = value_checker(self)
        codes = [field.fixed_code for field in fields[:-1]]
        #: All fields but the last one, where their bytes are always as many; for bulk calls.
        self._head = Struct(f">{''.join(filter(None, codes))}") if all(codes) else None

    def __reduce__(self) -> tuple[Any, ...]:
        return TupleSerializer, self.field_serializers

    @classmethod
    def restore(cls, document: Mapping[str, Any]) -> TupleSerializer:
        return cls(*map(restore_inner, document["fields"]))

    def mismatch(self, value: object) -> ValueTypeError:
        if value.__class__ is tuple:
            return ValueTypeError.of(
                f"{self!r} (a tuple of {len(self.field_serializers)})",
                value,
                f"It has {len(value)} elements: add or remove some, or change the declared type.",
            )
        return super().mismatch(value)

    def _fits(self, value: object) -> TypeGuard[tuple[Any, ...]]:
        return value.__class__ is tuple and len(value) == len(self.field_serializers)

    def _fields(self) -> list[tuple[TypeSerializer[Any], bool]]:
        return [(field, False) for field in self.field_serializers]

    def _write(self, value: tuple[Any, ...], out: DataOutputView) -> None:
        if not self._fits(value):
            raise self.mismatch(value)
        for field, element in zip(self.field_serializers, value, strict=True):
            field.serialize(element, out)

    def _read(self, source: DataInputView) -> tuple[Any, ...]:
        return tuple([field.deserialize(source) for field in self.field_serializers])

    def _write_many(self, values: Sequence[tuple[Any, ...]]) -> list[bytes]:
        if not {tuple}.issuperset(map(type, values)) or not {len(self.inners)}.issuperset(map(len, values)):
            return super()._write_many(values)
        columns = [
            field.to_bytes_many(list(map(itemgetter(index), values)))
            for index, field in enumerate(self.field_serializers)
        ]
        return list(map(b"".join, zip(*columns, strict=True)))

    def _read_many(self, data: Sequence[bytes]) -> list[tuple[Any, ...]]:
        head = self._head
        if head is None or not all(map(head.size.__lt__, map(len, data))):
            return super()._read_many(data)
        last = self.field_serializers[-1].from_bytes_many([one[head.size :] for one in data])
        return [(*first, value) for first, value in zip(map(head.unpack_from, data), last, strict=True)]

    def reads(self, arrow_type: pa.DataType) -> bool:
        return bool(pa.types.is_struct(arrow_type) and arrow_type.num_fields == len(self.field_serializers))

    def field_columns(self, array: pa.Array) -> list[pa.Array]:
        return array.flatten()  # type: ignore[no-any-return]

    def read_dense(self, array: pa.Array) -> list[tuple[Any, ...]]:
        columns = [
            read_inner(field, array.field(index), f"field {index}")
            for index, field in enumerate(self.field_serializers)
        ]
        return list(zip(*columns, strict=True))

    def write_dense(self, values: Sequence[tuple[Any, ...]]) -> pa.Array:
        for value in values:
            if len(value) != len(self.field_serializers):
                raise self.mismatch(value)
        columns = [
            write_inner(field, list(map(itemgetter(index), values)))
            for index, field in enumerate(self.field_serializers)
        ]
        return pa.StructArray.from_arrays(columns, names=list(self.inner_names))

    def is_value(self, value: object) -> bool:
        return self._is_value(value)

    def condition(self, first: str, value: str, given: dict[str, Any]) -> str:
        fields = [(f"{value}[{index}]", field) for index, field in enumerate(self.field_serializers)]
        conditions = [f"{first}.__class__ is tuple", f"len({value}) == {len(fields)}"]
        return all_of(conditions, fields, given)

    def check_parts(self) -> tuple[Any, ...]:
        return ("tuple", tuple, *(field.check_parts() for field in self.field_serializers))

    def check(self, value: object) -> None:
        if not self._fits(value):
            raise self.mismatch(value)
        for index, (field, element) in enumerate(zip(self.field_serializers, value, strict=True)):
            try:
                field.check(element)
            except ValueTypeError as error:
                raise error.within(f"[{index}]") from None

    def convert(self, conversions: Sequence[Conversion], value: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(map(converted, conversions, value))

    def copy(self, value: tuple[Any, ...]) -> tuple[Any, ...]:
        if self.immutable:
            return value
        return tuple(
            [field.copy(element) for field, element in zip(self.field_serializers, value, strict=True)]
        )

    def canonical(self, value: tuple[Any, ...]) -> tuple[Any, ...]:
        if not self.needs_canonical:
            return value
        return tuple(
            [field.canonical(element) for field, element in zip(self.field_serializers, value, strict=True)]
        )


def tuple_of(*fields: TypeSerializer[Any]) -> TupleSerializer:
    """Return the type of tuples with one field of each of the given types; None needs ``nullable(...)``.

    Raises `UnsupportedTypeError` without any field.
    """
    return TupleSerializer(*fields)
