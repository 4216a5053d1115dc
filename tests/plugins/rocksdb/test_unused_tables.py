"""Tables of an unused partition: they give back memory, and the next epoch finds what it had."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from rocksdb_incremental import Job
from support.inside import state_tables

from keyedstate import types
from keyedstate.checkpoint.protocol.full_snapshots import SnapshotKind
from keyedstate.state import ListState, MapState, ValueState
from keyedstate.state.registry.keyed_backend import KeyedStateBackend

NUMBERS = ValueState("numbers", types.INT64)
TEXTS = ListState("texts", types.STRING)
COUNTS = MapState("counts", types.STRING, types.INT64)
KEYS = range(500)


def add(instance: KeyedStateBackend, by: int) -> None:
    """Change all states of some keys, and remove those of one in ten."""
    numbers, texts, counts = (instance.get_state(state) for state in (NUMBERS, TEXTS, COUNTS))
    for key in KEYS:
        instance.set_current_key(key)
        if key % 10 == by:
            for state in (numbers, texts, counts):
                state.clear()
        else:
            numbers.update((numbers.value() or 0) + by)
            texts.add(f"text {by}")
            counts.put("all", (counts.get("all") or 0) + by)


def shown(instance: KeyedStateBackend) -> list[object]:
    numbers, texts, counts = (instance.get_state(state) for state in (NUMBERS, TEXTS, COUNTS))
    found: list[object] = []
    for key in KEYS:
        instance.set_current_key(key)
        found.append((numbers.value(), list(texts.get() or ()), dict(counts.items())))
    return found


@pytest.mark.parametrize("kind", [SnapshotKind.DELTA, SnapshotKind.FULL])
def test_epochs_before_and_after_memory_is_given_back_are_as_without(
    tmp_path: Path, kind: SnapshotKind
) -> None:
    jobs = [Job(tmp_path / name, options={}) for name in ("plain", "trimmed")]
    for job in jobs:
        job.restart()
    for by in range(1, 5):
        for job in jobs:
            job.run(lambda instance, by=by: add(instance, by), writing=kind)  # type: ignore[misc]
        (instance,) = jobs[1].instances
        caches = [table.cache for table in state_tables(instance).values()]
        if by % 2:
            shown(instance)
            assert sum(len(cache.young) for cache in caches) >= 2 * len(KEYS)
            caches[0]._memory.lacked = math.inf
        instance.trim_memory(0.0)
        caches[0]._memory.lacked = -math.inf
        assert (sum(cache.used for cache in caches) < 1_000) is bool(by % 2)
    expected, found = (shown(job.instances[0]) for job in jobs)
    assert found == expected
    for job in jobs:
        job.restart()
    assert [shown(job.instances[0]) for job in jobs] == [expected, expected]
    for job in jobs:
        job.close()
