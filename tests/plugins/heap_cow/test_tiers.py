"""The copy-on-write map as the upper of two tiers: compiled and uncompiled."""

from __future__ import annotations

from random import Random
from types import ModuleType
from typing import Any

import pytest

NS = "namespace"
#: Above every period of use.
ANY = 2**30


class DictTier:
    """A lower tier over a dict; it counts its calls."""

    def __init__(self, cowmap: ModuleType, state_map: Any) -> None:
        self.cowmap, self.map = cowmap, state_map
        self.rows: dict[tuple[Any, Any], tuple[Any, int]] = {}
        self.loads = self.writes = 0

    def load(self, key: Any, namespace: Any) -> tuple[Any, int] | None:
        self.loads += 1
        if (key, namespace) not in self.rows:
            return None
        value, stamp = self.rows[key, namespace]
        return list(value), stamp

    def contains(self, key: Any, namespace: Any) -> bool:
        return (key, namespace) in self.rows

    def discard(self, key: Any, namespace: Any) -> None:
        del self.rows[key, namespace]

    def spill(self, period: int = ANY, limit: int = 10**6) -> int:
        """Evict what was not used since a period of use; return how much it was."""
        position: int | None = 0
        moved = 0
        while position is not None and moved < limit:
            position, clean, changed = self.map.coldest(position, period, limit - moved)
            self.writes += len(changed)
            for namespace, key, value, stamp in zip(*self.cowmap.columns_of(changed), strict=True):
                self.rows[key, namespace] = list(value), stamp
            moved += self.map.evict(clean) + self.map.evict(changed)
        return moved

    def changes(self, epoch: int) -> tuple[dict[Any, Any], set[Any]]:
        """Return the written entries and the removed keys, those of this tier included."""
        found = self.map.changes_since(epoch)
        written_namespaces, written_keys, values, old_namespaces, old_keys, new_namespaces, new_keys = found
        written = dict(
            zip(zip(written_keys, written_namespaces, strict=True), map(list, values), strict=True)
        )
        removed = set()
        for namespace, key in zip(old_namespaces, old_keys, strict=True):
            if (key, namespace) in self.rows:
                written[key, namespace] = self.rows[key, namespace][0]
            else:
                removed.add((key, namespace))
        for namespace, key in zip(new_namespaces, new_keys, strict=True):
            if (key, namespace) in self.rows:
                written[key, namespace] = self.rows[key, namespace][0]
        return written, removed


def tiered(cowmap: ModuleType) -> tuple[Any, DictTier]:
    state_map = cowmap.CopyOnWriteStateMap(list)
    tier = DictTier(cowmap, state_map)
    state_map.use_tier(tier)
    return state_map, tier


def test_an_evicted_entry_is_loaded_when_it_is_used(cowmap: ModuleType) -> None:
    state_map, tier = tiered(cowmap)
    state_map.put("a", NS, [1])
    state_map.put("b", NS, [2])
    assert tier.spill() == 2
    assert (len(state_map), state_map.elsewhere) == (0, 2)
    assert state_map.get("a", NS) == [1]
    assert (len(state_map), state_map.elsewhere, tier.loads) == (1, 1, 1)
    assert state_map.get("a", NS) == [1] and tier.loads == 1
    assert state_map.get("c", NS) is None and not state_map.contains("c", NS)


def test_an_entry_that_comes_and_goes_unchanged_is_written_once(cowmap: ModuleType) -> None:
    state_map, tier = tiered(cowmap)
    state_map.put("a", NS, [1])
    for _ in range(3):
        tier.spill()
        assert state_map.get("a", NS) == [1]
    assert tier.writes == 1
    state_map.get_for_update("a", NS).append(2)
    tier.spill()
    assert tier.writes == 2 and state_map.get("a", NS) == [1, 2]
    state_map.put("a", NS, [3])
    tier.spill()
    assert tier.writes == 3 and state_map.get("a", NS) == [3]


def test_a_removed_entry_does_not_come_back(cowmap: ModuleType) -> None:
    state_map, tier = tiered(cowmap)
    for key in "abc":
        state_map.put(key, NS, [key])
    tier.spill()
    assert state_map.remove("a", NS)
    assert state_map.get("b", NS) == ["b"]
    assert state_map.remove_and_get_old("b", NS) == ["b"]
    assert [state_map.get(key, NS) for key in "abc"] == [None, None, ["c"]]
    assert list(tier.rows) == [("c", NS)] and state_map.elsewhere == 0


def test_entries_in_use_stay_and_the_others_leave(cowmap: ModuleType) -> None:
    state_map, tier = tiered(cowmap)
    for key in range(1000):
        state_map.put(key, NS, [key])
    period = state_map.begin_uses()
    for key in range(0, 1000, 10):
        state_map.get(key, NS)
    assert tier.spill(period) == 900
    assert all(state_map.holds(key, NS) == (key % 10 == 0) for key in range(1000))
    assert state_map.uses == 1100


def test_a_step_of_the_walk_returns_at_most_its_limit(cowmap: ModuleType) -> None:
    state_map, _ = tiered(cowmap)
    for key in range(1000):
        state_map.put(key, NS, [key])
    position, seen = 0, 0
    while position is not None:
        position, _, changed = state_map.coldest(position, ANY, 7)
        assert len(changed) <= 7
        seen += len(changed)
    assert seen >= 900, "the rest of a chain is left for the next walk"


def test_a_failing_load_leaves_everything_as_it_was(cowmap: ModuleType) -> None:
    state_map, tier = tiered(cowmap)
    state_map.put("a", NS, [1])
    tier.spill()
    rows, tier.rows = tier.rows, None  # type: ignore[assignment]
    for access in (state_map.get, state_map.contains, state_map.remove, state_map.get_for_update):
        with pytest.raises(TypeError):
            access("a", NS)
    with pytest.raises(TypeError):
        state_map.put("a", NS, [2])
    tier.rows = rows
    assert (len(state_map), state_map.elsewhere) == (0, 1)
    assert state_map.get("a", NS) == [1]


def test_a_bulk_operation_knows_which_keys_to_load(cowmap: ModuleType) -> None:
    maps = []
    for group in range(2):
        state_map, tier = tiered(cowmap)
        for key in range(5):
            state_map.put(10 * group + key, NS, [key])
        tier.spill(limit=3)
        maps.append(state_map)
    here = [[key for key, _, _ in state_map] for state_map in maps]
    keys = [*range(6), *range(10, 16)]
    missing = cowmap.find_missing(maps, 3, [3] * 6 + [4] * 6, keys, NS)
    assert [keys[i] for i in missing] == [key for key in keys if key not in here[0] + here[1]]


@pytest.mark.parametrize("seed", range(30))
def test_moving_entries_changes_nothing_that_can_be_seen(cowmap: ModuleType, seed: int) -> None:
    """COW-13: reads, snapshots and tracked changes are those of a plain dict, whatever moves meanwhile."""
    random = Random(seed)
    state_map, tier = tiered(cowmap)
    model: dict[Any, list[int]] = {}
    snapshots: list[tuple[Any, Any, dict[Any, Any]]] = []
    epochs: list[tuple[int, dict[Any, list[int]], set[Any]]] = []

    def touched(address: Any) -> None:
        for _, _, changed in epochs:
            changed.add(address)

    for step in range(600):
        address = key, namespace = random.randrange(12), random.choice("ab")
        match random.randrange(11):
            case 0 | 1:
                value = [step]
                state_map.put(key, namespace, value)
                model[address] = [step]
                touched(address)
            case 2:
                assert state_map.get(key, namespace) == model.get(address)
            case 3:
                found = state_map.get_for_update(key, namespace)
                assert found == model.get(address)
                if found is not None:
                    found.append(step)
                    model[address].append(step)
                    touched(address)
            case 4:
                if address in model:
                    touched(address)
                assert state_map.remove_and_get_old(key, namespace) == model.pop(address, None)
            case 5:
                tier.spill(limit=random.choice((1, 4, 100)))
            case 6:
                tier.spill(state_map.begin_uses(), limit=random.choice((1, 4, 100)))
            case 7 if len(snapshots) < 3:
                rows = {where: list(value) for where, (value, _) in tier.rows.items()}
                expected = {where: list(value) for where, value in model.items()}
                snapshots.append((state_map.snapshot(), rows, expected))
            case 8 if snapshots:
                snapshot, rows, expected = snapshots.pop(random.randrange(len(snapshots)))
                shown = {(key, namespace): value for key, namespace, value in snapshot}
                assert {**rows, **shown} == expected
                snapshot.release()
            case 9 if random.random() < 0.3:
                number = len(epochs) + 1
                state_map.begin_epoch(number)
                epochs.append((number, {where: list(value) for where, value in model.items()}, set()))
            case 10 if epochs:
                number, before, changed = random.choice(epochs)
                written, removed = tier.changes(number - 1)
                assert written == {where: model[where] for where in changed if where in model}
                assert removed == {where for where in changed if where not in model and where in before}
        assert len(state_map) + state_map.elsewhere == len(model)
    for snapshot, _, _ in snapshots:
        snapshot.release()
