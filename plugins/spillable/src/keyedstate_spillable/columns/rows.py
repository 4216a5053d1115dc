"""The rows of entries in columns: arrays become rows and rows arrays, without an object for an entry.

The key of a row is the key group in two bytes, the namespace as its serializer writes it after its length in
four bytes (nothing where the state has no namespaces), a byte that is 0 for the null key, and the key's bytes
as the index of the table has them.  The value is fixed in size: the epochs in which the entry was added and
changed last, its liveness, and of each field whether it is present and its eight bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from keyedstate.backend import Column, StateMeta
from keyedstate.tables import ArrowEntryBatch, column_dtype
from keyedstate.types import VOID
from keyedstate_heap_cow import NONE, KeyBytes, Keys, Slots, copy_bytes, starts_of, struct_of

_GROUP_BYTES = 2
_LENGTH_BYTES = 4
#: Groups are below 2**15, so no row of an entry begins with this byte.
AFTER_ALL_GROUPS = b"\x80"

Groups = npt.NDArray[np.int32]


class Spaces(NamedTuple):
    """The bytes of several namespaces, each after its length."""

    data: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int32]


class RowAddresses(NamedTuple):
    """The addresses in the keys of rows.

    Attributes
    ----------
    keys : Keys
    groups : ndarray of int32
    spaces : list of bytes
        The distinct namespaces.
    which : ndarray of int32
        The index in `spaces` of each row's namespace.
    """

    keys: Keys
    groups: Groups
    spaces: list[bytes]
    which: npt.NDArray[np.int32]


class RowValues(NamedTuple):
    """The values of rows."""

    columns: list[Column]
    nones: npt.NDArray[np.bool_]
    born: Slots
    changed: Slots


class ColumnRows:
    """How entries become rows and rows entries; for one thread, as the serializers of its `meta`.

    Parameters
    ----------
    meta : StateMeta
    """

    def __init__(self, meta: StateMeta) -> None:
        self.meta = meta
        self._key_bytes = KeyBytes(meta.key_serializer.arrow_type)
        self._has_spaces = meta.namespace_serializer != VOID
        self._dtypes = [column_dtype(field.type) for field in meta.value_serializer.arrow_type]
        self._row = np.dtype(
            [
                ("born", np.int64),
                ("changed", np.int64),
                ("live", np.uint8),
                ("there", np.bool_, (len(self._dtypes),)),
                ("values", np.int64, (len(self._dtypes),)),
            ]
        )

    # -- keys of rows ---------------------------------------------------------------------------------------

    @staticmethod
    def group_prefix(key_group: int) -> bytes:
        """Return the prefix of all rows of a key group."""
        return key_group.to_bytes(_GROUP_BYTES, "big")

    def of_entries(
        self, key_bytes: npt.NDArray[np.uint8], entries: npt.NDArray[Any], spaces: Sequence[Any]
    ) -> list[bytes]:
        """Return the keys of the rows of entries of an index, given by its bytes and some of its entries."""
        keys = key_bytes, starts_of(entries), entries["length"]
        namespaces: list[Any] = []
        which = entries["space"]
        if self._has_spaces:
            used, which = np.unique(which, return_inverse=True)
            namespaces = [spaces[number] for number in used.tolist()]
        return self.of_keys(keys, entries["group"], namespaces, which.reshape(-1))

    def of_keys(
        self, keys: Keys, groups: npt.NDArray[Any], namespaces: Sequence[Any], which: npt.NDArray[Any]
    ) -> list[bytes]:
        """Return the keys of rows; `which` has the index of each row's namespace."""
        data, starts, lengths = keys
        rows = len(starts)
        group_bytes = np.ascontiguousarray(groups, ">u2").view(np.uint8)
        flags = (lengths >= 0).astype(np.uint8)
        parts = [
            (group_bytes, _every(_GROUP_BYTES, rows), np.full(rows, _GROUP_BYTES, np.int32)),
            (flags, _every(1, rows), np.ones(rows, np.int32)),
            (data, np.ascontiguousarray(starts), np.ascontiguousarray(lengths)),
        ]
        if self._has_spaces:
            spaces = self._spaces_of(namespaces)
            parts.insert(1, (spaces.data, spaces.starts[which], spaces.lengths[which]))
        return _joined(parts)

    def _spaces_of(self, namespaces: Sequence[Any]) -> Spaces:
        made = self.meta.namespace_serializer.to_bytes_many(list(namespaces))
        made = [len(one).to_bytes(_LENGTH_BYTES, "little") + one for one in made]
        lengths = np.fromiter(map(len, made), np.int32, len(made))
        return Spaces(
            np.frombuffer(b"".join(made) or b"\0", np.uint8),
            np.cumsum(lengths, dtype=np.int64) - lengths,
            lengths,
        )

    def addresses(self, rows: Sequence[bytes]) -> RowAddresses:
        """Return the addresses in the keys of rows."""
        joined = b"".join(rows)
        data = np.frombuffer(joined or b"\0", np.uint8)
        sizes = np.fromiter(map(len, rows), np.int64, len(rows))
        ends = np.cumsum(sizes)
        cursor = ends - sizes
        groups = data[cursor].astype(np.int32) << 8 | data[cursor + 1]
        cursor += _GROUP_BYTES
        spaces: dict[bytes, int] = {}
        which = np.zeros(len(rows), np.int32)
        if self._has_spaces:
            lengths = np.empty(len(rows), np.int32)
            copied = np.full(len(rows), _LENGTH_BYTES, np.int32)
            copy_bytes(data, cursor, lengths.view(np.uint8), _every(_LENGTH_BYTES, len(rows)), copied)
            cursor += _LENGTH_BYTES
            until = cursor + lengths
            found = [joined[start:end] for start, end in zip(cursor.tolist(), until.tolist(), strict=True)]
            spaces = {space: number for number, space in enumerate(dict.fromkeys(found))}
            which = np.fromiter(map(spaces.__getitem__, found), np.int32, len(rows))
            cursor = until
        there = data[cursor] != 0
        cursor += 1
        key_lengths = np.where(there, ends - cursor, -1).astype(np.int32)
        return RowAddresses((data, cursor, key_lengths), groups, list(spaces), which)

    def namespaces(self, found: RowAddresses) -> list[Any]:
        """Return the namespaces to which `RowAddresses.which` refers."""
        if not self._has_spaces:
            return self.meta.namespace_serializer.from_arrow(pa.nulls(1))
        serializer = self.meta.namespace_serializer
        made = serializer.from_bytes_many(found.spaces)
        return list(map(serializer.canonical, made)) if serializer.needs_canonical else made

    # -- values of rows -------------------------------------------------------------------------------------

    def encode(
        self, columns: Sequence[Column], live: npt.NDArray[np.uint8], born: Slots | int, changed: Slots | int
    ) -> list[bytes]:
        """Return the values of rows."""
        made = np.zeros(len(live), self._row)
        made["born"], made["changed"], made["live"] = born, changed, live
        for number, (column, dtype) in enumerate(zip(columns, self._dtypes, strict=True)):
            made["there"][:, number] = column.there
            made["values"][:, number] = column.values.astype(dtype, copy=False).view(np.int64)
        data: list[bytes] = made.view(f"V{self._row.itemsize}").tolist()
        return data

    def decode(self, data: Sequence[bytes]) -> RowValues:
        """Return the values of rows."""
        made = np.frombuffer(b"".join(data), self._row)
        columns = [
            Column(made["values"][:, number].copy().view(dtype), made["there"][:, number])
            for number, dtype in enumerate(self._dtypes)
        ]
        return RowValues(columns, made["live"] == NONE, made["born"], made["changed"])

    def changed_after(self, data: Sequence[bytes], epoch: int) -> npt.NDArray[np.bool_]:
        """Return which rows were changed after an epoch."""
        after: npt.NDArray[np.bool_] = np.frombuffer(b"".join(data), self._row)["changed"] > epoch
        return after

    # -- entries --------------------------------------------------------------------------------------------

    def batch(self, rows: Sequence[bytes], data: Sequence[bytes]) -> ArrowEntryBatch:
        """Return the entries of rows."""
        found, values = self.addresses(rows), self.decode(data)
        spaces = self.meta.namespace_serializer.to_arrow(self.namespaces(found))
        arrays = [
            spaces.take(pa.array(found.which)),
            self._key_bytes.decode(*found.keys),
            struct_of(self.meta.value_serializer.arrow_type, values.columns, values.nones),
        ]
        return ArrowEntryBatch(self.meta, pa.RecordBatch.from_arrays(arrays, ["namespace", "key", "value"]))


def _joined(parts: Sequence[Keys]) -> list[bytes]:
    """Return bytes objects that consist of one piece of each part; negative lengths are nothing."""
    lengths = [np.maximum(lengths, 0).astype(np.int64) for _, _, lengths in parts]
    rows = len(lengths[0])
    offsets = np.zeros(rows + 1, np.int64)
    np.cumsum(np.sum(lengths, axis=0), out=offsets[1:])
    made = np.empty(max(int(offsets[-1]), 1), np.uint8)
    cursor = offsets[:-1].copy()
    for (data, starts, _), own in zip(parts, lengths, strict=True):
        copy_bytes(data, starts, made, cursor, own.astype(np.int32))
        cursor += own
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(made)]
    joined: list[bytes] = pa.Array.from_buffers(pa.large_binary(), rows, buffers).to_pylist()
    return joined


def _every(step: int, rows: int) -> npt.NDArray[np.int64]:
    return np.arange(0, step * rows, step, dtype=np.int64)
