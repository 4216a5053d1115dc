"""The namespace of state that has none, after Flink's ``VoidNamespace``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from keyedstate.memory.views import DataInputView, DataOutputView
from keyedstate.types.scalars.scalar import SingletonSerializer, register_singleton


class VoidNamespace:
    """The class of `VOID_NAMESPACE`, its only instance; copies and pickles are the instance itself."""

    __slots__ = ()
    _instance: VoidNamespace | None = None

    def __new__(cls) -> VoidNamespace:
        if cls._instance is None:
            cls._instance = super().__new__(cls)
        return cls._instance

    def __reduce__(self) -> str:
        return "VOID_NAMESPACE"

    def __repr__(self) -> str:
        return "VOID_NAMESPACE"


VOID_NAMESPACE: Final = VoidNamespace()


class VoidSerializer(SingletonSerializer[VoidNamespace]):
    """`VOID_NAMESPACE` in one byte, 0 (``VoidNamespaceSerializer``), and as a null in columns."""

    type_name = "void"
    python_type = VoidNamespace
    constraint = "VOID_NAMESPACE"
    null_is_value = True

    @property
    def arrow_type(self) -> pa.DataType:
        return pa.null()

    def is_value(self, value: object) -> bool:
        return value is VOID_NAMESPACE

    def serialize(self, value: VoidNamespace, out: DataOutputView) -> None:
        if value is not VOID_NAMESPACE:
            raise self.mismatch(value)
        out.write_byte(0)

    def deserialize(self, source: DataInputView) -> VoidNamespace:
        marker = source.read_unsigned_byte()
        if marker:
            raise source.corrupt(f"the void namespace is a byte 0, found {marker}")
        return VOID_NAMESPACE

    def reads(self, arrow_type: pa.DataType) -> bool:
        return bool(pa.types.is_null(arrow_type))

    def read_column(self, array: pa.Array) -> list[VoidNamespace | None]:
        return [VOID_NAMESPACE] * len(array)

    def write_column(self, values: Sequence[VoidNamespace | None]) -> pa.Array:
        if not set(values) <= {VOID_NAMESPACE, None}:
            raise TypeError("another object than the void namespace")
        return pa.nulls(len(values))


VOID = VoidSerializer()
register_singleton(VOID)
