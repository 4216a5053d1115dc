"""Snapshots of a harness: the files of a checkpoint, in a folder that is deleted with the object."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from keyedstate.checkpoint.format.operator_state import (
    OperatorStateFile,
    read_operator_state,
    write_operator_state,
)
from keyedstate.checkpoint.format.segment import SegmentHandle, SegmentWriter
from keyedstate.checkpoint.format.segment_format import SegmentFile
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.keygroups import KeyGroupRange
from keyedstate.operator_state import RestoredOperatorState
from keyedstate.state.operator.backend import OperatorStateBackend
from keyedstate.state.registry.keyed_backend import KeyedStateBackend
from keyedstate.time import InputTime
from keyedstate.working_folder import WorkingFolder


@dataclass(frozen=True, eq=False)
class HarnessSnapshot:
    """The state of all instances of a harness at one moment; made by `Harness.snapshot`.

    It can be restored any number of times, also after its harness was closed. Its files are deleted with the
    last reference to it.

    Attributes
    ----------
    epoch : int
        The epoch in which it was taken.
    watermark : int
    inputs : mapping of str to InputTime
        The event times of each input, over all epochs.
    max_parallelism : int
    key_columns : tuple of str
    segments : tuple of SegmentFile
        The keyed state, one file for each instance.
    operator_files : tuple of OperatorStateFile or None
        The operator and broadcast state of each instance; None if it had none.
    """

    epoch: int
    watermark: int
    inputs: Mapping[str, InputTime]
    max_parallelism: int
    key_columns: tuple[str, ...]
    segments: tuple[SegmentFile, ...]
    operator_files: tuple[OperatorStateFile | None, ...]
    _storage: CheckpointStorage

    @classmethod
    def write(
        cls,
        number: int,
        *,
        epoch: int,
        watermark: int,
        inputs: Mapping[str, InputTime],
        max_parallelism: int,
        key_columns: tuple[str, ...],
        states: Sequence[tuple[KeyedStateBackend, OperatorStateBackend]],
    ) -> HarnessSnapshot:
        """Take the snapshot of each instance and write it, one after the other."""
        folder = WorkingFolder()
        storage = CheckpointStorage.open(folder.path)
        try:
            segments = tuple(
                _write_keyed(storage, f"instance-{index}.seg", keyed, number)
                for index, (keyed, _) in enumerate(states)
            )
            operator_files = tuple(
                _write_operator(storage, f"instance-{index}-operator.seg", operator, number)
                for index, (_, operator) in enumerate(states)
            )
        except BaseException:
            folder.remove()
            raise
        snapshot = cls(
            epoch,
            watermark,
            dict(inputs),
            max_parallelism,
            key_columns,
            segments,
            operator_files,
            storage,
        )
        weakref.finalize(snapshot, folder.remove)
        return snapshot

    @property
    def entries(self) -> dict[str, int]:
        """The number of entries of each keyed state."""
        found: dict[str, int] = {}
        for segment in self.segments:
            for state, entries in segment.entries.items():
                found[state] = found.get(state, 0) + entries
        return found

    @contextmanager
    def handles(self, key_groups: KeyGroupRange) -> Iterator[list[SegmentHandle]]:
        """Open the files with some of the key groups, for the duration of a restore."""
        with ExitStack() as opened:
            handles = []
            for segment in self.segments:
                if segment.key_groups.intersection(key_groups):
                    handles.append(SegmentHandle.open(self._storage, segment, key_groups))
                    opened.callback(handles[-1].close)
            yield handles

    def operator_state(self, task: int, parallelism: int) -> list[RestoredOperatorState]:
        """Return the operator state of one of so many instances."""
        return read_operator_state(self._storage, self.operator_files, task, parallelism)


def _write_keyed(
    storage: CheckpointStorage, path: str, backend: KeyedStateBackend, number: int
) -> SegmentFile:
    with SegmentWriter(storage, path, backend.key_groups) as writer:
        backend.snapshot(number).run(writer)
        return writer.finish()


def _write_operator(
    storage: CheckpointStorage, path: str, states: OperatorStateBackend, number: int
) -> OperatorStateFile | None:
    task = states.snapshot(number)
    return None if task is None else write_operator_state(storage, path, states.metas(), task.run)
