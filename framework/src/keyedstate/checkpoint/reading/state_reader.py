"""Stored state as typed Arrow batches, for the data source and the export of the command line.

Columns are read as they are stored; only entries that deltas have changed become Python objects.  A reader
gets what a state's serializer writes into a column: numbers, strings, structs for tuples, rows and
dataclasses, lists, maps.  A time to live becomes columns of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from keyedstate.backend import StateMeta
from keyedstate.checkpoint.format.segment import SegmentHandle
from keyedstate.checkpoint.protocol.recovery import opened_handles
from keyedstate.checkpoint.savepoint.operator_snapshot import OperatorSnapshot
from keyedstate.errors import (
    GenericStateRefusedError,
    UnknownStateError,
    UnreadableStateError,
)
from keyedstate.keygroups import KeyGroupRange
from keyedstate.operator_state import OPERATOR_KEY_GROUP, OperatorStateKind, OperatorStateMeta
from keyedstate.types import (
    INT32,
    INT64,
    TtlListSerializer,
    TtlMapSerializer,
    TtlSerializer,
    TypeSerializer,
    generic_parts,
)
from keyedstate.types.contract.composite import CompositeSerializer

#: The timestamp of a value whose time of writing is unknown.
_UNKNOWN_TIME = 2**63 - 1
_STAMP = pa.timestamp("ms", "UTC")
#: Bytes of files behind one slice: what one task reads.
SLICE_BYTES = 128 << 20


@dataclass(frozen=True)
class StateSlice:
    """A chunk of one state: some key groups of what one task wrote."""

    #: Of keyed state.
    key_groups: KeyGroupRange
    #: The task that wrote it.
    part: int


class StateReader(ABC):
    """Reads one state; may be sent to other processes."""

    name: str
    #: Of every batch.
    schema: pa.Schema
    #: The type of each column that finds an entry, by its name: in the order to sort by.
    address: dict[str, TypeSerializer[Any]]

    @abstractmethod
    def slices(
        self, key_groups: KeyGroupRange | None = None, bytes_each: int = SLICE_BYTES
    ) -> list[StateSlice]:
        """Return the slices that cover the wanted key groups, from metadata alone; none for an empty state.

        A slice should need at most `bytes_each` bytes of files.
        """

    @abstractmethod
    def read(self, piece: StateSlice) -> Iterator[pa.RecordBatch]:
        """Yield the entries of one slice; raises a `CheckpointError` for an unreadable file."""


class KeyedStateReader(StateReader):
    """Reads one keyed state; one with pickled parts only if that is allowed, as bytes.

    The columns are those of the key, under their names in the DataFrame; then ``namespace``; ``value``;
    ``written_at``, the time from which the time to live counts, null without one: for a list one per element,
    for a map one per entry; ``expires_at``, when the last of the value expires, null where no time to live is
    known; ``key_group``; ``state``. Where a key column has one of these names, ours gets underscores behind
    it. Raises `GenericStateRefusedError`.
    """

    def __init__(self, snapshot: OperatorSnapshot, meta: StateMeta, allow_generic: bool = False) -> None:
        if not allow_generic:
            _refuse_generic(snapshot, meta.name, meta.value_serializer, meta.namespace_serializer)
        self.name = meta.name
        self.kind = meta.kind
        self._snapshot = snapshot
        self._meta = meta
        known = [part.ttl_ms[meta.name] for part in snapshot.metadata.parts if meta.name in part.ttl_ms]
        self._ttl_ms = max(known, default=None)
        key_names = [name for name, _ in snapshot.metadata.key_columns] or ["key"]
        self._key_is_struct = len(key_names) > 1
        key_type = meta.key_serializer.arrow_type
        key_types = [field.type for field in key_type] if self._key_is_struct else [key_type]
        value, written = _plain_types(meta.value_serializer)
        own = [
            ("namespace", meta.namespace_serializer.arrow_type),
            ("value", value),
            ("written_at", written),
            ("expires_at", _STAMP),
            ("key_group", pa.int32()),
            ("state", pa.string()),
        ]
        #: The names of our columns, by their names where no key column has the same.
        self.own_names = {name: _free_name(name, key_names) for name, _ in own}
        self.key_names = key_names
        fields = [
            *zip(key_names, key_types, strict=True),
            *((self.own_names[name], type_) for name, type_ in own),
        ]
        self.schema = pa.schema(fields)
        key = meta.key_serializer
        parts = key.inners if self._key_is_struct and isinstance(key, CompositeSerializer) else [key]
        self.address = dict(zip(key_names, parts, strict=True))
        self.address[self.own_names["namespace"]] = meta.namespace_serializer

    def slices(
        self, key_groups: KeyGroupRange | None = None, bytes_each: int = SLICE_BYTES
    ) -> list[StateSlice]:
        pieces = []
        for number, part in enumerate(self._snapshot.metadata.parts):
            wanted = part.key_groups if key_groups is None else part.key_groups.intersection(key_groups)
            native = () if part.native is None else (part.native,)
            files = [*part.segments, *part.deltas, *native]
            if not wanted or not any(self.name in file.entries for file in files):
                continue
            size = sum(file.bytes for file in files)
            count = min(len(wanted), max(1, -(-size // bytes_each)))
            bounds = [wanted.start + len(wanted) * cut // count for cut in range(count + 1)]
            pieces += [StateSlice(KeyGroupRange(start, end - 1), number) for start, end in pairwise(bounds)]
        return pieces

    def read(self, piece: StateSlice) -> Iterator[pa.RecordBatch]:
        with opened_handles(self._snapshot.metadata, self._snapshot.storage, piece.key_groups) as handles:
            for handle in handles:
                metas = {meta.name: meta for meta in handle.states}
                if self.name not in metas:
                    continue
                convert = self._conversion(metas[self.name].value_serializer)
                for key_group in handle.key_groups.intersection(piece.key_groups):
                    for entries in handle.columns(self.name, key_group):
                        yield self._batch(key_group, entries, convert)

    def _conversion(self, stored: TypeSerializer[Any]) -> Any:
        """Return what turns a column of another type, of a task that kept it, into one of the newest."""
        newest = self._meta.value_serializer
        if stored == newest:
            return None
        change = newest.conversion_from(stored)

        def convert(column: pa.Array) -> pa.Array:
            values = stored.from_arrow(column)
            return newest.to_arrow(values if change is None else list(map(change, values)))

        return convert

    def _batch(self, key_group: int, entries: pa.RecordBatch, convert: Any) -> pa.RecordBatch:
        namespaces, keys, values = entries.columns
        rows = entries.num_rows
        if convert is not None:
            values = convert(values)
        value, written, latest = split_ttl(self._meta.value_serializer, values)
        columns = [
            *(keys.flatten() if self._key_is_struct else [keys]),
            namespaces,
            value,
            written,
            _expiry(latest, self._ttl_ms, rows),
            pa.array(np.full(rows, key_group, np.int32)),
            pa.repeat(self.name, rows),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


class OperatorStateReader(StateReader):
    """Reads one operator state: each stored element once, however a restart redistributes them.

    The columns of a list are ``task``, the one that wrote the element; ``position`` in its list; ``value``;
    ``state``. Those of a broadcast map are ``key``, ``value`` and ``state``; every task has written the same
    map, and one is read. Raises `GenericStateRefusedError`.
    """

    def __init__(
        self, snapshot: OperatorSnapshot, meta: OperatorStateMeta, allow_generic: bool = False
    ) -> None:
        if not allow_generic:
            _refuse_generic(snapshot, meta.name, meta.key_serializer, meta.value_serializer)
        self.name = meta.name
        self.kind = meta.kind
        self._snapshot = snapshot
        self._is_map = meta.kind is OperatorStateKind.BROADCAST
        value = ("value", meta.value_serializer.arrow_type)
        state = ("state", pa.string())
        if self._is_map:
            self.schema = pa.schema([("key", meta.key_serializer.arrow_type), value, state])
            self.address = {"key": meta.key_serializer}
        else:
            self.schema = pa.schema([("task", pa.int32()), ("position", pa.int64()), value, state])
            self.address = {"task": INT32, "position": INT64}

    def slices(
        self, key_groups: KeyGroupRange | None = None, bytes_each: int = SLICE_BYTES
    ) -> list[StateSlice]:
        files = [part.operator_state for part in self._snapshot.metadata.parts]
        slices = [
            StateSlice(KeyGroupRange(OPERATOR_KEY_GROUP, OPERATOR_KEY_GROUP), number)
            for number, file in enumerate(files)
            if file is not None and any(state.get("name") == self.name for state in file.states)
        ]
        return slices[:1] if self._is_map else slices

    def read(self, piece: StateSlice) -> Iterator[pa.RecordBatch]:
        file = self._snapshot.metadata.parts[piece.part].operator_state
        assert file is not None, "a slice of a part without operator state"
        position = 0
        with closing(SegmentHandle.open(self._snapshot.storage, file.segment)) as handle:
            for entries in handle.columns(self.name, OPERATOR_KEY_GROUP):
                _, keys, values = entries.columns
                rows = entries.num_rows
                if self._is_map:
                    address = [keys]
                else:
                    numbers = np.arange(position, position + rows, dtype=np.int64)
                    address = [pa.array(np.full(rows, piece.part, np.int32)), pa.array(numbers)]
                position += rows
                names = pa.repeat(self.name, rows)
                try:
                    yield pa.RecordBatch.from_arrays([*address, values, names], schema=self.schema)
                except (pa.ArrowException, TypeError) as error:
                    reason = "its tasks have written it with several types; run its query once"
                    raise UnreadableStateError(handle.location, self.name, reason) from error


def reader_of(snapshot: OperatorSnapshot, name: str, *, allow_generic: bool = False) -> StateReader:
    """Return the reader of a keyed state or an operator state.

    Raises `UnknownStateError` with the closest names, `GenericStateRefusedError` and `UnreadableStateError`.
    """
    keyed, of_operator = snapshot.states(), snapshot.operator_states()
    if name in keyed:
        return KeyedStateReader(snapshot, keyed[name], allow_generic)
    if name in of_operator:
        return OperatorStateReader(snapshot, of_operator[name], allow_generic)
    raise UnknownStateError(snapshot.location, name, [*keyed, *of_operator])


def _refuse_generic(snapshot: OperatorSnapshot, state: str, *serializers: TypeSerializer[Any]) -> None:
    for serializer in serializers:
        for part in generic_parts(serializer):
            raise GenericStateRefusedError(snapshot.location, state, part)


def _free_name(name: str, taken: Sequence[str]) -> str:
    # Spark does not tell names apart by their case.
    while name in map(str.lower, taken):
        name += "_"
    return name


# -- the time to live ------------------------------------------------------------------------------


def _plain_types(serializer: TypeSerializer[Any]) -> tuple[pa.DataType, pa.DataType]:
    """Return the types of a state's value without its timestamps, and of the timestamps."""
    if isinstance(serializer, TtlListSerializer):
        return pa.list_(serializer.element_serializer.arrow_type), pa.list_(_STAMP)
    if isinstance(serializer, TtlMapSerializer):
        key = serializer.key_serializer.arrow_type
        return pa.map_(key, serializer.value_serializer.arrow_type), pa.map_(key, _STAMP)
    if isinstance(serializer, TtlSerializer):
        return serializer.value_serializer.arrow_type, _STAMP
    return serializer.arrow_type, _STAMP


def split_ttl(
    serializer: TypeSerializer[Any], stored: pa.Array
) -> tuple[pa.Array, pa.Array, pa.Array | None]:
    """Return a column's values, when they were written, and the latest time of each row where it has any."""
    if isinstance(serializer, TtlSerializer):
        stamps, values = stored.flatten()
        stamps = stamps.view(pa.int64())
        return values, _known(stamps), stamps
    if not isinstance(serializer, (TtlListSerializer, TtlMapSerializer)):
        return stored, pa.nulls(len(stored), _STAMP), None
    is_list = isinstance(serializer, TtlListSerializer)
    kind, keys = (pa.ListArray, ()) if is_list else (pa.MapArray, (stored.keys,))
    stamps, elements = (stored.values if is_list else stored.items).flatten()
    stamps = stamps.view(pa.int64())
    offsets, mask = pa.array(stored.offsets.to_numpy()), stored.is_null() if stored.null_count else None
    values = kind.from_arrays(offsets, *keys, elements, mask=mask)
    written = kind.from_arrays(offsets, *keys, _known(stamps), mask=mask)
    return values, written, _latest(stamps, offsets)


def _known(stamps: pa.Array) -> pa.Array:
    unknown = pc.equal(stamps, _UNKNOWN_TIME)
    return pc.if_else(unknown, pa.scalar(None, pa.int64()), stamps).view(_STAMP)


def _latest(stamps: pa.Array, offsets: pa.Array) -> pa.Array:
    """Return the largest timestamp of each row; null for a row without any."""
    bounds = offsets.to_numpy()
    starts, lengths = bounds[:-1], np.diff(bounds)
    filled = np.flatnonzero(lengths)
    result = np.zeros(len(starts), np.int64)
    if len(filled):
        # Rows without elements have no place between the others, so that each run ends where the next begins.
        result[filled] = np.maximum.reduceat(stamps.to_numpy()[: bounds[-1]], starts[filled])
    return pa.array(result, mask=lengths == 0)


def _expiry(latest: pa.Array | None, ttl_ms: int | None, rows: int) -> pa.Array:
    if latest is None or ttl_ms is None:
        return pa.nulls(rows, _STAMP)
    ever = pc.greater(latest, _UNKNOWN_TIME - ttl_ms)
    times = pc.add(pc.if_else(ever, pa.scalar(None, pa.int64()), latest), ttl_ms)
    return times.view(_STAMP)
