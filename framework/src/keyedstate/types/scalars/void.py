"""The namespace of state that has none, after Flink's ``VoidNamespace``."""

from __future__ import annotations

from typing import Final

from keyedstate.types.scalars.scalar import ConstantSerializer, register_singleton


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


class VoidSerializer(ConstantSerializer[VoidNamespace]):
    """`VOID_NAMESPACE`, as ``VoidNamespaceSerializer`` writes it."""

    type_name = "void"
    python_type = VoidNamespace
    constraint = "VOID_NAMESPACE"
    constant = VOID_NAMESPACE


VOID = VoidSerializer()
register_singleton(VOID)
