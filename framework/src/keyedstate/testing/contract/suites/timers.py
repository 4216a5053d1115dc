"""What a backend must do that claims to keep timers in the order of time."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from keyedstate import types
from keyedstate.backend import (
    TIMER_TABLES,
    AddressBatch,
    Capability,
    ChangeTracking,
    StateKind,
    StateMeta,
    StateTable,
    TimerTable,
)
from keyedstate.keygroups import KeyGroupRange
from keyedstate.testing.contract.base import KEY_GROUPS, ContractBase, Open, content, requires
from keyedstate.testing.contract.suites.changes import changed
from keyedstate.testing.instances import Instance

#: Timers with a namespace, and some that have but a time.
META = StateMeta(
    TIMER_TABLES + "event_contract",
    StateKind.VALUE,
    types.STRING,
    types.tuple_of(types.INT64, types.STRING),
    types.VOID,
)
BARE = StateMeta(TIMER_TABLES + "processing_contract", StateKind.VALUE, types.STRING, types.INT64, types.VOID)
TIMES = [-(2**63), -(2**40), -257, -256, -1, 0, 1, 255, 256, 2**31, 2**40, 2**63 - 1]


class OrderedTimers(StateTable[Any, Any, Any], TimerTable, ChangeTracking[Any, Any, Any]):
    """The type of a table of timers in order."""


def table_in(instance: Instance, meta: StateMeta = META) -> OrderedTimers:
    """Return an empty table of timers."""
    table = instance.table(meta)
    assert isinstance(table, TimerTable), "claimed, but the table of timers does not derive from it"
    assert isinstance(table, ChangeTracking), "who keeps timers in order tracks their changes, too"
    return table  # type: ignore[return-value]


def some_timers(count: int, seed: int = 1) -> dict[int, list[tuple[Any, str]]]:
    """Return timers by key group: pairs of a namespace in the table and a key, each once."""
    generator = random.Random(seed)
    groups: dict[int, list[tuple[Any, str]]] = {group: [] for group in KEY_GROUPS}
    for number in range(count):
        time = generator.choice(TIMES) if number % 3 else generator.randrange(-(2**63), 2**63)
        groups[generator.choice(list(groups))].append(
            ((time, generator.choice(["", "a", "b"])), f"k{number}")
        )
    return groups


def add(table: OrderedTimers, timers: dict[int, list[tuple[Any, str]]]) -> None:
    """Add timers of all key groups with one call."""
    rows = [(group, key, namespace) for group, found in timers.items() for namespace, key in found]
    assert table.add_timers(*map(list, zip(*rows, strict=True))) == [True] * len(rows)


def shown(batch: AddressBatch[Any, Any]) -> list[tuple[Any, str]]:
    """Return what a table shows, as pairs of a namespace and a key."""
    return list(zip(batch.namespaces, batch.keys, strict=True))


class TimerContract(ContractBase):
    """Tests of `TimerTable`."""

    @requires(Capability.TIMERS_IN_ORDER)
    @pytest.mark.parametrize("size", [1, 3, 1_000])
    def test_timers_of_a_key_group_come_in_the_order_of_time_each_once(
        self, instance: Instance, size: int
    ) -> None:
        """PQ-01, PQ-11: in parts of any size, negative times and the least and the greatest among them."""
        table, timers = table_in(instance), some_timers(400)
        add(table, timers)
        for key_group, expected in timers.items():
            found: list[tuple[Any, str]] = []
            while part := shown(
                table.earliest(key_group, size, after=(found[-1][1], found[-1][0]) if found else None)
            ):
                found += part
                assert len(part) <= size
                if len(part) < size:
                    break
            assert [time for (time, _), _ in found] == sorted(time for (time, _), _ in expected)
            assert sorted(found) == sorted(expected)

    @requires(Capability.TIMERS_IN_ORDER)
    def test_bounds_of_time_are_both_included(self, instance: Instance) -> None:
        """PQ-11."""
        table = table_in(instance, BARE)
        for number, time in enumerate(TIMES):
            table.put(5, f"k{number}", time, types.VOID_NAMESPACE)
        for first, since in enumerate(TIMES):
            for last, until in enumerate(TIMES):
                found = table.earliest(5, 100, since=since, until=until)
                assert list(found.namespaces) == TIMES[first : last + 1]
        assert shown(table.earliest(5, 2, since=2, until=2**40)) == [(255, "k7"), (256, "k8")]
        assert shown(table.earliest(5, 5, since=255, until=256, after=("k7", 255))) == [(256, "k8")]
        assert shown(table.earliest(5, 5, since=256, until=256, after=("k0", TIMES[0]))) == [(256, "k8")]
        assert shown(table.earliest(4, 5)) == shown(table.earliest(6, 5)) == []

    @requires(Capability.TIMERS_IN_ORDER)
    def test_what_is_added_again_is_there_once_and_no_change(self, instance: Instance) -> None:
        """PQ-05, PQ-11, TM-11."""
        table = table_in(instance)
        table.begin_epoch(1)
        add(table, {3: [((1, "a"), "x"), ((1, "a"), "y")]})
        table.begin_epoch(2)
        assert table.add_timers([3, 3, 4], ["y", "x", "y"], [(1, "a"), (1, "b"), (1, "a")]) == [
            False,
            True,
            True,
        ]
        changes = table.changes_since(1)
        written, removed = changed(changes)
        changes.release()
        assert list(map(str, sorted(written))) == ["(3, 'x', (1, 'b'))", "(4, 'y', (1, 'a'))"]
        assert not removed
        assert len(table) == 4 and len(content(table)) == 4

    @requires(Capability.TIMERS_IN_ORDER)
    def test_what_is_removed_comes_no_more_and_one_that_goes_again_is_no_change(
        self, instance: Instance
    ) -> None:
        """PQ-08, PQ-11."""
        table, timers = table_in(instance), some_timers(300)
        table.begin_epoch(1)
        add(table, timers)
        table.begin_epoch(2)
        passing = {8: [((7, "passing"), "p")]}
        add(table, passing)
        gone = {group: found[::2] for group, found in timers.items()}
        rows = [(group, key, ns) for found in (gone, passing) for group in found for ns, key in found[group]]
        table.remove_timers(*map(list, zip(*rows, strict=True)))
        for key_group, expected in timers.items():
            assert sorted(shown(table.earliest(key_group, 1_000))) == sorted(expected[1::2])
        changes = table.changes_since(1)
        written, removed = changed(changes)
        changes.release()
        assert not written
        assert removed == {(group, key, ns) for group, found in gone.items() for ns, key in found}

    @requires(Capability.TIMERS_IN_ORDER)
    def test_timers_are_seen_as_soon_as_they_are_written_however_that_is_done(
        self, instance: Instance
    ) -> None:
        """One by one, many at one place, and by a restore."""
        table = table_in(instance, BARE)
        table.put(3, "one", 10, types.VOID_NAMESPACE)
        assert shown(table.earliest(3, 9)) == [(10, "one")]
        table.put_many([3, 3], ["two", "three"], 5, [types.VOID_NAMESPACE] * 2)
        assert set(shown(table.earliest(3, 2))) == {(5, "two"), (5, "three")}
        table.remove(3, "two", 5)
        table.remove_many([3], ["three"], 5)
        assert shown(table.earliest(3, 9)) == [(10, "one")]
        assert table.contains(3, "one", 10) and not table.contains(3, "two", 5)

    @requires(Capability.TIMERS_IN_ORDER)
    def test_timers_of_a_snapshot_come_back_in_order_where_their_key_groups_are(
        self, instance: Instance, open_instance: Open, tmp_path: Path
    ) -> None:
        """PQ-10, TIMER-01."""
        table, timers = table_in(instance), some_timers(300)
        add(table, timers)
        handle = instance.write(instance.prepare(), tmp_path / "snapshot")
        part = KeyGroupRange(5, 6)
        restored = table_in(open_instance(part, [handle]))
        for key_group, expected in timers.items():
            if key_group in part:
                found = shown(restored.earliest(key_group, 1_000))
                assert [time for (time, _), _ in found] == sorted(time for (time, _), _ in expected)
                assert sorted(found) == sorted(expected)
        assert len(restored) == len(timers[5]) + len(timers[6])
