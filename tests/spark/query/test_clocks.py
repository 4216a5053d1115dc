"""Clocks that are wrong for a while: what timers and times to live make of them, in tasks and in hosts."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from hosted import HostedJob

from keyedstate.checkpoint.protocol.coordinator import Acknowledgement
from keyedstate.checkpoint.protocol.metrics import metrics_of_checkpoint
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.epoch.epoch_start import EpochStart
from keyedstate.epoch.partition import Partition
from keyedstate.runtime import KeyedProcessFunction
from keyedstate.state import Ttl, ValueState
from keyedstate.types import INT64

HOUR = 3_600_000
DAY = 24 * HOUR


class Clocked(KeyedProcessFunction):
    """Each row registers a timer so many milliseconds later, and yields the value of before.

    The clocks of the process that it runs in are as wrong as two files say: that of the machine, and that of
    the storage, which no test can set for real.
    """

    value = ValueState("value", INT64, ttl=Ttl.of("1 hour"))

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(self, ctx: Any) -> None:
        if getattr(time, "of_the_machine", None) is None:
            folder, of_machine, of_storage = self.folder, time.time_ns, CheckpointStorage.modified_ms
            time.of_the_machine = of_machine  # type: ignore[attr-defined]

            def skew(clock: str) -> int:
                return int((folder / clock).read_text())

            time.time_ns = lambda: of_machine() + skew("machine") * 1_000_000
            CheckpointStorage.modified_ms = (  # type: ignore[method-assign]
                lambda self, path: (of_storage(self, path) or 0) + skew("storage")
            )

    def process(self, row: Any, ctx: Any) -> Iterator[Any]:
        name, _, later = row.key.partition("+")
        before, now = self.value.value(), ctx.timer_service.current_processing_time
        self.value.update(1)
        ctx.timer_service.register_processing_time_timer(now + int(later or 0))
        yield f"row {name}", before

    def on_timer(self, time: int, ctx: Any) -> Iterator[Any]:
        yield f"timer {ctx.key}", None


class Clocks:
    """An operator of two partitions, and the clocks that its attempts see."""

    def __init__(self, job: HostedJob, folder: Path, embedded: bool) -> None:
        self.job, self.folder, self.embedded = job, folder, embedded
        self.set()

    def set(self, machine: int = 0, storage: int = 0) -> None:
        """Set how many milliseconds clocks are ahead."""
        (self.folder / "machine").write_text(str(machine))
        (self.folder / "storage").write_text(str(storage))

    def epoch(self, epoch: int, *keys: str, ahead: int = 0) -> list[tuple[Any, ...]]:
        """Run an epoch, the first partition, which has the rows, on a machine whose clock is ahead."""
        found: list[tuple[Any, ...]] = []
        storage = int((self.folder / "storage").read_text())
        for partition in range(2):
            self.set(ahead if partition == 0 else storage, storage)
            of_partition = keys if partition == 0 else ()
            attempt = self._in_this_process if self.embedded else self.job.attempt
            out, acknowledgement = attempt(epoch, of_partition, partition)
            self.job.coordinator.acknowledge(acknowledgement)
            found += out
        return found

    def _in_this_process(
        self, epoch: int, keys: Any, partition: int
    ) -> tuple[list[tuple[Any, ...]], Acknowledgement]:
        identity = self.job.identity(epoch, partition)
        assert self.job.plan.location is not None
        beginning = EpochStart.of(self.job.plan, self.job.plan.location, identity)
        with contextlib.closing(Partition(self.job.plan, beginning)) as one:
            batches = list(one.run(beginning, (), iter([self.job.batch(keys, partition)])))
            acknowledgement = one.finish(beginning)
        return [tuple(row.values()) for batch in batches for row in batch.to_pylist()], acknowledgement

    @property
    def skew(self) -> int:
        """What the metrics of the last epoch say."""
        return metrics_of_checkpoint(self.job.checkpoint(), 0, None).clock_skew_ms


@pytest.fixture(params=["embedded", "resident"])
def clocks(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Clocks]:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    # What the function sets in this process is put back.
    monkeypatch.setattr(time, "of_the_machine", None, raising=False)
    monkeypatch.setattr(time, "time_ns", time.time_ns)
    monkeypatch.setattr(CheckpointStorage, "modified_ms", CheckpointStorage.modified_ms)
    with HostedJob(tmp_path / "job", Clocked(tmp_path), parallelism=2) as job:
        yield Clocks(job, tmp_path, request.param == "embedded")


def test_one_machine_whose_clock_is_ahead_fires_no_timer_early(clocks: Clocks) -> None:
    assert clocks.epoch(0, f"a+{HOUR}") == [("row a", None)]
    assert clocks.epoch(1, "b+60000", ahead=30 * DAY) == [("row b", None)]
    assert 29 * DAY < clocks.skew < 31 * DAY
    assert clocks.epoch(2) == []
    assert abs(clocks.skew) < HOUR
    clocks.set(storage=2 * HOUR)
    fired = clocks.epoch(3, ahead=2 * HOUR)
    assert sorted(fired) == [("timer a+3600000", None), ("timer b+60000", None)]


def test_timers_continue_after_all_clocks_were_ahead_and_none_fires_twice(clocks: Clocks) -> None:
    assert clocks.epoch(0, f"a+{HOUR}") == [("row a", None)]
    clocks.set(storage=30 * DAY)
    assert clocks.epoch(1, ahead=30 * DAY) == [("timer a+3600000", None)]
    clocks.set()
    assert clocks.epoch(2, "b+120000") == [("row b", None)]
    clocks.set(storage=HOUR)
    assert clocks.epoch(3, ahead=HOUR) == [("timer b+120000", None)]


def test_a_machine_whose_clock_is_behind_does_not_hold_timers_up(clocks: Clocks) -> None:
    assert clocks.epoch(0, "a+60000") == [("row a", None)]
    clocks.set(storage=HOUR)
    assert clocks.epoch(1, ahead=-30 * DAY) == [("timer a+60000", None)]


def test_entries_live_by_the_corrected_clock(clocks: Clocks) -> None:
    clocks.epoch(0, "a")
    assert ("row a", 1) in clocks.epoch(1, "a", ahead=30 * DAY), "it is not expired"
    clocks.set(storage=2 * HOUR)
    assert ("row a", None) in clocks.epoch(2, "a", ahead=2 * HOUR), "it was written an hour or more ago"
