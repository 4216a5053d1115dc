"""The state table of numbers in columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from keyedstate.backend import (
    ChangeTracking,
    Column,
    ColumnTable,
    EntryBatch,
    IncrementalVisitor,
    LocatedEntries,
    StateKind,
    StateMeta,
    StateTable,
    TableChanges,
    TableSnapshot,
)
from keyedstate.keygroups import KeyGroupRange
from keyedstate.tables import AddressVisitor, ArrowEntryBatch, column_dtype, is_numeric
from keyedstate.types import VOID, AccumulatorsSerializer
from keyedstate_heap_cow.before_images import FrozenArrays
from keyedstate_heap_cow.column_snapshot import (
    Addresses,
    ColumnsChanges,
    ColumnsSnapshot,
    columns_of,
    struct_of,
)
from keyedstate_heap_cow.entry_columns import GONE, NONE, PRESENT, EntryColumns, Slots
from keyedstate_heap_cow.keybytes import Keys, has_bytes

K = TypeVar("K")
N = TypeVar("N")
V = TypeVar("V")
U = TypeVar("U")

#: Entries of a step of an iteration.
_STEP = 4096


def fits(meta: StateMeta) -> bool:
    """Return whether the entries of a state can be columns: accumulators of numbers under keys of bytes."""
    key, value = meta.key_serializer, meta.value_serializer
    return (
        meta.kind is StateKind.VALUE
        and isinstance(value, AccumulatorsSerializer)
        and all(is_numeric(field.type) for field in value.arrow_type)
        and has_bytes(key.arrow_type)
        # Keys that are null structs would have no columns of their parts.
        and not (key.null_is_value and pa.types.is_struct(key.arrow_type))
    )


class CopyOnWriteColumns(
    EntryColumns[N], StateTable[K, N, V], ChangeTracking[K, N, V], ColumnTable[N], Generic[K, N, V]
):
    """A table of columns: a snapshot reads its arrays, and gets the former values of entries that change.

    A backend with two tiers of storage extends it (`EntryColumns.evict`, `EntryColumns.admit`).

    Parameters
    ----------
    meta : StateMeta
        One for which `fits` is true.
    key_groups : KeyGroupRange
    """

    def __init__(self, meta: StateMeta, key_groups: KeyGroupRange) -> None:
        super().__init__(meta)
        self._meta = meta
        self._key_groups = key_groups

    @property
    def meta(self) -> StateMeta:
        return self._meta

    def replace_meta(self, meta: StateMeta) -> None:
        self._renumbering = None  # it copies the arrays of the former types
        if self._images:
            self._set_arrays([array.copy() for array in self._arrays()])
        types = [field.type for field in meta.value_serializer.arrow_type]
        self._fields = [
            Column(field.values.astype(column_dtype(type_), copy=False), field.present)
            for field, type_ in zip(self._fields, types, strict=True)
        ]
        self._meta = meta

    @property
    def key_groups(self) -> KeyGroupRange:
        return self._key_groups

    def __len__(self) -> int:
        return self._count

    # -- columns ------------------------------------------------------------------------------------------

    def locate(
        self,
        keys: Sequence[pa.Array],
        key_groups: npt.NDArray[np.int32],
        namespaces: Sequence[N],
        which: npt.NDArray[np.int32] | None = None,
    ) -> LocatedEntries:
        """Find the entries of rows; a new one gets a number, and nothing else yet."""
        self._renumber_unused(len(key_groups))
        spaces = np.fromiter(map(self._space, namespaces), np.int32, len(namespaces))
        if which is not None:
            spaces = spaces[which]
        groups = np.ascontiguousarray(key_groups, np.int32)
        return _Located(self, *self.number(self._keys.encode(keys), spaces, groups))

    # -- one entry ----------------------------------------------------------------------------------------

    def _find(self, key_groups: Sequence[int], keys: Sequence[K], namespace: N) -> Slots:
        """Return the numbers of entries; -1 where there never was one."""
        space = self._space_numbers.get(namespace)
        if space is None or not len(keys):
            return np.full(len(keys), -1, np.int64)
        data, starts, lengths = self._bytes_of(keys)
        groups = np.fromiter(key_groups, np.int32, len(keys))
        spaces = np.array([space], np.int32)
        codes, slots, _ = self._index.locate(data, starts, lengths, spaces, groups, False)
        found: Slots = slots[codes]
        return found

    def _bytes_of(self, keys: Sequence[K]) -> Keys:
        return self._keys.encode(self._keys.columns(self._meta.key_serializer.to_arrow(keys)))

    def _values_at(self, slots: Slots) -> list[Any]:
        """Return the values of entries, with None where one is missing."""
        kinds = np.where(slots >= 0, self._live[slots], GONE)
        if not (kinds == PRESENT).any():
            return [None] * len(slots)
        values = self._meta.value_serializer.from_arrow(self._struct(self.read(slots), kinds != PRESENT))
        return values

    def _struct(self, columns: Sequence[Column], missing: npt.NDArray[np.bool_]) -> pa.StructArray:
        return struct_of(self._meta.value_serializer.arrow_type, columns, missing)

    def get(self, key_group: int, key: K, namespace: N) -> V | None:
        value: V | None = self._values_at(self._find((key_group,), (key,), namespace))[0]
        return value

    def contains(self, key_group: int, key: K, namespace: N) -> bool:
        slot = int(self._find((key_group,), (key,), namespace)[0])
        return slot >= 0 and bool(self._live[slot] != GONE)

    def get_for_update(self, key_group: int, key: K, namespace: N) -> V | None:
        """Return the value, which is immutable, and count it as changed."""
        return self.get_many_for_update((key_group,), (key,), namespace)[0]

    def put(self, key_group: int, key: K, namespace: N, value: V) -> None:
        self.put_many((key_group,), (key,), namespace, (value,))

    def remove(self, key_group: int, key: K, namespace: N) -> None:
        self.remove_many((key_group,), (key,), namespace)

    # -- many entries -------------------------------------------------------------------------------------

    def get_many(self, key_groups: Iterable[int], keys: Iterable[K], namespace: N) -> list[V | None]:
        groups, wanted = _equally_long(key_groups, keys)
        return self._values_at(self._find(groups, wanted, namespace))

    def get_many_for_update(
        self, key_groups: Iterable[int], keys: Iterable[K], namespace: N
    ) -> list[V | None]:
        groups, wanted = _equally_long(key_groups, keys)
        slots = self._find(groups, wanted, namespace)
        found = np.unique(slots[slots >= 0])
        found = found[self._live[found] != GONE]
        if len(found):
            self.write(found, self.read(found), self._live[found] == NONE)
        return self._values_at(slots)

    def put_many(
        self, key_groups: Iterable[int], keys: Iterable[K], namespace: N, values: Iterable[V]
    ) -> None:
        groups, wanted = _equally_long(key_groups, keys)
        given = list(values)
        if len(given) != len(wanted):
            raise ValueError(f"{len(wanted)} keys and {len(given)} values; give one of each for every entry")
        if wanted:
            array = self._meta.value_serializer.to_arrow(given)
            located = self._located(groups, wanted, namespace)
            last = np.empty(len(located), np.int64)
            # Of several assignments to one index the last one counts.
            last[located.codes] = np.arange(len(wanted))
            self.write(located.slots, *columns_of(array.take(pa.array(last))))

    def _located(self, groups: Sequence[int], keys: Sequence[K], namespace: N) -> _Located:
        columns = self._keys.columns(self._meta.key_serializer.to_arrow(keys))
        located = self.locate(columns, np.fromiter(groups, np.int32, len(keys)), [namespace])
        assert isinstance(located, _Located)
        return located

    def remove_many(self, key_groups: Iterable[int], keys: Iterable[K], namespace: N) -> None:
        slots = self._find(*_equally_long(key_groups, keys), namespace)
        self.take_out(np.unique(slots[slots >= 0]))

    def restore_entries(self, key_group: int, batch: EntryBatch[K, N, V]) -> None:
        if len(batch):
            self._restore(key_group, batch)

    def _restore(self, key_group: int, batch: EntryBatch[K, N, V]) -> Slots:
        """Add entries at addresses of one key group that have none, and return their numbers."""
        if isinstance(batch, ArrowEntryBatch):
            keys, values = batch.columns.column(1), batch.columns.column(2)
        else:
            keys = self._meta.key_serializer.to_arrow(batch.keys)
            values = self._meta.value_serializer.to_arrow(batch.values)
        if self._meta.namespace_serializer == VOID:
            spaces = np.array([self._space(batch.namespaces[0])], np.int32)
        else:
            spaces = np.fromiter(map(self._space, batch.namespaces), np.int32, len(batch))
        groups = np.full(len(batch), key_group, np.int32)
        codes, slots, _ = self._number(self._keys.encode(self._keys.columns(keys)), spaces, groups)
        restored: Slots = slots[codes]
        self._keep_images(restored)
        self._set(restored, *columns_of(values))
        self._born[restored] = 0
        return restored

    # -- all entries --------------------------------------------------------------------------------------

    def keys_and_namespaces(self) -> Iterator[tuple[K, N]]:
        snapshot = self.snapshot()
        try:
            for group in self._key_groups:
                for batch in snapshot.batches(group, _STEP):
                    yield from zip(batch.keys, batch.namespaces, strict=True)
        finally:
            snapshot.release()

    def visitor(self, batch_size: int) -> IncrementalVisitor[K, N, V]:
        return AddressVisitor(self, batch_size)

    def snapshot(self) -> TableSnapshot[K, N, V]:
        """Take a snapshot: it refers to the arrays, whatever the number of entries."""
        return self._snapshot_of(self._freeze())

    def _snapshot_of(self, arrays: FrozenArrays) -> ColumnsSnapshot:
        images = self._images
        return ColumnsSnapshot(self._addresses(), arrays, NONE, lambda: images.release(arrays))

    def _addresses(self) -> Addresses:
        return Addresses(
            self._meta.duplicate(), self._keys, self._index.bytes, self._index.entries, self._spaces
        )

    # -- changes ------------------------------------------------------------------------------------------

    def changes_since(self, epoch: int) -> TableChanges[K, N, V]:
        return self._captured(*self._changed_since(epoch))

    def _captured(self, written: Slots, removed: Slots) -> ColumnsChanges:
        """Return changes with the present values of the entries that were written."""
        values = self._struct(self.read(written), self._live[written] == NONE)
        return ColumnsChanges(self._addresses(), written, values, removed)


class _Located(LocatedEntries):
    """Entries by their numbers."""

    def __init__(
        self, table: CopyOnWriteColumns[Any, Any, Any], codes: Slots, slots: Slots, first_rows: Slots
    ) -> None:
        self._table = table
        self._numbering = table.numbering
        self.codes = codes
        self.slots = slots
        self.first_rows = first_rows

    def _check(self) -> None:
        if self._table.numbering != self._numbering:
            raise RuntimeError("the table was changed after these entries were located; locate them again")

    @property
    def exist(self) -> npt.NDArray[np.bool_]:
        self._check()
        exist: npt.NDArray[np.bool_] = self._table.live(self.slots) != GONE
        return exist

    def read(self) -> list[Column]:
        self._check()
        return self._table.read(self.slots)

    def write(self, columns: Sequence[Column]) -> None:
        self._check()
        self._table.write(self.slots, columns, None)

    def remove(self) -> None:
        self._check()
        self._table.take_out(self.slots)


def _equally_long(key_groups: Iterable[int], keys: Iterable[K]) -> tuple[list[int], list[K]]:
    groups, wanted = list(key_groups), list(keys)
    if len(groups) != len(wanted):
        raise ValueError(f"{len(groups)} key groups and {len(wanted)} keys; give one of each for every entry")
    return groups, wanted
