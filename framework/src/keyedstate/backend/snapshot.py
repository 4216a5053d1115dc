"""How a snapshot of one backend instance is taken: a short synchronous part, then a write."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

from keyedstate.backend.meta import StateMeta
from keyedstate.backend.table import AnyStateTable, EntryBatch


class SnapshotSink(ABC):
    """Where a snapshot writes to; the framework implements it, a backend calls it.

    Every method raises `SnapshotCancelledError` once the snapshot is cancelled; do not catch it.
    """

    @abstractmethod
    def begin_state(self, meta: StateMeta) -> None:
        """Begin a state; a state without entries is stored too."""

    @abstractmethod
    def write_entries(self, key_group: int, batches: Iterable[EntryBatch[Any, Any, Any]]) -> None:
        """Write the entries of one key group of the begun state; key groups ascend."""


class Snapshot(ABC):
    """What the synchronous part captured."""

    @abstractmethod
    def write(self, sink: SnapshotSink) -> None:
        """Write everything to the sink, in another thread where the backend claims asynchronous snapshots."""

    @abstractmethod
    def release(self) -> None:
        """Free what was captured, after success, failure or cancel; calling it again does nothing."""


class SnapshotStrategy(ABC):
    """How the snapshots of one backend instance are taken (Flink's ``SnapshotStrategy``)."""

    @abstractmethod
    def prepare(self, checkpoint_id: int, tables: Mapping[str, AnyStateTable]) -> Snapshot:
        """Capture the state of all tables; runs in the owner's thread, so it must be short."""

    def metrics(self) -> Mapping[str, int]:
        """Return what the backend's own engine reports, where the user has asked for it.

        Asked at the end of each epoch, in the owner's thread; metrics of one name are added up over tasks
        (`EpochMetrics.native`).
        """
        return {}
