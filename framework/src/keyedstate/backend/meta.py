"""What is known of one registered state: its name, its kind and its serializers."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

from keyedstate.backend.capabilities import Capability
from keyedstate.backend.expiry import Expiry
from keyedstate.types import SerializerSnapshot, TypeSerializer


class StateKind(enum.Enum):
    """The kinds of keyed state (Flink's ``StateDescriptor.Type``)."""

    VALUE = "value"
    LIST = "list"
    MAP = "map"
    REDUCING = "reducing"
    AGGREGATING = "aggregating"

    @property
    def capability(self) -> Capability:
        """The capability that a backend needs to hold states of this kind."""
        return Capability[f"{self.name}_STATE"]


@dataclass(frozen=True)
class StateMeta:
    """One registered state, as a table sees it.

    Attributes
    ----------
    name : str
        Unique within one keyed backend.
    kind : StateKind
    key_serializer, namespace_serializer : TypeSerializer
    value_serializer : TypeSerializer
        The serializer of what the table stores under one address: for `StateKind.MAP` a whole ``dict``.
    expiry : Expiry or None
        For a registered state with a time to live.  Not in manifests: the settings live in the program.
    """

    name: str
    kind: StateKind
    key_serializer: TypeSerializer[Any]
    namespace_serializer: TypeSerializer[Any]
    value_serializer: TypeSerializer[Any]
    expiry: Expiry | None = field(default=None, compare=False)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON face that manifests carry."""
        return {
            "name": self.name,
            "kind": self.kind.value,
            "key": self.key_serializer.snapshot().to_json(),
            "namespace": self.namespace_serializer.snapshot().to_json(),
            "value": self.value_serializer.snapshot().to_json(),
        }

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> StateMeta:
        """Rebuild a meta with the serializers that wrote the state.

        Raises
        ------
        UnknownSerializerError
            Where a serializer's type or version is not known here.
        """

        def serializer(part: str) -> TypeSerializer[Any]:
            return SerializerSnapshot.from_json(document[part]).restore_serializer()

        return cls(
            name=document["name"],
            kind=StateKind(document["kind"]),
            key_serializer=serializer("key"),
            namespace_serializer=serializer("namespace"),
            value_serializer=serializer("value"),
        )

    def duplicate(self) -> StateMeta:
        """Return a meta whose serializers may be used by another thread."""
        return StateMeta(
            name=self.name,
            kind=self.kind,
            key_serializer=self.key_serializer.duplicate(),
            namespace_serializer=self.namespace_serializer.duplicate(),
            value_serializer=self.value_serializer.duplicate(),
            expiry=self.expiry,
        )
