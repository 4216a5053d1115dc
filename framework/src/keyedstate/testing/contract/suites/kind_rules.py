"""The rules of single kinds of state: their own methods, their null rules, their bulk methods."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest

from keyedstate import types
from keyedstate.backend import StateKind
from keyedstate.errors import StateMigrationError
from keyedstate.state import (
    AggregateFunction,
    AggregatingState,
    FoldingState,
    ListState,
    MapState,
    ReducingState,
    StateDescriptor,
    ValueState,
)
from keyedstate.testing.contract.base import ContractBase, requires
from keyedstate.testing.contract.keyed import KeyedInstances
from keyedstate.testing.contract.suites.golden import TYPES, same
from keyedstate.testing.contract.suites.kinds import Kind, at, every_kind


@dataclass
class Visit:
    """A record of an earlier version of a program."""

    page: str
    count: int = 0


@dataclass
class LaterVisit:
    """The same record in a later version: fields reordered, one more."""

    count: int
    page: str
    note: str | None = None


class Listed(AggregateFunction[int, list[int], tuple[int, ...]]):
    """Every value, in an accumulator that is changed in place."""

    def create_accumulator(self) -> list[int]:
        return []

    def add(self, value: int, accumulator: list[int]) -> list[int]:
        accumulator.append(value)
        return accumulator

    def get_result(self, accumulator: list[int]) -> tuple[int, ...]:
        return tuple(accumulator)

    def merge(self, first: list[int], second: list[int]) -> list[int]:
        first.extend(second)
        return first


class KindRuleContract(ContractBase):
    """Tests of what each kind of state has of its own."""

    # -- bulk methods ---------------------------------------------------------------------------------------

    @every_kind
    def test_bulk_methods_do_what_their_loops_do(self, keyed: KeyedInstances, kind: Kind) -> None:
        """On keys that are repeated, absent and in every key group."""
        generator, state = random.Random(42), _numbers(kind.kind)
        at_once, one_by_one = keyed.open(), keyed.open()
        for _ in range(8):
            keys = [generator.randrange(40) for _ in range(50)]
            values = [generator.randrange(-9, 10) for _ in keys]
            _write_numbers(kind.kind, at(at_once, state, 0), keys, values)
            for key, value in zip(keys, values, strict=True):
                _write_numbers(kind.kind, at(one_by_one, state, key), [key], [value])
            gone = [generator.randrange(60) for _ in range(10)]
            at(at_once, state, 0).clear_many(gone)
            for key in gone:
                at(one_by_one, state, key).clear()
            bulk = at(at_once, state, 0).get_many(range(60))
            for opened in (at_once, one_by_one):
                assert [_read_numbers(kind.kind, at(opened, state, key)) for key in range(60)] == bulk
            assert at_once.num_entries() == one_by_one.num_entries()

    # -- one kind -------------------------------------------------------------------------------------------

    @requires(StateKind.VALUE)
    def test_a_value_that_is_none_is_cleared_and_the_default_is_read(self, keyed: KeyedInstances) -> None:
        """SB-13, SB-33, SB-34."""
        backend, state = keyed.open(), ValueState("state", types.STRING, default="Hello")
        handle = at(backend, state, 1)
        assert handle.value() == "Hello"
        for value in ("a", "b"):
            handle.update(value)
            assert handle.value() == value
        handle.update(None)
        assert (handle.value(), backend.num_entries()) == ("Hello", 0)
        at(backend, state, 2).update("there")
        restored = keyed.open([keyed.snapshot(backend)])
        assert [at(restored, state, key).value() for key in (1, 2)] == ["Hello", "there"]

    @requires(StateKind.VALUE)
    def test_every_key_has_a_default_of_its_own(self, keyed: KeyedInstances) -> None:
        """SB-44."""
        backend = keyed.open()
        state = ValueState("state", types.list_of(types.INT64), default=[7])
        first = at(backend, state, 1).value()
        first.append(8)
        assert at(backend, state, 2).value() == [7]
        assert at(backend, state, 1).value() == [7]
        assert backend.num_entries() == 0
        at(backend, state, 1).update(first)
        assert [at(backend, state, key).value() for key in (1, 2)] == [[7, 8], [7]]

    @requires(StateKind.VALUE)
    def test_values_of_many_types_come_back_as_they_were(self, keyed: KeyedInstances) -> None:
        backend = keyed.open()
        for name, (type_, value) in TYPES.items():
            at(backend, ValueState(name, type_), 1).update(value)
        for opened in (backend, keyed.open([keyed.snapshot(backend)])):
            for name, (type_, value) in TYPES.items():
                assert same(at(opened, ValueState(name, type_), 1).value(), value), name

    @requires(StateKind.VALUE)
    def test_restored_values_migrate_to_a_later_form_of_their_type(self, keyed: KeyedInstances) -> None:
        """Numbers widen, records gain a field, and are found by the old key and namespace."""
        numbers = ValueState("numbers", types.INT32)
        visits = ValueState("visits", types.record_of(Visit, name="Visit"))
        backend = keyed.open()
        for key in range(30):
            at(backend, numbers, key, "w1").update(key - 7)
            at(backend, visits, key).update(Visit(f"page-{key}", key))
        wider = ValueState("numbers", types.INT64)
        later = ValueState("visits", types.record_of(LaterVisit, name="Visit"))
        restored = keyed.open([keyed.snapshot(backend)])
        for key in range(30):
            assert at(restored, wider, key, "w1").value() == key - 7
            assert at(restored, later, key).value() == LaterVisit(key, f"page-{key}")
        at(restored, wider, 3, "w1").update(1 << 40)
        at(restored, later, 3).update(LaterVisit(1, "new", "note"))
        again = keyed.open([keyed.snapshot(restored)])
        assert [at(again, wider, key, "w1").value() for key in (2, 3)] == [-5, 1 << 40]
        assert [at(again, later, key).value() for key in (2, 3)] == [
            LaterVisit(2, "page-2"),
            LaterVisit(1, "new", "note"),
        ]
        with pytest.raises(StateMigrationError):
            at(keyed.open([keyed.snapshot(restored)]), numbers, 3, "w1")

    @requires(StateKind.LIST)
    def test_a_list_is_appended_to_replaced_and_emptied(self, keyed: KeyedInstances) -> None:
        """SB-14, SB-20: an empty list is no list."""
        backend, state = keyed.open(), ListState("state", types.INT64)
        handle = at(backend, state, 1)
        assert (handle.get(), handle.get_internal()) == ([], None)
        handle.add(17)
        handle.add(11)
        assert handle.get() == [17, 11]
        handle.update([])
        assert (handle.get(), backend.num_entries()) == ([], 0)
        handle.add_all([])
        assert backend.num_entries() == 0
        handle.update([10, 16])
        handle.add_all([3, 4])
        shown = handle.get()
        shown.append(99)
        assert handle.get() == [10, 16, 3, 4]
        assert at(keyed.open([keyed.snapshot(backend)]), state, 1).get() == [10, 16, 3, 4]

    @requires(StateKind.MAP)
    def test_a_map_is_written_iterated_and_emptied_entry_by_entry(self, keyed: KeyedInstances) -> None:
        """SB-29, SB-30, SB-32."""
        backend = keyed.open()
        state = MapState("state", types.INT64, types.nullable(types.STRING))
        handle = at(backend, state, 1)
        assert handle.is_empty()
        for number in range(200):
            handle.put(number, None if number % 5 == 0 else str(number))
            assert not handle.is_empty()
        at(backend, state, 2).put_all({0: "other"})
        handle = at(backend, state, 1)
        assert (handle.size(), handle.get(3), handle.get(5), handle.contains(5)) == (200, "3", None, True)
        iterator = handle.entries()
        for entry in iterator:
            if entry.key % 2:
                iterator.remove()
            else:
                entry.set_value(f"new-{entry.key}")
        assert dict(handle.items()) == {number: f"new-{number}" for number in range(0, 200, 2)}
        assert handle.between(10, 14) == [(number, f"new-{number}") for number in (10, 12, 14)]
        assert (handle.first(), handle.last()) == ((0, "new-0"), (198, "new-198"))
        restored = at(keyed.open([keyed.snapshot(backend)]), state, 1)
        assert dict(restored.items()) == dict(handle.items())
        for number in range(0, 200, 2):
            assert not handle.is_empty()
            handle.remove(number)
        assert handle.is_empty()
        assert list(backend.get_keys("state")) == [2]

    @requires(StateKind.REDUCING)
    def test_added_values_are_reduced_in_their_order(self, keyed: KeyedInstances) -> None:
        """SB-22; adding None clears."""
        backend = keyed.open()
        state = ReducingState("state", lambda first, second: f"{first},{second}", types.STRING)
        handle = at(backend, state, 1)
        assert handle.get() is None
        for value in "abc":
            handle.add(value)
        assert handle.get() == "a,b,c"
        restored = at(keyed.open([keyed.snapshot(backend)]), state, 1)
        restored.add("d")
        assert restored.get() == "a,b,c,d"
        handle.add(None)
        assert (handle.get(), backend.num_entries()) == (None, 0)

    @requires(StateKind.AGGREGATING)
    def test_accumulators_may_be_changed_in_place_and_folds_begin_with_a_copy(
        self, keyed: KeyedInstances
    ) -> None:
        backend = keyed.open()
        listed = AggregatingState("listed", Listed(), types.list_of(types.INT64))
        folded: FoldingState[int, list[int]] = FoldingState(
            "folded", [0], lambda so_far, value: [*so_far, value], types.list_of(types.INT64)
        )
        for key in (1, 2):
            for value in range(key, key + 3):
                at(backend, listed, key).add(value)
                at(backend, folded, key).add(value)
        for opened in (backend, keyed.open([keyed.snapshot(backend)])):
            assert [at(opened, listed, key).get() for key in (1, 2, 3)] == [(1, 2, 3), (2, 3, 4), None]
            assert [at(opened, folded, key).get() for key in (1, 2)] == [[0, 1, 2, 3], [0, 2, 3, 4]]


def _numbers(kind: StateKind) -> StateDescriptor[Any]:
    """Return a state of numbers whose order of writing shows."""
    match kind:
        case StateKind.VALUE:
            return ValueState("numbers", types.INT64, default=-100)
        case StateKind.LIST:
            return ListState("numbers", types.INT64)
        case StateKind.MAP:
            return MapState("numbers", types.INT64, types.INT64)
        case StateKind.REDUCING:
            return ReducingState("numbers", lambda first, second: (2 * first - second) % 1009, types.INT64)
        case StateKind.AGGREGATING:
            return AggregatingState("numbers", Listed(), types.list_of(types.INT64))


def _write_numbers(kind: StateKind, handle: Any, keys: list[int], values: list[int]) -> None:
    """Write rows: by the bulk method where there are several, by the single one where there is one."""
    (_, *more), (value, *_) = keys, values
    match kind:
        case StateKind.VALUE:
            wanted = [None if value % 4 == 0 else value for value in values]
            handle.update_many(keys, wanted) if more else handle.update(wanted[0])
        case StateKind.MAP:
            handle.put_many(keys, [value % 3 for value in values], values) if more else handle.put(
                value % 3, value
            )
        case _:
            handle.add_many(keys, values) if more else handle.add(value)


def _read_numbers(kind: StateKind, handle: Any) -> Any:
    match kind:
        case StateKind.VALUE:
            return handle.value()
        case StateKind.MAP:
            return dict(handle.items())
        case _:
            return handle.get()
