"""Tables of two tiers: what moves, what is kept, and what is written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from keyedstate import types
from keyedstate.backend import EntryBatch, StateKind, StateMeta
from keyedstate.keygroups import KeyGroupRange
from keyedstate.testing import open_instance

VOID = types.VOID_NAMESPACE
GROUPS = KeyGroupRange(0, 9)
NUMBERS = StateMeta("numbers", StateKind.VALUE, types.INT64, types.VOID, types.INT64)
TEXTS = StateMeta("texts", StateKind.LIST, types.INT64, types.VOID, types.list_of(types.STRING))


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[Any]:
    opened = open_instance("spillable", tmp_path, key_groups=GROUPS, max_parallelism=10)
    yield opened
    opened.close()


def fill(table: Any, keys: range) -> None:
    table.put_many([key % 10 for key in keys], keys, VOID, [key * key for key in keys])


def tiers(table: Any) -> dict[int, tuple[int, int]]:
    return {group.key_group: (group.in_memory, group.on_disk) for group in table.spillable_groups()}


def content(table: Any) -> dict[Any, Any]:
    return read(table.snapshot())


def read(snapshot: Any) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for key_group in snapshot.occupied(GROUPS):
        for batch in snapshot.batches(key_group, 100):
            for key, value in zip(batch.keys, batch.values, strict=True):
                assert key not in found, "an entry is in one tier"
                found[key] = value
    snapshot.release()
    return found


def test_key_groups_move_one_by_one_while_entries_are_added(instance: Any) -> None:
    """SP-04: all entries are readable whatever group is on disk; each group says where it is."""
    table = instance.table(NUMBERS)
    fill(table, range(10_000))
    count = 10_000
    for group in range(10):
        assert table.spill(group, 100_000) == len(range(group, count, 10))
        assert tiers(table)[group] == (0, len(range(group, count, 10)))
        fill(table, range(count, count + 1000))
        count += 1000
        assert len(table) == count
    assert sum(on_disk for _, on_disk in tiers(table).values()) > 10_000
    for group in range(10):
        while table.load(group, 300) == 300:
            pass
        assert tiers(table)[group] == (len(range(group, count, 10)), 0)
        fill(table, range(count, count + 1000))
        count += 1000
    assert content(table) == {key: key * key for key in range(count)}


def test_snapshots_from_before_a_move_show_what_they_captured(instance: Any) -> None:
    """SP-05: groups 0 and 3 are spilled, and loaded, while a snapshot from before is live."""
    table = instance.table(NUMBERS)
    fill(table, range(1000))
    old = table.snapshot()
    for group in (0, 3):
        table.spill(group, 100_000)
    fill(table, range(1000, 11_000))
    table.put(0, 0, VOID, -1)
    between = table.snapshot()
    for group in (0, 3):
        table.load(group, 100_000)
    table.remove(3, 3, VOID)
    assert read(old) == {key: key * key for key in range(1000)}
    assert read(between) == {**{key: key * key for key in range(11_000)}, 0: -1}
    assert content(table) == {**{key: key * key for key in range(11_000) if key != 3}, 0: -1}


def test_a_limit_bounds_each_move(instance: Any) -> None:
    table = instance.table(NUMBERS)
    fill(table, range(1000))
    assert [table.spill(4, 30) for _ in range(4)] == [30, 30, 30, 10]
    assert [table.load(4, 70) for _ in range(3)] == [70, 30, 0]
    assert table.spill_coldest(250) == 250
    assert sum(on_disk for _, on_disk in tiers(table).values()) == 250
    assert table.spill_coldest(10_000) == 750
    assert table.spill_coldest(10) == 0


def test_entries_that_are_used_again_and_again_stay_in_memory(instance: Any) -> None:
    table = instance.table(NUMBERS)
    fill(table, range(10_000))
    hot = range(0, 10_000, 50)
    for start in range(10_000, 30_000, 700):
        for key in hot:
            assert table.get(key % 10, key, VOID) == key * key
        table.spill_coldest(700)
        fill(table, range(start, start + 700))
    table.spill_coldest(700)
    assert all(table.maps[key % 10].holds(key, VOID) for key in hot)


def test_lists_move_whole_and_changes_in_place_are_kept(instance: Any) -> None:
    table = instance.table(TEXTS)
    for key in range(100):
        table.put(key % 10, key, VOID, [str(key)])
    table.spill_coldest(1000)
    for key in range(100):
        table.get_for_update(key % 10, key, VOID).append("new")
    table.spill_coldest(1000)
    assert content(table) == {key: [str(key), "new"] for key in range(100)}


def test_the_changes_of_an_epoch_are_whole_though_it_spilled_what_it_wrote(instance: Any) -> None:
    table = instance.table(NUMBERS)
    fill(table, range(1000))
    table.spill_coldest(500)
    table.begin_epoch(1)
    for start in range(1000, 6000, 500):
        fill(table, range(start, start + 500))
        table.spill_coldest(600)
    table.remove_many([key % 10 for key in range(100)], range(100), VOID)
    table.remove_many([key % 10 for key in range(5900, 6000)], range(5900, 6000), VOID)
    table.put(7, 107, VOID, 0)
    table.spill_coldest(10_000)
    changes = table.changes_since(0)
    table.put(1, 5001, VOID, -5)
    table.load(2, 10_000)
    written, removed = {}, set()
    for group in changes.occupied(GROUPS):
        for batch in changes.written(group, 64):
            written |= dict(zip(batch.keys, batch.values, strict=True))
        for batch in changes.removed(group, 64):
            removed |= set(batch.keys)
    assert written == {**{key: key * key for key in range(1000, 5900)}, 107: 0}
    assert removed == set(range(100))
    assert len(changes) == 5001
    changes.release()


def test_entries_of_a_spilled_key_group_are_restored_to_disk(tmp_path: Path, instance: Any) -> None:
    """SP-09: snapshots of heap-cow are restored into spillable, and back."""
    heap = open_instance("heap-cow", tmp_path, key_groups=GROUPS, max_parallelism=10)
    table = heap.table(NUMBERS)
    fill(table, range(5000))
    handle = heap.write(heap.prepare(), tmp_path / "heap")
    restored = open_instance(
        "spillable", tmp_path, handles=[handle], key_groups=KeyGroupRange(3, 9), max_parallelism=10
    )
    table = restored.tables["numbers"]
    expected = {key: key * key for key in range(5000) if key % 10 >= 3}
    assert content(table) == expected
    table.spill_coldest(2000)
    back = restored.write(restored.prepare(), tmp_path / "spillable")
    again = open_instance("heap-cow", tmp_path, handles=[back], key_groups=GROUPS, max_parallelism=10)
    assert content(again.tables["numbers"]) == expected
    for opened in (heap, restored, again):
        opened.close()


def test_a_restore_that_has_spilled_continues_on_disk(instance: Any) -> None:
    table = instance.table(NUMBERS)

    def restore(group: int) -> None:
        keys = list(range(group, 1000, 10))
        table.restore_entries(group, EntryBatch([VOID] * 100, keys, [key * key for key in keys]))

    restore(0)
    assert tiers(table) == {0: (100, 0)}
    table.spill_coldest(60)
    restore(1)
    restore(2)
    assert tiers(table) == {0: (40, 60), 1: (0, 100), 2: (0, 100)}
    assert content(table) == {key: key * key for key in range(1000) if key % 10 < 3}


def test_a_table_that_is_rewritten_frees_its_old_rows_and_counts_accesses_again(
    instance: Any, tmp_path: Path
) -> None:
    table = instance.table(TEXTS)
    table.put_many([0] * 20_000, range(20_000), VOID, [[f"{key}" * 200] for key in range(20_000)])
    while table.spill(0, 1000):
        pass
    assert table.get(0, 1, VOID) == ["1" * 200]
    assert table.accesses.disk > 0
    snapshot = table.snapshot()
    table.rewrite(NUMBERS, None, None, lambda texts: len(texts[0]))
    assert (table.accesses.disk, len(table), table.get(0, 12, VOID)) == (0, 20_000, 400)
    assert len(read(snapshot)) == 20_000
    table.rewrite(NUMBERS, None, None, None)
    table.rewrite(NUMBERS, None, None, None)
    table.rows.flush()
    files = sum(file.stat().st_size for file in tmp_path.rglob("*.sst"))
    assert files < 4_000_000, "the rows of the texts have 19 MB"
