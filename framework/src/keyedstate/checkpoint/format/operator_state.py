"""Operator state in checkpoints: a file of each attempt, and what a task restores from those of all tasks.

The file is a segment file with one key group.  Each task writes its own copy of a broadcast map, as in Flink:
it continues with its own, and the tasks do not all read one file.  A task without operator state writes no
file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from keyedstate.backend import EntryBatch, SnapshotSink
from keyedstate.checkpoint.format.redistribution import Share, redistribute
from keyedstate.checkpoint.format.segment import SegmentHandle, SegmentWriter
from keyedstate.checkpoint.format.segment_format import SegmentFile
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.keygroups import KeyGroupRange
from keyedstate.operator_state import OPERATOR_KEY_GROUP, OperatorStateMeta, RestoredOperatorState


@dataclass(frozen=True)
class OperatorStateFile:
    """The operator state of one task, as its manifest references it."""

    segment: SegmentFile
    #: `OperatorStateMeta.to_json` of every state.
    states: tuple[Mapping[str, Any], ...]

    def metas(self) -> list[OperatorStateMeta]:
        """Return the states with the serializers that wrote them; raises as `OperatorStateMeta.from_json`."""
        return list(map(OperatorStateMeta.from_json, self.states))


def write_operator_state(
    storage: CheckpointStorage,
    path: str,
    states: Sequence[OperatorStateMeta],
    write: Callable[[SnapshotSink], None],
    compression: str = "zstd",
) -> OperatorStateFile:
    """Write the operator state of one task into a new file.

    `write` is ``OperatorStateBackend.snapshot(...).run``, and `states` are those of that time.  After an
    `UnwritableEntryError`, `StorageError` or `SnapshotCancelledError` the file does not exist.
    """
    key_groups = KeyGroupRange(OPERATOR_KEY_GROUP, OPERATOR_KEY_GROUP)
    with SegmentWriter(storage, path, key_groups, compression) as writer:
        write(writer)
        return OperatorStateFile(writer.finish(), tuple(meta.to_json() for meta in states))


def read_operator_state(
    storage: CheckpointStorage,
    parts: Sequence[OperatorStateFile | None],
    task: int,
    parallelism: int,
    *,
    restarted: bool = True,
) -> list[RestoredOperatorState]:
    """Return the operator state that one task begins with, for ``OperatorStateBackend``.

    The parts are those of every task of the checkpoint, in their order.  Every state of the parts in question
    is returned, without batches where the task gets nothing of it.  Where the same run continues with the
    next epoch, unless `restarted`, each task has what it wrote, also of unions.  Raises a `CheckpointError`
    where a file, which is named, cannot be read.
    """
    if not restarted and parallelism == len(parts):
        parts = [part if number == task else None for number, part in enumerate(parts)]
    metas = [{meta.name: meta for meta in part.metas()} if part else {} for part in parts]
    kinds = {name: meta.kind for part in metas for name, meta in part.items()}
    counts = [part.segment.entries if part else {} for part in parts]
    shares = redistribute(kinds, counts, task, parallelism)
    # First what is known of every state: a task that gets nothing of one still knows that it is there.
    restored: list[RestoredOperatorState] = [(meta, ()) for part in metas for meta in part.values()]
    for number, of_part in groupby(shares, key=lambda share: share.part):
        part = parts[number]
        assert part is not None, "a share of a part without operator state"
        with closing(SegmentHandle.open(storage, part.segment)) as handle:
            restored += [(metas[number][share.state], list(_entries(handle, share))) for share in of_part]
    return restored


def _entries(handle: SegmentHandle, share: Share) -> Iterator[EntryBatch[Any, Any, Any]]:
    position = 0
    for batch in handle.entries(share.state, OPERATOR_KEY_GROUP):
        part = slice(max(share.start - position, 0), max(share.stop - position, 0))
        if part.start < len(batch) and part.stop > 0:
            yield EntryBatch(batch.namespaces[part], batch.keys[part], batch.values[part])
        position += len(batch)
