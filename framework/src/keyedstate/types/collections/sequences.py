"""Lists and sets of one element type.

Sources: Flink's ``ListSerializer`` (a 32-bit count, then the elements) and ``SetSerializer`` (a 32-bit count,
then for each element a null flag byte and the element).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from itertools import chain, pairwise
from typing import Any, Generic, TypeVar

import pyarrow as pa

from keyedstate.errors import ValueTypeError
from keyedstate.memory.views import DataInputView, DataOutputView
from keyedstate.types.contract.arrow_columns import offsets_of
from keyedstate.types.contract.compiled_bytes import CompiledBytes
from keyedstate.types.contract.composite import (
    FEW,
    ContainerSerializer,
    Conversion,
    are_plain_numbers,
    read_inner,
    require_immutable,
    slots_of,
    write_inner,
)
from keyedstate.types.contract.record_code import value_checker
from keyedstate.types.contract.registry import restorable
from keyedstate.types.contract.serializer import TypeSerializer

T = TypeVar("T")
C = TypeVar("C", bound=Collection[Any])

_COUNT_BYTES = 4


class _ElementsSerializer(ContainerSerializer[C], Generic[C]):
    """What lists and sets share: one element type, Arrow's list type."""

    inner_names = ("element",)
    immutable = False

    def __init__(self, element: TypeSerializer[Any]) -> None:
        self.inners = (element,)
        self.element_serializer = element
        self.needs_canonical = element.needs_canonical

    def __reduce__(self) -> tuple[Any, ...]:
        # Compiled functions, which it keeps, cannot be pickled.
        return type(self), self.inners

    @property
    def arrow_type(self) -> pa.DataType:
        return pa.list_(self.element_serializer.arrow_type)

    def reads(self, arrow_type: pa.DataType) -> bool:
        return bool(pa.types.is_list(arrow_type) or pa.types.is_large_list(arrow_type))

    def is_value(self, value: object) -> bool:
        if value.__class__ is not self.python_type:
            return False
        elements: Any = value
        if len(elements) < FEW:
            return all(map(self._is_element, elements))
        return self.element_serializer.are_values(elements)

    @cached_property
    def _is_element(self) -> Callable[[Any], bool]:
        return value_checker(self.element_serializer)

    def _read_elements(self, array: pa.Array) -> tuple[list[Any], list[int]]:
        child, bounds = slots_of(array)
        return read_inner(self.element_serializer, child, "elements"), bounds

    def write_dense(self, values: Sequence[C]) -> pa.Array:
        offsets = offsets_of(map(len, values), len(values), self)
        return pa.ListArray.from_arrays(
            offsets, write_inner(self.element_serializer, list(chain.from_iterable(values)))
        )


class _PackedLists(_ElementsSerializer["list[T]"], Generic[T]):
    """The bytes of lists of numbers of one size by the struct module, where compiled code makes none."""

    def to_bytes(self, value: list[T]) -> bytes:
        code = self.element_serializer.fixed_code
        if code and value.__class__ is list and are_plain_numbers(code, value):
            try:
                return struct.pack(f">i{len(value)}{code}", len(value), *value)
            except struct.error:  # a number that does not fit
                pass
        return super().to_bytes(value)

    def to_bytes_many(self, values: Sequence[list[T]]) -> list[bytes]:
        if self.element_serializer.fixed_code is None:
            return super().to_bytes_many(values)
        return list(map(self.to_bytes, values))

    def from_bytes(self, data: bytes | bytearray | memoryview) -> list[T]:
        code = self.element_serializer.fixed_code
        if code:
            count, rest = divmod(len(data) - _COUNT_BYTES, struct.calcsize(f">{code}"))
            if count >= 0 and not rest:
                found, *elements = struct.unpack(f">i{count}{code}", data)
                if found == count:
                    return elements
        return super().from_bytes(data)


@restorable
class ListSerializer(CompiledBytes["list[T]"], _PackedLists[T], Generic[T]):
    """Python lists; an Arrow list column."""

    type_name = "list"
    python_type = list

    def _fields(self) -> list[tuple[TypeSerializer[Any], bool]]:
        return [(self.element_serializer, False)]

    def _write(self, value: list[T], out: DataOutputView) -> None:
        if value.__class__ is not list:
            raise self.mismatch(value)
        out.write_int(len(value))
        serialize = self.element_serializer.serialize
        for element in value:
            serialize(element, out)

    def _read(self, source: DataInputView) -> list[T]:
        deserialize = self.element_serializer.deserialize
        return [deserialize(source) for _ in range(source.read_count())]

    def read_dense(self, array: pa.Array) -> list[list[T]]:
        elements, bounds = self._read_elements(array)
        return [elements[start:end] for start, end in pairwise(bounds)]

    def check(self, value: object) -> None:
        if value.__class__ is not list:
            raise self.mismatch(value)
        check = self.element_serializer.check
        index = 0
        try:
            for index, element in enumerate(value):  # noqa: B007 - read below
                check(element)
        except ValueTypeError as error:
            raise error.within(f"[{index}]") from None

    def convert(self, conversions: Sequence[Conversion], value: list[Any]) -> list[T]:
        (element,) = conversions
        return value if element is None else list(map(element, value))

    def copy(self, value: list[T]) -> list[T]:
        element = self.element_serializer
        return value.copy() if element.immutable else list(map(element.copy, value))

    def canonical(self, value: list[T]) -> list[T]:
        return list(map(self.element_serializer.canonical, value)) if self.needs_canonical else value


@restorable
class SetSerializer(_ElementsSerializer["set[T]"], Generic[T]):
    """Python sets; an Arrow list column.  Elements, and so the bytes, are in the order of iteration."""

    type_name = "set"
    python_type = set

    def __init__(self, element: TypeSerializer[Any]) -> None:
        require_immutable(element, "the element of a set")
        super().__init__(element)

    def serialize(self, value: set[T], out: DataOutputView) -> None:
        if value.__class__ is not set:
            raise self.mismatch(value)
        out.write_int(len(value))
        element_type = self.element_serializer
        for element in value:
            if element is None:
                element_type.check(None)
                out.write_boolean(True)
            else:
                out.write_boolean(False)
                element_type.serialize(element, out)

    def deserialize(self, source: DataInputView) -> set[T]:
        values = set()
        element = self.element_serializer
        for _ in range(source.read_count()):
            if not source.read_boolean():
                values.add(element.deserialize(source))
            elif element.is_value(None):
                values.add(None)
            else:
                raise source.corrupt(f"a null in a set of {element!r}")
        return values

    def read_dense(self, array: pa.Array) -> list[set[T]]:
        elements, bounds = self._read_elements(array)
        return [set(elements[start:end]) for start, end in pairwise(bounds)]

    def check(self, value: object) -> None:
        if value.__class__ is not set:
            raise self.mismatch(value)
        check = self.element_serializer.check
        try:
            for element in value:
                check(element)
        except ValueTypeError as error:
            raise error.within(".element") from None

    def convert(self, conversions: Sequence[Conversion], value: set[Any]) -> set[T]:
        (element,) = conversions
        return value if element is None else set(map(element, value))

    def copy(self, value: set[T]) -> set[T]:
        return value.copy()

    def canonical(self, value: set[T]) -> set[T]:
        return set(map(self.element_serializer.canonical, value)) if self.needs_canonical else value


def list_of(element: TypeSerializer[T]) -> ListSerializer[T]:
    """Return the type of lists; None elements need ``nullable(element)``."""
    return ListSerializer(element)


def set_of(element: TypeSerializer[T]) -> SetSerializer[T]:
    """Return the type of sets.

    Raises `UnsupportedTypeError` for elements that can change in place, such as lists.
    """
    return SetSerializer(element)
