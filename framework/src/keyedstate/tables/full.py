"""The full snapshot and the full restore of any backend, through its tables alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from keyedstate.backend import (
    AnyStateTable,
    BackendContext,
    RestoreOperation,
    Snapshot,
    SnapshotSink,
    SnapshotStrategy,
    StateHandle,
    StateMeta,
    TableSnapshot,
)
from keyedstate.keygroups import KeyGroupRange

#: Entries of a columnar batch of a snapshot: Arrow's cost per batch is negligible, and a batch of wide rows
#: stays far below a mebibyte per column.
SNAPSHOT_BATCH_ENTRIES = 16_384


class FullSnapshotStrategy(SnapshotStrategy):
    """Writes canonical full snapshots, which any backend can restore, with `StateTable.snapshot`."""

    def __init__(self, context: BackendContext) -> None:
        self._key_groups = context.key_groups

    def prepare(self, checkpoint_id: int, tables: Mapping[str, AnyStateTable]) -> Snapshot:
        captured: list[tuple[StateMeta, TableSnapshot[Any, Any, Any]]] = []
        snapshot = _FullSnapshot(self._key_groups, captured)
        try:
            for table in tables.values():
                # Another thread may write, and a serializer may have buffers of its own.
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


class FullRestoreOperation(RestoreOperation):
    """Restores any key-group range from canonical entries, with `StateTable.restore_entries`.

    The ranges of the handles may intersect the instance's own; no handle means an empty start. `create_table`
    is the plugin's own ``keyedstate_create_state_table``. `between_batches` is called with the tables after
    each batch of entries, for a backend that must make room.
    """

    def __init__(
        self,
        handles: Sequence[StateHandle],
        context: BackendContext,
        create_table: Callable[[StateMeta, BackendContext], AnyStateTable],
        between_batches: Callable[[dict[str, AnyStateTable]], None] = lambda _: None,
    ) -> None:
        self._handles = handles
        self._context = context
        self._create_table = create_table
        self._between_batches = between_batches

    def restore(self) -> dict[str, AnyStateTable]:
        tables: dict[str, AnyStateTable] = {}
        for handle in self._handles:
            wanted = handle.key_groups.intersection(self._context.key_groups)
            for meta in handle.states:
                table = tables.get(meta.name)
                if table is None:
                    table = tables[meta.name] = self._create_table(meta, self._context)
                for key_group in handle.occupied(meta.name, wanted):
                    for batch in handle.entries(meta.name, key_group):
                        table.restore_entries(key_group, batch)
                        self._between_batches(tables)
        return tables
