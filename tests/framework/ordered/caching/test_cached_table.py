"""A cache of objects over rows: whatever its size, a table is what it is without one."""

from __future__ import annotations

import gc
import math
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ordered_dict_space import DictSpace

from keyedstate import types
from keyedstate.backend import EntryBatch, Expiry, StateKind, StateMeta
from keyedstate.errors import CorruptDataError
from keyedstate.keygroups import KeyGroupRange
from keyedstate.ordered import ObjectMemory, WriteBuffer, create_ordered_table
from keyedstate.ordered.caching.table import CachedValueTable
from keyedstate.types import accumulators_of, nullable
from keyedstate.types.weights import weight_of

VOID = types.VOID_NAMESPACE
GROUPS = 4
ALL = KeyGroupRange(0, GROUPS - 1)
NUMBERS = StateMeta("numbers", StateKind.VALUE, types.INT64, types.VOID, types.INT64)
TEXTS = StateMeta("texts", StateKind.VALUE, nullable(types.STRING), types.INT64, nullable(types.STRING))


def table_of(meta: StateMeta, size: int | None, rows: int = 500) -> tuple[Any, DictSpace]:
    space = DictSpace()
    memory = None if size is None else ObjectMemory(size)
    return create_ordered_table(meta, ALL, GROUPS, WriteBuffer(space, rows=rows), memory), space


def group_of(key: Any) -> int:
    return 0 if key is None else len(key) % GROUPS if isinstance(key, str) else int(key) % GROUPS


def entries_of(snapshot: Any) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for group in ALL:
        for batch in snapshot.batches(group, 3):
            for namespace, key, value in zip(batch.namespaces, batch.keys, batch.values, strict=True):
                assert group_of(key) == group
                assert (namespace, key) not in found, "each entry exactly once"
                found[namespace, key] = value
    snapshot.release()
    return found


def changes_of(table: Any, epoch: int) -> tuple[int, dict[Any, Any], set[Any]]:
    changes = table.changes_since(epoch)
    written: dict[Any, Any] = {}
    removed: set[Any] = set()
    for group in ALL:
        for batch in changes.written(group, 3):
            for namespace, key, value in zip(batch.namespaces, batch.keys, batch.values, strict=True):
                assert group_of(key) == group
                written[namespace, key] = value
        for addresses in changes.removed(group, 3):
            removed.update(zip(addresses.namespaces, addresses.keys, strict=True))
    size = len(changes)
    changes.release()
    return size, written, removed


def operations(keys: st.SearchStrategy[Any], values: st.SearchStrategy[Any], spaces: list[Any]) -> Any:
    many = st.lists(keys, max_size=12)
    return st.lists(
        st.one_of(
            st.tuples(
                st.sampled_from(["get", "contains", "remove", "remove_and_get_old"]),
                keys,
                st.sampled_from(spaces),
            ),
            st.tuples(
                st.sampled_from(["put", "put_and_get_old", "transform"]),
                keys,
                st.sampled_from(spaces),
                values,
            ),
            st.tuples(st.sampled_from(["get_many", "remove_many"]), many, st.sampled_from(spaces)),
            st.tuples(
                st.just("put_many"),
                st.lists(st.tuples(keys, values), max_size=12),
                st.sampled_from(spaces),
            ),
            st.tuples(
                st.sampled_from(
                    ["begin", "forget", "changes", "len", "snapshot", "keys", "write back", "visit", "trim"]
                )
            ),
        ),
        max_size=40,
    )


class Pair:
    """One table with a cache and one without, of which the same is asked."""

    def __init__(self, meta: StateMeta, size: int, tracks: bool) -> None:
        self.tables = [table_of(meta, each, rows=4)[0] for each in (None, size)]
        self.epoch = 0
        if tracks:
            self.ask("begin")

    def ask(self, name: str, *arguments: Any) -> None:
        if name == "begin":
            self.epoch += 1
        plain, cached = (self._answer(table, name, *arguments) for table in self.tables)
        assert cached == plain, name

    def _answer(self, table: Any, name: str, *arguments: Any) -> Any:
        match name:
            case "begin":
                return table.begin_epoch(self.epoch)
            case "forget":
                return table.forget_changes(self.epoch - 1)
            case "changes":
                return [changes_of(table, epoch) for epoch in (self.epoch - 1, self.epoch - 2)]
            case "len":
                return len(table)
            case "snapshot":
                return entries_of(table.snapshot())
            case "keys":
                return sorted(map(repr, table.keys_and_namespaces()))
            case "write back":
                return table.write_back()
            case "trim":
                if isinstance(table, CachedValueTable):
                    table.cache._memory.lacked = math.inf
                return table.trim(0.0)
            case "visit":
                visitor, found = table.visitor(3), []
                while step := visitor.next_entries():
                    found += [repr(entry) for entry in step]
                return sorted(found)
            case "put_many":
                pairs, namespace = arguments
                keys = [key for key, _ in pairs]
                return table.put_many(
                    map(group_of, keys), iter(keys), namespace, (value for _, value in pairs)
                )
            case "get_many" | "remove_many":
                keys, namespace = arguments
                return getattr(table, name)(list(map(group_of, keys)), keys, namespace)
            case "transform":
                key, namespace, value = arguments
                return table.transform(group_of(key), key, namespace, value, lambda old, new: old or new)
            case _:
                key, namespace, *value = arguments
                return getattr(table, name)(group_of(key), key, namespace, *value)


SIZES = st.sampled_from([0, 1_500, 4_000, 1_000_000])
CHECKED = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@CHECKED
@given(operations(st.integers(0, 20), st.integers(0, 5), [VOID]), SIZES, st.booleans())
def test_numbers_are_what_they_are_without_a_cache(work: Any, size: int, tracks: bool) -> None:
    pair = Pair(NUMBERS, size, tracks)
    for operation in work:
        pair.ask(*operation)
    for last in ("changes", "snapshot", "len", "keys"):
        pair.ask(last)


@CHECKED
@given(
    operations(
        st.one_of(st.none(), st.text("aé", max_size=3)),
        st.one_of(st.none(), st.text("xy", max_size=300)),
        [1, 2],
    ),
    SIZES,
    st.booleans(),
)
def test_texts_and_nones_in_namespaces_are_what_they_are_without_a_cache(
    work: Any, size: int, tracks: bool
) -> None:
    pair = Pair(TEXTS, size, tracks)
    for operation in work:
        pair.ask(*operation)
    for last in ("changes", "snapshot", "len", "keys"):
        pair.ask(last)


def test_what_is_cached_is_neither_read_nor_written() -> None:
    table, space = table_of(NUMBERS, 1 << 20)
    table.begin_epoch(1)
    keys = list(range(1_000))
    groups = list(map(group_of, keys))
    table.put_many(groups, keys, VOID, keys)
    reads = space.reads
    for epoch in range(2, 6):
        table.begin_epoch(epoch)
        table.forget_changes(epoch - 1)
        assert table.get_many(groups, keys, VOID) == [key + epoch - 2 for key in keys]
        table.put_many(groups, keys, VOID, [key + epoch - 1 for key in keys])
        table.put(*(2, 2, VOID, 1 + epoch))
        assert table.get(2, 2, VOID) == 1 + epoch
        assert changes_of(table, epoch - 1)[0] == 1_000
    assert (space.reads, space.batches, space.rows) == (reads, [], {})
    table.write_back()
    assert len(space.rows) == 1_000


def test_a_snapshot_of_cached_and_stored_key_groups_is_one_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    table, space = table_of(NUMBERS, 1 << 20)
    copy = DictSpace()
    monkeypatch.setattr(space, "copy", lambda: copy)
    copy.write({table.codec.layout.address(group, group, VOID): table.codec.encode(1) for group in (1, 3)})
    for key in (0, 3, 7):
        table.put(group_of(key), key, VOID, 2)
    snapshot = table.snapshot()
    found = {
        (group, key): value
        for group in snapshot.occupied(ALL)
        for batch in snapshot.batches(group, 10)
        for key, value in zip(batch.keys, batch.values, strict=True)
    }
    assert found == {(0, 0): 2, (1, 1): 1, (3, 3): 2, (3, 7): 2}
    assert copy.reads == 1


def test_entries_that_were_looked_up_are_counted_also_without_epochs() -> None:
    table, space = table_of(NUMBERS, 1 << 20)
    keys = list(range(100))
    groups = list(map(group_of, keys))
    table.get_many(groups, keys, VOID)
    table.put_many(groups, keys, VOID, keys)
    table.remove(group_of(7), 7, VOID)
    table.remove(group_of(7), 7, VOID)
    table.put(group_of(8), 8, VOID, 1)
    reads = space.reads
    assert len(table) == 99
    assert (space.reads, space.rows) == (reads, {}), "without a pass over the rows"
    table.put(0, 1_000, VOID, 1)
    assert len(table) == 100
    assert space.reads > reads


def test_a_cache_keeps_to_its_part_of_the_memory() -> None:
    memory = ObjectMemory(300_000)
    tables = [create_ordered_table(NUMBERS, ALL, GROUPS, WriteBuffer(DictSpace()), memory) for _ in range(2)]
    first, second = tables
    for key in range(5_000):
        first.put(group_of(key), key, VOID, key)
        assert memory.used <= memory.size + 1_000
    assert first.cache.used > memory.size // 3, "it may have what the other one leaves"
    for key in range(5_000):
        second.put(group_of(key), key, VOID, key)
    first.begin_epoch(1)
    assert memory.used <= memory.size
    assert second.cache.used > memory.size // 5
    for table in tables:
        assert table.get_many([group_of(key) for key in range(5_000)], range(5_000), VOID) == list(
            range(5_000)
        )
    del first, tables, table
    gc.collect()
    assert memory.used == second.cache.used


def test_a_table_that_is_not_used_gives_back_memory_that_another_one_lacks() -> None:
    memory = ObjectMemory(100_000)
    idle, busy = (
        create_ordered_table(NUMBERS, ALL, GROUPS, WriteBuffer(DictSpace()), memory) for _ in range(2)
    )
    for key in range(150):
        idle.put(group_of(key), key, VOID, key)
    used, since = idle.cache.used, time.monotonic()
    idle.trim(since)
    assert idle.cache.used == used, "the other table lacks no memory"
    for key in range(1_000):
        busy.put(group_of(key), key, VOID, key)
    idle.trim(time.monotonic())
    assert idle.cache.used == used, "the other table has lacked none since"
    idle.trim(since)
    assert idle.cache.used < 1_000
    for key in range(1_000):
        busy.put(group_of(key), key, VOID, key)
    assert busy.cache.used > 60_000
    assert idle.get_many(map(group_of, range(150)), range(150), VOID) == list(range(150))


def test_large_values_count_with_their_size() -> None:
    meta = StateMeta("texts", StateKind.VALUE, types.INT64, types.VOID, types.STRING)
    table, space = table_of(meta, 1_000_000)
    for key in range(100):
        table.put(group_of(key), key, VOID, f"{key:04}" * 25_000)
    assert table.cache.used <= 1_000_000
    assert len(space.rows) >= 70, "a batch of 2 MiB waits"
    assert [table.get(group_of(key), key, VOID)[:4] for key in range(100)] == [f"{n:04}" for n in range(100)]


@pytest.mark.parametrize(
    ("serializer", "cached"),
    [
        (types.INT64, True),
        (nullable(types.FLOAT64), True),
        (accumulators_of({"n": nullable(types.INT64), "s": nullable(types.STRING)}), True),
        (types.row_of({"at": types.TIMESTAMP, "day": nullable(types.DATE)}), True),
        (types.FLOAT32, False),
        (types.list_of(types.INT64), False),
        (types.tuple_of(types.INT64, types.list_of(types.INT64)), False),
    ],
)
def test_only_immutable_values_that_read_back_unchanged_are_cached(serializer: Any, cached: bool) -> None:
    meta = StateMeta("state", StateKind.VALUE, types.INT64, types.VOID, serializer)
    assert (weight_of(serializer) is not None) is cached
    assert isinstance(table_of(meta, 1_000_000)[0], CachedValueTable) is cached


def test_entries_that_expire_leave_the_rows_also_where_they_never_left_the_cache() -> None:
    """TTL-17."""
    now = [0]
    timed = types.TtlSerializer(types.INT64, "processing")
    expiry = Expiry(100, lambda: now[0], lambda stored: stored if stored[0] + 100 > now[0] else None)
    meta = StateMeta("timed", StateKind.VALUE, types.INT64, types.VOID, timed, expiry=expiry)
    table, space = table_of(meta, 1 << 20)
    assert isinstance(table, CachedValueTable)
    table.sweep_entries = 10
    for key in range(50):
        table.put(group_of(key), key, VOID, (0, key))
    for _ in range(3):
        table.drop_expired()
    now[0] = 60
    for key in range(5):
        table.put(group_of(key), key, VOID, (60, key))
    now[0] = 110
    for _ in range(12):
        table.drop_expired()
    assert sorted(key for key, _ in table.keys_and_namespaces()) == list(range(5))
    now[0] = 200
    for _ in range(12):
        table.drop_expired()
    table.write_back()
    assert space.rows == {}


@pytest.mark.parametrize("cached_bytes", [0, 1 << 20])
def test_the_clean_up_of_values_reads_only_their_timestamps(
    cached_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed = types.TtlSerializer(types.FLOAT64, "processing")
    expiry = Expiry(100, lambda: 0, lambda stored: stored if stored[0] > 0 else None)
    meta = StateMeta("timed", StateKind.VALUE, types.INT64, types.VOID, timed, expiry=expiry)
    table, space = table_of(meta, cached_bytes)
    for key in range(50):
        table.put(group_of(key), key, VOID, (key % 2, float(key)))
    table.write_back()
    monkeypatch.setattr(type(timed.value_serializer), "from_bytes", None)
    monkeypatch.setattr(type(timed.value_serializer), "from_bytes_many", None)
    table.drop_expired()
    table.write_back()
    assert len(space.rows) == 25


def test_a_row_too_short_for_a_timestamp_is_reported_by_the_clean_up() -> None:
    timed = types.TtlSerializer(types.INT64, "processing")
    expiry = Expiry(100, lambda: 0, lambda stored: stored)
    meta = StateMeta("timed", StateKind.VALUE, types.INT64, types.VOID, timed, expiry=expiry)
    table, space = table_of(meta, 0)
    table.put(1, 1, VOID, (5, 6))
    table.write_back()
    space.rows = {row: data[:5] for row, data in space.rows.items()}
    with pytest.raises(CorruptDataError):
        table.drop_expired()


def test_entries_are_read_as_what_the_program_declares_after_a_change_of_type() -> None:
    old = StateMeta("n", StateKind.VALUE, types.INT64, types.VOID, types.INT32)
    table, _ = table_of(old, 1 << 20)
    table.put(1, 1, VOID, 5)
    table.rewrite(StateMeta("n", StateKind.VALUE, types.INT64, types.VOID, types.INT64), None, None, None)
    table.put(2, 2, VOID, 2**40)
    assert [table.get(group, group, VOID) for group in (1, 2)] == [5, 2**40]
    assert entries_of(table.snapshot()) == {(VOID, 1): 5, (VOID, 2): 2**40}


@pytest.mark.parametrize("counted", [True, False])
def test_caching_ends_when_values_become_uncacheable(counted: bool) -> None:
    """MIG-01."""
    parts = {"n": nullable(types.INT64)}
    old = StateMeta("n", StateKind.VALUE, types.INT64, types.VOID, accumulators_of(parts))
    table, _ = table_of(old, 1 << 20)
    table.put(1, 1, VOID, (5,))
    table.put(2, 2, VOID, (6,))
    if not counted:
        table.set_count(None)
    assert table.successor() is table
    type_ = accumulators_of({**parts, "least": nullable(types.FLOAT32)})
    table.rewrite(replace(old, value_serializer=type_), None, None, lambda value: (*value, None))
    successor = table.successor()
    assert not isinstance(successor, CachedValueTable)
    assert len(successor) == 2
    successor.put(1, 1, VOID, (7, 0.1))
    assert successor.get(1, 1, VOID) == (7, float(np.float32(0.1)))
    assert entries_of(successor.snapshot())[VOID, 2] == (6, None)


def test_entries_that_are_restored_are_seen_also_where_there_was_none_a_moment_ago() -> None:
    table, _ = table_of(NUMBERS, 1 << 20)
    table.begin_epoch(1)
    assert table.get(1, 5, VOID) is None
    table.put(1, 9, VOID, 1)
    table.remove(1, 9, VOID)
    table.restore_entries(1, EntryBatch([VOID, VOID], [5, 9], [50, 90]))
    assert [table.get(1, key, VOID) for key in (5, 9)] == [50, 90]
    assert entries_of(table.snapshot()) == {(VOID, 5): 50, (VOID, 9): 90}
    assert len(table) == 2


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("tracks", [True, False])
def test_removed_entries_are_not_carried_from_snapshot_to_snapshot(together: bool, tracks: bool) -> None:
    """Windows come and go: of those that are over, a table keeps nothing to write and nothing to read."""
    table, space = table_of(replace(NUMBERS, namespace_serializer=types.INT64), 1 << 20)
    keys = list(range(40))
    groups = list(map(group_of, keys))
    for epoch in range(1, 6):
        if tracks:
            table.begin_epoch(epoch)
        assert table.get_many(groups, keys, epoch) == [None] * 40
        if together:
            table.put_many(groups, keys, epoch, keys)
            table.remove_many(groups, keys, max(epoch - 1, 1))
            table.put_many(groups, keys, epoch, keys)
        else:
            for group, key in zip(groups, keys, strict=True):
                table.put(group, key, epoch, key)
                table.remove(group, key, max(epoch - 1, 1))
                table.put(group, key, epoch, key)
        assert set(table.cache.dirty) == {(epoch, key) for key in keys}
        assert entries_of(table.snapshot()) == {(epoch, key): key for key in keys}
        assert not space.rows, "entries that were removed before they were written need no row"


def test_entries_that_are_removed_after_they_were_written_lose_their_rows_at_the_next_snapshot() -> None:
    table, space = table_of(NUMBERS, 1 << 20)
    keys = list(range(40))
    table.put_many(list(map(group_of, keys)), keys, VOID, keys)
    table.write_back()
    assert len(space.rows) == 40
    for key in keys[1:]:
        table.remove(group_of(key), key, VOID)
    table.put(group_of(5), 5, VOID, 55)
    assert entries_of(table.snapshot()) == {(VOID, 0): 0, (VOID, 5): 55}
    assert list(table.cache.dirty) == [5], "the removals are written, and not carried to the next snapshot"
    table.remove(group_of(5), 5, VOID)
    assert entries_of(table.snapshot()) == {(VOID, 0): 0}
    table.write_back()
    assert len(space.rows) == 1


def test_an_entry_whose_write_failed_half_way_can_be_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    table, space = table_of(NUMBERS, 1 << 20, rows=3)
    table.begin_epoch(1)
    for number, key in enumerate((2, 3, 1, 4)):
        table.put(group_of(key), key, VOID, key)
        if number == 1:
            table.cache.write_back()
    with monkeypatch.context() as broken:
        broken.setattr(space, "write", refuse)
        with pytest.raises(OSError, match="full"):
            table.write_back()
    table.remove(group_of(1), 1, VOID)
    table.write_back()
    assert entries_of(table.snapshot()) == {(VOID, key): key for key in (2, 3, 4)}
    assert len(space.rows) == len(table) == 3


def refuse(*_: object) -> None:
    raise OSError("the disk is full")
