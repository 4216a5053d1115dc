"""The spill manager: when it asks its policy, what it does then, and what it does with nonsense."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import pytest
from spillable_simulation import MIB, CountedTable, World, options

from keyedstate_spillable.adaptive import AdaptivePolicy
from keyedstate_spillable.classic import ClassicPolicy
from keyedstate_spillable.errors import SmallMemoryBudgetError
from keyedstate_spillable.policy import (
    NOTHING,
    Action,
    Decision,
    Move,
    Signals,
    SpillPolicy,
    StateMapMeta,
)


class Scripted(SpillPolicy):
    """Decides what a test has put into `answers`, then nothing; keeps what it was asked."""

    check_interval_ms = 10_000
    trigger_interval_ms = 60_000
    slice_ms = None
    sees_emergencies = False

    def __init__(self, *answers: Any, moves: Sequence[Move] = ()) -> None:
        self.answers = list(answers)
        self.moves = moves
        self.asked: list[Signals] = []
        self.shown: list[Sequence[StateMapMeta]] = []

    def decide(self, signals: Signals) -> Decision:
        self.asked.append(signals)
        answer = self.answers.pop(0) if self.answers else NOTHING
        if isinstance(answer, Exception):
            raise answer
        return answer

    def plan(self, decision: Decision, maps: Sequence[StateMapMeta]) -> Sequence[Move]:
        self.shown.append(maps)
        return self.moves


SPILL = Decision(Action.SPILL, 1.0, "test")


# -- when -------------------------------------------------------------------------------------------------


def test_a_policy_is_asked_once_per_check_interval():
    """SP-01."""
    world, policy = World(), Scripted()
    with world.running(policy) as step:
        for _ in range(31):
            step(1_000)
    assert [signals.sample.time_ms for signals in policy.asked] == [1_000, 11_000, 21_000, 31_000]


def test_a_measurement_is_looked_at_once():
    """SP-01."""
    world, policy = World(), Scripted()
    with world.running(policy) as step:
        manager = step(1_000)
        for _ in range(100):
            world.clock.now += 10_000
            manager.balance(world.tables, world.cancel)
        assert len(policy.asked) == 1
        step(0)
    assert [signals.sample.number for signals in policy.asked] == [2, 3]


def test_the_trigger_interval_begins_when_everything_has_moved():
    """SP-01."""
    world = World(ms_per_call=5_000)
    world.table("counts", {0: 10, 1: 10})
    policy = Scripted(SPILL, moves=[Move("counts", 0, 10 * 1024.0), Move("counts", 1, 10 * 1024.0)])
    with world.running(policy) as step:
        step(10_000)
        assert world.clock.now == 20_000
        for _ in range(6):
            step(10_000)
    assert [signals.sample.time_ms for signals in policy.asked] == [10_000, 80_000]


def test_an_emergency_is_decided_at_once_whatever_the_intervals():
    world = World()
    table = world.table("counts", {0: 1024, 1: 1024}, entry_bytes=MIB // 4)
    policy = AdaptivePolicy(options(check_interval=3_600_000, low_mark=0.75, high_mark=0.85))
    with world.running(policy) as step:
        step(100)
        table.add(0, 1700)
        step(100)
    assert sum(table.disk.values()) * MIB // 4 > 150 * MIB
    assert world.cancelled == 1


def test_a_process_that_grows_fast_is_measured_before_the_next_sample():
    world = World()
    table = world.table("counts", {0: 0}, entry_bytes=MIB // 4)
    with world.running(AdaptivePolicy(options())) as step:
        manager = step(100)
        for _ in range(95):  # all before the next sample
            table.add(0, 45)
            world.clock.now += 1
            manager.balance(world.tables, world.cancel)
            assert world.machine.process is not None
            assert world.machine.process <= 1.05 * 1024 * MIB
    assert table.disk[0] > 0


def test_a_policy_without_emergencies_sees_the_samples_of_its_interval_only():
    """SP-01."""
    world = World()
    table = world.table("counts", {0: 0}, entry_bytes=MIB // 4)
    policy = Scripted()
    policy.check_interval_ms = 1
    with world.running(policy) as step:
        manager = step(100)
        for _ in range(95):
            table.add(0, 45)
            world.clock.now += 1
            manager.balance(world.tables, world.cancel)
    assert [signals.sample.number for signals in policy.asked] == [2]


def test_an_emergency_within_the_budget_moves_in_slices():
    world = World(ms_per_call=10)
    table = world.table("counts", {0: 2048}, entry_bytes=MIB // 4)
    with world.running(AdaptivePolicy(options())) as step:
        step(100)
        table.add(0, 1700)  # 1.01 of the budget, with what else there is
        before = world.clock.now
        manager = step(100)
        assert 0 < world.clock.now - before - 100 <= 40
        slices = 0
        while sum(table.disk.values()) * MIB // 4 < 80 * MIB:
            before = world.clock.now
            manager.balance(world.tables, world.cancel)
            slices += 1
            assert 0 < world.clock.now - before <= 40
        assert slices > 1
    assert manager.metrics()["decisions.spill.emergency"] == 1


def grown(added: int) -> CountedTable:
    """Return a table after it grew and was looked at once; a call moves four of its entries, in 10 ms."""
    world = World(ms_per_call=10)
    table = world.table("counts", {0: 2048}, entry_bytes=MIB // 4)
    with world.running(AdaptivePolicy(options())) as step:
        step(100)
        table.add(0, added)
        step(100)
    return table


def test_the_slices_of_an_emergency_are_longer_far_above_the_budget():
    table = grown(2120)  # 1.115 of the budget, with what else there is
    assert table.disk[0] == 4 * 4


def test_above_112_percent_of_the_budget_rows_wait_until_that_is_over():
    table = grown(2400)  # 1.18 of the budget, with what else there is
    used = 100 + table.memory[0] / 4
    assert 1.11 * 1024 < used <= 1.12 * 1024


@pytest.mark.parametrize("grows_by", [20, 60])
def test_lists_that_grow_while_entries_are_spilled_keep_the_process_near_its_budget(grows_by: int):
    """Entries in memory become fewer, and their bytes more: what counts is what the process occupies."""
    world = World(ms_per_call=10)
    table = world.table("lists", {0: 2048}, entry_bytes=MIB // 8)
    with world.running(AdaptivePolicy(options())) as step:
        step(100)
        table.add(0, 6500)
        for _ in range(60):
            table.entry_bytes += (grows_by << 20) // table.memory[0]
            world.occupy(grows_by << 20)
            step(10)
            assert world.machine.process is not None
            assert world.machine.process - world.free <= (1.12 * 1024 + grows_by) * MIB


def test_what_is_near_the_limit_of_the_container_moves_at_once():
    world = World(ms_per_call=10)
    table = world.table("counts", {0: 2048}, entry_bytes=MIB // 4)
    world.machine.limits = (1000 * MIB, 950 * MIB)
    with world.running(AdaptivePolicy(options())) as step:
        step(100)
    assert table.disk[0] // 4 >= 97


def test_a_policy_of_the_design_waits_in_an_emergency_too():
    world = World()
    table = world.table("counts", {0: 0}, entry_bytes=MIB // 4)
    with world.running(ClassicPolicy(options())) as step:
        table.add(0, 4096)
        step(100)
    assert table.calls == []


# -- what -------------------------------------------------------------------------------------------------


def test_a_policy_sees_the_size_the_requests_and_the_rate_of_each_key_group():
    world = World()
    counts = world.table("counts", {0: 10, 7: 30})
    world.table("lists", {0: 5}, entry_bytes=100, mutable=True)
    policy = Scripted(NOTHING, SPILL)
    with world.running(policy) as step:
        step(10_000)
        counts.requests[7] = 1_000
        counts.spill(0, 4)
        step(10_000)
    first, second, third = policy.shown[0]
    assert (first.table, first.key_group, first.in_memory, first.on_disk) == ("counts", 0, 6, 4)
    assert (first.entry_bytes, first.memory_bytes, first.disk_bytes) == (1024.0, 6144.0, 4096.0)
    assert (second.key_group, second.requests, second.mutable) == (7, 1_000, False)
    assert 0 < second.rate < 100.0, "of a hundred requests per second, ten seconds old"
    assert (third.table, third.mutable, third.rate) == ("lists", True, 0.0)


def test_a_rate_halves_while_nothing_is_requested():
    world = World()
    counts = world.table("counts", {0: 10})
    policy = Scripted(NOTHING, SPILL, SPILL)
    policy.check_interval_ms = 1_000
    with world.running(policy) as step:
        step(1_000)
        counts.requests[0] = 1_000
        step(1_000)
        step(30_000)
    before, after = (maps[0].rate for maps in policy.shown)
    assert after == pytest.approx(before / 2)


@pytest.mark.parametrize("action", [Action.SPILL, Action.LOAD])
def test_a_long_move_is_done_in_slices_between_chunks(action: Action):
    world = World(ms_per_call=1)
    table = world.table("counts", {0: 100_000, 1: 1}, entry_bytes=512)
    if action is Action.LOAD:
        table.spill(0, 100_000)
    of = table.disk if action is Action.SPILL else table.memory
    policy = Scripted(Decision(action, 1.0), moves=[Move("counts", 0, 50_000 * 512.0)])
    policy.slice_ms = 10
    with world.running(policy) as step:
        manager = step(10_000)
        first = of[0]
        assert first == 10 * 512
        while of[0] < 50_000:
            before = of[0], world.clock.now
            manager.balance(world.tables, world.cancel)
            assert of[0] > before[0]
            assert world.clock.now - before[1] <= 10
        manager.balance(world.tables, world.cancel)
    assert of[0] == 50_000


def loading(*answers: Decision) -> tuple[World, CountedTable, Scripted]:
    """Return a world whose policy first loads a key group in many slices, then decides as given."""
    world = World(ms_per_call=1)
    table = world.table("counts", {0: 100_000}, entry_bytes=512)
    table.spill(0, 100_000)
    policy = Scripted(Decision(Action.LOAD, 1.0), *answers, moves=[Move("counts", 0, 50_000 * 512.0)])
    policy.slice_ms, policy.trigger_interval_ms = 10, 0
    return world, table, policy


def test_entries_stop_coming_back_when_memory_runs_out():
    world, table, policy = loading()
    policy.sees_emergencies = True
    with world.running(policy) as step:
        step(10_000)
        loaded = table.memory[0]
        assert 0 < loaded < 50_000
        world.machine.process = 1030 * MIB
        for _ in range(3):
            step(100)
    assert table.memory[0] == loaded


def test_entries_that_come_back_do_not_delay_the_decision_to_spill():
    world, table, policy = loading(SPILL)
    with world.running(policy) as step:
        step(10_000)
        loaded = table.memory[0]
        step(10_000)
    assert len(policy.asked) == 2
    assert table.memory[0] < loaded


def test_large_entries_move_in_steps_of_few():
    world = World()
    table = world.table("images", {0: 100}, entry_bytes=MIB // 2)
    policy = Scripted(SPILL, moves=[Move("images", 0, 10.0 * MIB)])
    with world.running(policy) as step:
        step(10_000)
    assert table.calls == [("spill", 0, 2)] * 10


def test_coldest_entries_move_until_the_bytes_are_reached_or_none_is_left():
    world = World()
    some, few = world.table("some", {0: 1_000}), world.table("few", {0: 10})
    policy = Scripted(SPILL, moves=[Move("some", None, 100 * 1024.0), Move("few", None, 100 * 1024.0)])
    with world.running(policy) as step:
        step(10_000)
    assert (some.disk[0], few.disk[0]) == (100, 10)


def test_a_load_moves_the_other_way():
    world = World()
    table = world.table("counts", {3: 100})
    table.spill(3, 100)
    policy = Scripted(Decision(Action.LOAD, 1e6, "test"), moves=[Move("counts", 3, 1e6)])
    with world.running(policy) as step:
        manager = step(10_000)
        assert table.memory[3] == 100
        assert manager.metrics()["counts.loaded-entries"] == 100


@pytest.mark.parametrize("cancels", [True, False])
def test_snapshots_are_cancelled_where_the_decision_and_the_option_say_so(cancels: bool):
    """SP-01."""
    world = World()
    world.table("counts", {0: 100})
    decision = Decision(Action.SPILL, 1.0, "test", cancel_snapshots=True)
    policy = Scripted(decision, moves=[Move("counts", 0, 1.0)])
    with world.running(policy, cancels=cancels) as step:
        step(10_000)
    assert world.cancelled == int(cancels)


def test_metrics_tell_what_was_decided_and_moved_and_where_entries_are():
    world = World(ms_per_call=3)
    table = world.table("counts", {0: 100})
    table.requests[0], table.asked_disk = 1_000, 200
    policy = Scripted(SPILL, moves=[Move("counts", 0, 60 * 1024.0)])
    with world.running(policy) as step:
        manager = step(10_000)
        assert manager.metrics() == {
            "decisions.spill.test": 1,
            "moving-ms": 3,
            "counts.spilled-entries": 60,
            "counts.spilled-bytes": 60 * 1024,
            "counts.memory-accesses": 800,
            "counts.disk-accesses": 200,
            "counts.memory-entries": 40,
            "counts.disk-entries": 60,
            "counts.memory-bytes": 40 * 1024,
        }
        table.requests[0], table.asked_disk = 1_050, 220
        assert manager.metrics() == {
            "counts.memory-accesses": 30,
            "counts.disk-accesses": 20,
            "counts.memory-entries": 40,
            "counts.disk-entries": 60,
            "counts.memory-bytes": 40 * 1024,
        }


# -- nonsense ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "moves", "fault"),
    [
        (RuntimeError("out of ideas"), (), "RuntimeError: out of ideas"),
        (None, (), "no Decision"),
        (Decision(Action.SPILL, -1.0), (), "-1.0 is no number of bytes"),
        (Decision(Action.LOAD, float("nan")), (), "nan is no number of bytes"),
        (Decision(Action.SPILL, float("inf")), (), "inf is no number of bytes"),
        (SPILL, [Move("missing", 0, 1.0)], "key group 0 of 'missing', which is unknown"),
        (SPILL, [Move("missing", None, 1.0)], "'missing', which is unknown"),
        (SPILL, [Move("counts", 9, 1.0)], "key group 9 of 'counts', which is unknown"),
        (SPILL, [Move("counts", 0, -1.0)], "a move has -1.0 bytes"),
        (Decision(Action.LOAD, 1.0), [Move("counts", None, 1.0)], "without a key group loads"),
        (SPILL, None, "TypeError"),
    ],
)
def test_a_policy_that_fails_is_one_logged_error_and_moves_nothing(
    answer: Any, moves: Any, fault: str, caplog: pytest.LogCaptureFixture
):
    world = World()
    table = world.table("counts", {0: 100})
    policy = Scripted(*[answer] * 3, moves=moves)
    policy.trigger_interval_ms = 0
    with world.running(policy) as step:
        for _ in range(4):
            manager = step(10_000)
        assert manager.metrics()["policy-faults"] == 3
    assert table.calls == []
    (logged,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert "the policy Scripted failed" in logged and fault in logged


def test_the_built_in_rule_acts_in_an_emergency_where_a_policy_fails():
    world = World()
    table = world.table("counts", {0: 0}, entry_bytes=MIB // 4)
    policy = Scripted(*[ValueError("no idea")] * 3)
    policy.sees_emergencies = True
    with world.running(policy) as step:
        table.add(0, 4096)
        step(100)
        step(100)
    assert table.disk[0] > 0


def test_a_policy_that_works_again_decides_again():
    world = World()
    table = world.table("counts", {0: 100})
    policy = Scripted(ValueError("no idea"), SPILL, moves=[Move("counts", 0, 10 * 1024.0)])
    with world.running(policy) as step:
        step(10_000)
        step(10_000)
    assert table.disk[0] == 10


def test_a_budget_that_the_process_exceeds_without_any_state_is_refused():
    world = World()
    with (
        pytest.raises(
            SmallMemoryBudgetError, match=f"occupies {100 * MIB} .* Set it to {116 * MIB} at least"
        ),
        world.running(Scripted(), budget=64 * MIB, without_state=100 * MIB),
    ):
        pass


def test_other_memory_that_exhausts_the_budget_is_one_warning(caplog: pytest.LogCaptureFixture):
    world = World()
    world.table("counts", {0: 100})
    with world.running(AdaptivePolicy(options())) as step:
        world.machine.process = 1030 * MIB
        for _ in range(5):
            step(100)
    (warned,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "use less memory in functions" in warned


# -- over time --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("growth", [1, 10, 60])
def test_memory_that_grows_without_end_stays_within_the_budget(growth: int):
    """Even one epoch that is larger than the memory; the process returns nothing to the system."""
    world = World()
    table = world.table("counts", dict.fromkeys(range(8), 0), entry_bytes=1024)
    with world.running(AdaptivePolicy(options())) as step:
        for number in range(20_000 // growth):
            table.add(number % 8, growth * 1024)
            step(100)
            assert world.machine.process is not None
            assert world.machine.process <= (1024 + growth) * MIB
    assert sum(table.disk.values()) > 15_000 * 1024


def test_a_steady_state_is_left_alone():
    world = World()
    table = world.table("counts", {0: 0, 1: 0}, entry_bytes=1024)
    with world.running(AdaptivePolicy(options())) as step:
        table.add(0, 500_000)
        table.add(1, 500_000)
        for _ in range(50):
            step(1_000)
        calls = len(table.calls)
        assert sum(table.disk.values()) * 1024 < 400 * MIB, "no more than leads to the low mark"
        for _ in range(500):
            table.requests[0] += 1_000
            step(1_000)
    assert len(table.calls) == calls


def test_key_groups_in_use_return_after_memory_became_free():
    world = World()
    table = world.table("counts", {0: 100_000, 1: 100_000}, entry_bytes=1024)
    table.spill(0, 100_000)
    table.spill(1, 100_000)
    with world.running(AdaptivePolicy(options())) as step:
        for _ in range(50):
            table.requests[0] += 1_000
            step(1_000)
    assert (table.disk[0], table.disk[1]) == (0, 100_000)
