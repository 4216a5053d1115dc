"""Delta files: the changes of one epoch, and how a full snapshot and its deltas are read.

A delta is a segment file, so its bytes are verified the same way and any Arrow tool reads it.  Each state is
one stream, for all key groups: an epoch that changes a little would otherwise cost a stream per key group.
The value of an entry is a struct of the key group, whether the entry exists (false: it was removed), and the
entry's value.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress, count, pairwise, repeat
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from keyedstate.backend import EntryBatch, EntryChange, StateHandle, StateMeta, TableChanges
from keyedstate.checkpoint.format.segment import (
    SegmentHandle,
    SegmentWriter,
    canonical_column,
    canonical_values,
    decoded,
    record_batches,
)
from keyedstate.checkpoint.format.segment_format import COLUMNS, SegmentFile
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.errors import CorruptFileError
from keyedstate.keygroups import KeyGroupRange
from keyedstate.tables import ArrowEntryBatch
from keyedstate.types import BOOLEAN, INT32, TypeSerializer, nullable, tuple_of
from keyedstate.types.contract.transposing import transposed

#: Entries that go into one columnar batch, as in a snapshot; it may have up to twice as many.
_BATCH_ENTRIES = 16_384


def write_delta(
    storage: CheckpointStorage,
    path: str,
    key_groups: KeyGroupRange,
    metas: Mapping[str, StateMeta],
    changes: Mapping[str, TableChanges[Any, Any, Any]],
    compression: str = "zstd",
) -> SegmentFile:
    """Write the changes of ``KeyedStateBackend.changes_since`` into a new file; the caller releases them.

    The `metas` are of every state with changes.  After a `UnwritableEntryError` or `StorageError` the file
    does not exist.
    """
    with SegmentWriter(storage, path, key_groups, compression) as writer:
        for name, changed in changes.items():
            writer.begin_state(_delta_meta(metas[name]))
            writer.write_columns(key_groups.start, _columns(metas[name], key_groups, changed))
        return writer.finish()


def read_changes(
    storage: CheckpointStorage, deltas: Sequence[SegmentFile], states: Sequence[StateMeta]
) -> Iterator[EntryChange]:
    """Yield the changes of deltas, in their order; each file is verified before any of it is yielded.

    The states are those after the last delta; their serializers read every file.  Raises a `CheckpointError`
    where a file, which is named, cannot be read.
    """
    for delta in deltas:
        with contextlib.closing(SegmentHandle.open(storage, delta)) as handle:
            for meta in states:
                for batch in handle.entries(meta.name, handle.key_groups.start):
                    groups, present, values = transposed(batch.values, 3)
                    names = repeat(meta.name, len(groups))
                    canonical = canonical_values(meta.value_serializer, values)
                    columns = (names, groups, batch.namespaces, batch.keys, present, canonical)
                    yield from map(EntryChange, *columns)


def _delta_meta(meta: StateMeta) -> StateMeta:
    value = meta.value_serializer
    return replace(
        meta, value_serializer=tuple_of(INT32, BOOLEAN, value if value.null_is_value else nullable(value))
    )


def _columns(
    meta: StateMeta, key_groups: KeyGroupRange, changed: TableChanges[Any, Any, Any]
) -> Iterator[pa.RecordBatch]:
    """Yield the changes in their stored form, without an object per change."""
    # Gathered over key groups: a small epoch changes a few entries of each, and a batch costs by itself.
    gathered = _Gathered(meta)
    for group in changed.occupied(key_groups):
        for batch in changed.written(group, _BATCH_ENTRIES):
            if isinstance(batch, ArrowEntryBatch) != gathered.is_arrow:
                yield from gathered.take()
            gathered.add(group, True, batch)
        for addresses in changed.removed(group, _BATCH_ENTRIES):
            if gathered.is_arrow:
                yield from gathered.take()
            nothing = [None] * len(addresses)
            gathered.add(group, False, EntryBatch(addresses.namespaces, addresses.keys, nothing))
        if len(gathered) >= _BATCH_ENTRIES:
            yield from gathered.take()
    yield from gathered.take()


class _Gathered:
    """Changes of several key groups that become one batch: all lists, or all columns (`is_arrow`)."""

    def __init__(self, meta: StateMeta) -> None:
        self._meta = meta
        self._stored = _delta_meta(meta).value_serializer.arrow_type
        self._clear()

    def _clear(self) -> None:
        self.is_arrow = False
        self._keys: list[Any] = []
        self._namespaces: list[Any] = []
        self._values: list[Any] = []
        self._columns: list[pa.RecordBatch] = []
        #: For each run of changes of one kind, its key group, whether there are entries, and how many.
        self._runs: list[tuple[int, bool, int]] = []

    def add(self, group: int, present: bool, batch: EntryBatch[Any, Any, Any]) -> None:
        """Add changes of one key group and kind."""
        if isinstance(batch, ArrowEntryBatch):
            self.is_arrow = True
            self._columns.append(batch.columns)
        else:
            self._namespaces += batch.namespaces
            self._keys += batch.keys
            self._values += batch.values
        self._runs.append((group, present, len(batch)))

    def __len__(self) -> int:
        return sum(length for _, _, length in self._runs)

    def _made(self) -> Iterator[pa.RecordBatch]:
        if self.is_arrow:
            yield from pa.Table.from_batches(self._columns).combine_chunks().to_batches()
        else:
            entries = EntryBatch(self._namespaces, self._keys, self._values)
            yield from record_batches(self._meta, self._runs[0][0], entries)

    def take(self) -> Iterator[pa.RecordBatch]:
        """Yield what was added as columns, and start again."""
        if not self._runs:
            return
        lengths = [length for _, _, length in self._runs]
        groups = np.repeat(np.array([group for group, _, _ in self._runs], np.int32), lengths)
        present = np.repeat(np.array([is_there for _, is_there, _ in self._runs], np.bool_), lengths)
        made = list(self._made())
        self._clear()
        start = 0
        for columns in made:
            some = slice(start, start + columns.num_rows)
            start += columns.num_rows
            parts = [pa.array(groups[some]), pa.array(present[some]), columns.column(2)]
            change = pa.StructArray.from_arrays(parts, fields=list(self._stored))
            yield pa.RecordBatch.from_arrays([columns.column(0), columns.column(1), change], list(COLUMNS))


@dataclass
class _ChangedColumns:
    """The changes of one state in all deltas of a chain."""

    #: Namespace, key and value of each change, in the order of the files.
    entries: pa.Table
    #: Whether the change wrote the entry; False where it removed it.
    present: list[bool]
    #: By key group and address, the row of the last change.
    rows: dict[int, dict[tuple[Any, Any], int]]
    #: The values as objects, and the key groups whose values were taken.
    values: Sequence[Any] = ()
    taken: set[int] = field(default_factory=set)

    def take_values(self, serializer: TypeSerializer[Any], key_group: int) -> Sequence[Any]:
        """Return the values by row, those of the key group as new objects: tables change theirs in place."""
        if not self.values or key_group in self.taken:
            self.values = canonical_values(serializer, serializer.from_arrow(self.entries.column("value")))
            self.taken.clear()
        self.taken.add(key_group)
        return self.values


def _may_be_in(column: pa.Array, wanted: pa.Array) -> pa.Array:
    """Return a mask that excludes only values which are surely not among others of their type."""
    if pa.types.is_struct(column.type) and column.type.num_fields:
        masks = map(_may_be_in, column.flatten(), wanted.flatten())
        return functools.reduce(pc.and_, masks)
    try:
        return pc.is_in(column, value_set=wanted)
    except pa.ArrowNotImplementedError:  # nested types
        return pa.array(np.ones(len(column), np.bool_))


class ChainHandle(StateHandle):
    """A full snapshot and the deltas that followed it, read as one snapshot.

    The deltas are in the order in which they were written.  The states are those after the last delta; their
    serializers read every file.  Memory has the deltas of the state that is read, never the full snapshot.
    """

    def __init__(
        self, full: SegmentHandle, deltas: Sequence[SegmentHandle], states: Sequence[StateMeta]
    ) -> None:
        self._full = full
        self._deltas = deltas
        self._states = {meta.name: meta for meta in states}
        #: Of the state that was read last: states are read one after the other.
        self._changes: tuple[str, _ChangedColumns] | None = None

    @property
    def key_groups(self) -> KeyGroupRange:
        return self._full.key_groups

    @property
    def states(self) -> Sequence[StateMeta]:
        return tuple(self._states.values())

    def occupied(self, state: str, key_groups: KeyGroupRange) -> Iterable[int]:
        changed = (key_group for key_group in self._changes_of(state).rows if key_group in key_groups)
        return sorted({*self._full.occupied(state, key_groups), *changed})

    def entries(self, state: str, key_group: int) -> Iterator[EntryBatch[Any, Any, Any]]:
        """Yield the entries of the full snapshot that no delta changed, then those that deltas wrote."""
        meta, changed = self._states[state], self._changes_of(state)
        rows = changed.rows.get(key_group, {})
        # Asked for first: most entries are not changed, and a pair is dearer to make than to look up a key.
        keys = {key for _, key in rows}
        for columns in self._full.columns(state, key_group):
            batch = decoded(meta, columns)
            if not keys.isdisjoint(batch.keys):
                kept = [address not in rows for address in zip(batch.namespaces, batch.keys, strict=True)]
                parts = batch.namespaces, batch.keys, batch.values
                batch = EntryBatch(*(list(compress(part, kept)) for part in parts))
            yield batch
        written = [(*address, row) for address, row in rows.items() if changed.present[row]]
        if written:
            values = changed.take_values(meta.value_serializer, key_group)
            namespaces, addressed, numbers = transposed(written, 3)
            yield EntryBatch(namespaces, addressed, [values[number] for number in numbers])

    def columns(self, state: str, key_group: int) -> Iterator[pa.RecordBatch]:
        """Yield the same entries in their stored form: the columns `segment_format.COLUMNS`, verified.

        Only those entries of the full snapshot become Python objects whose keys deltas may have changed.
        """
        changed = self._changes_of(state)
        rows = changed.rows.get(key_group, {})
        keys = changed.entries.column("key").take(pa.array(rows.values(), pa.int64())).combine_chunks()
        for batch in self._full.columns(state, key_group):
            places = pc.indices_nonzero(_may_be_in(batch.column(1), keys)) if rows else ()
            if len(places):
                kept = np.ones(batch.num_rows, np.bool_)
                kept[places] = [address not in rows for address in self._addresses(state, batch.take(places))]
                batch = batch.filter(pa.array(kept))
            yield batch
        present = [row for row in rows.values() if changed.present[row]]
        if present:
            yield from changed.entries.take(pa.array(present, pa.int64())).to_batches()

    def _addresses(self, state: str, columns: pa.RecordBatch) -> Iterator[tuple[Any, Any]]:
        meta = self._states[state]
        namespaces = canonical_column(meta.namespace_serializer, columns.column(0))
        return zip(namespaces, canonical_column(meta.key_serializer, columns.column(1)), strict=True)

    def _changes_of(self, state: str) -> _ChangedColumns:
        if self._changes is None or self._changes[0] != state:
            self._changes = None
            self._changes = state, self._changed_columns(state)
        return self._changes[1]

    def _changed_columns(self, state: str) -> _ChangedColumns:
        meta = self._states[state]
        parts = (meta.namespace_serializer, meta.key_serializer, meta.value_serializer)
        schema = pa.schema([(name, part.arrow_type) for name, part in zip(COLUMNS, parts, strict=True)])
        batches: list[pa.RecordBatch] = []
        present: list[bool] = []
        rows: dict[int, dict[tuple[Any, Any], int]] = {}
        for delta in self._deltas:
            for batch in delta.columns(state, delta.key_groups.start):
                group_column, there, values = batch.column(2).flatten()
                groups = group_column.to_numpy()
                stray = groups[(groups < self.key_groups.start) | (groups > self.key_groups.end)]
                if len(stray):
                    raise CorruptFileError(delta.location, f"a change of key group {stray[0]} is in it")
                batches.append(pa.record_batch([batch.column(0), batch.column(1), values], schema=schema))
                addresses = list(self._addresses(state, batch))
                # A delta is written key group by key group, so its entries come in a few runs.
                bounds = [0, *(np.flatnonzero(np.diff(groups)) + 1).tolist(), len(groups)]
                for start, end in pairwise(bounds):
                    of_group = rows.setdefault(int(groups[start]), {})
                    of_group.update(zip(addresses[start:end], count(len(present) + start), strict=False))
                present += there.to_pylist()
        # In one chunk, which `take` needs not look for.
        return _ChangedColumns(pa.Table.from_batches(batches, schema).combine_chunks(), present, rows)

    def close(self) -> None:
        """Close all files."""
        for handle in (self._full, *self._deltas):
            handle.close()
