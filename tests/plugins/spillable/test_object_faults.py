"""Tables of objects in two tiers where something fails, expires, or runs as plain Python."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import pytest

from keyedstate import types
from keyedstate.backend import Expiry, StateKind, StateMeta
from keyedstate.keygroups import KeyGroupRange
from keyedstate.testing import open_instance
from keyedstate_spillable.objects.table import TieredTable
from keyedstate_spillable.store.database import open_space

VOID = types.VOID_NAMESPACE
GROUPS = KeyGroupRange(0, 9)
TEXTS = StateMeta("texts", StateKind.LIST, types.STRING, types.VOID, types.list_of(types.INT64))


@dataclass(frozen=True)
class Key:
    """A key that cannot be read, and so not hashed or serialized, for a while."""

    number: int
    fails: ClassVar[bool] = False

    def __getattribute__(self, name: str) -> Any:
        if name == "number" and Key.fails:
            raise MemoryError
        return super().__getattribute__(name)


@dataclass(frozen=True)
class Busy:
    """A key or a value that calls a function of its user once, after it was used so many times.

    It is used where it is compared, hashed, serialized or, as a pickle, deserialized.
    """

    number: int
    uses_left: ClassVar[int] = -1
    function: ClassVar[Callable[[], object]]

    @classmethod
    def call(cls, function: Callable[[], object], uses: int) -> None:
        cls.function, cls.uses_left = staticmethod(function), uses

    @classmethod
    def use(cls) -> None:
        cls.uses_left -= 1
        if cls.uses_left == -1:
            cls.function()

    def __setstate__(self, state: dict[str, int]) -> None:
        Busy.use()
        self.__dict__.update(state)

    def __getattribute__(self, name: str) -> Any:
        if name == "number":
            Busy.use()
        return super().__getattribute__(name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Busy) and self.number == other.number

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


def test_what_a_serializer_renews_during_a_sweep_is_kept(instance: Any) -> None:
    now = 0
    expiry = Expiry(10, lambda: now, lambda value: value if value[0].number + 10 > now else None)
    busy = types.list_of(types.pickled())
    table = instance.table(replace(TEXTS, value_serializer=busy, expiry=expiry))
    for key in ("a", "b"):
        table.put(0, key, VOID, [Busy(0)])
    table.spill_coldest(1)
    now = 15
    Busy.call(lambda: [table.put(0, key, VOID, [Busy(10)]) for key in ("a", "b")], 0)
    table.drop_expired()
    assert content(table) == {"a": [Busy(10)], "b": [Busy(10)]}


def test_an_entry_whose_spilling_failed_can_be_removed(instance: Any) -> None:
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


def test_an_entry_whose_removal_failed_can_be_spilled(instance: Any) -> None:
    table = instance.table(replace(TEXTS, key_serializer=types.record_of(Busy)))
    for uses in count():
        table.put(0, Busy(1), VOID, [uses])
        table.spill(0, 10)
        table.get(0, Busy(1), VOID)
        Busy.call(lambda: 1 / 0, uses)
        try:
            table.remove(0, Busy(1), VOID)
        except ZeroDivisionError:
            assert table.spill(0, 10) == 1
            assert table.get(0, Busy(1), VOID) == [uses]
        else:
            break
    Busy.uses_left = -1
    assert (uses > 2, len(table)) == (True, 0)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("part", ["key", "value"])
@pytest.mark.parametrize(
    "operation", ["get", "contains", "get many", "load", "spill", "spill with rows", "spill coldest", "peek"]
)
def test_what_user_code_changes_while_entries_move_is_not_undone(
    instance: Any, operation: str, part: str, compiled: bool
) -> None:
    """User code runs at many moments of a move; here it changes entries at each of them in turn."""
    meta = StateMeta("busy", StateKind.VALUE, types.INT64, types.VOID, types.pickled())
    if part == "key":
        meta = replace(
            meta, key_serializer=types.record_of(Busy), value_serializer=types.list_of(types.INT64)
        )

    def key(number: int) -> Any:
        return Busy(number) if part == "key" else number

    def value(number: int) -> Any:
        return Busy(number) if part == "value" else [number]

    for uses in count():
        table: TieredTable[Any, Any, Any] = TieredTable(
            meta, GROUPS, 10, lambda: open_space(meta, instance.context), lambda _: 100.0, compiled=compiled
        )
        keys = list(map(key, range(8)))
        for number in range(8):
            table.put(0, keys[number], VOID, value(number))
        if operation in {"get", "contains", "get many", "load", "peek", "spill with rows"}:
            assert table.spill(0, 8) == 8
        if operation == "spill with rows":
            assert table.load(0, 8) == 8

        def change(table: Any = table, keys: Any = keys) -> None:
            for number in range(2, 6):
                table.remove(0, keys[number], VOID)
                assert not table.contains(0, keys[number], VOID)
            for number in (0, 1, 4, 5):
                table.put(0, keys[number], VOID, value(100 + number))

        wanted = list(map(key, range(8)))
        Busy.call(change, uses)
        match operation:
            case "get":
                for each in wanted:
                    table.get(0, each, VOID)
            case "contains":
                for each in wanted:
                    table.contains(0, each, VOID)
            case "peek":
                for each in wanted:
                    table.peek(0, each, VOID)
            case "get many":
                table.get_many([0] * 8, wanted, VOID)
            case "load":
                table.load(0, 8)
            case "spill coldest":
                table.spill_coldest(8)
            case _:
                table.spill(0, 8)
        called, Busy.uses_left = Busy.uses_left < 0, -1
        if not called:
            break
        expected = {n: value(100 + n if n in {0, 1, 4, 5} else n) for n in (0, 1, 4, 5, 6, 7)}
        assert content(table) == {keys[n]: found for n, found in expected.items()}, uses
        in_memory = sum(map(len, table.maps))
        on_disk = sum(each.elsewhere for each in table.maps)
        assert (in_memory + on_disk, on_disk >= 0) == (6, True), uses
        assert table.get_many([0] * 8, keys, VOID) == [expected.get(n) for n in range(8)], uses
        table.remove(0, keys[0], VOID)
        assert (table.contains(0, keys[0], VOID), len(table)) == (False, 5), uses


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
