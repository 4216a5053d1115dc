"""What the serializers of single immutable Python objects share: one exact class and helpful errors."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa

from keyedstate.errors import ValueTypeError
from keyedstate.memory.sorting.keys import NormalizedKeys, concatenated
from keyedstate.memory.views import DataInputView, DataOutputView
from keyedstate.types.contract.arrow_columns import ColumnarSerializer, plain_numbers, require_types
from keyedstate.types.contract.normalized_keys import number_keys
from keyedstate.types.contract.registry import SerializerFactory, register_serializer_type
from keyedstate.types.contract.serializer import TypeSerializer

T = TypeVar("T")


class ScalarSerializer(ColumnarSerializer[T], Generic[T]):
    """A serializer of immutable objects of exactly one Python class."""

    immutable = True
    python_type: type
    #: For errors: the end of "expected INT8 (an int ...".
    constraint: str
    #: The way out for values of other classes.
    advice: Sequence[tuple[type | tuple[type, ...], str]] = ()
    #: The way out for a value of the class itself that does not fulfil the constraint.
    advice_within: str = ""
    #: The numbers by which times are compared; other values are numbers themselves, or have a `key_column`.
    key_numbers: pa.DataType | None = None

    @abstractmethod
    def is_value(self, value: object) -> bool: ...

    def check(self, value: object) -> None:
        if not self.is_value(value):
            raise self.mismatch(value)

    def mismatch(self, value: object) -> ValueTypeError:
        """Return the error for a value that is not of the type."""
        return ValueTypeError.of(f"{self!r} ({self.constraint})", value, self.way_out(value))

    def way_out(self, value: object) -> str:
        """Return what to do with a value that is not of the type."""
        name = self.python_type.__name__
        if self.advice_within and value.__class__ is self.python_type:
            return self.advice_within
        for classes, advice in self.advice:
            if isinstance(value, classes):
                return advice
        if value is None:
            return f"Declare the type as nullable({self!r}) if None is a value."
        if isinstance(value, np.generic):
            return "Convert it to a Python object with .item()."
        if isinstance(value, self.python_type) and type(value) is not self.python_type:
            return f"Convert it to a plain {name}: a subclass would come back as {name} after a restart."
        return "Convert the value, or declare the state with the type that it has."

    def reads(self, arrow_type: pa.DataType) -> bool:
        return bool(arrow_type == self.arrow_type)

    def read_column(self, array: pa.Array) -> list[T | None]:
        # As fast as to_pylist, and far faster than that of older pyarrow.
        return array.to_numpy(zero_copy_only=False).tolist()  # type: ignore[no-any-return]

    def key_column(self, array: pa.Array) -> NormalizedKeys:
        return number_keys(plain_numbers(array if self.key_numbers is None else array.view(self.key_numbers)))

    def write_column(self, values: Sequence[T | None]) -> pa.Array:
        require_types(values, frozenset((self.python_type, type(None))))
        return pa.array(values, self.arrow_type)


class SingletonSerializer(ScalarSerializer[T], Generic[T]):
    """A scalar serializer without parameters; its repr is the name under which the package exports it."""

    def __repr__(self) -> str:
        return self.type_name.upper()


class ClassSerializer(SingletonSerializer[T], Generic[T]):
    """A serializer of all objects of its class."""

    def is_value(self, value: object) -> bool:
        return value.__class__ is self.python_type

    def condition(self, first: str, value: str, given: dict[str, Any]) -> str:
        name = f"class{len(given)}"
        given[name] = self.python_type
        return f"({first}.__class__ is {name})"

    def check_parts(self) -> tuple[Any, ...]:
        return "class", self.python_type

    def are_values(self, values: Collection[object]) -> bool:
        return {self.python_type}.issuperset(map(type, values))


class ConstantSerializer(SingletonSerializer[T], Generic[T]):
    """A serializer of one object, `constant`: a byte 0, and a null in columns."""

    constant: T
    null_is_value = True
    arrow_type = pa.null()
    normalized_key_bytes = 0

    def is_value(self, value: object) -> bool:
        return value is self.constant

    def serialize(self, value: T, out: DataOutputView) -> None:
        if value is not self.constant:
            raise self.mismatch(value)
        out.write_byte(0)

    def deserialize(self, source: DataInputView) -> T:
        marker = source.read_unsigned_byte()
        if marker:
            raise source.corrupt(f"{self.constraint} is a byte 0, found {marker}")
        return self.constant

    def from_bytes_many(self, data: Sequence[bytes]) -> list[T]:
        # A row for each of many timers has this value.
        if data.count(b"\0") == len(data):
            return [self.constant] * len(data)
        return super().from_bytes_many(data)

    def read_column(self, array: pa.Array) -> list[T | None]:
        return [self.constant] * len(array)

    def write_column(self, values: Sequence[T | None]) -> pa.Array:
        if not set(values) <= {self.constant, None}:
            raise TypeError(f"another object than {self.constraint}")
        return pa.nulls(len(values))

    def key_column(self, array: pa.Array) -> NormalizedKeys:
        return concatenated((), len(array))


def register_singleton(serializer: TypeSerializer[Any]) -> None:
    """Make a serializer without parameters restorable by its type name."""

    def restore(document: object) -> TypeSerializer[Any]:
        return serializer

    restore.__qualname__ = repr(serializer)
    factory: SerializerFactory = restore
    register_serializer_type(serializer.type_name, factory, serializer.snapshot_version)
