"""Tables of objects in two tiers where something fails, expires, or runs as plain Python."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from keyedstate import types
from keyedstate.backend import Expiry, StateKind, StateMeta
from keyedstate.keygroups import KeyGroupRange
from keyedstate.testing import open_instance
from keyedstate_spillable.store import open_space
from keyedstate_spillable.table import TieredTable

VOID = types.VOID_NAMESPACE
GROUPS = KeyGroupRange(0, 9)
TEXTS = StateMeta("texts", StateKind.LIST, types.STRING, types.VOID, types.list_of(types.INT64))


@dataclass(frozen=True)
class Key:
    """A key that cannot be hashed for a while."""

    number: int
    fails: ClassVar[bool] = False

    def __hash__(self) -> int:
        if Key.fails:
            raise MemoryError
        return hash(self.number)


@dataclass(frozen=True)
class Busy:
    """A value or a key that calls a function of its user once, when it is serialized or hashed."""

    number: int
    calls: ClassVar[list[Callable[[], None]]] = []

    def __getattribute__(self, name: str) -> Any:
        if name == "number" and Busy.calls:
            Busy.calls.pop()()
        return super().__getattribute__(name)

    def __hash__(self) -> int:
        return hash(self.number)


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[Any]:
    opened = open_instance("spillable", tmp_path, key_groups=GROUPS, max_parallelism=10)
    yield opened
    opened.close()


def content(table: Any) -> dict[Any, Any]:
    snapshot = table.snapshot()
    found: dict[Any, Any] = {}
    for key_group in snapshot.occupied(GROUPS):
        for batch in snapshot.batches(key_group, 100):
            found |= dict(zip(batch.keys, batch.values, strict=True))
    snapshot.release()
    return found


@pytest.mark.parametrize("compiled", [True, False])
def test_bulk_operations_load_spilled_entries_in_both_forms_of_the_map(instance: Any, compiled: bool) -> None:
    table: TieredTable[Any, Any, Any] = TieredTable(
        TEXTS, GROUPS, 10, lambda: open_space(TEXTS, instance.context), lambda _: 100.0, compiled=compiled
    )
    keys = [str(number) for number in range(100)]
    groups = [number % 10 for number in range(100)]
    table.put_many(groups, keys, VOID, [[number] for number in range(100)])
    assert table.spill_coldest(200) == 100
    assert table.get_many(groups, keys, VOID) == [[number] for number in range(100)]
    assert table.spill_coldest(200) == 100
    table.remove_many(groups[:50], keys[:50], VOID)
    assert content(table) == {str(number): [number] for number in range(50, 100)}


def test_an_entry_that_was_renewed_between_two_sweeps_is_kept(instance: Any) -> None:
    table = instance.table(TEXTS)
    now = 0
    table.replace_meta(
        replace(TEXTS, expiry=Expiry(10, lambda: now, lambda value: value if value[0] + 10 > now else None))
    )
    for number in range(9_000):
        table.put(number % 3, str(number), VOID, [0])
    for _ in range(2):
        table.drop_expired()
    for number in range(9_000):
        table.put(number % 3, str(number), VOID, [20])
    now = 25
    for _ in range(10):
        table.drop_expired()
    assert len(table) == 9_000


def test_one_sweep_drops_the_expired_entries_of_a_small_table_in_both_tiers(instance: Any) -> None:
    table = instance.table(TEXTS)
    now = 100
    table.replace_meta(
        replace(TEXTS, expiry=Expiry(10, lambda: now, lambda value: value if value[0] + 10 > now else None))
    )
    for number in range(200):
        table.put(number % 3, str(number), VOID, [number])
    table.spill_coldest(100)
    table.drop_expired()
    assert sorted(content(table)) == sorted(str(number) for number in range(91, 200))


def test_an_entry_whose_eviction_failed_after_its_row_was_written_can_be_removed(instance: Any) -> None:
    table = instance.table(replace(TEXTS, key_serializer=types.record_of(Key)))
    table.put(0, Key(1), VOID, [1])
    table.spill(0, 10)
    table.put(0, Key(2), VOID, [2])
    Key.fails = True
    with pytest.raises(MemoryError):
        table.spill(0, 10)
    Key.fails = False
    assert content(table) == {Key(1): [1], Key(2): [2]}
    table.remove(0, Key(2), VOID)
    assert not table.contains(0, Key(2), VOID)
    assert content(table) == {Key(1): [1]}
    assert len(table) == 1


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("moment", ["a value is serialized", "a key is serialized", "a key is hashed"])
def test_what_user_code_changes_while_entries_are_spilled_is_not_lost(
    instance: Any, moment: str, compiled: bool
) -> None:
    busy, plain = types.record_of(Busy), types.list_of(types.INT64)
    value_calls = moment == "a value is serialized"
    meta = StateMeta("busy", StateKind.VALUE, types.INT64 if value_calls else busy, types.VOID, plain)
    if value_calls:
        meta = replace(meta, value_serializer=busy)
    table: TieredTable[Any, Any, Any] = TieredTable(
        meta, GROUPS, 10, lambda: open_space(meta, instance.context), lambda _: 100.0, compiled=compiled
    )
    keys: list[Any] = [n if value_calls else Busy(n) for n in range(8)]
    old: list[Any] = [Busy(n) if value_calls else [n] for n in range(8)]
    new: Any = Busy(100) if value_calls else [100]
    table.put_many([0] * 8, keys, VOID, old)
    if moment == "a key is hashed":
        table.spill(0, 8)
        assert table.load(0, 8) == 8  # they have rows, so that only their keys are hashed

    def change() -> None:
        for key in keys[2:6]:
            table.remove(0, key, VOID)
        for key in keys[:2] + keys[4:6]:
            table.put(0, key, VOID, new)

    Busy.calls.append(change)
    table.spill(0, 8)
    assert not Busy.calls
    expected = {0: new, 1: new, 4: new, 5: new, 6: old[6], 7: old[7]}
    assert content(table) == {keys[n]: value for n, value in expected.items()}
    assert table.get_many([0] * 8, keys, VOID) == [expected.get(n) for n in range(8)]
    table.remove(0, keys[0], VOID)
    assert (table.contains(0, keys[0], VOID), len(table)) == (False, 5)


def test_only_an_entry_that_cannot_be_serialized_stays_in_memory(
    instance: Any, caplog: pytest.LogCaptureFixture
) -> None:
    table = instance.table(TEXTS)
    for number in range(20):
        table.put(0, str(number), VOID, [number])
    table.put(0, "bad", VOID, ["no number"])
    assert table.spill(0, 7) == 7
    assert table.spill(0, 100) == 13
    assert (table.spill(0, 100), table.spill_coldest(100)) == (0, 0)
    assert [(group.in_memory, group.on_disk) for group in table.spillable_groups()] == [(1, 20)]
    (warned,) = caplog.messages
    assert "key 'bad' in the state 'texts' cannot be serialized" in warned and "no number" in warned
    assert table.get_many([0] * 20, map(str, range(20)), VOID) == [[number] for number in range(20)]
    assert table.spill_coldest(100) == 20
    table.put(0, "bad", VOID, [20])
    assert table.spill_coldest(100) == 1
    assert table.get(0, "bad", VOID) == [20]


def test_the_entries_of_a_table_are_freed_when_it_is_rewritten_or_closed(tmp_path: Path) -> None:
    opened: Any = open_instance("spillable", tmp_path, key_groups=GROUPS, max_parallelism=10)
    table = opened.table(TEXTS)
    first, second = [1], [2]
    gc.disable()
    try:
        table.put(0, "a", VOID, first)
        table.rewrite(TEXTS, None, None, lambda _: second)
        assert sys.getrefcount(first) == 2
        with pytest.raises(ZeroDivisionError):
            table.rewrite(TEXTS, None, None, lambda _: 1 / 0)
        opened.close()
        del table, opened
        assert sys.getrefcount(second) == 2
    finally:
        gc.enable()


def test_an_entry_of_the_key_nan_is_found_after_its_group_was_loaded(instance: Any) -> None:
    table = instance.table(replace(TEXTS, key_serializer=types.FLOAT64))
    nan = types.FLOAT64.canonical(float("nan"))
    table.put(0, nan, VOID, [1])
    table.spill(0, 10)
    assert table.load(0, 10) == 1
    assert table.get(0, nan, VOID) == [1]
    table.rewrite(table.meta, None, None, None)
    assert len(table) == 1
    assert list(table.keys_and_namespaces()) == [(nan, VOID)]
