"""How a snapshot of one backend instance is taken: a short synchronous part, then the writing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

from keyedstate.backend.context import BackendContext
from keyedstate.backend.meta import StateMeta
from keyedstate.backend.table import AnyStateTable, EntryBatch, TableSnapshot
from keyedstate.keygroups import KeyGroupRange

#: Entries that go into one columnar batch of a snapshot: large enough that Arrow's cost per batch
#: vanishes, small enough that a batch of wide rows stays far below a mebibyte per column.
SNAPSHOT_BATCH_ENTRIES = 16_384


class SnapshotSink(ABC):
    """Where a snapshot writes to; the framework gives it, a backend calls it.

    Every method raises `SnapshotCancelledError` once the snapshot was cancelled: let it pass.
    """

    @abstractmethod
    def begin_state(self, meta: StateMeta) -> None:
        """Announce a state; one without any entry is remembered too."""

    @abstractmethod
    def write_entries(self, key_group: int, batches: Iterable[EntryBatch[Any, Any, Any]]) -> None:
        """Write the entries of one key group of the state announced last; key groups ascend."""


class Snapshot(ABC):
    """What the synchronous part captured."""

    @abstractmethod
    def write(self, sink: SnapshotSink) -> None:
        """Write everything to the sink; in another thread where the backend claims asynchronous snapshots."""

    @abstractmethod
    def release(self) -> None:
        """Free what was captured, after success, failure or cancel; calling it again does nothing."""


class SnapshotStrategy(ABC):
    """How the snapshots of one backend instance are taken (Flink's ``SnapshotStrategy``)."""

    @abstractmethod
    def prepare(self, checkpoint_id: int, tables: Mapping[str, AnyStateTable]) -> Snapshot:
        """Capture the state of all tables; runs in the owner's thread, so it must be short."""

    def figures(self) -> Mapping[str, int]:
        """Return what the backend's own engine says of itself, where the user has asked for it.

        Asked at the end of each epoch, in the owner's thread; figures of one name are added up over tasks
        (`EpochMetrics.native`).
        """
        return {}


class FullSnapshotStrategy(SnapshotStrategy):
    """The canonical full snapshot, out of nothing but `StateTable.snapshot`.

    Any backend can restore from what it writes.
    """

    def __init__(self, context: BackendContext) -> None:
        self._key_groups = context.key_groups

    def prepare(self, checkpoint_id: int, tables: Mapping[str, AnyStateTable]) -> Snapshot:
        captured: list[tuple[StateMeta, TableSnapshot[Any, Any, Any]]] = []
        snapshot = _FullSnapshot(self._key_groups, captured)
        try:
            for table in tables.values():
                # The writer may be another thread, and a serializer may keep buffers of its own.
                captured.append((table.meta.duplicate(), table.snapshot()))
        except BaseException:
            snapshot.release()
            raise
        return snapshot


class _FullSnapshot(Snapshot):
    def __init__(
        self, key_groups: KeyGroupRange, captured: list[tuple[StateMeta, TableSnapshot[Any, Any, Any]]]
    ) -> None:
        self._key_groups = key_groups
        self._captured = captured

    def write(self, sink: SnapshotSink) -> None:
        for meta, table in self._captured:
            sink.begin_state(meta)
            for key_group in table.occupied(self._key_groups):
                sink.write_entries(key_group, table.batches(key_group, SNAPSHOT_BATCH_ENTRIES))

    def release(self) -> None:
        while self._captured:
            self._captured.pop()[1].release()
