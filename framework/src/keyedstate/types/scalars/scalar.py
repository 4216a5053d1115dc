"""What the serializers of single immutable Python objects share: one exact class and helpful errors."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Generic, TypeVar

import numpy as np

from keyedstate.errors import ValueTypeError
from keyedstate.types.contract.arrow_columns import ColumnarSerializer
from keyedstate.types.contract.registry import SerializerFactory, register_serializer_type
from keyedstate.types.contract.serializer import TypeSerializer

T = TypeVar("T")


class ScalarSerializer(ColumnarSerializer[T], Generic[T]):
    """A serializer of immutable objects of exactly one Python class.

    Attributes
    ----------
    python_type : type
    constraint : str
        What else a value must fulfil, as the end of "expected INT8 (an int ...".
    """

    immutable = True
    python_type: type
    constraint: str

    @abstractmethod
    def is_value(self, value: object) -> bool: ...

    def check(self, value: object) -> None:
        if not self.is_value(value):
            raise self.mismatch(value)

    def mismatch(self, value: object) -> ValueTypeError:
        """Return the error for a value that is not of the type."""
        return ValueTypeError.of(f"{self!r} ({self.constraint})", value, self.way_out(value))

    def way_out(self, value: object) -> str:
        """Return the advice for a value that is not of the type."""
        name = self.python_type.__name__
        if value is None:
            return f"Declare the type as nullable({self!r}) if None is a value."
        if isinstance(value, np.generic):
            return "Convert it to a Python object with .item()."
        if isinstance(value, self.python_type) and type(value) is not self.python_type:
            return f"Convert it to a plain {name}: a subclass would come back as {name} after a restart."
        return "Convert the value, or declare the state with the type that it has."


class SingletonSerializer(ScalarSerializer[T], Generic[T]):
    """A scalar serializer without parameters; its repr is the name under which the package exports it."""

    def __repr__(self) -> str:
        return self.type_name.upper()


def register_singleton(serializer: TypeSerializer[Any]) -> None:
    """Make a serializer without parameters restorable by its type name."""

    def restore(document: object) -> TypeSerializer[Any]:
        return serializer

    restore.__qualname__ = repr(serializer)
    factory: SerializerFactory = restore
    register_serializer_type(serializer.type_name, factory, serializer.snapshot_version)
