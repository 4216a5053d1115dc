"""What changed since an epoch: the same on every backend, whether its tables or the framework know it."""

from __future__ import annotations

import operator
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from keyedstate import types
from keyedstate.backend import ChangeTracking, EntryChange, StateKind, StateMeta, TableChanges
from keyedstate.errors import UnknownChangesError
from keyedstate.keygroups import KeyGroupRange
from keyedstate.state import ListState, MapState, ReducingState, ValueState
from keyedstate.state.registry.change_tracking import TouchedTable
from keyedstate.testing import open_instance

WORDS = ValueState("words", types.STRING)
SEEN = ListState("seen", types.INT64)
COUNTS = MapState("counts", types.STRING, types.INT64)
TOTAL = ReducingState("total", operator.add, types.INT64)


def read(changes: TableChanges[Any, Any, Any], key_groups: KeyGroupRange, size: int = 100) -> Any:
    """Return the written entries and the removed addresses; one that is shown twice is an error."""
    written: dict[Any, Any] = {}
    removed: list[Any] = []
    for group in key_groups:
        for batch in changes.written(group, size):
            assert 0 < len(batch) <= size
            for namespace, key, value in zip(batch.namespaces, batch.keys, batch.values, strict=True):
                assert (group, key, namespace) not in written
                written[group, key, namespace] = value
        for addresses in changes.removed(group, size):
            assert 0 < len(addresses) <= size
            removed += [
                (group, key, ns) for ns, key in zip(addresses.namespaces, addresses.keys, strict=True)
            ]
    assert len(removed) == len(set(removed))
    assert not written.keys() & set(removed)
    return written, set(removed)


def by_key(backend, epoch, state):
    """Return what changed in a state since an epoch, as {key: value} and a set of keys."""
    captured = backend.changes_since(epoch)
    written, removed = read(captured[state.name], backend.key_groups)
    for changes in captured.values():
        changes.release()
    return {key: value for (_, key, _), value in written.items()}, {key for _, key, _ in removed}


@pytest.fixture
def tracking(instances):
    backend = instances.open(track_changes=True)
    backend.begin_epoch(1)
    return backend


#: In columns where a backend has such tables.
TALLIES = ValueState("tallies", types.accumulators_of({"n": types.nullable(types.INT64)}))


# -- by the keyed backend -----------------------------------------------------------------------------------


def test_changes_of_another_instance_are_no_changes_of_the_next_epoch(tracking):
    """CL-01: of one entry the last change counts, whatever the namespaces of those between."""
    state = tracking.get_state(TALLIES, 0, types.INT64)
    state.update_many([1, 2, 3], [(1,), (2,), (3,)])
    groups = dict(zip((1, 2, 3, 4), tracking.current.locate([1, 2, 3, 4])[1], strict=True))

    def change(key: int, namespace: int, present: bool, value: Any = None) -> EntryChange:
        return EntryChange("tallies", groups[key], namespace, key, present, value)

    tracking.apply_changes("tallies", [])
    tracking.apply_changes(
        "tallies",
        [
            change(1, 0, False),
            change(2, 0, True, (20,)),
            change(4, 7, True, (4,)),
            change(2, 0, False),
            change(3, 0, False),
            change(4, 7, True, (40,)),
            change(3, 0, True, (30,)),
        ],
    )
    assert set(tracking.get_keys_and_namespaces("tallies")) == {(3, 0), (4, 7)}
    assert state.get_many([1, 2, 3]) == [None, None, (30,)]
    tracking.begin_epoch(2)
    state.update_many([3], [(31,)])
    assert by_key(tracking, 1, TALLIES) == ({3: (31,)}, set())


def test_each_kind_of_state_reports_what_changed_since_an_epoch(tracking):
    """CL-01."""
    words, seen = tracking.get_state(WORDS), tracking.get_state(SEEN)
    counts, total = tracking.get_state(COUNTS), tracking.get_state(TOTAL)
    for key in range(4):
        tracking.set_current_key(key)
        words.update(str(key))
        seen.add(key)
        counts.put("a", key)
        total.add(key)
    tracking.begin_epoch(2)
    tracking.set_current_key(1)
    words.update("changed")
    seen.add(10)
    counts.put("b", 10)
    total.add(10)
    tracking.set_current_key(2)
    for state in (words, seen, counts, total):
        state.clear()
    tracking.set_current_key(3)
    assert (words.value(), seen.get(), counts.get("a"), total.get()) == ("3", [3], 3, 3)
    assert by_key(tracking, 1, WORDS) == ({1: "changed"}, {2})
    assert by_key(tracking, 1, SEEN) == ({1: [1, 10]}, {2})
    assert by_key(tracking, 1, COUNTS) == ({1: {"a": 1, "b": 10}}, {2})
    assert by_key(tracking, 1, TOTAL) == ({1: 11}, {2})
    # What came and went since is no change.
    assert by_key(tracking, 0, WORDS) == ({0: "0", 1: "changed", 3: "3"}, set())
    assert by_key(tracking, 2, WORDS) == ({}, set())


def test_a_list_or_map_changed_in_place_is_a_change(tracking):
    tracking.set_current_key(1)
    seen, counts = tracking.get_state(SEEN), tracking.get_state(COUNTS)
    seen.add_many([1, 2], [1, 2])
    counts.put_all({"a": 1, "b": 2})
    for epoch, change, expected in (
        (2, lambda: seen.add_all([3]), [1, 3]),
        (3, lambda: seen.add_many([1], [4]), [1, 3, 4]),
    ):
        tracking.begin_epoch(epoch)
        change()
        assert by_key(tracking, epoch - 1, SEEN) == ({1: expected}, set())
        assert by_key(tracking, epoch - 1, COUNTS) == ({}, set())
    for epoch, change, expected in (
        (4, lambda: counts.remove("a"), {"b": 2}),
        (5, lambda: counts.put_all({"c": 3}), {"b": 2, "c": 3}),
        (6, lambda: next(counts.entries()).set_value(7), {"b": 7, "c": 3}),
        (7, lambda: counts.put_many([1], ["d"], [4]), {"b": 7, "c": 3, "d": 4}),
    ):
        tracking.begin_epoch(epoch)
        change()
        assert by_key(tracking, epoch - 1, COUNTS) == ({1: expected}, set())
        assert by_key(tracking, epoch - 1, SEEN) == ({}, set())
    tracking.begin_epoch(8)
    iterator = counts.entries()
    for _ in iterator:
        iterator.remove()
    assert by_key(tracking, 7, COUNTS) == ({}, {1})


def test_reading_is_no_change_also_while_a_snapshot_is_live(instances, tracking):
    """CL-01: reads write nothing."""
    tracking.set_current_key(1)
    seen, counts = tracking.get_state(SEEN), tracking.get_state(COUNTS)
    seen.add(1)
    counts.put("a", 1)
    tracking.begin_epoch(2)
    task = tracking.snapshot(1)
    assert seen.get() == [1] and counts.get("a") == 1 and counts.contains("a")
    assert list(counts.items()) == [("a", 1)] and list(counts.entries()) == [("a", 1)]
    assert seen.get_many([1]) == [[1]] and seen.get_internal() == [1]
    assert by_key(tracking, 1, SEEN) == by_key(tracking, 1, COUNTS) == ({}, set())
    instances.write(tracking, task)


def test_the_changes_of_a_restored_state_are_those_since_the_restore(instances):
    backend = instances.open()
    backend.get_state(SEEN).add_many([1, 2, 3], [1, 2, 3])
    restored = instances.open([instances.snapshot(backend)], track_changes=True)
    restored.begin_epoch(8)
    assert by_key(restored, 7, SEEN) == ({}, set())
    restored.set_current_key(1)
    restored.get_state(SEEN).add(10)
    restored.get_state(SEEN).clear_many([3, 4])
    assert by_key(restored, 7, SEEN) == ({1: [1, 10]}, {3})


def test_the_changes_of_a_state_registered_later_are_all_its_entries(tracking):
    tracking.begin_epoch(2)
    tracking.get_state(WORDS).update_many([1, 2], ["a", "b"])
    assert by_key(tracking, 0, WORDS) == by_key(tracking, 1, WORDS) == ({1: "a", 2: "b"}, set())


def test_forgotten_changes_are_refused(tracking):
    words = tracking.get_state(WORDS)
    for epoch in (2, 3, 4):
        words.update_many([epoch], ["x"])
        tracking.begin_epoch(epoch)
    tracking.forget_changes(2)
    tracking.forget_changes(1)
    assert by_key(tracking, 2, WORDS) == ({4: "x"}, set())
    with pytest.raises(UnknownChangesError, match="since epoch 1 are unknown: they are known since epoch 2"):
        tracking.changes_since(1)
    with pytest.raises(ValueError, match="epoch 4 is not over"):
        tracking.forget_changes(4)


def test_epochs_ascend_and_tracking_is_an_option(instances, tracking):
    with pytest.raises(ValueError, match="epoch 1 cannot begin after epoch 1"):
        tracking.begin_epoch(1)
    untracked = instances.open()
    for call in (untracked.begin_epoch, untracked.changes_since, untracked.forget_changes):
        with pytest.raises(ValueError, match="open it with track_changes=True"):
            call(1)
    with pytest.raises(UnknownChangesError, match="not known at all yet"):
        instances.open(track_changes=True).changes_since(1)


def test_a_full_snapshot_of_a_tracking_backend_has_every_entry(instances, tracking):
    tracking.get_state(SEEN).add_many([1, 2], [1, 2])
    tracking.begin_epoch(2)
    tracking.get_state(SEEN).add_many([1], [3])
    restored = instances.open([instances.snapshot(tracking)])
    assert restored.get_state(SEEN).get_many([1, 2, 3]) == [[1, 3], [2], []]


# -- by the table -------------------------------------------------------------------------------------------

KEY_GROUPS = KeyGroupRange(3, 5)
META = StateMeta(
    "visits",
    StateKind.LIST,
    types.STRING,
    types.INT64,
    types.nullable(types.list_of(types.INT64)),
)
Address = tuple[int, str, int]
ADDRESSES = st.tuples(st.sampled_from([3, 4, 5]), st.sampled_from("abcd"), st.sampled_from([0, 1]))
VALUES = st.one_of(st.none(), st.lists(st.integers(0, 9), max_size=3))


class TrackedTableMachine(RuleBasedStateMachine):
    """Changes a table at random, and holds its changes to a model that knows every touched address.

    The key group belongs to the key in a job; here every combination is an address of its own.
    """

    def __init__(self, table: Any, asynchronous: bool) -> None:
        super().__init__()
        self.table = table
        #: Whether changes and snapshots may be read after later changes.
        self.asynchronous = asynchronous
        self.model: dict[Address, Any] = {}
        self.epoch = 0
        #: Per epoch not forgotten, its number, what was there when it began, and what was touched in it.
        self.epochs: list[tuple[int, dict[Address, Any], set[Address]]] = []
        self.held: list[tuple[TableChanges[Any, Any, Any], Any]] = []
        self.snapshots: list[Any] = []

    def touched(self, address: Address) -> None:
        if self.epochs:
            self.epochs[-1][2].add(address)

    @initialize(data=st.dictionaries(ADDRESSES, VALUES, max_size=6))
    def fill(self, data: dict[Address, Any]) -> None:
        for address, value in data.items():
            self.table.put(*address, copied(value))
            self.model[address] = copied(value)
        self.begin()

    @rule()
    def begin(self) -> None:
        self.epoch += 2
        self.table.begin_epoch(self.epoch)
        self.epochs.append((self.epoch, dict(self.model), set()))

    @rule(address=ADDRESSES, value=VALUES, old=st.booleans())
    def put(self, address: Address, value: Any, old: bool) -> None:
        if old:
            assert self.table.put_and_get_old(*address, copied(value)) == self.model.get(address)
        else:
            self.table.put(*address, copied(value))
        self.model[address] = copied(value)
        self.touched(address)

    @rule(address=ADDRESSES, old=st.booleans())
    def remove(self, address: Address, old: bool) -> None:
        if old:
            assert self.table.remove_and_get_old(*address) == self.model.get(address)
        else:
            self.table.remove(*address)
        if address in self.model:
            del self.model[address]
            self.touched(address)

    @rule(address=ADDRESSES, number=st.integers(0, 9))
    def change_in_place(self, address: Address, number: int) -> None:
        stored = self.table.get_for_update(*address)
        assert stored == self.model.get(address)
        if stored is not None:
            stored.append(number)
            self.model[address] = [*self.model[address], number]
        if address in self.model:
            self.touched(address)

    @rule(address=ADDRESSES, number=st.integers(0, 9))
    def transform(self, address: Address, number: int) -> None:
        self.table.transform(*address, number, lambda old, new: [*(old or []), new])
        self.model[address] = [*(self.model.get(address) or []), number]
        self.touched(address)

    @rule(address=ADDRESSES)
    def transform_in_vain(self, address: Address) -> None:
        with pytest.raises(ZeroDivisionError):
            self.table.transform(*address, 0, lambda old, zero: 1 // zero)

    @rule(address=ADDRESSES)
    def look(self, address: Address) -> None:
        assert self.table.get(*address) == self.model.get(address)
        assert self.table.contains(*address) == (address in self.model)

    @rule(rows=st.lists(st.tuples(ADDRESSES, VALUES), max_size=6), namespace=st.sampled_from([0, 1]))
    def put_many(self, rows: list[tuple[Address, Any]], namespace: int) -> None:
        addresses = [(group, key, namespace) for (group, key, _), _ in rows]
        values = [copied(value) for _, value in rows]
        self.table.put_many(
            iter([group for group, _, _ in addresses]),
            iter([key for _, key, _ in addresses]),
            namespace,
            values,
        )
        for address, value in zip(addresses, values, strict=True):
            self.model[address] = copied(value)
            self.touched(address)

    @rule(rows=st.lists(ADDRESSES, max_size=6), namespace=st.sampled_from([0, 1]))
    def remove_many(self, rows: list[Address], namespace: int) -> None:
        self.table.remove_many([group for group, _, _ in rows], [key for _, key, _ in rows], namespace)
        for group, key, _ in rows:
            if self.model.pop((group, key, namespace), self) is not self:
                self.touched((group, key, namespace))

    @rule(choice=st.lists(st.sampled_from(["keep", "update", "remove"]), min_size=1, max_size=8))
    def visit(self, choice: list[str]) -> None:
        visitor, number = self.table.visitor(2), 0
        while step := visitor.next_entries():
            for entry in step:
                address = entry.key_group, entry.key, entry.namespace
                number += 1
                match choice[number % len(choice)]:
                    case "update":
                        visitor.update(entry, [number])
                        self.model[address] = [number]
                        self.touched(address)
                    case "remove":
                        visitor.remove(entry)
                        del self.model[address]
                        self.touched(address)

    @rule()
    def take_snapshot(self) -> None:
        if self.asynchronous:
            self.snapshots.append(self.table.snapshot())

    @rule(number=st.integers(0, 9))
    def release_snapshot(self, number: int) -> None:
        if self.snapshots:
            self.snapshots.pop(number % len(self.snapshots)).release()

    def expected(self, since: int) -> Any:
        wanted = [epoch for epoch in self.epochs if epoch[0] > since]
        touched = set().union(*(epoch[2] for epoch in wanted))
        before = wanted[0][1] if wanted else {}
        return (
            {address: copied(self.model[address]) for address in touched if address in self.model},
            {address for address in touched if address in before and address not in self.model},
        )

    @rule(back=st.integers(0, 3), size=st.integers(1, 4), hold=st.booleans())
    def compare(self, back: int, size: int, hold: bool) -> None:
        since = [epoch[0] for epoch in self.epochs][-1 - min(back, len(self.epochs) - 1)] - 1
        changes = self.table.changes_since(since)
        expected = self.expected(since)
        assert read(changes, KEY_GROUPS, size) == expected
        if hold and self.asynchronous:
            self.held.append((changes, expected))
        else:
            changes.release()
            changes.release()

    @precondition(lambda self: self.held)
    @rule(number=st.integers(0, 9))
    def read_held(self, number: int) -> None:
        changes, expected = self.held.pop(number % len(self.held))
        assert read(changes, KEY_GROUPS) == expected
        changes.release()

    @precondition(lambda self: len(self.epochs) > 1)
    @rule()
    def forget(self) -> None:
        self.table.forget_changes(self.epochs[0][0])
        del self.epochs[0]

    @invariant()
    def counts_its_entries(self) -> None:
        assert len(self.table) == len(self.model)

    def teardown(self) -> None:
        for changes, expected in self.held:
            assert read(changes, KEY_GROUPS) == expected
            changes.release()
        for snapshot in self.snapshots:
            snapshot.release()


def copied(value: Any) -> Any:
    return None if value is None else list(value)


@pytest.mark.parametrize("tracking", ["own", "noted"])
@pytest.mark.slow
def test_changes_are_those_of_a_model(instances, tmp_path, tracking):
    """What a table tracks itself and what the framework notes agree: both equal the model."""
    instance = open_instance(
        instances.plugin.name, tmp_path, options=instances.options, key_groups=KEY_GROUPS, max_parallelism=8
    )
    if tracking == "own" and not isinstance(instance.table(META), ChangeTracking):
        pytest.skip(f"{instances.plugin.name} claims no change tracking")

    def machine() -> TrackedTableMachine:
        table = instance.backend.create_state_table(META, instance.context)
        return TrackedTableMachine(
            table if tracking == "own" else TouchedTable(table), instances.asynchronous
        )

    thorough = settings(max_examples=60, stateful_step_count=40, deadline=None, derandomize=True)
    run_state_machine_as_test(machine, settings=thorough)
    instance.close()
