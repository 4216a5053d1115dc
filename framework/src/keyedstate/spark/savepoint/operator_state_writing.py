"""A DataFrame as operator state: the driver writes it, because it is small and every part has some."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from keyedstate.backend import EntryBatch, SnapshotSink
from keyedstate.checkpoint.format.manifest import AttemptManifest, CheckpointMetadata
from keyedstate.checkpoint.format.operator_state import write_operator_state
from keyedstate.checkpoint.format.segment import SegmentHandle
from keyedstate.checkpoint.protocol.operator_folder import data_paths
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.errors import StateFrameError
from keyedstate.operator_state import OPERATOR_KEY_GROUP, OperatorStateKind, OperatorStateMeta
from keyedstate.spark.dataframe.state_columns import fitted
from keyedstate.spark.task.broadcast import collect_packed, unpacked
from keyedstate.types import VOID_NAMESPACE

_Entries = Sequence["EntryBatch[Any, Any, Any]"]


def with_operator_states(
    metadata: CheckpointMetadata,
    storage: CheckpointStorage,
    states: Mapping[str, tuple[OperatorStateMeta, DataFrame]],
    compression: str,
) -> CheckpointMetadata:
    """Rewrite the operator state of all parts, with some states taken from rows.

    The storage, the operator's folder in the new savepoint, has the data of `metadata`. Raises
    `StateFrameError` for values that the state's type refuses, unknown tasks and duplicate keys.
    """
    metas = {name: meta for name, (meta, _) in states.items()}
    redistributed = {
        name: _redistributed(metadata.uid, meta, rows, metadata.parallelism)
        for name, (meta, rows) in states.items()
    }
    parts = []
    for number, part in enumerate(metadata.parts):
        entries = {name: of_tasks[number] for name, of_tasks in redistributed.items()}
        parts.append(_with_states(part, storage, metas, entries, compression))
    return replace(metadata, parts=tuple(parts))


def _with_states(
    part: AttemptManifest,
    storage: CheckpointStorage,
    metas: Mapping[str, OperatorStateMeta],
    entries: Mapping[str, EntryBatch[Any, Any, Any]],
    compression: str,
) -> AttemptManifest:
    before = part.operator_state
    known = {} if before is None else {meta.name: meta for meta in before.metas()}
    kept = {name: meta for name, meta in known.items() if name not in metas}

    def write(sink: SnapshotSink) -> None:
        if before is not None and kept:
            with closing(SegmentHandle.open(storage, before.segment)) as handle:
                for name, meta in kept.items():
                    sink.begin_state(meta.entries_meta)
                    sink.write_entries(OPERATOR_KEY_GROUP, handle.entries(name, OPERATOR_KEY_GROUP))
        for name, meta in metas.items():
            sink.begin_state(meta.entries_meta)
            sink.write_entries(OPERATOR_KEY_GROUP, [entries[name]])

    path = data_paths(uuid.uuid4().hex)[1]
    file = write_operator_state(storage, path, [*kept.values(), *metas.values()], write, compression)
    changed = replace(part, operator_state=file)
    return replace(changed, bytes=sum(written.bytes for written in changed.files))


def _redistributed(
    uid: str, meta: OperatorStateMeta, rows: DataFrame, parallelism: int
) -> list[EntryBatch[Any, Any, Any]]:
    """Return the entries of a state for each task."""
    table = _collected(rows)
    values = _values(uid, meta, table, "value", meta.value_serializer)
    if meta.kind is OperatorStateKind.BROADCAST:
        keys = _values(uid, meta, table, "key", meta.key_serializer)
        canonical = list(map(meta.key_serializer.canonical, keys))
        seen: set[Any] = set()
        for key in canonical:
            if key in seen:
                raise StateFrameError(
                    uid, meta.name, f"the key {key!r} comes twice; give one row for each key"
                )
            seen.add(key)
        return [_batch(canonical, values)] * parallelism
    if "task" in table.schema.names:
        tasks = table.column("task").to_pylist()
    else:
        tasks = [number * parallelism // len(values) for number in range(len(values))]
    lists: list[list[Any]] = [[] for _ in range(parallelism)]
    for task, value in zip(tasks, values, strict=True):
        if task is None or not 0 <= task < parallelism:
            reason = f"there is no task {task}; there are {parallelism} from 0"
            raise StateFrameError(
                uid, meta.name, f"{reason}, and without the column 'task' the rows are distributed evenly"
            )
        lists[task].append(value)
    return [_batch(list(range(len(elements))), elements) for elements in lists]


def _batch(keys: list[Any], values: list[Any]) -> EntryBatch[Any, Any, Any]:
    return EntryBatch([VOID_NAMESPACE] * len(keys), keys, values)


def _values(uid: str, meta: OperatorStateMeta, table: pa.Table, column: str, serializer: Any) -> list[Any]:
    found: list[Any] = []
    try:
        for chunk in table.column(column).chunks:
            found += serializer.from_arrow(fitted(chunk, serializer.arrow_type))
    except Exception as error:
        reason = f"the column {column!r} is not of the type {serializer!r}: {error}".rstrip(".")
        raise StateFrameError(uid, meta.name, reason) from error
    if None in found and not serializer.null_is_value:
        raise StateFrameError(uid, meta.name, f"the column {column!r} has a null; leave the row out")
    return found


def _collected(rows: DataFrame) -> pa.Table:
    """Return all rows as Arrow columns, as `DataFrame.toArrow` does since Spark 4."""
    batches = list(unpacked(collect_packed(rows), rows.columns))
    if batches:
        return pa.Table.from_batches(batches)
    return pa.table({name: pa.array([], pa.null()) for name in rows.columns})
