"""Partitions that no task asks for: they give back memory first, and are dropped later."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hosted import HostedJob, wait_until

from keyedstate.checkpoint.format.manifest import StateOrigin
from keyedstate.spark.hosts.partition_cache import Attempt, CachedPartition, PartitionCache

OPERATOR = "file:///operator"


class Recorded:
    """Replaces a partition, since a real one gives back memory only where others lack it."""

    def __init__(self) -> None:
        self.trimmed: list[tuple[float, int]] = []
        self.fails = False
        self.closed = False

    def trim_memory(self, since: float) -> None:
        self.trimmed.append((since, threading.get_ident()))
        if self.fails:
            raise OSError("the disk is full")

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def cache() -> Iterator[PartitionCache]:
    cache = PartitionCache()
    yield cache
    cache.close(10.0)


def begun(cache: PartitionCache, number: int = 0, query: str = "query") -> Attempt:
    return cache.take((OPERATOR, number), "plan", query)


def kept(cache: PartitionCache, number: int = 0, query: str = "query") -> tuple[CachedPartition, Any]:
    attempt = begun(cache, number, query)
    partition: Any = Recorded()
    attempt.cached.partition = partition
    cache.put_back(attempt)
    return attempt.cached, partition


def done(cached: CachedPartition) -> int:
    """Wait for what was asked of the partition before, and return the thread that does it."""
    return cached.run(threading.get_ident)


def test_an_unused_partition_gives_back_memory_every_ten_seconds_in_its_own_thread(
    cache: PartitionCache,
) -> None:
    cached, partition = kept(cache)
    used = cached.last_used
    for later in (0, 9, 11, 12, 20, 22, 23):
        cache.trim_unused(used + later)
    done(cached)
    assert partition.trimmed == [(used + 10, done(cached))] * 2


def test_a_partition_that_a_task_uses_is_left_alone(cache: PartitionCache) -> None:
    cached, partition = kept(cache)
    attempt = begun(cache)
    assert attempt.cached is cached
    cache.trim_unused(time.monotonic() + 60)
    done(cached)
    assert partition.trimmed == []
    cache.put_back(attempt)
    cache.trim_unused(time.monotonic() + 60)
    done(cached)
    assert len(partition.trimmed) == 1


def test_partitions_of_a_query_that_runs_keep_what_they_have(cache: PartitionCache) -> None:
    """Those of one epoch take turns, and so do its operators."""
    (first, mine), (other, theirs) = kept(cache, 1), kept(cache, 2, "other query")
    running = begun(cache, 3)
    cache.trim_unused(time.monotonic() + 60)
    done(first)
    assert mine.trimmed == []
    cache.drop(running)
    last, _ = kept(cache, 4)
    last.last_used = first.last_used + 100
    cache.trim_unused(last.last_used + 9)
    done(first)
    assert mine.trimmed == []
    cache.trim_unused(last.last_used + 11)
    assert mine.trimmed == [(last.last_used + 10, done(first))]
    done(other)
    assert len(theirs.trimmed) == 2


def test_a_partition_that_cannot_give_back_memory_is_restored_by_its_next_epoch(
    cache: PartitionCache, capsys: pytest.CaptureFixture[str]
) -> None:
    cached, partition = kept(cache)
    partition.fails = True
    cache.trim_unused(cached.last_used + 60)
    wait_until(lambda: partition.closed)
    done(cached)
    assert cached.partition is None
    assert "the disk is full" in capsys.readouterr().err
    cache.trim_unused(cached.last_used + 120)
    done(cached)
    assert len(partition.trimmed) == 1
    assert begun(cache).cached is cached


def test_a_host_without_tasks_asks_its_partitions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes ten seconds, in which nothing happens."""
    local = tmp_path / "local"
    local.mkdir()
    monkeypatch.setenv("TMPDIR", str(local))
    options = {"backend": "rocksdb", "rocksdb.memory-budget": 8 << 20, "rocksdb.memory-object-ratio": 0.0}
    with HostedJob(tmp_path, idle_ms=60_000, **options) as job:
        job.epoch(0, [f"a key of some length: {number:050}" for number in range(12_000)])
        assert list(local.glob("*/db/CURRENT"))
        assert not list(local.glob("*/db/*.sst")), "the write buffer has room for more"
        wait_until(lambda: list(local.glob("*/db/*.sst")))
        job.epoch(1, ["a"])
        assert job.checkpoint().parts[0].state_origin is StateOrigin.HOST
