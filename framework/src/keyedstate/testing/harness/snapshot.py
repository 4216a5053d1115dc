"""Snapshots of a harness: real segment files, one of each instance, in a folder that goes with the object."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from keyedstate.checkpoint import CheckpointStorage, SegmentFile, SegmentHandle, SegmentWriter
from keyedstate.keygroups import KeyGroupRange
from keyedstate.state import KeyedStateBackend


@dataclass(frozen=True, eq=False)
class HarnessSnapshot:
    """The state of all instances of a harness at one moment; made by `Harness.snapshot`.

    It can be restored any number of times, also after its harness was closed.  Its files are deleted when
    nobody holds it any more.

    Attributes
    ----------
    epoch : int
        The epoch in which it was taken.
    max_parallelism : int
    key_columns : tuple of str
    segments : tuple of SegmentFile
        One file for each instance that there was.
    """

    epoch: int
    max_parallelism: int
    key_columns: tuple[str, ...]
    segments: tuple[SegmentFile, ...]
    _storage: CheckpointStorage

    @classmethod
    def write(
        cls,
        number: int,
        epoch: int,
        max_parallelism: int,
        key_columns: tuple[str, ...],
        backends: Sequence[KeyedStateBackend],
    ) -> HarnessSnapshot:
        """Take the snapshot of each instance's backend and write it, one after the other."""
        folder = tempfile.mkdtemp(prefix="keyedstate-harness-")
        storage = CheckpointStorage.open(folder)
        try:
            segments = tuple(
                _write(storage, f"instance-{index}.seg", backend, number)
                for index, backend in enumerate(backends)
            )
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        snapshot = cls(epoch, max_parallelism, key_columns, segments, storage)
        weakref.finalize(snapshot, shutil.rmtree, folder, ignore_errors=True)
        return snapshot

    @property
    def entries(self) -> dict[str, int]:
        """The number of entries of each state."""
        found: dict[str, int] = {}
        for segment in self.segments:
            for state, entries in segment.entries.items():
                found[state] = found.get(state, 0) + entries
        return found

    @contextmanager
    def handles(self, key_groups: KeyGroupRange) -> Iterator[list[SegmentHandle]]:
        """Open the files that hold some of the key groups, for as long as a restore takes."""
        with ExitStack() as opened:
            handles = []
            for segment in self.segments:
                if segment.key_groups.intersection(key_groups):
                    handles.append(SegmentHandle.open(self._storage, segment, key_groups))
                    opened.callback(handles[-1].close)
            yield handles


def _write(storage: CheckpointStorage, path: str, backend: KeyedStateBackend, number: int) -> SegmentFile:
    writer = SegmentWriter(storage, path, backend.key_groups)
    try:
        backend.snapshot(number).run(writer)
        return writer.finish()
    except BaseException:
        writer.abort()
        raise
