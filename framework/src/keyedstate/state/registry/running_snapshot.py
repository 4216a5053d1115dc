"""The asynchronous part of a snapshot, which can be run in another thread and cancelled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from threading import Event, Lock
from types import MappingProxyType
from typing import Any

from keyedstate.backend import EntryBatch, Snapshot, SnapshotSink, StateMeta
from keyedstate.errors import SnapshotCancelledError
from keyedstate.state.ttl.expiry import SnapshotFilter


class SnapshotTask:
    """The asynchronous part of one snapshot."""

    def __init__(
        self,
        checkpoint_id: int,
        snapshot: Snapshot,
        synchronous_ms: float,
        asynchronous: bool,
        filters: Mapping[str, SnapshotFilter] = MappingProxyType({}),
    ) -> None:
        self.checkpoint_id = checkpoint_id
        #: The duration of the synchronous part.
        self.synchronous_ms = synchronous_ms
        #: Whether another thread may call `run` while the state changes.
        self.asynchronous = asynchronous
        self._snapshot = snapshot
        #: By state, for this snapshot alone: two snapshots may be written at the same time (SB-52).
        self._filters = filters
        self._cancelled = Event()
        self._lock = Lock()
        #: Guarded by the lock: the first of `run` and `cancel` to set it releases the snapshot.
        self._owned = False
        #: Whether the captured state was released: after success, failure or cancellation.
        self.done = False

    def run(self, sink: SnapshotSink) -> None:
        """Write everything to the sink and release what was captured.

        Raises `SnapshotCancelledError` where `cancel` was called before the last entry was written.
        """
        if not self._take():
            raise SnapshotCancelledError(self.checkpoint_id)
        try:
            self._snapshot.write(_CancellableSink(sink, self._check, self._filters))
            self._check()
        finally:
            self._release()

    def cancel(self) -> None:
        """Stop a running `run` at its next step, and a later one at once; safe in any thread."""
        self._cancelled.set()
        if self._take():
            self._release()

    def _take(self) -> bool:
        with self._lock:
            first, self._owned = not self._owned, True
            return first

    def _release(self) -> None:
        self._snapshot.release()
        self.done = True

    def _check(self) -> None:
        if self._cancelled.is_set():
            raise SnapshotCancelledError(self.checkpoint_id)


class _CancellableSink(SnapshotSink):
    """Forwards all entries that pass the filters, and checks for cancellation between batches."""

    def __init__(
        self, sink: SnapshotSink, check: Callable[[], None], filters: Mapping[str, SnapshotFilter]
    ) -> None:
        self._sink = sink
        self._check = check
        self._filters = filters
        self._filter: SnapshotFilter | None = None

    def begin_state(self, meta: StateMeta) -> None:
        self._check()
        self._sink.begin_state(meta)
        self._filter = self._filters.get(meta.name)

    def write_entries(self, key_group: int, batches: Iterable[EntryBatch[Any, Any, Any]]) -> None:
        self._check()
        self._sink.write_entries(key_group, self._watched(batches))

    def _watched(self, batches: Iterable[EntryBatch[Any, Any, Any]]) -> Iterator[EntryBatch[Any, Any, Any]]:
        for batch in batches:
            self._check()
            yield batch if self._filter is None else self._filter(batch)
