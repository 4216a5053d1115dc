"""Lists and maps that stay in memory after a read: a table is what it is without a cache."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ordered_dict_space import DictSpace

from keyedstate import types
from keyedstate.backend import EntryBatch, StateKind, StateMeta
from keyedstate.keygroups import KeyGroupRange
from keyedstate.ordered import ObjectMemory, WriteBuffer, create_ordered_table
from keyedstate.types import TimedDict, TimedList, TtlListSerializer, TtlMapSerializer

VOID = types.VOID_NAMESPACE
ALL = KeyGroupRange(0, 3)
STAMP = 1000
ROW = types.row_of({"n": types.nullable(types.INT64), "at": types.nullable(types.TIMESTAMP)})
LISTS = {
    "list": types.list_of(types.STRING),
    "list with times": TtlListSerializer(types.STRING, "processing"),
}
MAPS = {
    "map": types.map_of(types.INT64, types.STRING),
    "map with times": TtlMapSerializer(types.INT64, types.STRING, "processing"),
    "map of lists": types.map_of(types.INT64, types.list_of(types.STRING)),
}
TYPES = {**LISTS, **MAPS}


class CountingSpace(DictSpace):
    """Counts the scans."""

    def __init__(self) -> None:
        super().__init__()
        self.scans = 0

    def scan(self, start: bytes, end: bytes | None) -> Any:
        self.scans += 1
        return super().scan(start, end)


def table_of(kind: str, size: int | None) -> tuple[Any, CountingSpace]:
    space = CountingSpace()
    state_kind = StateKind.LIST if kind in LISTS else StateKind.MAP
    meta = StateMeta("state", state_kind, types.INT64, types.VOID, TYPES[kind])
    memory = None if size is None else ObjectMemory(size)
    return create_ordered_table(meta, ALL, 4, WriteBuffer(space, rows=4), memory), space


class Side:
    """What a test does with a table of one type, and what it sees: order and timestamps included."""

    def __init__(self, kind: str, size: int | None) -> None:
        self.kind = kind
        self.timed = "times" in kind
        self.table, self.space = table_of(kind, size)

    def value(self, texts: list[str]) -> Any:
        if self.kind == "list":
            return list(texts)
        if self.kind == "list with times":
            return TimedList.of(texts, range(STAMP, STAMP + len(texts)))
        entries: Any = {len(text) - i: self.item(text) for i, text in enumerate(texts)}
        return TimedDict.of(entries, dict.fromkeys(entries, STAMP)) if self.timed else entries

    def item(self, text: str) -> Any:
        return [text] if self.kind == "map of lists" else text

    def shown(self, found: Any) -> Any:
        if found is None:
            return None
        if self.kind in LISTS:
            return list(found), list(found.stamps) if self.timed else None
        return list(found.items()), list(found.stamps.items()) if self.timed else None

    def do(self, name: str, key: int, texts: list[str]) -> Any:
        table, place = self.table, (key % 2, key, VOID)
        text, number = (texts or ["x"])[0], len(texts) - 2
        match name:
            case "read":
                found = table.get(*place)
                shown = self.shown(found)
                # It is the caller's own.
                if self.kind == "map of lists":
                    for item in (found or {}).values():
                        item.append("changed")
                elif found is not None and self.kind in LISTS:
                    found.append("changed")
                return shown
            case "contains":
                return table.contains(*place)
            case "put":
                table.put(*place, self.value(texts))
            case "remove":
                table.remove(*place)
            case "swap":
                return self.shown(table.put_and_get_old(*place, self.value(texts)))
            case "restore" if texts and not table.contains(*place):
                table.restore_entries(key % 2, EntryBatch([VOID], [key], [self.value(texts)]))
            case "add":
                stored = table.get_for_update(*place)
                if self.kind in LISTS:
                    stored.extend(texts)
                    if self.timed:
                        stored.stamps.extend([STAMP + 1] * len(texts))
                else:
                    entries = self.value(texts)
                    stored.update(entries)
                    if self.timed:
                        stored.stamps.update(entries.stamps)
            case "one" if self.kind in MAPS:
                stored = table.get_for_update(*place)
                stored[number] = self.item(text)
                if self.timed:
                    stored.stamps[number] = STAMP + 2
            case "delete" if self.kind in MAPS:
                try:
                    del table.get_for_update(*place)[number]
                except KeyError:
                    return "no key"
            case "look up" if self.kind in MAPS:
                stored = table.get(*place)
                found = stored.get(number)
                shown = found, number in stored, len(stored), bool(stored), list(stored)
                return repr(shown)
            case "trim":
                if table.cache is not None:
                    table.cache._memory.lacked = math.inf
                table.trim(0.0)
            case "begin":
                table.begin_epoch(key + 1)
            case "changes":
                changes = table.changes_since(key)
                # Changes that come later are not seen.
                for later in range(3):
                    self.do("add", later, ["later"])
                shown = [
                    (group, place, self.shown(value))
                    for group in changes.occupied(ALL)
                    for batch in changes.written(group, 2)
                    for place, value in zip(batch.keys, batch.values, strict=True)
                ]
                changes.release()
                return sorted(shown), len(changes)
        return None


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                *("read", "add", "one") * 2,
                *("contains", "put", "remove", "swap", "restore", "delete", "look up", "trim"),
            ]
        ),
        st.integers(0, 2),
        st.lists(st.text("ab", max_size=3), max_size=4),
    ),
    max_size=30,
)


@pytest.mark.parametrize("size", [1, 2_000, 1 << 20])
@pytest.mark.parametrize("kind", TYPES)
@given(steps=STEPS, tracks=st.booleans())
def test_a_table_with_cached_collections_is_what_it_is_without(kind, size, steps, tracks):
    plain, cached = Side(kind, None), Side(kind, size)
    if tracks:
        first, second = [("begin", 0, []), *steps[:15]], [("begin", 1, []), *steps[15:]]
        steps = [*first, ("changes", 0, []), *second, ("changes", 1, []), ("changes", 0, [])]
    for step in steps:
        assert cached.do(*step) == plain.do(*step), step
    for key in range(3):
        assert cached.do("read", key, []) == plain.do("read", key, [])
    cached.table.write_back()
    plain.table.write_back()
    assert cached.space.rows.keys() == plain.space.rows.keys() or kind in LISTS, "chunks have other numbers"


@pytest.mark.parametrize("size", [None, 1 << 20])
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("tracks", [False, True])
def test_an_empty_list_or_map_is_no_entry(kind, size, tracks):
    side = Side(kind, size)
    if tracks:
        side.do("begin", 0, [])
    for key, before in ((1, ["a"]), (2, [])):
        side.do("put", key, before)
        side.do("read", key, [])
        side.do("put", key, [])
        assert not side.do("contains", key, [])
        assert not side.table.get(key % 2, key, VOID)
    assert len(side.table) == 0


@pytest.mark.parametrize("kind", TYPES)
def test_what_was_read_once_is_not_scanned_again(kind):
    side = Side(kind, 1 << 20)
    side.do("put", 1, ["a"])
    for key in (1, 2):
        side.do("read", key, [])
    before = side.space.scans
    for _ in range(3):
        side.do("read", 1, [])
        side.do("read", 2, [])
        side.do("add", 1, ["a"])
    assert side.space.scans == before


def test_rows_with_times_are_cached_and_floats_as_map_keys_are_not():
    for state_kind, type_, cached in (
        (StateKind.LIST, types.list_of(ROW), True),
        (StateKind.MAP, types.map_of(types.INT64, types.list_of(ROW)), True),
        (StateKind.MAP, types.map_of(types.FLOAT64, types.STRING), False),
        (StateKind.LIST, types.list_of(types.list_of(types.FLOAT32)), False),
    ):
        meta = StateMeta("state", state_kind, types.INT64, types.VOID, type_)
        table = create_ordered_table(meta, ALL, 4, WriteBuffer(DictSpace()), ObjectMemory(1 << 20))
        assert (table.cache is not None) is cached


def test_a_list_that_outgrows_its_memory_leaves_it():
    side = Side("list", 100_000)
    side.do("put", 1, ["a"])
    side.do("read", 1, [])
    for n in range(3_000):
        side.do("add", 1, [f"element {n}"])
        side.do("read", 2, [])
    assert side.table.cache.used <= 100_000
    assert len(side.table.get(1, 1, VOID)) == 3_001
