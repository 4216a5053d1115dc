"""The adaptive policy: what it decides by, how much it moves, and which entries."""

from __future__ import annotations

from typing import Any

import pytest
from spillable_simulation import MIB, options, state_map

from keyedstate_spillable.adaptive import AdaptivePolicy
from keyedstate_spillable.errors import MarkOrderError
from keyedstate_spillable.policy import NOTHING, Action, Decision, MemorySample, Signals

BUDGET = 1_000 * MIB


def new_policy() -> AdaptivePolicy:
    return AdaptivePolicy(options(low_mark=0.75, high_mark=0.85))


POLICY = new_policy()


def decided(
    used: int,
    *,
    on_disk: int = 0,
    share: float = 1.0,
    others: int = 0,
    budget: int = BUDGET,
    at_ms: int = 0,
    policy: AdaptivePolicy | None = None,
    **sample: Any,
) -> Decision:
    """Return the decision at a number of used MiB, which are entries but for the `others`."""
    facts, entries = MemorySample(1, at_ms, used * MIB, **sample), (used - others) * MIB
    signals = Signals(facts, budget, used * MIB, int(entries * share), entries, on_disk)
    return (policy or new_policy()).decide(signals)


def test_memory_between_the_marks_stays_as_it_is():
    for used in range(500, 851, 10):
        assert decided(used, on_disk=100) == NOTHING


def test_above_the_high_mark_as_much_is_spilled_as_leads_to_the_low_one():
    decision = decided(900)
    assert (decision.action, decision.reason, decision.urgent) == (Action.SPILL, "high-mark", False)
    assert decision.bytes == pytest.approx(150 * MIB)


def test_each_instance_spills_its_share():
    assert decided(900, share=0.25).bytes == pytest.approx(150 * MIB / 4)


def test_growth_that_leads_above_the_high_mark_by_the_next_check_is_answered_before():
    decision = decided(800, growth=500.0 * MIB)
    assert (decision.action, decision.reason) == (Action.SPILL, "growth")
    assert decision.bytes == pytest.approx(150 * MIB)


@pytest.mark.parametrize(
    ("sample", "reason"), [({"pressure": 11.0}, "pressure"), ({"collecting": 0.3}, "collector")]
)
def test_waiting_processes_and_long_collections_lead_to_the_low_mark(sample: dict[str, float], reason: str):
    decision = decided(800, **sample)
    assert (decision.action, decision.reason) == (Action.SPILL, reason)
    assert decision.bytes == pytest.approx(50 * MIB)
    assert decided(750, **sample) == NOTHING


def test_more_than_the_budget_is_an_emergency():
    decision = decided(1_010, share=0.25)
    assert (decision.action, decision.reason, decision.urgent) == (Action.SPILL, "emergency", True)
    assert decision.cancel_snapshots
    assert decision.bytes == pytest.approx(260 * MIB)


def test_marks_are_fractions_of_what_the_rest_of_the_process_leaves_for_entries():
    """Of a budget that the rest nearly fills they would leave no entries in memory."""
    for occupied in (0, 9_000):
        budget = BUDGET + occupied * MIB
        for used in (400, 800, 840, 900, 980):
            beside = decided(used + occupied, others=occupied, budget=budget, on_disk=10)
            assert beside == decided(used, on_disk=10)


def test_a_container_that_is_nearly_full_is_an_emergency_within_the_budget_too():
    decision = decided(600, container_bytes=1_990 * MIB, container_limit=2_000 * MIB)
    assert (decision.reason, decision.urgent) == ("emergency", True)
    assert decision.bytes == pytest.approx(90 * MIB)


def test_below_the_load_mark_the_room_is_half_of_the_way_to_the_low_mark():
    decision = decided(400, on_disk=10)
    assert (decision.action, decision.reason) == (Action.LOAD, "load-mark")
    assert decision.bytes == pytest.approx(225 * MIB)
    assert decided(400) == NOTHING
    assert decided(400, on_disk=10, growth=1000.0 * MIB) == NOTHING


def test_nothing_is_loaded_within_ten_seconds_after_entries_were_spilled():
    """What the rows of a chunk need for a moment causes a spill, and is free memory after it."""
    policy = new_policy()
    assert decided(900, policy=policy, at_ms=1_000).action is Action.SPILL
    assert decided(400, on_disk=10, policy=policy, at_ms=10_900) == NOTHING
    assert decided(400, on_disk=10, policy=policy, at_ms=11_000).action is Action.LOAD


def test_key_groups_in_equal_demand_give_their_coldest_entries():
    maps = [state_map("a", group, rate=10.0) for group in range(4)]
    (move,) = POLICY.plan(Decision(Action.SPILL, 10_000.0), maps)
    assert (move.table, move.key_group, move.bytes) == ("a", None, 10_000.0)


def test_key_groups_that_are_hardly_used_are_spilled_whole():
    maps = [
        state_map("a", 0, rate=100.0),
        state_map("a", 1),
        state_map("a", 2, rate=100.0),
        state_map("a", 3),
    ]
    moves = POLICY.plan(Decision(Action.SPILL, 15_000.0), maps)
    assert [(move.key_group, move.bytes) for move in moves] == [(1, 10_000.0), (3, 5_000.0)]


def test_a_table_in_less_demand_gives_more_of_its_coldest_entries():
    maps = [state_map("busy", 0, rate=100.0), state_map("quiet", 0, rate=50.0)]
    moves = {move.table: move.bytes for move in POLICY.plan(Decision(Action.SPILL, 14_000.0), maps)}
    assert sum(moves.values()) == pytest.approx(14_000.0)
    assert moves["quiet"] > 1.1 * moves["busy"]


def test_values_that_must_be_written_again_stay_longer():
    maps = [state_map("lists", 0, rate=100.0, mutable=True), state_map("numbers", 0, rate=100.0)]
    moves = {move.table: move.bytes for move in POLICY.plan(Decision(Action.SPILL, 14_000.0), maps)}
    assert moves["numbers"] > moves["lists"]


def test_no_table_gives_more_than_it_has():
    maps = [
        state_map("small", 0, in_memory=1, rate=1.0),
        state_map("large", 0, in_memory=1_000, rate=1_000.0),
    ]
    for move in POLICY.plan(Decision(Action.SPILL, 90_000.0), maps):
        assert move.bytes <= {"small": 100.0, "large": 100_000.0}[move.table]


def test_only_key_groups_in_use_are_loaded_and_never_beyond_the_room():
    maps = [
        state_map("a", 0, in_memory=0, on_disk=50, rate=5.0),
        state_map("a", 1, in_memory=0, on_disk=50),
        state_map("a", 2, in_memory=0, on_disk=60, rate=5.0),
    ]
    moves = POLICY.plan(Decision(Action.LOAD, 10_000.0), maps)
    assert [(move.key_group, move.bytes) for move in moves] == [(0, 5_000.0)]


def test_without_entries_in_memory_nothing_is_spilled():
    assert POLICY.plan(Decision(Action.SPILL, 1.0), [state_map("a", 0, in_memory=0, on_disk=5)]) == []


@pytest.mark.parametrize(
    "marks", [{"low_mark": 0.92}, {"low_mark": 0.4}, {"load_mark": 0.9}, {"high_mark": 0.5}]
)
def test_marks_in_another_order_are_refused(marks: dict[str, float]):
    with pytest.raises(MarkOrderError, match=r"load-mark, .*low-mark, .*high-mark are .*ascending"):
        AdaptivePolicy(options(**marks))
