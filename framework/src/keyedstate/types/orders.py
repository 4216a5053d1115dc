"""The orders that sorters sort by: of rows of columns, and of serialized records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import pyarrow as pa

from keyedstate.errors import UnorderedTypeError
from keyedstate.memory.sorting.keys import NormalizedKeys, concatenated
from keyedstate.types.contract.normalized_keys import added_length, inverted, joined
from keyedstate.types.contract.serializer import TypeSerializer

T = TypeVar("T")

#: Bytes of the normalized keys in an index (Flink's ``NormalizedKeySorter`` has the same limit).
MAX_KEY_BYTES = 16


class ColumnOrder:
    """The order of rows by several columns, of which the first that differs decides.

    No column descends by default. Raises `UnorderedTypeError` for a type without an order.
    """

    def __init__(
        self, types: Sequence[TypeSerializer[Any]], descending: Sequence[bool] | None = None
    ) -> None:
        self._types = tuple(types)
        self._descending = (False,) * len(self._types) if descending is None else tuple(descending)
        if len(self._descending) != len(self._types):
            raise ValueError(f"{len(self._types)} columns and {len(self._descending)} directions")
        for serializer in self._types:
            if serializer.normalized_key_bytes is None:
                raise UnorderedTypeError(repr(serializer))
        length = added_length([serializer.normalized_key_bytes for serializer in self._types]) or 0
        #: The length of the normalized keys, from 1 to `MAX_KEY_BYTES`.
        self.key_bytes = min(max(length, 1), MAX_KEY_BYTES)
        #: Whether rows with equal normalized keys are always equal.
        self.decides = length <= MAX_KEY_BYTES and all(
            serializer.normalized_key_decides for serializer in self._types
        )

    def normalized_keys(self, columns: Sequence[pa.Array | pa.ChunkedArray]) -> NormalizedKeys:
        """Return the normalized keys of rows; raises as `TypeSerializer.normalized_keys`."""
        parts = []
        for serializer, column, descends in zip(self._types, columns, self._descending, strict=True):
            keys = serializer.normalized_keys(column)
            parts.append(keys.inverted() if descends else keys)
        rows = len(columns[0]) if columns else 0
        whole = parts[0] if len(parts) == 1 else concatenated(parts, rows)
        return whole.fitted(self.key_bytes)

    def whole_keys(self, columns: Sequence[pa.Array | pa.ChunkedArray]) -> pa.LargeBinaryArray:
        """Return the whole keys of rows; raises as `TypeSerializer.normalized_keys`."""
        parts = []
        for serializer, column, descends in zip(self._types, columns, self._descending, strict=True):
            keys = serializer.whole_keys(column)
            parts.append(inverted(keys) if descends else keys)
        return joined(parts, len(columns[0]) if columns else 0)


class RecordOrder(Generic[T]):
    """The order of records, and how a sorter writes and reads them.

    `key` returns what a record is sorted by, of the type `key_type`; the record itself by default. Raises
    `UnorderedTypeError` for a type without an order.
    """

    def __init__(
        self,
        serializer: TypeSerializer[T],
        key: Callable[[T], Any] | None = None,
        key_type: TypeSerializer[Any] | None = None,
        *,
        descending: bool = False,
    ) -> None:
        if (key is None) is not (key_type is None):
            raise ValueError("a key needs its type, and a type of keys the key")
        self._serializer = serializer
        self._key = key
        self._key_type: TypeSerializer[Any] = serializer if key_type is None else key_type
        self._order = ColumnOrder([self._key_type], [descending])
        #: Those of `ColumnOrder`.
        self.key_bytes = self._order.key_bytes
        self.decides = self._order.decides

    def serialize(self, records: Sequence[T]) -> list[bytes]:
        """Return the bytes of each record; raises ValueTypeError."""
        return self._serializer.to_bytes_many(records)

    def deserialize(self, data: Sequence[bytes]) -> list[T]:
        """Return the records of bytes; raises CorruptDataError."""
        return self._serializer.from_bytes_many(data)

    def normalized_keys(self, records: Sequence[T]) -> NormalizedKeys:
        """Return the normalized keys of records."""
        return self._order.normalized_keys([self._column(records)])

    def whole_keys(self, records: Sequence[T]) -> pa.LargeBinaryArray:
        """Return the whole keys of records."""
        return self._order.whole_keys([self._column(records)])

    def _column(self, records: Sequence[T]) -> pa.Array:
        keys: Sequence[Any] = records if self._key is None else list(map(self._key, records))
        return self._key_type.to_arrow(keys)
