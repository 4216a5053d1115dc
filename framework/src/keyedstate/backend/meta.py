"""One registered state: its name, its kind and its serializers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from keyedstate.backend.capabilities import StateKind
from keyedstate.backend.expiry import Expiry
from keyedstate.types import SerializerSnapshot, TypeSerializer


@dataclass(frozen=True)
class StateMeta:
    """One registered state, as a table sees it; its name is unique within one keyed backend.

    The value serializer is that of what the table stores under one address: for `StateKind.MAP` a whole
    ``dict``. A registered state with a time to live has an `expiry`; manifests do not contain it: the program
    does.
    """

    name: str
    kind: StateKind
    key_serializer: TypeSerializer[Any]
    namespace_serializer: TypeSerializer[Any]
    value_serializer: TypeSerializer[Any]
    expiry: Expiry | None = field(default=None, compare=False)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object that manifests contain; it is shared, so the caller must not change it."""
        return self._json

    @cached_property
    def _json(self) -> dict[str, Any]:
        # Made once: an epoch writes it several times, and a type of many fields takes 0.1 ms.
        return {
            "name": self.name,
            "kind": self.kind.value,
            "key": self.key_serializer.snapshot().to_json(),
            "namespace": self.namespace_serializer.snapshot().to_json(),
            "value": self.value_serializer.snapshot().to_json(),
        }

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> StateMeta:
        """Return a meta with the serializers that wrote the state.

        Raises `UnknownSerializerError` where a serializer's type or version is unknown in this process.
        """
        key, namespace, value = (
            SerializerSnapshot.from_json(document[part]).restore_serializer()
            for part in ("key", "namespace", "value")
        )
        return cls(document["name"], StateKind(document["kind"]), key, namespace, value)

    def duplicate(self) -> StateMeta:
        """Return a meta whose serializers another thread may use."""
        return replace(
            self,
            key_serializer=self.key_serializer.duplicate(),
            namespace_serializer=self.namespace_serializer.duplicate(),
            value_serializer=self.value_serializer.duplicate(),
        )
