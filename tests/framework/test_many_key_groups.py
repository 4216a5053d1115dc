"""What a few entries in very many key groups cost: as much as in a few."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from keyedstate import types
from keyedstate.checkpoint.format.delta import ChainHandle, write_delta
from keyedstate.checkpoint.format.segment import SegmentHandle, SegmentWriter
from keyedstate.ordered.timers import OrderedTimerTable
from keyedstate.state import ValueState
from keyedstate.state.registry.keyed_backend import KeyedStateBackend
from keyedstate.testing.contract.keyed import KeyedInstances
from keyedstate.time import TimerService, TimerServices

GROUPS = 32_767
ENTRIES = 4
VALUE = ValueState("value", types.INT64)


class Silent:
    def on_event_time(self, timer: Any) -> None:
        """Do nothing."""

    def on_processing_time(self, timer: Any) -> None:
        """Do nothing."""


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often key groups were asked for their entries, by who was asked."""
    counted: Counter[str] = Counter()

    def count(owner: type, name: str) -> None:
        method = getattr(owner, name)

        def counting(self: Any, *arguments: Any, **named: Any) -> Any:
            counted[name] += 1
            return method(self, *arguments, **named)

        monkeypatch.setattr(owner, name, counting)

    count(SegmentWriter, "write_entries")
    count(SegmentHandle, "columns")
    count(OrderedTimerTable, "earliest")
    return counted


def service_of(backend: KeyedStateBackend) -> TimerService:
    return TimerServices(backend).service("user", Silent())


@pytest.mark.parametrize("name", ["heap-cow", "nested-map", "rocksdb", "sqlite"])
def test_a_few_timers_cost_a_few_looks_in_many_key_groups(
    name: str, tmp_path: Path, calls: Counter[str]
) -> None:
    keyed = KeyedInstances(name, tmp_path, {})
    backend = keyed.open(max_parallelism=GROUPS, track_changes=True)
    timers = service_of(backend)
    value = backend.get_state(VALUE)
    backend.begin_epoch(1)
    for key in range(ENTRIES):
        backend.set_current_key(key)
        value.update(key)
        timers.register_event_time_timer(types.VOID_NAMESPACE, 1_000 + key)
    base = keyed.write_file(backend, backend.snapshot(1))
    assert calls["write_entries"] <= 2 * ENTRIES
    backend.begin_epoch(2)
    backend.set_current_key(ENTRIES)
    value.update(ENTRIES)
    changes = backend.changes_since(1)
    metas = {meta.name: meta for meta in backend.metas()}
    delta = write_delta(keyed.storage, keyed.new_path(), backend.key_groups, metas, changes)
    assert sum(len(list(changed.occupied(backend.key_groups))) for changed in changes.values()) == 1
    handles = [SegmentHandle.open(keyed.storage, file) for file in (base, delta)]
    restored = keyed.open([ChainHandle(handles[0], handles[1:], backend.metas())], max_parallelism=GROUPS)
    assert calls["columns"] <= 4 * ENTRIES
    fired = service_of(restored)
    restored.advance_watermark(10_000)
    assert [timer.time for timer in fired.due_timers(in_event_time=True)] == [1_000, 1_001, 1_002, 1_003]
    assert calls["earliest"] <= 4 * ENTRIES
    assert sorted(restored.get_keys("value")) == list(range(ENTRIES + 1))
    keyed.close()
