"""A DataFrame as state: the tasks of an edit write the rows of their key groups.

A part of a savepoint is one file with all states of some key groups.  So a task rewrites the part, with one
state from the rows and copies of the others.
"""

from __future__ import annotations

import reprlib
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from keyedstate.backend import EntryBatch, StateMeta
from keyedstate.checkpoint.format.manifest import AttemptManifest, CheckpointMetadata
from keyedstate.checkpoint.format.operator_state import OperatorStateFile
from keyedstate.checkpoint.format.segment import SegmentWriter, canonical_column, canonical_values
from keyedstate.checkpoint.protocol.operator_folder import data_paths
from keyedstate.checkpoint.protocol.recovery import handles_for
from keyedstate.checkpoint.savepoint.canonical import copy_segment
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.epoch.configuration import configuration_in_task, storage_in_task
from keyedstate.errors import StateFrameError
from keyedstate.keygroups import (
    KEY_GROUP_COLUMN,
    KeyGroupRange,
    key_group_range_for,
    operator_index_for_key_group,
)
from keyedstate.options import CHECKPOINT_COMPRESSION
from keyedstate.spark.dataframe.state_columns import fitted
from keyedstate.spark.savepoint.bootstrap import as_result
from keyedstate.types import TtlListSerializer, TtlMapSerializer, TtlSerializer, TypeSerializer
from keyedstate.types.collections.ttl import TimedSerializer, plain_type

_UNKNOWN_TIME = 2**63 - 1
_STAMP = pa.timestamp("ms", "UTC")
_BATCH_ENTRIES = 16_384


@dataclass(frozen=True)
class PartRewrite:
    """Writes the parts of one operator with one state taken from rows."""

    #: Of the old parts; the new ones have the same parallelism.
    metadata: CheckpointMetadata
    #: URIs of the operator's folder, old and new.
    source: str
    target: str
    #: In the new savepoint.
    uid: str
    #: Of the state in the rows, with serializers that need no classes.
    meta: StateMeta
    ttl_ms: int | None
    #: The configuration, as `keyedstate.epoch.configuration.frozen` returns it.
    settings: tuple[tuple[str, Any], ...]

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run one partition, whose last column is the key group; `mapInArrow` calls this."""
        filled = [batch for batch in batches if batch.num_rows]
        if filled:
            rows = pa.Table.from_batches(filled)
            group = rows.column(KEY_GROUP_COLUMN)[0].as_py()
            metadata = self.metadata
            number = operator_index_for_key_group(group, metadata.parallelism, metadata.max_parallelism)
            yield as_result(self.write(number, rows))

    def write(self, number: int, rows: pa.Table | None = None) -> AttemptManifest:
        """Write one part; without rows its state is empty.

        Raises `CheckpointError`, and `StateFrameError` for a value that the state's type refuses or a
        duplicate key.
        """
        metadata, meta = self.metadata, self.meta
        part = metadata.parts[number]
        key_groups = key_group_range_for(number, metadata.parallelism, metadata.max_parallelism)
        identity = replace(part.identity, uid=self.uid, nonce=uuid.uuid4().hex)
        source = storage_in_task(self.source, self.settings)
        target = storage_in_task(self.target, self.settings)
        path, operator_path, *_ = data_paths(identity.nonce)
        compression = configuration_in_task(self.settings)[CHECKPOINT_COMPRESSION]
        entries = {} if rows is None else self._entries(key_groups, rows)
        writer = SegmentWriter(target, path, key_groups, compression)
        with ExitStack() as opened:
            opened.callback(writer.abort)
            states = self._carry_over(source, key_groups, writer, opened)
            writer.begin_state(meta)
            for key_group in sorted(entries):
                writer.write_entries(key_group, entries[key_group])
            segment = writer.finish()
        operator_state: OperatorStateFile | None = part.operator_state
        if operator_state is not None:
            copied = copy_segment(source, operator_state.segment, target, operator_path)
            operator_state = replace(operator_state, segment=copied)
        ttl_ms = {name: ms for name, ms in part.ttl_ms.items() if name != meta.name}
        if self.ttl_ms is not None:
            ttl_ms[meta.name] = self.ttl_ms
        files = (segment,) if operator_state is None else (segment, operator_state.segment)
        return replace(
            part,
            identity=identity,
            states=(*states, meta.to_json()),
            segments=(segment,),
            deltas=(),
            entries=segment.entries,
            operator_state=operator_state,
            ttl_ms=ttl_ms,
            full_snapshots=(),
            unfinished=None,
            bytes=sum(file.bytes for file in files),
        )

    def _carry_over(
        self, source: CheckpointStorage, key_groups: KeyGroupRange, writer: SegmentWriter, opened: ExitStack
    ) -> list[dict[str, Any]]:
        """Copy the other states; return their descriptions."""
        handles = handles_for(self.metadata, source, key_groups)
        for handle in handles:
            opened.callback(handle.close)
        metas = {
            meta.name: meta for handle in handles for meta in handle.states if meta.name != self.meta.name
        }
        for name, meta in metas.items():
            writer.begin_state(meta)
            for key_group in key_groups:
                for handle in handles:
                    if key_group in handle.key_groups:
                        writer.write_entries(key_group, handle.entries(name, key_group))
                        break
        return [meta.to_json() for meta in metas.values()]

    def _entries(
        self, key_groups: KeyGroupRange, rows: pa.Table
    ) -> Mapping[int, list[EntryBatch[Any, Any, Any]]]:
        groups = rows.column(KEY_GROUP_COLUMN).to_numpy()
        if int(groups.min()) not in key_groups or int(groups.max()) not in key_groups:
            raise self._refused("Spark has mixed the partitions of its rows; do not coalesce them")
        table = rows.combine_chunks()
        meta = self.meta
        keys = canonical_column(meta.key_serializer, self._keys(table))
        namespaces = canonical_column(
            meta.namespace_serializer, self._column(table, "namespace", meta.namespace_serializer.arrow_type)
        )
        values = list(canonical_values(meta.value_serializer, self._values(table)))
        self._check(keys, namespaces, values)
        order = np.argsort(groups, kind="stable")
        bounds = [0, *(np.flatnonzero(np.diff(groups[order])) + 1).tolist(), len(order)]
        result: dict[int, list[EntryBatch[Any, Any, Any]]] = {}
        for start, end in pairwise(bounds):
            for at in range(start, end, _BATCH_ENTRIES):
                chunk = order[at : min(at + _BATCH_ENTRIES, end)].tolist()
                columns = ([column[place] for place in chunk] for column in (namespaces, keys, values))
                result.setdefault(int(groups[chunk[0]]), []).append(EntryBatch(*columns))
        return result

    def _keys(self, table: pa.Table) -> pa.Array:
        arrow_type = self.meta.key_serializer.arrow_type
        names = [name for name, _ in self.metadata.key_columns]
        if len(names) == 1:
            return self._column(table, names[0], arrow_type)
        parts = [self._column(table, name, field.type) for name, field in zip(names, arrow_type, strict=True)]
        return pa.StructArray.from_arrays(parts, fields=list(arrow_type))

    def _column(self, table: pa.Table, name: str, arrow_type: pa.DataType) -> pa.Array:
        if pa.types.is_null(arrow_type):
            return pa.nulls(table.num_rows)
        try:
            return fitted(_whole(table.column(name)), arrow_type)
        except pa.ArrowException as error:
            raise self._refused(
                f"the column {name!r} has a value out of the range of its type ({error})"
            ) from error

    def _values(self, table: pa.Table) -> list[Any]:
        serializer = self.meta.value_serializer
        plain = self._column(table, "value", plain_type(serializer).arrow_type)
        written = None
        if isinstance(serializer, TimedSerializer) and "written_at" in table.schema.names:
            written = _whole(table.column("written_at"))
        try:
            return serializer.from_arrow(with_times(serializer, plain, written))
        except StateFrameError:
            raise
        except Exception as error:
            raise self._refused(
                f"its values are not of the type {serializer!r}: {error}".rstrip(".")
            ) from error

    def _check(self, keys: list[Any], namespaces: list[Any], values: list[Any]) -> None:
        seen = set()
        null_is_value = self.meta.value_serializer.null_is_value
        for key, namespace, value in zip(keys, namespaces, values, strict=True):
            if value is None and not null_is_value:
                raise self._refused(f"the value of the key {reprlib.repr(key)} is null; leave the row out")
            if (key, namespace) in seen:
                raise self._refused(
                    f"the key {reprlib.repr(key)} comes twice; give one row for each key and namespace"
                )
            seen.add((key, namespace))

    def _refused(self, reason: str) -> StateFrameError:
        return StateFrameError(self.uid, self.meta.name, reason)


def with_times(serializer: TypeSerializer[Any], plain: pa.Array, written: pa.Array | None) -> pa.Array:
    """Return values and their times in the stored form; `checkpoint.reading.state_reader` separates them."""
    names = ["timestamp", "value"]
    if isinstance(serializer, TtlListSerializer):
        stamps = _stamps(None if written is None else written.values, len(plain.values))
        if written is not None and not plain.offsets.equals(written.offsets):
            raise ValueError("'written_at' must have one time for each element of 'value'")
        pairs = pa.StructArray.from_arrays([stamps, plain.values], names=names)
        return pa.ListArray.from_arrays(plain.offsets, pairs, mask=_nulls(plain))
    if isinstance(serializer, TtlMapSerializer):
        if written is not None and not (
            plain.offsets.equals(written.offsets) and _same(plain.keys, written.keys)
        ):
            raise ValueError("'written_at' must have the keys of 'value', in their order")
        stamps = _stamps(None if written is None else written.items, len(plain.items))
        pairs = pa.StructArray.from_arrays([stamps, plain.items], names=names)
        return pa.MapArray.from_arrays(plain.offsets, plain.keys, pairs, mask=_nulls(plain))
    if isinstance(serializer, TtlSerializer):
        return pa.StructArray.from_arrays(
            [_stamps(written, len(plain)), plain], names=names, mask=_nulls(plain)
        )
    return plain


def _same(keys: pa.Array, others: pa.Array) -> bool:
    # As text, because NaN differs from NaN.
    return list(map(repr, keys.to_pylist())) == list(map(repr, fitted(others, keys.type).to_pylist()))


def _stamps(written: pa.Array | None, count: int) -> pa.Array:
    if written is None:
        numbers = pa.array(np.full(count, _UNKNOWN_TIME, np.int64))
    else:
        numbers = pc.fill_null(written.cast(_STAMP, safe=False).view(pa.int64()), _UNKNOWN_TIME)
    return numbers.view(_STAMP)


def _nulls(column: pa.Array) -> pa.Array | None:
    return column.is_null() if column.null_count else None


def _whole(column: pa.ChunkedArray) -> pa.Array:
    found = column.combine_chunks()
    if isinstance(found, pa.ChunkedArray):
        found = pa.concat_arrays(found.chunks) if found.num_chunks else pa.array([], found.type)
    # Offsets from 0, so that those of two columns can be compared.
    return found if found.offset == 0 else pa.concat_arrays([found])
