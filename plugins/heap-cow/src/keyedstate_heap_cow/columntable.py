"""The state table of numbers in columns: each field of the values is an array, indexed by entry numbers.

An entry is found by the bytes of its key and gets the next number when it is added.  A removed entry keeps
its number and is no longer `live`.  When most entries are removed ones, the others are renumbered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

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
from keyedstate.tables import (
    AddressVisitor,
    ArrowEntryBatch,
    check_ascending,
    column_dtype,
    is_numeric,
)
from keyedstate.types import VOID, AccumulatorsSerializer
from keyedstate_heap_cow.column_snapshot import (
    Addresses,
    ColumnsChanges,
    ColumnsSnapshot,
    columns_of,
    struct_of,
)
from keyedstate_heap_cow.keybytes import KeyBytes, Keys, has_bytes
from keyedstate_heap_cow.keyindex import KeyIndex

K = TypeVar("K")
N = TypeVar("N")
V = TypeVar("V")
U = TypeVar("U")

Slots = npt.NDArray[np.int64]

#: The liveness of an entry: removed, with a value, with the value None.
GONE, PRESENT, NONE = 0, 1, 2
#: The epoch of entries that are older than the first one.
_BEFORE = -(2**62)
#: Removed entries below which nothing is renumbered.
_FEW = 4096
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


class CopyOnWriteColumns(StateTable[K, N, V], ChangeTracking[K, N, V], ColumnTable[N]):
    """A table of columns: a snapshot keeps the arrays, and the owner continues with copies of them.

    Parameters
    ----------
    meta : StateMeta
        One for which `fits` is true.
    key_groups : KeyGroupRange
    """

    def __init__(self, meta: StateMeta, key_groups: KeyGroupRange) -> None:
        self._meta = meta
        self._key_groups = key_groups
        self._keys = KeyBytes(meta.key_serializer.arrow_type)
        self._index = KeyIndex()
        #: Namespaces by their numbers; only ever appended to, so that a snapshot may read it.
        self._spaces: list[N] = []
        self._space_numbers: dict[N, int] = {}
        capacity = self._index.capacity
        #: The liveness of each entry: `GONE`, `PRESENT` or `NONE`.
        self._live = np.zeros(capacity, np.uint8)
        #: The fields of the values.  These and `_live` never change while a snapshot keeps them.
        self._fields = [
            Column(np.zeros(capacity, column_dtype(field.type)), np.zeros(capacity, np.bool_))
            for field in meta.value_serializer.arrow_type
        ]
        #: Tokens of the snapshots that keep these arrays; a snapshot removes its own in any thread.
        self._readers: set[object] = set()
        #: The epochs in which an entry was added, and changed last.
        self._born = np.full(capacity, _BEFORE, np.int64)
        self._changed = np.full(capacity, _BEFORE, np.int64)
        self._count = 0
        self._gone = 0
        #: Removed entries at which the others are renumbered.
        self._most_gone = _FEW
        #: How often the entries were renumbered.
        self.numbering = 0
        #: The running epoch; None before the first one, when changes are not tracked.
        self._epoch: int | None = None
        #: By epoch the entries that were written, each once, and those that were removed, with their `_born`.
        self._written: dict[int, list[Slots]] = {}
        self._removed: dict[int, list[tuple[Slots, Slots]]] = {}

    @property
    def meta(self) -> StateMeta:
        return self._meta

    def replace_meta(self, meta: StateMeta) -> None:
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
        if self._gone > self._most_gone and 2 * self._gone > self._index.count:
            self._renumber()
        spaces = np.fromiter(map(self._space, namespaces), np.int32, len(namespaces))
        if which is not None:
            spaces = spaces[which]
        groups = np.ascontiguousarray(key_groups, np.int32)
        known = self._index.count
        data, starts, lengths = self._keys.encode(keys)
        codes, slots, first_rows = self._index.locate(data, starts, lengths, spaces, groups, True)
        self._grow()
        self._gone += self._index.count - known
        return _Located(self, codes, slots, first_rows)

    def _space(self, namespace: N) -> int:
        number = self._space_numbers.get(namespace)
        if number is None:
            number = self._space_numbers[namespace] = len(self._spaces)
            self._spaces.append(namespace)
        return number

    def _grow(self) -> None:
        """Make the arrays as long as the index; new elements say that there is no entry."""
        more = self._index.capacity - len(self._live)
        if more <= 0:
            return
        self._live = np.concatenate([self._live, np.zeros(more, np.uint8)])
        self._born = np.concatenate([self._born, np.full(more, _BEFORE, np.int64)])
        self._changed = np.concatenate([self._changed, np.full(more, _BEFORE, np.int64)])
        self._fields = [
            Column(
                np.concatenate([field.values, np.zeros(more, field.values.dtype)]),
                np.concatenate([field.there, np.zeros(more, np.bool_)]),
            )
            for field in self._fields
        ]
        self._readers = set()

    def _own(self) -> None:
        """Copy the arrays before a change where a snapshot keeps them."""
        if self._readers:
            self._live = self._live.copy()
            self._fields = [Column(field.values.copy(), field.there.copy()) for field in self._fields]
            self._readers = set()

    def read(self, slots: Slots) -> list[Column]:
        """Return the fields of entries; those of removed entries are missing."""
        # Removed entries, and those that are None, have no field.
        columns = []
        for field in self._fields:
            present = field.there[slots]
            columns.append(Column(field.values[slots], None if present.all() else present))
        return columns

    def write(self, slots: Slots, columns: Sequence[Column], nones: npt.NDArray[np.bool_] | None) -> None:
        """Write distinct entries; `nones` says which of them have the value None."""
        self._own()
        epoch = self._epoch
        self._set(slots, columns, nones, _BEFORE if epoch is None else epoch)
        if epoch is not None:
            fresh = slots[self._changed[slots] != epoch]
            if len(fresh):
                self._changed[fresh] = epoch
                self._written.setdefault(epoch, []).append(fresh)

    def _set(
        self, slots: Slots, columns: Sequence[Column], nones: npt.NDArray[np.bool_] | None, epoch: int
    ) -> None:
        for field, column in zip(self._fields, columns, strict=True):
            field.values[slots] = column.values
            field.there[slots] = True if column.present is None else column.present
        new = slots[self._live[slots] == GONE]
        if len(new):
            self._born[new] = epoch
            self._count += len(new)
            self._gone -= len(new)
        self._live[slots] = PRESENT if nones is None else np.where(nones, NONE, PRESENT)

    def take_out(self, slots: Slots) -> None:
        """Remove those of distinct entries that exist."""
        slots = slots[self._live[slots] != GONE]
        if not len(slots):
            return
        self._own()
        self._live[slots] = GONE
        for field in self._fields:
            field.there[slots] = False
        self._count -= len(slots)
        self._gone += len(slots)
        if self._epoch is not None:
            self._removed.setdefault(self._epoch, []).append((slots, self._born[slots]))
            # If it is added again within the epoch, it counts as written again.
            self._changed[slots] = _BEFORE

    def live(self, slots: Slots) -> npt.NDArray[np.uint8]:
        """Return the liveness of entries: `GONE`, `PRESENT` or `NONE`."""
        return self._live[slots]

    def _renumber(self) -> None:
        """Drop removed entries, except those that belong to tracked changes, and renumber the others."""
        index = self._index
        kept_flags = self._live[: index.count] != GONE
        for removals in self._removed.values():
            for slots, _ in removals:
                kept_flags[slots] = True
        kept = np.flatnonzero(kept_flags)
        numbers = np.cumsum(kept_flags) - 1
        spaces, space_of = np.unique(index.entries["space"][kept], return_inverse=True)
        self._spaces = [self._spaces[space] for space in spaces.tolist()]
        self._space_numbers = {space: number for number, space in enumerate(self._spaces)}
        self._index = index.keep(kept, space_of.reshape(-1).astype(np.int32))
        self._written = {
            epoch: [numbers[slots[kept_flags[slots]]] for slots in written]
            for epoch, written in self._written.items()
        }
        self._removed = {
            epoch: [(numbers[slots], born) for slots, born in removed]
            for epoch, removed in self._removed.items()
        }
        self._live, self._born, self._changed = self._live[kept], self._born[kept], self._changed[kept]
        self._fields = [field.take(kept) for field in self._fields]
        self._readers = set()
        self._gone = len(kept) - self._count
        self._most_gone = 2 * self._gone + _FEW
        self.numbering += 1
        self._grow()

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
        """Return the values of entries, with None where there is none."""
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
        if not len(batch):
            return
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
        known = self._index.count
        data, starts, lengths = self._keys.encode(self._keys.columns(keys))
        codes, slots, _ = self._index.locate(data, starts, lengths, spaces, groups, True)
        self._grow()
        self._gone += self._index.count - known
        self._own()
        self._set(slots[codes], *columns_of(values), _BEFORE)

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
        token, readers = object(), self._readers
        readers.add(token)
        return ColumnsSnapshot(
            self._addresses(), self._live, tuple(self._fields), NONE, lambda: readers.discard(token)
        )

    def _addresses(self) -> Addresses:
        return Addresses(
            self._meta.duplicate(), self._keys, self._index.bytes, self._index.entries, self._spaces
        )

    # -- changes ------------------------------------------------------------------------------------------

    def begin_epoch(self, epoch: int) -> None:
        check_ascending(epoch, self._epoch)
        self._epoch = epoch

    def changes_since(self, epoch: int) -> TableChanges[K, N, V]:
        found = [slots for at, written in self._written.items() if at > epoch for slots in written]
        written = np.unique(np.concatenate(found)) if found else np.empty(0, np.int64)
        written = written[self._live[written] != GONE]
        # An entry that was added after the epoch is no removal.
        gone = [
            slots[born <= epoch]
            for at, removals in self._removed.items()
            if at > epoch
            for slots, born in removals
        ]
        removed = np.unique(np.concatenate(gone)) if gone else np.empty(0, np.int64)
        removed = removed[self._live[removed] == GONE]
        values = self._struct(self.read(written), self._live[written] == NONE)
        return ColumnsChanges(self._addresses(), written, values, removed)

    def forget_changes(self, epoch: int) -> None:
        for noted in (self._written, self._removed):
            for known in [known for known in noted if known <= epoch and known != self._epoch]:
                del noted[known]


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
