"""Values that may be None, in the layout of Flink's ``NullableSerializer`` without padding."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa

from keyedstate.errors import UnsupportedTypeError
from keyedstate.memory.sorting.keys import NormalizedKeys
from keyedstate.memory.views import DataInputView, DataOutputView
from keyedstate.types.contract.arrow_columns import plain_numbers
from keyedstate.types.contract.composite import CompositeSerializer, compose
from keyedstate.types.contract.normalized_keys import added_length, joined, number_keys, whole_number_keys
from keyedstate.types.contract.registry import restorable
from keyedstate.types.contract.serializer import Compatibility, SerializerSnapshot, TypeSerializer

T = TypeVar("T")


@restorable
class NullableSerializer(CompositeSerializer["T | None"], Generic[T]):
    """A byte 1 for None; a byte 0 and the value otherwise.  In columns None is null.

    Where the inner type's own bytes tell None from a value (`TypeSerializer.tells_null`), there is no byte 0.
    """

    type_name = "nullable"
    inner_names = ("inner",)
    null_is_value = True

    def __init__(self, inner: TypeSerializer[T]) -> None:
        if inner.null_is_value:
            raise UnsupportedTypeError(
                f"nullable({inner!r})", "a null is a value of that type already", f"Use {inner!r} itself."
            )
        self.inners = (inner,)
        self.inner_serializer = inner
        self.immutable = inner.immutable
        self.needs_canonical = inner.needs_canonical
        self.normalized_key_bytes = added_length((1, inner.normalized_key_bytes))
        self.normalized_key_decides = inner.normalized_key_decides

    def __repr__(self) -> str:
        return f"nullable({self.inner_serializer!r})"

    @property
    def arrow_type(self) -> pa.DataType:
        return self.inner_serializer.arrow_type

    def serialize(self, value: T | None, out: DataOutputView) -> None:
        if value is None:
            out.write_boolean(True)
        else:
            if not self.inner_serializer.tells_null:
                out.write_boolean(False)
            self.inner_serializer.serialize(value, out)

    def to_bytes(self, value: T | None) -> bytes:
        if value is None:
            return b"\x01"
        made = self.inner_serializer.to_bytes(value)
        return made if self.inner_serializer.tells_null else b"\0" + made

    def to_bytes_many(self, values: Sequence[T | None]) -> list[bytes]:
        if type(None) in set(map(type, values)):
            return super().to_bytes_many(values)
        made = self.inner_serializer.to_bytes_many(values)  # type: ignore[arg-type] # there is no None
        return made if self.inner_serializer.tells_null else [b"\0" + one for one in made]

    def deserialize(self, source: DataInputView) -> T | None:
        if self.inner_serializer.tells_null:
            if source.peek(1) != b"\x01":
                return self.inner_serializer.deserialize(source)
            source.skip(1)
            return None
        return None if source.read_boolean() else self.inner_serializer.deserialize(source)

    def from_bytes_many(self, data: Sequence[bytes]) -> list[T | None]:
        if self.inner_serializer.tells_null or not all(one.startswith(b"\0") for one in data):
            return super().from_bytes_many(data)
        return self.inner_serializer.from_bytes_many([one[1:] for one in data])  # type: ignore[return-value]

    def reads(self, arrow_type: pa.DataType) -> bool:
        return True  # the inner serializer judges

    def read_column(self, array: pa.Array) -> list[T | None]:
        return self.inner_serializer.from_arrow(array)

    def write_column(self, values: Sequence[T | None]) -> pa.Array:
        return self.inner_serializer.to_arrow(values)

    def key_column(self, array: pa.Array) -> NormalizedKeys:
        keys = self.inner_serializer.normalized_keys(array.drop_null())
        valid = plain_numbers(array.is_valid())
        data = np.zeros((len(array), 1 + keys.length), np.uint8)
        data[:, 0] = valid
        data[valid, 1:] = keys.data
        if keys.prefix_only is None:
            return NormalizedKeys(data)
        prefix_only = np.zeros(len(array), np.bool_)
        prefix_only[valid] = keys.prefix_only
        return NormalizedKeys(data, prefix_only)

    def whole_key_column(self, array: pa.Array) -> pa.LargeBinaryArray:
        keys = self.inner_serializer.whole_keys(array.drop_null())
        valid = plain_numbers(array.is_valid())
        places = pa.array(np.cumsum(valid) - 1, mask=~valid)
        marks = whole_number_keys(number_keys(valid))
        return joined([marks, keys.take(places).fill_null(b"")], len(array))

    def check(self, value: object) -> None:
        if value is not None:
            self.inner_serializer.check(value)

    def is_value(self, value: object) -> bool:
        return value is None or self.inner_serializer.is_value(value)

    def condition(self, first: str, value: str, given: dict[str, Any]) -> str:
        return f"({first} is None or {self.inner_serializer.condition(value, value, given)})"

    def check_parts(self) -> tuple[Any, ...]:
        return "nullable", self.inner_serializer.check_parts()

    def are_values(self, values: Collection[object]) -> bool:
        return self.inner_serializer.are_values([value for value in values if value is not None])

    def copy(self, value: T | None) -> T | None:
        return None if value is None else self.inner_serializer.copy(value)

    def canonical(self, value: T | None) -> T | None:
        return None if value is None else self.inner_serializer.canonical(value)

    def resolve_compatibility(self, old: SerializerSnapshot) -> Compatibility:
        if old.type_name == self.type_name:
            return super().resolve_compatibility(old)
        verdict = self.inner_serializer.resolve_compatibility(old)
        if verdict.is_incompatible:
            return verdict
        if self.inner_serializer.tells_null:
            return compose([("", self.inner_serializer, verdict)], self.rebuild)
        # Also where the inner serializer would only be reconfigured: old bytes have no flag.
        return Compatibility.after_migration(f"{old} became nullable")

    def conversion_from(self, old: TypeSerializer[Any]) -> Callable[[Any], T | None] | None:
        old_inner = old.inner_serializer if isinstance(old, NullableSerializer) else old
        conversion = self.inner_serializer.conversion_from(old_inner)
        if conversion is None:
            return None
        return lambda value: None if value is None else conversion(value)


def nullable(inner: TypeSerializer[T]) -> NullableSerializer[T]:
    """Return the type of values that may be None; a type that is nullable already is returned as it is."""
    return inner if isinstance(inner, NullableSerializer) else NullableSerializer(inner)
