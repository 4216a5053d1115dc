"""Values with the time from which their time to live counts, in the layout of Flink's ``TtlSerializer``."""

# ruff: noqa: D102 - overriding methods are documented in TypeSerializer and the bases that declare them.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any, Generic, TypeVar

import pyarrow as pa

from keyedstate.memory.views import DataInputView, DataOutputView
from keyedstate.types.composite import (
    CompositeSerializer,
    ContainerSerializer,
    Conversion,
    converted,
    read_inner,
    restore_inner,
    write_inner,
)
from keyedstate.types.errors import UnsupportedTypeError, ValueTypeError
from keyedstate.types.serializer import TypeSerializer, register_serializer_type

T = TypeVar("T")

_LONG = range(-(2**63), 2**63)


class TtlSerializer(ContainerSerializer["tuple[int, T]"], Generic[T]):
    """Pairs of a timestamp in milliseconds and a value; as bytes a 64-bit long and then the value.

    The column is a struct of ``timestamp`` and ``value``, so that any Arrow tool shows how old an entry is.

    Parameters
    ----------
    value : TypeSerializer
    clock : str
        The name of the clock that the timestamps are of; snapshots carry it.

    Raises
    ------
    UnsupportedTypeError
        Where the value has timestamps of its own (SER-09).
    """

    type_name = "ttl"
    python_type = tuple

    def __init__(self, value: TypeSerializer[T], clock: str) -> None:
        if _is_timed(value):
            raise UnsupportedTypeError(
                f"a time to live of {value!r}",
                "the value has a time to live already",
                "Give the state one time to live.",
            )
        self.value_serializer = value
        self.clock = clock
        self.immutable = value.immutable
        self.needs_canonical = value.needs_canonical

    @property
    def inners(self) -> tuple[TypeSerializer[Any], ...]:
        return (self.value_serializer,)

    @property
    def inner_names(self) -> tuple[str, ...]:
        return ("value",)

    def parts(self) -> tuple[object, ...]:
        return self.value_serializer, self.clock

    def __repr__(self) -> str:
        return f"{self.value_serializer!r} with a time to live in {self.clock}"

    def rebuild(self, inners: Sequence[TypeSerializer[Any]]) -> TtlSerializer[T]:
        return TtlSerializer(inners[0], self.clock)

    def snapshot_content(self) -> dict[str, Any]:
        return {"clock": self.clock, **super().snapshot_content()}

    @property
    def arrow_type(self) -> pa.DataType:
        return pa.struct(
            [("timestamp", pa.timestamp("ms", "UTC")), ("value", self.value_serializer.arrow_type)]
        )

    def serialize(self, value: tuple[int, T], out: DataOutputView) -> None:
        if not self._is_pair(value):
            raise self.mismatch(value)
        out.write_long(value[0])
        self.value_serializer.serialize(value[1], out)

    def deserialize(self, source: DataInputView) -> tuple[int, T]:
        return source.read_long(), self.value_serializer.deserialize(source)

    def reads(self, arrow_type: pa.DataType) -> bool:
        return bool(
            pa.types.is_struct(arrow_type)
            and arrow_type.num_fields == 2
            and arrow_type.field(0).type == pa.timestamp("ms", "UTC")
        )

    def read_dense(self, array: pa.Array) -> list[tuple[int, T]]:
        # Not field(): a sliced struct array hides its nulls and its offset there.
        stamps, values = array.flatten()
        timestamps: list[int] = stamps.view(pa.int64()).to_pylist()
        return list(zip(timestamps, read_inner(self.value_serializer, values, "value"), strict=True))

    def write_dense(self, values: Sequence[tuple[int, T]]) -> pa.Array:
        for value in values:
            if len(value) != 2:
                raise self.mismatch(value)
        stamps = pa.array(map(itemgetter(0), values), pa.int64(), size=len(values))
        column = write_inner(self.value_serializer, list(map(itemgetter(1), values)))
        return pa.StructArray.from_arrays(
            [stamps.view(pa.timestamp("ms", "UTC")), column], names=["timestamp", "value"]
        )

    def _is_pair(self, value: object) -> bool:
        return (
            value.__class__ is tuple and len(value) == 2 and value[0].__class__ is int and value[0] in _LONG
        )

    def mismatch(self, value: object) -> ValueTypeError:
        if value.__class__ is tuple:
            return ValueTypeError.of(
                f"{self!r} (a timestamp in milliseconds and a value)", value, "Give both, the time first."
            )
        return super().mismatch(value)

    def check(self, value: object) -> None:
        if not self._is_pair(value):
            raise self.mismatch(value)
        self.value_serializer.check(value[1])  # type: ignore[index]

    def copy(self, value: tuple[int, T]) -> tuple[int, T]:
        return value if self.immutable else (value[0], self.value_serializer.copy(value[1]))

    def canonical(self, value: tuple[int, T]) -> tuple[int, T]:
        return (value[0], self.value_serializer.canonical(value[1])) if self.needs_canonical else value

    def convert(self, conversions: Sequence[Conversion], value: Any) -> tuple[int, T]:
        return value[0], converted(conversions[0], value[1])


def _is_timed(serializer: TypeSerializer[Any]) -> bool:
    if isinstance(serializer, TtlSerializer):
        return True
    return isinstance(serializer, CompositeSerializer) and any(map(_is_timed, serializer.inners))


def _restore(document: Mapping[str, Any]) -> TypeSerializer[Any]:
    return TtlSerializer(restore_inner(document, "value"), str(document["clock"]))


register_serializer_type(TtlSerializer.type_name, _restore, TtlSerializer.snapshot_version)
