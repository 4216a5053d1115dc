"""The description of one operator state: its name, how it is redistributed, its serializers.

As in Flink, operator state is in the task's own memory, whatever backend has the keyed state. The rooms
`state` and `checkpoint`, which do not import each other, share this description.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from keyedstate.backend import EntryBatch, StateKind, StateMeta
from keyedstate.types import INT64, VOID, SerializerSnapshot, TypeSerializer, refuse_generic

#: The one key group under which operator state is written: it belongs to no key.
OPERATOR_KEY_GROUP = 0


class OperatorStateKind(enum.Enum):
    """The kinds of operator state (Flink's ``OperatorStateAccessor.Mode``)."""

    #: Every element is in one task; a rescaled operator redistributes them evenly.
    LIST = "operator list"
    #: After a restart every task gets the elements of all.
    UNION_LIST = "union list"
    #: A map that is the same on every task.
    BROADCAST = "broadcast"


@dataclass(frozen=True)
class OperatorStateMeta:
    """One operator state."""

    #: Unique among the operator states of one operator.
    name: str
    kind: OperatorStateKind
    #: Of the keys of a broadcast map.  The elements of a list are numbered, and this is ``types.INT64``.
    key_serializer: TypeSerializer[Any]
    #: Of the elements of a list, or of the values of a broadcast map.
    value_serializer: TypeSerializer[Any]

    @classmethod
    def of_list(
        cls, name: str, kind: OperatorStateKind, element_serializer: TypeSerializer[Any]
    ) -> OperatorStateMeta:
        """Return the meta of a list of either kind."""
        return cls(name, kind, INT64, element_serializer)

    @property
    def entries_meta(self) -> StateMeta:
        """The state in files and sinks, where each element, or each entry of the map, is an entry."""
        return StateMeta(self.name, StateKind.VALUE, self.key_serializer, VOID, self.value_serializer)

    def refuse_generic(self) -> None:
        """Raise `GenericTypeForbiddenError` for a state with pickled parts."""
        refuse_generic(self.name, self.key_serializer)
        refuse_generic(self.name, self.value_serializer)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON representation in manifests."""
        return {
            "name": self.name,
            "kind": self.kind.value,
            "key": self.key_serializer.snapshot().to_json(),
            "value": self.value_serializer.snapshot().to_json(),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> OperatorStateMeta:
        """Rebuild a meta with the serializers that wrote the state.

        Raises `UnknownSerializerError` where a serializer's type or version is unknown.
        """
        key, value = (
            SerializerSnapshot.from_json(document[part]).restore_serializer() for part in ("key", "value")
        )
        return cls(document["name"], OperatorStateKind(document["kind"]), key, value)

    def duplicate(self) -> OperatorStateMeta:
        """Return a meta whose serializers another thread may use."""
        key, value = self.key_serializer.duplicate(), self.value_serializer.duplicate()
        return OperatorStateMeta(self.name, self.kind, key, value)


#: A restored state: its description, and the entries of one task in their order.
RestoredOperatorState: TypeAlias = "tuple[OperatorStateMeta, Sequence[EntryBatch[Any, Any, Any]]]"
