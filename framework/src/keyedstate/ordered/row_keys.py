"""The key of a row: how an address is encoded and decoded.

A row's key is the key group, in one byte up to 128 groups and else in two, then key and namespace as their
serializers write them; for list and map state the number of the chunk or the map key follows.  So the rows of
a key group, and those of an address, are one range each.  No lengths are needed between the parts: a
serializer reads back exactly the bytes that it wrote, so the bytes of no value begin with those of another.
(Flink appends lengths for types of variable size.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from keyedstate.backend.meta import StateMeta
from keyedstate.backend.timers import holds_timers
from keyedstate.errors import CorruptDataError
from keyedstate.keygroups import KeyGroupRange
from keyedstate.memory import DataInputView
from keyedstate.row_path import short_texts
from keyedstate.types import STRING, VOID_NAMESPACE
from keyedstate.types.collections.nullable import NullableSerializer
from keyedstate.types.collections.tuples import TupleSerializer
from keyedstate.types.scalars.namespaces import VoidSerializer

#: Up to so many key groups take one byte (Flink's ``CompositeKeySerializationUtils``).
_ONE_BYTE_GROUPS = 128
#: The bytes of the namespace of states that have none.
_VOID = b"\0"
#: Added to a time in a row's key: the sum is not negative, and its bytes have the order of times.
_SIGN = 2**63
_TIME_BYTES = 8


class RowLayout:
    """The keys of the rows of one state; belongs to one thread, as the serializers of its `meta` do."""

    def __init__(self, meta: StateMeta, max_parallelism: int) -> None:
        self._key = meta.key_serializer
        self._namespace = meta.namespace_serializer
        self._width = 1 if max_parallelism <= _ONE_BYTE_GROUPS else 2
        self._groups = [group.to_bytes(self._width, "big") for group in range(max_parallelism)]
        #: For keys that are strings: what rows of each key group begin with.
        self._text_groups: list[bytes] = []
        key = meta.key_serializer
        bare = key.inner_serializer if isinstance(key, NullableSerializer) else key
        if bare is STRING:
            self._text_groups = [group + (b"" if bare is key else b"\0") for group in self._groups]
        self._key_to_bytes = meta.key_serializer.to_bytes
        #: The namespace of the last call, and its bytes: most states have only one.
        self._last: Any = self
        self._last_bytes = b""

    def group_prefix(self, key_group: int) -> bytes:
        """Return the prefix of all rows of a key group."""
        return self._groups[key_group]

    def range_of(self, key_groups: KeyGroupRange) -> tuple[bytes, bytes]:
        """Return the least key of a range of key groups, and the least one above the range."""
        return tuple(group.to_bytes(self._width, "big") for group in (key_groups.start, key_groups.end + 1))  # type: ignore[return-value]

    def address(self, key_group: int, key: Any, namespace: Any) -> bytes:
        """Return the key of the row of an address, or the prefix of its rows."""
        if namespace is not self._last:
            self._last_bytes = self._namespace.to_bytes(namespace)
            self._last = namespace
        return self._groups[key_group] + self._key_to_bytes(key) + self._last_bytes

    def addresses(self, key_groups: list[int], keys: list[Any], namespace: Any) -> list[bytes]:
        """Return the keys of the rows of several addresses in one namespace."""
        end, groups = self._namespace.to_bytes(namespace), self._groups
        if self._text_groups:
            rows = short_texts(self._text_groups, key_groups, keys, end)
            if rows is not None:
                return rows
        made = self._key.to_bytes_many(keys)
        return [groups[group] + key + end for group, key in zip(key_groups, made, strict=True)]

    def each_address(
        self, key_groups: Sequence[int], keys: Sequence[Any], namespaces: Sequence[Any]
    ) -> list[bytes]:
        """Return the keys of the rows of several addresses, each with its namespace."""
        if len(set(map(id, namespaces))) == 1:
            return self.addresses(list(key_groups), list(keys), namespaces[0])
        return list(map(self.address, key_groups, keys, namespaces))

    def group_of(self, row: bytes) -> int:
        """Return the key group of a row."""
        return int.from_bytes(row[: self._width], "big")

    def parse(self, row: bytes) -> tuple[Any, Any, int]:
        """Return the key and the namespace in a row's key, and where in it they end."""
        source = DataInputView(row)
        source.skip(self._width)
        key = self._key.deserialize(source)
        namespace = self._namespace.deserialize(source)
        return key, namespace, source.position

    def parse_many(self, rows: list[bytes]) -> tuple[list[Any], list[Any]]:
        """Return the keys and namespaces of several rows; raises `CorruptDataError` where these have more."""
        if isinstance(self._namespace, VoidSerializer) and all(row.endswith(_VOID) for row in rows):
            keys = self._key.from_bytes_many([row[self._width : -1] for row in rows])
            return keys, [VOID_NAMESPACE] * len(rows)
        parsed = list(map(self.parse, rows))
        for row, (_, _, end) in zip(rows, parsed, strict=True):
            if end != len(row):
                raise CorruptDataError(f"{len(row) - end} bytes follow the address in the key of a row", end)
        return [key for key, _, _ in parsed], [namespace for _, namespace, _ in parsed]


class TimeLayout(RowLayout):
    """The keys of the rows of timers, whose namespace is a time, or a time and a namespace."""

    def __init__(self, meta: StateMeta, max_parallelism: int) -> None:
        super().__init__(meta, max_parallelism)
        namespace = meta.namespace_serializer
        #: The serializer of what follows the time in a namespace; None where nothing follows.
        self._rest = namespace.field_serializers[1] if isinstance(namespace, TupleSerializer) else None

    def time_prefix(self, key_group: int, time: int) -> bytes:
        """Return the prefix of the rows of a key group and time."""
        return self._groups[key_group] + (time + _SIGN).to_bytes(_TIME_BYTES, "big")

    def time_of(self, namespace: Any) -> int:
        """Return the time in a namespace."""
        return namespace if self._rest is None else namespace[0]  # type: ignore[no-any-return]

    def _rest_of(self, namespace: Any) -> bytes:
        if self._rest is None:
            return b""
        rest = namespace[1]
        if rest is not self._last:
            self._last_bytes = self._rest.to_bytes(rest)
            self._last = rest
        return self._last_bytes

    def address(self, key_group: int, key: Any, namespace: Any) -> bytes:
        prefix = self.time_prefix(key_group, self.time_of(namespace))
        return prefix + self._rest_of(namespace) + self._key_to_bytes(key)

    def addresses(self, key_groups: list[int], keys: list[Any], namespace: Any) -> list[bytes]:
        middle = (self.time_of(namespace) + _SIGN).to_bytes(_TIME_BYTES, "big") + self._rest_of(namespace)
        groups, made = self._groups, self._key.to_bytes_many(keys)
        return [groups[group] + middle + key for group, key in zip(key_groups, made, strict=True)]

    def each_address(
        self, key_groups: Sequence[int], keys: Sequence[Any], namespaces: Sequence[Any]
    ) -> list[bytes]:
        groups, made, size = self._groups, self._key.to_bytes_many(list(keys)), _TIME_BYTES
        times = np.fromiter(map(self.time_of, namespaces), np.int64, len(namespaces)).view(np.uint64)
        data = (times ^ np.uint64(_SIGN)).astype(">u8").tobytes()
        if self._rest is None:
            return [
                groups[group] + data[start : start + size] + key
                for group, start, key in zip(key_groups, range(0, len(data), size), made, strict=True)
            ]
        return [
            groups[group] + data[start : start + size] + rest + key
            for group, start, rest, key in zip(
                key_groups, range(0, len(data), size), map(self._rest_of, namespaces), made, strict=True
            )
        ]

    def parse(self, row: bytes) -> tuple[Any, Any, int]:
        source = DataInputView(row)
        source.skip(self._width)
        read = source.read_long()
        time = read - _SIGN if read >= 0 else read + _SIGN
        namespace = time if self._rest is None else (time, self._rest.deserialize(source))
        return self._key.deserialize(source), namespace, source.position

    def parse_many(self, rows: list[bytes]) -> tuple[list[Any], list[Any]]:
        start = self._width + _TIME_BYTES
        if not rows or min(map(len, rows)) < start:
            return super().parse_many(rows)
        data = b"".join([row[self._width : start] for row in rows])
        times = (np.frombuffer(data, ">u8").astype(np.uint64) ^ np.uint64(_SIGN)).view(np.int64).tolist()
        if self._rest is None:
            return self._key.from_bytes_many([row[start:] for row in rows]), times
        # Timers of one time mostly have one namespace.
        rest, read, rests, keys = None, b"", [], []
        for row in rows:
            if rest is None or not row.startswith(read, start):
                source = DataInputView(row)
                source.skip(start)
                rest = self._rest.deserialize(source)
                read = row[start : source.position]
            rests.append(rest)
            keys.append(row[start + len(read) :])
        return self._key.from_bytes_many(keys), list(zip(times, rests, strict=True))


def layout_of(meta: StateMeta, max_parallelism: int) -> RowLayout:
    """Return the layout of a state's rows, or of timers."""
    return (TimeLayout if holds_timers(meta) else RowLayout)(meta, max_parallelism)
