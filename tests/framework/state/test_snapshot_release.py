"""What a snapshot holds on to is given back once, however it ends; an instance leaves no local files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.inside import context_of

from keyedstate import types
from keyedstate.backend import AnyStateTable, EntryBatch, Snapshot, SnapshotSink, SnapshotStrategy, StateMeta
from keyedstate.checkpoint.format.segment import SegmentWriter
from keyedstate.errors import SnapshotCancelledError
from keyedstate.state import ValueState
from keyedstate.state.registry.chosen_backend import KeySpace
from keyedstate.state.registry.keyed_backend import KeyedStateBackend
from keyedstate.state.registry.running_snapshot import SnapshotTask

WORDS = ValueState("words", types.STRING)


class Counted(Snapshot):
    """A backend's own snapshot, with a count of its releases."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.releases = 0

    def write(self, sink: SnapshotSink) -> None:
        assert self.releases == 0
        self.snapshot.write(sink)

    def release(self) -> None:
        self.releases += 1
        self.snapshot.release()


class Counting(SnapshotStrategy):
    def __init__(self, strategy: SnapshotStrategy) -> None:
        self.strategy = strategy
        self.taken: list[Counted] = []

    def prepare(self, checkpoint_id: int, tables: Mapping[str, AnyStateTable]) -> Snapshot:
        self.taken.append(Counted(self.strategy.prepare(checkpoint_id, tables)))
        return self.taken[-1]


class Interrupting(SnapshotSink):
    """A real sink in whose first write something else happens."""

    def __init__(self, sink: SnapshotSink, action: Callable[[], None]) -> None:
        self.sink = sink
        self.action = action

    def begin_state(self, meta: StateMeta) -> None:
        self.sink.begin_state(meta)

    def write_entries(self, key_group: int, batches: Iterable[EntryBatch[Any, Any, Any]]) -> None:
        self.action()
        self.sink.write_entries(key_group, batches)


def never(*_: Any) -> None:
    """Do nothing."""


def full_disk() -> None:
    raise OSError(28, "No space left on device")


Way = tuple[Callable[[KeyedStateBackend, SnapshotTask], None], Callable[..., None], type[Exception] | None]
WAYS: dict[str, Way] = {
    "completed": (never, never, None),
    "cancelled before it runs": (lambda backend, task: task.cancel(), never, SnapshotCancelledError),
    "cancelled while it runs": (never, lambda backend, task: task.cancel(), SnapshotCancelledError),
    "its instance closed before": (lambda backend, task: backend.close(), never, SnapshotCancelledError),
    "its instance closed meanwhile": (never, lambda backend, task: backend.close(), SnapshotCancelledError),
    "failed": (never, lambda backend, task: full_disk(), OSError),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_snapshot_is_released_once_and_leaves_no_partial_file(instances: Any, way: str) -> None:
    """SNAP-01, SNAP-02."""
    before, meanwhile, error = WAYS[way]
    backend = instances.open()
    backend._strategy = strategy = Counting(backend._strategy)
    for key in range(20):
        backend.set_current_key(key)
        backend.get_state(WORDS).update(str(key))
    task = backend.snapshot(1)
    before(backend, task)
    writer: SegmentWriter = instances.writer(backend)
    sink = Interrupting(writer, lambda: meanwhile(backend, task))
    if error is None:
        task.run(sink)
        assert writer.finish().entries == {"words": 20}
    else:
        with pytest.raises(error):
            task.run(sink)
        writer.abort()
        assert instances.storage.list() == []
    task.cancel()
    backend.close()
    assert task.done and [snapshot.releases for snapshot in strategy.taken] == [1]


def test_a_closed_instance_leaves_nothing_in_its_local_folder(instances: Any, tmp_path: Path) -> None:
    """SNAP-03."""
    backend = KeyedStateBackend.open(
        instances.chosen(),
        KeySpace(types.INT64, instances.open().key_groups, 10),
        local_base=tmp_path,
    )
    folder = context_of(backend).local_dir
    (folder / "database").write_bytes(b"files of a backend")
    assert folder.parent == tmp_path
    backend.close()
    backend.close()
    assert list(tmp_path.iterdir()) == []
