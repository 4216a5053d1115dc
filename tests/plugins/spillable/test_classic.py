"""The classic policy: FLIP-50's decisions, formulas and order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from spillable_simulation import options, state_map

from keyedstate_spillable.classic import ClassicPolicy
from keyedstate_spillable.errors import MarkOrderError, WeightOrderError
from keyedstate_spillable.options import OPTIONS
from keyedstate_spillable.policy import Action, Decision, MemorySample, Signals

MAXIMUM = 10_240
SIGNALS = Signals(MemorySample(1, 0), MAXIMUM, 0, 0, 0, 0)


def policy(**changed: Any) -> ClassicPolicy:
    return ClassicPolicy(options(**changed))


def signals(used: int, collection_ms: float, entries: int = 0) -> Signals:
    sample = MemorySample(1, 0, collection_ms=collection_ms)
    return replace(SIGNALS, sample=sample, used=used, own_bytes=entries, all_bytes=entries)


def test_the_options_have_the_defaults_of_the_design():
    """SP-01."""
    defaults = {option.name.rpartition(".")[2]: option.default for option in OPTIONS}
    assert (defaults["heap-status-interval"], defaults["gc-time-threshold"]) == (60_000, 2_000)
    assert (defaults["trigger-interval"], defaults["resource-check-interval"]) == (60_000, 10_000)
    assert defaults["spill-size-ratio"] == 0.2
    assert (defaults["load-start-ratio"], defaults["load-end-ratio"]) == (0.1, 0.3)
    assert (defaults["weight-size"], defaults["weight-requests"]) == (0.7, 0.3)
    assert (defaults["cancel-snapshots"], defaults["estimate-samples"]) == (True, 1000)


def test_an_action_follows_from_collections_and_the_used_memory():
    """SP-01."""
    configured = policy(
        load_start_ratio=0.2, load_end_ratio=0.4, gc_time_threshold=30_000, spill_size_ratio=0.3
    )
    start, end = 0.2 * MAXIMUM, 0.4 * MAXIMUM
    used = int(start) + 1
    assert configured.decide_action(signals(used, 30_000.0)) == (Action.NONE, 0.0)
    assert configured.decide_action(signals(used, 30_001.0)) == (Action.SPILL, 0.3)
    used = int(start) - 100
    assert configured.decide_action(signals(used, 0.0)) == (Action.LOAD, (end - used) / used)


def test_a_spill_takes_its_ratio_of_the_state_and_a_load_ends_at_its_mark():
    """SP-01."""
    spill = policy().decide(signals(5_000, 2_001.0, entries=3_000))
    assert (spill.action, spill.bytes, spill.cancel_snapshots) == (Action.SPILL, 600.0, True)
    load = policy().decide(signals(1_000, 0.0))
    assert load.action is Action.LOAD
    assert load.bytes == pytest.approx(0.3 * MAXIMUM - 1_000)
    assert not load.cancel_snapshots


@pytest.mark.parametrize("used", [0, 1_025])
def test_nothing_is_loaded_above_the_start_or_while_nothing_is_known(used: int):
    """SP-01."""
    assert policy().decide(signals(used, 0.0)) == Decision(Action.NONE)


def test_spilling_begins_with_large_key_groups_of_few_requests_and_stops_at_the_target():
    """SP-01: weights are 0.7 of the size less 0.3 of the requests, both between 0 and 1, through 0.4."""
    maps = [
        state_map("a", 0, in_memory=100, requests=0),  # (0.7 * 0.5 - 0.3 * 0.0) / 0.4
        state_map("a", 1, in_memory=200, requests=1_000),  # (0.7 * 1.0 - 0.3 * 1.0) / 0.4
        state_map("b", 0, in_memory=200, requests=0),  # (0.7 * 1.0 - 0.3 * 0.0) / 0.4
        state_map("b", 1, in_memory=0, on_disk=50),
        state_map("b", 2, in_memory=1, requests=1_000),  # (0.7 * 0.0 - 0.3 * 1.0) / 0.4
    ]

    def spilled(target: float) -> list[tuple[str, int | None]]:
        moves = policy().plan(Decision(Action.SPILL, target), maps)
        return [(move.table, move.key_group) for move in moves]

    order = [("b", 0), ("a", 1), ("a", 0), ("b", 2)]
    assert spilled(1.0) == order[:1]
    assert spilled(20_000.0) == order[:1]
    assert spilled(20_001.0) == order[:2]
    assert spilled(1e9) == order


def test_loading_begins_with_small_key_groups_of_many_requests_and_stops_before_the_target():
    """SP-01."""
    maps = [
        state_map("a", 0, in_memory=0, on_disk=100, requests=1_000),
        state_map("a", 1, in_memory=0, on_disk=10, requests=1_000),
        state_map("b", 0, in_memory=0, on_disk=10, requests=0),
        state_map("b", 1, in_memory=100),
    ]

    def loaded(room: float) -> list[tuple[str, int | None]]:
        moves = policy().plan(Decision(Action.LOAD, room), maps)
        return [(move.table, move.key_group) for move in moves]

    assert loaded(999.0) == []
    assert loaded(1_000.0) == [("a", 1)]
    assert loaded(11_999.0) == [("a", 1), ("a", 0)]
    assert loaded(12_000.0) == [("a", 1), ("a", 0), ("b", 0)]


def test_one_key_group_is_in_order_with_itself():
    (move,) = policy().plan(Decision(Action.SPILL, 1.0), [state_map("a", 3)])
    assert (move.table, move.key_group, move.bytes) == ("a", 3, 10_000.0)


def test_a_load_that_ends_where_it_starts_is_refused():
    with pytest.raises(MarkOrderError, match=r"load-start-ratio, .*load-end-ratio are 0\.3, 0\.3"):
        policy(load_start_ratio=0.3)


def test_requests_that_count_as_much_as_sizes_are_refused():
    with pytest.raises(WeightOrderError, match=r"weight-requests is 0\.7"):
        policy(weight_requests=0.7)
