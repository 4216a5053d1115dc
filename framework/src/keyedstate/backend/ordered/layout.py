"""How an address becomes the key of a row, and how it is read back.

A row's key is the key group, in one byte up to 128 groups and else in two, then key and namespace as their
serializers write them; for list and map state the number of the chunk or the map key follows.  So the rows of
a key group, and those of an address, are one range each.  The parts need no lengths between them: a
serializer reads back exactly the bytes that it wrote and sees nothing of what follows, so none writes bytes
that begin with those of another value.  (Flink appends lengths for variable types, behind the value, where
they settle no prefix.)
"""

from __future__ import annotations

from typing import Any

from keyedstate.backend.meta import StateMeta
from keyedstate.keygroups import KeyGroupRange
from keyedstate.memory import CorruptDataError, DataInputView
from keyedstate.types import STRING, VOID_NAMESPACE
from keyedstate.types.nullable import NullableSerializer
from keyedstate.types.text import SHORT_HEADS, are_short
from keyedstate.types.void import VoidSerializer

#: Up to so many key groups take one byte (Flink's ``CompositeKeySerializationUtils``).
_ONE_BYTE_GROUPS = 128
#: The bytes of the namespace of states that have none.
_VOID = b"\0"


class RowLayout:
    """The keys of the rows of one state.

    Parameters
    ----------
    meta : StateMeta
        Its serializers are used in one thread only.
    max_parallelism : int
    """

    def __init__(self, meta: StateMeta, max_parallelism: int) -> None:
        self._key = meta.key_serializer
        self._namespace = meta.namespace_serializer
        self._width = 1 if max_parallelism <= _ONE_BYTE_GROUPS else 2
        self._groups = [group.to_bytes(self._width, "big") for group in range(max_parallelism)]
        #: Of keys that are strings, what their rows' keys begin with, each byte as a character.
        self._text_groups: list[str] = []
        key = meta.key_serializer
        bare = key.inner_serializer if isinstance(key, NullableSerializer) else key
        if bare is STRING:
            flag = "" if bare is key else "\0"
            self._text_groups = [group.decode("latin-1") + flag for group in self._groups]
        self._key_to_bytes = meta.key_serializer.to_bytes
        #: The namespace that came last, and its bytes: most states have but one.
        self._last: Any = self
        self._last_bytes = b""

    def group_prefix(self, key_group: int) -> bytes:
        """Return what the keys of all rows of a key group begin with."""
        return self._groups[key_group]

    def range_of(self, key_groups: KeyGroupRange) -> tuple[bytes, bytes]:
        """Return the first key of a range of key groups, and the first one behind it."""
        return tuple(group.to_bytes(self._width, "big") for group in (key_groups.start, key_groups.end + 1))  # type: ignore[return-value]

    def address(self, key_group: int, key: Any, namespace: Any) -> bytes:
        """Return the key of an address' row, or what the keys of its rows begin with."""
        if namespace is not self._last:
            self._last_bytes = self._namespace.to_bytes(namespace)
            self._last = namespace
        return self._groups[key_group] + self._key_to_bytes(key) + self._last_bytes

    def addresses(self, key_groups: list[int], keys: list[Any], namespace: Any) -> list[bytes]:
        """Return the keys of the rows of several addresses in one namespace."""
        end, groups = self._namespace.to_bytes(namespace), self._groups
        if self._text_groups and {str}.issuperset(map(type, keys)) and are_short(keys):
            texts, heads, tail = self._text_groups, SHORT_HEADS, end.decode("latin-1")
            # A third of what it takes to put bytes together; each character is a byte.
            return [
                f"{texts[group]}{heads[len(key)]}{key}{tail}".encode("latin-1")
                for group, key in zip(key_groups, keys, strict=True)
            ]
        made = self._key.to_bytes_many(keys)
        return [groups[group] + key + end for group, key in zip(key_groups, made, strict=True)]

    def group_of(self, row: bytes) -> int:
        """Return the key group of a row."""
        return int.from_bytes(row[: self._width], "big")

    def parse(self, row: bytes) -> tuple[Any, Any, int]:
        """Return the key and the namespace of a row's key, and where in it they end.

        Raises
        ------
        CorruptDataError
        """
        source = DataInputView(row)
        source.skip(self._width)
        key = self._key.deserialize(source)
        namespace = self._namespace.deserialize(source)
        return key, namespace, source.position

    def parse_many(self, rows: list[bytes]) -> tuple[list[Any], list[Any]]:
        """Return the keys and the namespaces of the keys of several rows, in which nothing follows these.

        Raises
        ------
        CorruptDataError
        """
        if isinstance(self._namespace, VoidSerializer) and all(row.endswith(_VOID) for row in rows):
            keys = self._key.from_bytes_many([row[self._width : -1] for row in rows])
            return keys, [VOID_NAMESPACE] * len(rows)
        parsed = list(map(self.parse, rows))
        for row, (_, _, end) in zip(rows, parsed, strict=True):
            whole(row, end)
        return [key for key, _, _ in parsed], [namespace for _, namespace, _ in parsed]


def whole(row: bytes, end: int) -> None:
    """Refuse bytes behind the part of a row's key that was read."""
    if end != len(row):
        raise CorruptDataError(f"{len(row) - end} bytes follow the address in the key of a row", end)
