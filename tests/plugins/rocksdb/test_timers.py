"""Timers in the order of time, in checkpoints of every sort: where they continue, and with which queue."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from rocksdb_incremental import Job
from support.inside import state_tables

from keyedstate import types
from keyedstate.checkpoint.protocol.full_snapshots import SnapshotKind
from keyedstate.state.registry.keyed_backend import KeyedStateBackend
from keyedstate.time import (
    EVENT_TIMERS,
    HeapTimerQueue,
    OrderedTimerQueue,
    Timer,
    TimerService,
    TimerServices,
)

#: A timer as the model has it: time, key, namespace.
Timers = set[tuple[int, int, str]]


class Recorder:
    def __init__(self) -> None:
        self.fired: list[tuple[int, int, str]] = []

    def on_event_time(self, timer: Timer) -> None:
        self.fired.append(tuple(timer))  # type: ignore[arg-type]

    def on_processing_time(self, timer: Timer) -> None:
        raise AssertionError("no such timer exists")


class TimerJob(Job):
    """A job whose instances have timers, and a model of them."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.generator = random.Random(11)
        self.model: Timers = set()
        self.now = 0

    def restart(self, *given: Any, **options: Any) -> None:
        super().restart(*given, **options)
        self.services: dict[int, tuple[TimerServices, TimerService, Recorder]] = {}
        for instance in self.instances:
            services, recorded = TimerServices(instance), Recorder()
            self.services[id(instance)] = services, services.service("t", recorded, types.STRING), recorded

    def moved(self) -> Any:
        """Return a change: timers fire, some are deleted, others come."""
        self.now += 40
        generator = self.generator
        new = {
            (self.now + generator.randrange(-20, 300), generator.randrange(60), generator.choice("ab"))
            for _ in range(40)
        }
        gone = set(generator.sample(sorted(self.model), len(self.model) // 5))
        due = {timer for timer in self.model if timer[0] <= self.now}
        gone -= due
        self.model = (self.model - due - gone) | new
        fired: list[tuple[int, int, str]] = []

        def change(instance: KeyedStateBackend) -> None:
            services, timers, recorded = self.services[id(instance)]
            services.advance_watermark(self.now)
            assert [time for time, *_ in recorded.fired] == sorted(time for time, *_ in recorded.fired)
            fired.extend(recorded.fired)
            recorded.fired.clear()
            for some, act in (
                (gone, timers.delete_event_time_timer),
                (new, timers.register_event_time_timer),
            ):
                for time, key, namespace in sorted(some):
                    if instance.current.key_group_of(key) in instance.key_groups:
                        instance.set_current_key(key)
                        act(namespace, time)
            if instance is self.instances[-1]:
                assert sorted(fired) == sorted(due)

        return change

    def check(self) -> None:
        """Compare all timers with the model: none is lost, and none is there twice."""
        found = []
        for _, timers, _ in self.services.values():
            shown = [(time, key, namespace) for time, namespace, key, _ in timers._event]
            assert timers.num_event_time_timers() == len(shown)
            found += shown
        assert len(found) == len(set(found)) and set(found) == self.model


@pytest.mark.parametrize(
    ("incremental", "writing"),
    [(True, SnapshotKind.DELTA), (True, SnapshotKind.DELTA_AND_FULL), (False, SnapshotKind.DELTA)],
)
def test_timers_continue_with_either_queue_and_any_parallelism(
    tmp_path: Path, incremental: bool, writing: SnapshotKind
) -> None:
    """TIMER-01, SCALE-01, PQ-10, PQ-11: from table files, deltas and segment files, in order."""
    job = TimerJob(tmp_path, options={"rocksdb.incremental": incremental})
    for queue, parallelism in (("ordered", 1), ("heap", 2), ("ordered", 3), ("auto", 2), ("heap", 1)):
        job.timer_queue = queue
        job.restart(parallelism)
        kind = HeapTimerQueue if queue == "heap" else OrderedTimerQueue
        assert all(type(service._event) is kind for _, service, _ in job.services.values())
        job.check()
        for _ in range(3):
            job.run(job.moved(), writing=writing)
        job.check()
    job.close()


@pytest.mark.parametrize(("other", "ingests"), [("heap-cow", True), ("nested-map", False)])
def test_timers_go_to_other_backends_and_come_back(tmp_path: Path, other: str, ingests: bool) -> None:
    """TIMER-01: what was native is read as entries, and what was canonical is in order again."""
    options = {"rocksdb.incremental": True, "rocksdb.restore-ingest": ingests}
    job = TimerJob(tmp_path, options=options)
    for name, parallelism in (("rocksdb", 2), (other, 1), ("rocksdb", 3), ("rocksdb", 1), (other, 2)):
        job.restart(parallelism, backend=name)
        job.check()
        job.run(job.moved())
        job.run(job.moved(), writing=SnapshotKind.DELTA)
    job.restart(1)
    job.check()
    job.close()


def test_an_epoch_whose_attempt_failed_fires_its_timers_again(tmp_path: Path) -> None:
    job = TimerJob(tmp_path)
    job.restart()
    for _ in range(4):
        job.run(job.moved(), writing=SnapshotKind.DELTA)
    model, now, state = set(job.model), job.now, job.generator.getstate()
    job.run(job.moved(), publish=False)
    job.model, job.now = model, now
    job.generator.setstate(state)
    job.restart()
    job.check()
    job.run(job.moved())
    job.check()
    job.close()


def test_timers_in_order_are_rows_in_the_order_of_time_and_no_objects(tmp_path: Path) -> None:
    """PQ-11: in the files themselves; a table of timers has no cache of entries before it."""
    job = TimerJob(tmp_path)
    job.restart()
    job.run(job.moved())
    (instance,) = job.instances
    table = state_tables(instance)[EVENT_TIMERS + "t"]
    times = [(row[0], int.from_bytes(row[1:9], "big") - 2**63) for row, _ in table.buffer.scan_all()]
    assert times == sorted(times) and sorted(time for _, time in times) == sorted(
        time for time, *_ in job.model
    )
    assert not hasattr(table, "cache")
    job.close()
