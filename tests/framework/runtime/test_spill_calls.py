"""Where the spill manager of a backend is called: between chunks of rows, with tables that are complete."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.backends import backend_of

from keyedstate import types
from keyedstate.backend import SpillManager
from keyedstate.errors import SnapshotCancelledError
from keyedstate.keygroups import KeyGroupRange
from keyedstate.plugins import Backend
from keyedstate.runtime import (
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    VectorizedProcessFunction,
)
from keyedstate.state import ValueState
from keyedstate.state.registry.chosen_backend import KeySpace
from keyedstate.state.registry.keyed_backend import KeyedStateBackend
from keyedstate.testing import Harness

COLUMNS = "key long, v long"
ROWS = [(number, number) for number in range(4_500)]


class Watching(SpillManager):
    """Notes how many entries the state `seen` has whenever it is called."""

    def __init__(self) -> None:
        self.entries: list[int] = []
        self.cancels: Any = None
        self.closed = 0

    def balance(self, tables: Any, cancel_snapshots: Any) -> None:
        self.entries.append(len(tables["seen"]) if "seen" in tables else 0)
        self.cancels = cancel_snapshots

    def metrics(self) -> dict[str, int]:
        return {"calls": len(self.entries)}

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> Watching:
    """The spill manager of every backend that is opened."""
    made = Watching()
    monkeypatch.setattr(Backend, "create_spill_manager", lambda self, context: made)
    return made


class Seen(KeyedProcessFunction):
    seen = ValueState("seen", types.INT64)

    def process(self, row, ctx):
        self.seen.update(row.v)
        if row.v == 0:
            for number in range(2_500):
                ctx.timer_service.register_processing_time_timer(number)
        yield row.key, row.v

    def on_timer(self, time, ctx):
        self.seen.update(time)
        return []


class SeenInBatches(VectorizedProcessFunction):
    batch_rows = 1_000
    seen = ValueState("seen", types.INT64)

    def process_batch(self, batch, ctx):
        self.seen.update_many(batch.keys, batch.column("v").to_pylist(), batch.key_groups)
        return []


class Rules(KeyedBroadcastProcessFunction):
    seen = ValueState("seen", types.INT64)

    def process(self, row, ctx):
        self.seen.update(row.v)
        return []

    def process_broadcast(self, row, ctx):
        ctx.apply_to_keyed_state(self.seen, lambda key, state: state.update(row.v))
        return []


def test_each_chunk_of_rows_is_followed_by_a_call_with_what_it_wrote(manager: Watching):
    with Harness(Seen(), key="key", schema=COLUMNS, output=COLUMNS) as harness:
        harness.process_all(ROWS)
        assert manager.entries == [1_000, 2_000, 3_000, 4_000, 4_500]


def test_each_batch_of_a_vectorised_function_is_followed_by_a_call(manager: Watching):
    with Harness(SeenInBatches(), key="key", schema=COLUMNS, output=COLUMNS) as harness:
        harness.process_all(ROWS[:1_500])
        harness.process_all(ROWS[1_500:])
        assert manager.entries == [1_500, 4_500]


def test_a_thousand_timers_are_followed_by_a_call(manager: Watching):
    with Harness(Seen(), key="key", schema=COLUMNS, output=COLUMNS) as harness:
        harness.process((0, 0))
        before = len(manager.entries)
        harness.set_processing_time(10_000)
        assert len(manager.entries) == before + 2


def test_a_thousand_keys_of_a_broadcast_row_are_followed_by_a_call(manager: Watching):
    with Harness(Rules(), key="key", schema=COLUMNS, output=COLUMNS, broadcast="v long") as harness:
        harness.process_all(ROWS[:2_500])
        before = len(manager.entries)
        harness.process_broadcast((1,))
        assert len(manager.entries) == before + 3, "after two thousand keys, and after the row"


def test_the_end_of_an_epoch_calls_and_the_end_of_an_instance_closes(manager: Watching):
    with Harness(Seen(), key="key", schema=COLUMNS, output=COLUMNS) as harness:
        harness.end_epoch()
        assert manager.entries
    assert manager.closed >= 1


@pytest.fixture
def keyed(manager: Watching, tmp_path: Path) -> Any:
    chosen = backend_of("heap-cow")
    backend = KeyedStateBackend.open(
        chosen,
        KeySpace(types.INT64, KeyGroupRange(0, 3), 4),
        local_base=tmp_path,
        track_changes=True,
    )
    yield backend
    backend.close()


def test_its_metrics_are_among_those_of_the_backend(keyed: KeyedStateBackend, manager: Watching):
    keyed.end_epoch()
    assert keyed.metrics()["calls"] == 1


def test_cancelling_frees_running_snapshots_and_no_changes(keyed: KeyedStateBackend, manager: Watching):
    state = keyed.get_state(ValueState("seen", types.INT64))
    keyed.begin_epoch(1)
    state.update_many([1, 2], [1, 2])
    keyed.end_epoch()
    changes = keyed.changes_since(0)
    running = [keyed.snapshot(1), keyed.snapshot(2)]
    assert manager.cancels() == 2
    assert manager.cancels() == 0
    for snapshot in running:
        with pytest.raises(SnapshotCancelledError):
            snapshot.run(None)  # type: ignore[arg-type]
    assert len(changes["seen"]) == 2
    for captured in changes.values():
        captured.release()
