"""Tables of columns in two tiers: the same as heap-cow's columns, whatever moves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from keyedstate import types
from keyedstate.backend import Column, SpillableTable, StateKind, StateMeta
from keyedstate.keygroups import KeyGroupRange
from keyedstate.ordered import RewritingTable
from keyedstate.state.registry.change_tracking import ChangeTracker
from keyedstate.testing import open_instance
from keyedstate.testing.contract.machines.state_machine import profile
from keyedstate.types import accumulators_of, nullable, tuple_of
from keyedstate_heap_cow import COLUMNS
from keyedstate_spillable.columns import moves

pytestmark = pytest.mark.skipif(not COLUMNS, reason="the index of columns is not compiled")

VOID = types.VOID_NAMESPACE
GROUPS = KeyGroupRange(2, 9)
VALUES = accumulators_of({"n": nullable(types.INT64), "mean": nullable(types.FLOAT64)})
WINDOWED = StateMeta("windowed", StateKind.VALUE, nullable(types.STRING), types.INT64, VALUES)
PAIRS = StateMeta(
    "pairs", StateKind.VALUE, tuple_of(nullable(types.STRING), nullable(types.INT64)), types.VOID, VALUES
)
NUMBERS = StateMeta("numbers", StateKind.VALUE, nullable(types.INT64), types.VOID, VALUES)


def opened(folder: Path, backend: str = "spillable", handles: Any = ()) -> Any:
    return open_instance(backend, folder, key_groups=GROUPS, max_parallelism=10, handles=handles)


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[Any]:
    made = opened(tmp_path)
    yield made
    made.close()


def group_of(key: object) -> int:
    return GROUPS.start + sum(repr(key).encode()) % len(GROUPS)


def groups_of(keys: Any) -> Any:
    return np.fromiter((2 + key % 8 for key in keys), np.int32)


def locate(table: Any, keys: Any) -> Any:
    """Locate numbers as keys, without a namespace."""
    return table.locate([pa.array(keys, pa.int64())], groups_of(keys), [VOID])


def fill(table: Any, keys: Any, mean: float = 0.5) -> None:
    numbers = np.array(keys, np.int64)
    locate(table, keys).write([Column(numbers), Column(np.full(len(numbers), mean))])


def renumbering(instance: Any, monkeypatch: pytest.MonkeyPatch, entries: int, *, removed: int) -> Any:
    """Return a table that has lost its first entries and renumbers the others in many slices."""
    monkeypatch.setattr(moves.MovingColumns, "renumbered_together", 1000)
    table = instance.table(NUMBERS)
    fill(table, range(entries))
    locate(table, range(removed)).remove()
    return table


def tiers(table: Any) -> tuple[int, int]:
    groups = table.spillable_groups()
    return sum(group.in_memory for group in groups), sum(group.on_disk for group in groups)


def content(table: Any) -> dict[Any, Any]:
    return read(table.snapshot())


def read(snapshot: Any, size: int = 100) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for key_group in snapshot.occupied(GROUPS):
        for batch in snapshot.batches(key_group, size):
            assert 0 < len(batch) <= size
            for namespace, key, value in zip(batch.namespaces, batch.keys, batch.values, strict=True):
                assert (key_group, key, namespace) not in found, "an entry is in one tier"
                found[key_group, key, namespace] = value
    snapshot.release()
    return found


def changed(changes: Any, size: int = 100) -> tuple[dict[Any, Any], set[Any]]:
    written: dict[Any, Any] = {}
    removed: set[Any] = set()
    for key_group in changes.occupied(GROUPS):
        for batch in changes.written(key_group, size):
            for namespace, key, value in zip(batch.namespaces, batch.keys, batch.values, strict=True):
                assert (key_group, key, namespace) not in written
                written[key_group, key, namespace] = value
        for gone in changes.removed(key_group, size):
            removed |= {(key_group, *address) for address in zip(gone.keys, gone.namespaces, strict=True)}
    assert len(changes) == len(written) + len(removed)
    changes.release()
    return written, removed


class Parity(RuleBasedStateMachine):
    """A table whose entries move, and heap-cow's, which has all of them in memory."""

    meta = WINDOWED
    keys: Any = (None, "", "a", "b", "a key of more than eight bytes", *map(str, range(20)))
    spaces: Any = (1, 2, -(2**63))

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.instances = [opened(folder), opened(folder, "heap-cow")]
        self.tables = [each.table(self.meta) for each in self.instances]
        self.moving = self.tables[0]
        assert isinstance(self.moving, SpillableTable)
        self.epoch, self.oldest = 0, 0
        self.captured: list[tuple[Any, Any]] = []
        self.deltas: list[tuple[Any, Any]] = []

    def address(self, row: tuple[int, int]) -> tuple[int, Any, Any]:
        key = self.keys[row[0] % len(self.keys)]
        return group_of(key), key, self.spaces[row[1] % len(self.spaces)]

    @rule(
        rows=st.lists(st.tuples(st.integers(0, 24), st.integers(0, 2)), min_size=1, max_size=30),
        first=st.integers(-5, 5),
        what=st.sampled_from(["read", "write", "write", "remove"]),
    )
    def use_columns(self, rows: list[tuple[int, int]], first: int, what: str) -> None:
        addresses = list(map(self.address, rows))
        array = self.meta.key_serializer.to_arrow([key for _, key, _ in addresses])
        columns = array.flatten() if pa.types.is_struct(array.type) else [array]
        which = np.array([self.spaces.index(space) for _, _, space in addresses], np.int32)
        groups = np.array([group for group, _, _ in addresses], np.int32)
        found = []
        for table in self.tables:
            located = table.locate(columns, groups, self.spaces, which)
            values = [(column.values[column.there], column.there.tolist()) for column in located.read()]
            found.append((located.exist.tolist(), [(seen.tolist(), there) for seen, there in values]))
            count = len(located)
            if what == "write":
                numbers = np.arange(first, first + count)
                located.write([Column(numbers, numbers % 3 > 0), Column(numbers / 4)])
            elif what == "remove":
                located.remove()
        assert found[0] == found[1]

    @rule(row=st.tuples(st.integers(0, 24), st.integers(0, 2)), n=st.none() | st.integers(-9, 9))
    def put(self, row: tuple[int, int], n: int | None) -> None:
        value = None if n == 0 else (n, None)
        old = [table.put_and_get_old(*self.address(row), value) for table in self.tables]
        assert old[0] == old[1]

    @rule(row=st.tuples(st.integers(0, 24), st.integers(0, 2)))
    def remove(self, row: tuple[int, int]) -> None:
        for table in self.tables:
            table.remove(*self.address(row))

    @rule(rows=st.lists(st.integers(0, 24), max_size=8), space=st.integers(0, 2), update=st.booleans())
    def get_many(self, rows: list[int], space: int, update: bool) -> None:
        addresses = [self.address((row, space)) for row in rows]
        groups, keys = [group for group, _, _ in addresses], [key for _, key, _ in addresses]
        name = "get_many_for_update" if update else "get_many"
        found = [
            getattr(table, name)(groups, keys, self.spaces[space % len(self.spaces)]) for table in self.tables
        ]
        assert found[0] == found[1]

    @rule(
        group=st.integers(2, 9), limit=st.integers(1, 40), what=st.sampled_from(["spill", "load", "coldest"])
    )
    def move(self, group: int, limit: int, what: str) -> None:
        before = {each.key_group: each for each in self.moving.spillable_groups()}
        held = before[group].in_memory if group in before else 0
        away = before[group].on_disk if group in before else 0
        match what:
            case "spill":
                assert self.moving.spill(group, limit) == min(limit, held)
            case "load":
                assert self.moving.load(group, limit) == min(limit, away)
            case _:
                held = sum(each.in_memory for each in before.values())
                assert self.moving.spill_coldest(limit) == min(limit, held)

    @rule()
    def spill_all(self) -> None:
        self.moving.spill_coldest(10_000)

    @rule()
    def capture(self) -> None:
        self.captured.append(tuple(table.snapshot() for table in self.tables))

    @precondition(lambda machine: machine.captured)
    @rule()
    def read_a_snapshot(self) -> None:
        found, expected = self.captured.pop(0)
        assert read(found, 3) == read(expected)

    @rule(forgotten=st.integers(0, 3))
    def begin_an_epoch(self, forgotten: int) -> None:
        self.epoch += 1
        for table in self.tables:
            table.begin_epoch(self.epoch)
            if forgotten:
                self.oldest = max(self.oldest, self.epoch - forgotten)
                table.forget_changes(self.epoch - forgotten)

    @precondition(lambda machine: machine.epoch)
    @rule(back=st.integers(0, 3), later=st.booleans())
    def capture_changes(self, back: int, later: bool) -> None:
        since = max(self.epoch - 1 - back, self.oldest)
        self.deltas.append(tuple(table.changes_since(since) for table in self.tables))
        if not later:
            self.read_changes()

    @precondition(lambda machine: machine.deltas)
    @rule()
    def read_changes(self) -> None:
        found, expected = self.deltas.pop()
        assert changed(found, 3) == changed(expected)

    @rule()
    def visit(self) -> None:
        shown = []
        for table in self.tables:
            visitor = table.visitor(7)
            entries: list[Any] = []
            while step := visitor.next_entries():
                entries += step
            shown.append({(each.key_group, each.key, each.namespace): each.value for each in entries})
        assert shown[0] == shown[1]

    @invariant()
    def both_have_the_same(self) -> None:
        assert len(self.tables[0]) == len(self.tables[1]) == sum(tiers(self.moving))
        assert content(self.tables[0]) == content(self.tables[1])

    def teardown(self) -> None:
        for each in self.instances:
            each.close()


class PairParity(Parity):
    """Keys of two parts, and no namespaces."""

    meta = PAIRS
    keys = tuple(
        (text, number) for text in (None, "", "a", "long enough to be cut") for number in (None, 0, -7)
    )
    spaces = (VOID,)


@pytest.mark.parametrize("machine", [Parity, PairParity], ids=["windows", "pairs"])
@pytest.mark.parametrize(
    ("together", "most_free"), [(2, 0.1), (2, 0.75), pytest.param(1000, 0.1, marks=pytest.mark.long)]
)
@pytest.mark.slow
def test_columns_that_move_are_those_that_do_not(
    machine: type[Parity],
    together: int,
    most_free: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SP-04, SP-05: located, read, written, removed, captured, and changed by epochs."""
    monkeypatch.setattr(moves.MovingColumns, "few_unused", 4)
    monkeypatch.setattr(moves.MovingColumns, "renumbered_together", together)
    monkeypatch.setattr(moves.MovingColumns, "most_free", most_free)
    numbers = iter(range(10**9))
    run_state_machine_as_test(lambda: machine(tmp_path / str(next(numbers))), settings=profile())  # type: ignore[arg-type]


def test_an_epoch_larger_than_memory_has_all_its_changes(instance: Any) -> None:
    table = instance.table(NUMBERS)
    fill(table, range(20_000))
    table.begin_epoch(1)
    table.begin_epoch(2)
    table.forget_changes(1)
    for start in range(10_000, 60_000, 5_000):
        fill(table, range(start, start + 5_000), start)
        table.spill_coldest(6_000)
    locate(table, range(100)).remove()
    locate(table, range(59_900, 60_000)).remove()
    fill(table, [17, 107], -1.0)
    table.spill_coldest(100_000)
    assert tiers(table) == (0, 59_801)
    changes = table.changes_since(1)
    fill(table, range(30_000, 31_000), -5.0)
    locate(table, [107]).remove()
    for group in GROUPS:
        table.load(group, 1000)
    written, removed = changed(changes, 1000)
    expected = {key: (key, float(key // 5_000 * 5_000)) for key in range(10_000, 59_900)}
    expected |= {17: (17, -1.0), 107: (107, -1.0)}
    assert {key: value for (_, key, _), value in written.items()} == expected
    assert {key for _, key, _ in removed} == set(range(100)) - {17}


def test_an_entry_that_several_epochs_changed_and_spilled_is_in_the_delta_of_each(instance: Any) -> None:
    table = instance.table(NUMBERS)
    for epoch in (1, 2, 3):
        table.begin_epoch(epoch)
        fill(table, range(100), float(epoch))
        table.spill_coldest(1000)
        # Loaded and spilled again, which is no change.
        assert locate(table, range(50)).exist.all()
        table.spill_coldest(1000)
        for since in range(epoch):
            written, removed = changed(table.changes_since(since))
            assert ({key for _, key, _ in written}, removed) == (set(range(100)), set())
        assert len(table.changes_since(epoch)) == 0


def test_changes_of_forgotten_epochs_leave_no_rows_on_disk(instance: Any) -> None:
    table = instance.table(NUMBERS)
    for epoch in range(1, 5):
        table.begin_epoch(epoch)
        fill(table, range(epoch * 1000, epoch * 1000 + 5_000))
        table.spill_coldest(10_000)
        assert len(table.changes_since(epoch - 1)) == 5_000
        table.forget_changes(epoch)
    table.begin_epoch(5)
    table.forget_changes(4)
    assert len(table.changes_since(4)) == 0
    rows = sum(1 for _ in table.rows.scan(b"", None))
    assert rows == len(table) == 8_000


@pytest.mark.long
def test_memory_shrinks_when_most_entries_are_spilled(instance: Any) -> None:
    table = instance.table(NUMBERS)
    fill(table, range(200_000))
    full = table.nbytes
    reported = sum(group.memory_bytes for group in table.spillable_groups())
    assert 0.9 * full < reported <= full * 1.001
    while tiers(table)[0] > 20_000:
        table.spill_coldest(512)
    assert table.nbytes < full / 3
    table.begin_epoch(1)
    for start in range(0, 200_000, 10_000):
        fill(table, range(start, start + 10_000))
        table.spill_coldest(tiers(table)[0] - 20_000)
        assert table.nbytes < full / 3
    assert len(content(table)) == 200_000


def test_entries_that_come_take_the_numbers_of_those_that_left(instance: Any) -> None:
    table = instance.table(NUMBERS)
    fill(table, range(20_000))
    full = table.nbytes
    for start in range(20_000, 200_000, 4000):
        assert table.spill_coldest(4000) == 4000
        fill(table, range(start, start + 4000))
        assert table.nbytes <= 1.05 * full
    assert tiers(table) == (20_000, 180_000)
    assert {key for _, key, _ in content(table)} == set(range(200_000))


def test_keys_of_other_lengths_do_not_make_a_table_grow(instance: Any) -> None:
    table = instance.table(StateMeta("names", StateKind.VALUE, types.STRING, types.VOID, VALUES))
    random = np.random.default_rng(1)

    def fill_names(start: int, end: int) -> None:
        names = ["x" * length for length in random.integers(1, 60, end - start).tolist()]
        keys = pa.array([f"{name}{number}" for number, name in enumerate(names, start)])
        groups = np.full(end - start, GROUPS.start, np.int32)
        numbers = np.arange(start, end)
        table.locate([keys], groups, [VOID]).write([Column(numbers), Column(numbers.astype(float))])

    fill_names(0, 20_000)
    full = table.nbytes
    for start in range(20_000, 300_000, 2000):
        table.spill_coldest(2000)
        fill_names(start, start + 2000)
        assert table.nbytes <= 2 * full
    assert tiers(table) == (20_000, 280_000)


@pytest.mark.parametrize("others", [True, False])
def test_what_is_noted_of_changes_does_not_grow_with_the_entries_that_left(
    instance: Any, others: bool
) -> None:
    table = instance.table(NUMBERS)
    table.begin_epoch(1)
    fill(table, range(20_000))
    for start in range(20_000, 180_000, 4000):
        table.spill_coldest(4000)
        keys = range(start, start + 4000) if others else range(start % 20_000, start % 20_000 + 4000)
        fill(table, keys)
        assert sum(map(len, table._written[1])) <= 3 * 20_000
    assert len(table.changes_since(0)) == (180_000 if others else 20_000)


def test_namespaces_of_entries_that_left_are_forgotten(instance: Any) -> None:
    meta = StateMeta("windows", StateKind.VALUE, nullable(types.INT64), types.INT64, VALUES)
    table = instance.table(meta)
    for start in range(0, 100_000, 2000):
        keys, windows = np.arange(start, start + 2000), list(range(start, start + 2000))
        which = np.arange(2000, dtype=np.int32)
        located = table.locate([pa.array(keys, pa.int64())], groups_of(keys), windows, which)
        located.write([Column(keys), Column(keys.astype(float))])
        if start >= 10_000:
            table.spill_coldest(2000)
        assert len(table._spaces) <= 40_000
    assert tiers(table) == (10_000, 90_000)


def test_numbers_of_entries_that_left_during_a_renumbering_are_given_after_it(
    instance: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = renumbering(instance, monkeypatch, 60_000, removed=20_000)
    for _ in range(30):
        table.spill_coldest(1000)
    for start in range(60_000, 100_000, 1000):
        fill(table, range(start, start + 1000))
        table.spill_coldest(1000)
    assert tiers(table)[0] == 10_000
    assert table._index.count - table._index.free <= 11_000


@pytest.mark.parametrize("reads", ["snapshot", "changes"])
def test_what_is_read_later_has_the_keys_of_entries_that_left_since(instance: Any, reads: str) -> None:
    table = instance.table(NUMBERS)
    table.begin_epoch(1)
    fill(table, range(20_000))
    taken = table.snapshot() if reads == "snapshot" else table.changes_since(0)
    table.begin_epoch(2)
    for start in range(20_000, 60_000, 4000):
        table.spill_coldest(4000)
        fill(table, range(start, start + 4000), 7.0)
    found = read(taken) if reads == "snapshot" else changed(taken)[0]
    assert {key for _, key, _ in found} == set(range(20_000))
    taken.release()
    assert {key for _, key, _ in content(table)} == set(range(60_000))


def test_numbers_of_entries_that_left_during_a_snapshot_are_given_after_it(instance: Any) -> None:
    table = instance.table(NUMBERS)
    fill(table, range(32_000))
    snapshot = table.snapshot()
    table.spill_coldest(6000)
    snapshot.release()
    del snapshot
    full = table.nbytes
    for _ in range(4):
        table.spill_coldest(1000)
    fill(table, range(32_000, 40_000))
    assert table.nbytes <= 1.05 * full
    assert {key for _, key, _ in content(table)} == set(range(40_000))


def test_entries_leave_and_others_come_while_the_rest_is_renumbered(
    instance: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = renumbering(instance, monkeypatch, 40_000, removed=12_000)
    for start in range(100_000, 130_000, 1000):
        table.spill_coldest(1000)
        fill(table, range(start, start + 1000), start)
    found = {key: value for (_, key, _), value in content(table).items()}
    assert found == {
        **{key: (key, 0.5) for key in range(12_000, 40_000)},
        **{key: (key, key // 1000 * 1000) for key in range(100_000, 130_000)},
    }


def test_changes_have_no_entry_that_was_given_the_number_of_a_changed_one(instance: Any) -> None:
    table = instance.table(NUMBERS)
    fill(table, range(10_000, 30_000))
    table.spill_coldest(5000)
    table.begin_epoch(1)
    fill(table, range(5000))
    assert locate(table, range(15_000, 30_000)).exist.all()
    table.spill_coldest(5000)
    # These come back unchanged, under the numbers of those that left.
    assert locate(table, range(10_000, 15_000)).exist.all()
    written, removed = changed(table.changes_since(0))
    assert ({key for _, key, _ in written}, removed) == (set(range(5000)), set())


def test_changes_have_no_removal_of_an_entry_that_was_only_looked_for(instance: Any) -> None:
    table = instance.table(NUMBERS)
    table.begin_epoch(1)
    fill(table, range(5000))
    table.begin_epoch(2)
    locate(table, range(5000)).remove()
    fill(table, range(5000))
    table.spill_coldest(1_000_000)
    assert not locate(table, range(5000, 10_000)).exist.any()
    written, removed = changed(table.changes_since(1))
    assert ({key for _, key, _ in written}, removed) == (set(range(5000)), set())


def test_columns_that_are_used_again_and_again_stay_in_memory(instance: Any) -> None:
    table = instance.table(NUMBERS)
    fill(table, range(20_000))
    hot = range(0, 20_000, 50)
    for start in range(20_000, 60_000, 1000):
        fill(table, hot)
        table.spill_coldest(1000)
        fill(table, range(start, start + 1000))
    before = {group.key_group: group.in_memory for group in table.spillable_groups()}
    fill(table, hot)
    assert {group.key_group: group.in_memory for group in table.spillable_groups()} == before


@pytest.mark.parametrize("by_columns", [True, False])
def test_the_first_move_leaves_the_columns_that_were_read_last(instance: Any, by_columns: bool) -> None:
    table = instance.table(NUMBERS)
    fill(table, range(2_000))
    # In front of the others, where a move without uses would begin.
    warm = list(range(1_000))
    if by_columns:
        locate(table, warm).read()
    else:
        table.get_many(groups_of(warm).tolist(), warm, VOID)
    assert table.spill_coldest(500) == 500
    locate(table, warm).read()
    assert tiers(table) == (1_500, 500), "none had to come back"


def test_entries_that_leave_unchanged_are_not_written_again(
    instance: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = instance.table(NUMBERS)
    fill(table, range(1000))
    table.spill_coldest(1000)
    assert locate(table, range(1000)).exist.all()
    put: list[int] = []
    monkeypatch.setattr(table.rows, "put", lambda rows, data: put.append(len(rows)))
    assert table.spill_coldest(1000) == 1000
    assert (put, tiers(table)) == ([], (0, 1000))


def test_entries_that_moved_since_they_were_located_are_located_again(instance: Any) -> None:
    table = instance.table(NUMBERS)
    fill(table, range(10))
    found = locate(table, range(10))
    table.spill_coldest(1)
    with pytest.raises(RuntimeError, match="locate them again"):
        found.read()


def test_a_look_up_that_fails_hides_no_entry(instance: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    table = instance.table(NUMBERS)
    fill(table, range(20))
    table.spill_coldest(10)
    with monkeypatch.context() as broken:
        broken.setattr(table.rows, "get_many", lambda rows: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            locate(table, range(30))
    assert locate(table, range(30)).exist.tolist() == [True] * 20 + [False] * 10


def test_a_write_that_fails_moves_nothing(instance: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    table = instance.table(NUMBERS)
    table.begin_epoch(1)
    fill(table, range(20))
    with monkeypatch.context() as broken:
        broken.setattr(table.rows, "put", lambda rows, data: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            table.spill_coldest(10)
    assert tiers(table) == (20, 0)
    assert len(table.changes_since(0)) == 20
    assert table.spill_coldest(10) == 10
    assert len(table.changes_since(0)) == 20


@pytest.mark.parametrize("value", [types.INT32, types.FLOAT64, types.STRING], ids=["int", "double", "text"])
def test_values_of_another_type_continue_in_both_tiers(instance: Any, value: Any) -> None:
    """A table of columns where the type allows it, else one of objects."""
    tracker = ChangeTracker()
    tracker.begin_epoch(3)
    table: Any = tracker.track(instance.table(NUMBERS))
    fill(table, range(5_000))
    table.spill(4, 10_000)
    other = StateMeta(
        "numbers",
        StateKind.VALUE,
        NUMBERS.key_serializer,
        types.VOID,
        accumulators_of({"n": nullable(value), "mean": nullable(types.FLOAT64)}),
    )
    assert isinstance(table, RewritingTable)
    made = {types.INT32: int, types.FLOAT64: float, types.STRING: str}[value]
    table.rewrite(other, None, None, lambda old: (made(old[0]), old[1]))
    after: Any = tracker.track(table.successor())
    assert tiers(after) == (5_000 - 625, 625)
    assert {key: found for (_, key, _), found in content(after).items()} == {
        key: (made(key), 0.5) for key in range(5_000)
    }
    assert len(after.changes_since(2)) == 0
    after.put(4, 1, VOID, (made(1), 2.5))
    assert len(after.changes_since(2)) == 1


def test_a_conversion_that_fails_leaves_the_table(instance: Any) -> None:
    table = instance.table(NUMBERS)
    fill(table, range(100))
    table.spill(4, 10)
    with pytest.raises(ZeroDivisionError):
        table.rewrite(NUMBERS, None, None, lambda old: 1 / 0)
    assert table.successor() is table
    assert len(content(table)) == 100


def test_entries_of_a_spilled_key_group_are_restored_as_rows(tmp_path: Path, instance: Any) -> None:
    """SP-09: snapshots of heap-cow are restored into spillable while its key groups are on disk."""
    heap = opened(tmp_path / "heap", "heap-cow")
    fill(heap.table(NUMBERS), range(20_000))
    handle = heap.write(heap.prepare(), tmp_path / "snapshot")
    table = instance.table(NUMBERS)
    fill(table, range(20_000, 20_100))
    table.spill_coldest(100)
    for key_group in handle.occupied("numbers", GROUPS):
        for batch in handle.entries("numbers", key_group):
            table.restore_entries(key_group, batch)
    assert tiers(table) == (0, 20_100)
    fill(heap.table(NUMBERS), range(20_000, 20_100))
    assert content(table) == content(heap.table(NUMBERS))
    heap.close()
