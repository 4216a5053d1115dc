"""What the system tells of memory, and how much of it counts as used."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from spillable_simulation import MIB, Clock, Machine

from keyedstate_spillable import monitor
from keyedstate_spillable.container import SystemMemory
from keyedstate_spillable.errors import SmallMemoryBudgetError
from keyedstate_spillable.monitor import MemoryAccount, MemoryMonitor

PAGE = os.sysconf("SC_PAGE_SIZE")


def system_of(root: Path, files: dict[str, str]) -> SystemMemory:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return SystemMemory(root)


# -- the system -------------------------------------------------------------------------------------------


def test_a_system_that_tells_nothing_has_no_limits(tmp_path: Path):
    system = SystemMemory(tmp_path)
    assert system.process_bytes() is None
    assert system.container() is None
    assert system.available_bytes() is None
    assert system.pressure() == 0.0


def test_the_resident_set_is_counted_in_pages(tmp_path: Path):
    assert system_of(tmp_path, {"proc/self/statm": "900 300 1 1 0 1 0"}).process_bytes() == 300 * PAGE


def test_a_container_of_version_2_counts_without_files_that_can_be_dropped(tmp_path: Path):
    folder = "sys/fs/cgroup/apps/job"
    system = system_of(
        tmp_path,
        {
            "proc/self/cgroup": "0::/apps/job\n",
            f"{folder}/memory.max": "2000\n",
            f"{folder}/memory.current": "1500\n",
            f"{folder}/memory.stat": "anon 900\ninactive_file 400\n",
            f"{folder}/memory.pressure": "some avg10=12.50 avg60=1.00 avg300=0.00 total=1\nfull avg10=0.00",
            "proc/pressure/memory": "some avg10=99.00 avg60=1.00 avg300=0.00 total=1\n",
        },
    )
    assert system.container() == (1100, 2000)
    assert system.available_bytes() == 2000
    assert system.pressure() == 12.5


def test_the_strictest_limit_from_the_container_up_counts(tmp_path: Path):
    system = system_of(
        tmp_path,
        {
            "proc/self/cgroup": "0::/apps/job/task\n",
            "sys/fs/cgroup/apps/job/task/memory.max": "max\n",
            "sys/fs/cgroup/apps/job/memory.max": "5000\n",
            "sys/fs/cgroup/apps/job/memory.current": "700\n",
            "sys/fs/cgroup/apps/job/memory.stat": "inactive_file 0\n",
            "sys/fs/cgroup/apps/memory.max": "9000\n",
        },
    )
    assert system.container() == (700, 5000)


def test_a_container_of_version_1_whose_own_folder_is_mounted_is_found(tmp_path: Path):
    system = system_of(
        tmp_path,
        {
            "proc/self/cgroup": "9:name=systemd:/\n4:memory:/docker/1234\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "4000\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "3000\n",
            "sys/fs/cgroup/memory/memory.stat": "cache 5\ntotal_inactive_file 1000\n",
        },
    )
    assert system.container() == (2000, 4000)


def test_a_container_without_a_limit_leaves_the_machines_memory(tmp_path: Path):
    system = system_of(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/\n0::/\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/memory.max": "max\n",
            "proc/meminfo": "MemTotal:       2048 kB\nMemFree: 1 kB\n",
        },
    )
    assert system.container() is None
    assert system.available_bytes() == 2048 * 1024


def test_unreadable_numbers_are_unknown(tmp_path: Path):
    system = system_of(
        tmp_path,
        {
            "proc/self/cgroup": "0::/\nnonsense\n",
            "proc/self/statm": "many",
            "sys/fs/cgroup/memory.max": "1000\n",
            "sys/fs/cgroup/memory.current": "some\n",
            "proc/pressure/memory": "\n",
        },
    )
    assert (system.process_bytes(), system.container(), system.pressure()) == (None, None, 0.0)


# -- the monitor ------------------------------------------------------------------------------------------


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def measuring(machine: Machine, clock: Clock) -> Iterator[MemoryMonitor]:
    made = MemoryMonitor(machine, clock)  # type: ignore[arg-type]
    yield made
    made.close()


def test_samples_are_numbered_from_one(measuring: MemoryMonitor):
    """SP-01."""
    assert [measuring.latest.number, measuring.sample().number, measuring.sample().number] == [1, 2, 3]


def test_growth_is_the_slower_of_the_last_interval_and_the_last_ten(
    measuring: MemoryMonitor, machine: Machine, clock: Clock
):
    found = []
    for mib in (110, 110, 110, 110, 110, 110, 110, 110, 110, 150, 150, 140, 160):
        machine.process, clock.now = mib * MIB, clock.now + 100
        found.append(round(measuring.sample().growth / MIB))
    # The first step alone, then a tenth of the second one, then nothing while nothing grows.
    assert found == [100, 0, 0, 0, 0, 0, 0, 0, 0, 50, 0, 0, 50]


def test_collections_are_measured_between_two_samples(measuring: MemoryMonitor, clock: Clock):
    """SP-01."""
    clock.now += 1_000
    measuring.sample()
    gc.collect()
    clock.now += 1_000
    sample = measuring.sample()
    assert sample.collection_ms > 0.0
    assert 0.0 < sample.collecting <= 1.0
    gc.disable()
    try:
        measuring.sample()
        assert measuring.sample().collection_ms == 0.0
    finally:
        gc.enable()


def monitoring() -> set[threading.Thread]:
    """Return the threads that measure memory; one may belong to an instance of another test."""
    return {thread for thread in threading.enumerate() if thread.name == "keyedstate-memory-monitor"}


def test_the_thread_ends_with_the_last_instance_and_is_shared_until_then():
    others = monitoring()
    first, second = object(), object()
    memory = monitor.acquire(first, 0.999, 0, 10)
    assert monitor.acquire(second, 0.999, 0, 20) is memory
    number = memory.monitor.latest.number
    while memory.monitor.latest.number == number:
        threading.Event().wait(0.001)
    monitor.release(first, 0.999)
    assert len(monitoring() - others) == 1
    monitor.release(second, 0.999)
    monitor.release(second, 0.999)
    assert monitoring() <= others


def test_a_budget_that_is_refused_leaves_no_thread_and_no_callback():
    before = list(gc.callbacks)
    for budget in (1 << 20, 1e-9):
        with pytest.raises(SmallMemoryBudgetError):
            monitor.acquire(object(), budget, 0, 10)
    assert gc.callbacks == before


# -- what counts as used ----------------------------------------------------------------------------------


def used(memory: MemoryAccount, machine: Machine, entries: int, process: int) -> int:
    machine.process = process * MIB
    return memory.note("one", entries * MIB, memory.monitor.sample())[1] // MIB


def test_what_entries_have_freed_does_not_count_although_the_process_keeps_it(
    measuring: MemoryMonitor, machine: Machine
):
    memory = MemoryAccount(measuring, 1_000 * MIB, 0, 0)
    assert used(memory, machine, 0, 100) == 100
    assert used(memory, machine, 500, 600) == 600
    assert used(memory, machine, 300, 600) == 400
    assert used(memory, machine, 400, 600) == 500, "in the room that was freed"
    assert used(memory, machine, 300, 400) == 400, "returned to the system"


def test_memory_of_others_counts_as_soon_as_the_process_grows(measuring: MemoryMonitor, machine: Machine):
    memory = MemoryAccount(measuring, 1_000 * MIB, 0, 0)
    used(memory, machine, 500, 600)
    used(memory, machine, 400, 600)
    assert used(memory, machine, 400, 700) == 600


def test_growth_near_the_budget_means_that_less_was_free(measuring: MemoryMonitor, machine: Machine):
    memory = MemoryAccount(measuring, 1_000 * MIB, 0, 0)
    used(memory, machine, 800, 950)
    assert used(memory, machine, 100, 950) == 250
    assert used(memory, machine, 100, 980) == 250 + 30, "something else has grown"
    assert used(memory, machine, 130, 1_010) == 280 + 30 + 60, "entries have, so what they freed was not free"


def test_buffers_that_are_returned_and_come_back_leave_entries_their_room(
    measuring: MemoryMonitor, machine: Machine, monkeypatch: pytest.MonkeyPatch
):
    memory = MemoryAccount(measuring, 1_000 * MIB, 0, 0)
    used(memory, machine, 800, 940)

    def return_freed_memory() -> None:
        assert machine.process is not None
        machine.process -= 30 * MIB

    monkeypatch.setattr(monitor, "return_freed_memory", return_freed_memory)
    for _ in range(20):
        assert used(memory, machine, 700, 940) == 840
        memory.adjust("one", 650 * MIB)
        returned = memory.return_freed()
        assert returned is not None and returned.process_bytes == 910 * MIB
        assert 788 <= used(memory, machine, 650, 910) <= 790
    for _ in range(2_000):
        used(memory, machine, 650, 910)
    assert used(memory, machine, 650, 910) == 760, "they were not needed again"


def test_what_databases_may_occupy_counts_before_they_do(measuring: MemoryMonitor, machine: Machine):
    memory = MemoryAccount(measuring, 1_000 * MIB, 64 * MIB, 0)
    assert used(memory, machine, 300, 400) == 464
    assert used(memory, machine, 300, 430) == 464, "they occupy a part"
    assert used(memory, machine, 200, 430) == 364
    assert used(memory, machine, 200, 464) == 364
    assert used(memory, machine, 200, 480) == 380, "more than was reserved"


def test_an_estimate_that_is_too_large_is_bounded_by_the_process(measuring: MemoryMonitor, machine: Machine):
    memory = MemoryAccount(measuring, 1_000 * MIB, 0, 0)
    assert used(memory, machine, 900, 400) == 400


def test_what_another_job_has_left_in_the_process_can_be_used_again(
    measuring: MemoryMonitor, machine: Machine
):
    machine.process = 1_200 * MIB
    measuring.sample()
    memory = MemoryAccount(measuring, 1_000 * MIB, 64 * MIB, 100 * MIB)
    assert used(memory, machine, 0, 1_200) == 564, "half of the budget counts as what is in use"
    assert used(memory, machine, 200, 1_200) == 764
    assert used(memory, machine, 300, 1_300) == 1_000, "it grew with them, so 100 MiB of 700 were not free"
    assert used(memory, machine, 0, 700) == 564, "it was returned to the system"


def test_a_process_that_had_the_budget_without_any_state_is_refused(measuring: MemoryMonitor):
    with pytest.raises(SmallMemoryBudgetError, match=f"Set it to {1_080 * MIB} at least"):
        MemoryAccount(measuring, 1_000 * MIB, 64 * MIB, 1_000 * MIB)


def test_a_limit_of_the_resident_set_below_the_budget_counts(monkeypatch: pytest.MonkeyPatch):
    resource = pytest.importorskip("resource")
    owner, limit = object(), 1 << 40
    monkeypatch.setattr(resource, "getrlimit", {resource.RLIMIT_RSS: (limit, -1)}.__getitem__)
    for budget, counted in ((limit + 1, limit), (limit - 1, limit - 1)):
        assert monitor.acquire(owner, budget, 0, 60_000).budget == counted
        monitor.release(owner, budget)


def test_without_a_resident_set_the_estimates_count(measuring: MemoryMonitor, machine: Machine):
    machine.process = None
    measuring.sample()
    memory = MemoryAccount(measuring, 1_000 * MIB, 0, 0)
    assert memory.note("one", 300, measuring.latest) == (300, 300)
    assert memory.note("two", 200, measuring.latest) == (500, 500)
    memory.adjust("one", 100)
    memory.forget("two")
    assert memory.note("three", 1, measuring.latest) == (101, 101)
