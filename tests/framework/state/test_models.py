"""Every kind of state against a model of plain dicts: keys, namespaces, snapshots in any order, restores."""

from __future__ import annotations

import copy
import operator
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from keyedstate import types
from keyedstate.state import (
    AggregateFunction,
    AggregatingState,
    FoldingState,
    ListState,
    MapState,
    ReducingState,
    ValueState,
)

KEYS = st.integers(0, 4)
NAMESPACES = st.sampled_from(["w1", "w2", "w3"])
NUMBERS = st.integers(-3, 3)
COLUMNS = st.lists(st.tuples(KEYS, NUMBERS), max_size=6)


class KindMachine(RuleBasedStateMachine):
    """What all kinds share; the model holds by (key, namespace) what a kind stores."""

    def __init__(self, instances: Any) -> None:
        super().__init__()
        self.declared = type(self).state  # by the class: an instance would ask for a handle
        self.instances = instances
        self.backend = instances.open()
        self.model: dict[tuple[int, str], Any] = {}
        #: Snapshots whose writing was put off, with what they must hold.
        self.held: list[tuple[Any, dict[tuple[int, str], Any]]] = []
        self.at(0, "w1")

    def at(self, key: int, namespace: str) -> Any:
        """Return the handle at a key and namespace."""
        self.address = key, namespace
        self.backend.set_current_key(key)
        self.handle = self.backend.get_state(self.declared, namespace, types.STRING)
        return self.handle

    @rule(key=KEYS, namespace=NAMESPACES)
    def go(self, key: int, namespace: str) -> None:
        self.at(key, namespace)

    @rule()
    def clear(self) -> None:
        self.handle.clear()
        self.model.pop(self.address, None)

    @rule(keys=st.lists(KEYS, max_size=4))
    def clear_many(self, keys: list[int]) -> None:
        self.handle.clear_many(keys)
        for key in keys:
            self.model.pop((key, self.address[1]), None)

    @rule()
    def take_snapshot(self) -> None:
        self.held.append((self.backend.snapshot(len(self.held)), copy.deepcopy(self.model)))
        if not self.instances.asynchronous:
            self.write_snapshot(0, False)

    @precondition(lambda self: self.held)
    @rule(number=st.integers(0, 9), go_on=st.booleans())
    def write_snapshot(self, number: int, go_on: bool) -> None:
        """Write one of the captured snapshots, check what it restores to, and continue from there or not."""
        task, expected = self.held.pop(number % len(self.held))
        restored = self.instances.open([self.instances.write(self.backend, task)])
        # Before the state is registered, too.
        assert sorted(restored.get_keys_and_namespaces(self.declared.name)) == sorted(expected)
        self.compare(restored, expected)
        if go_on:
            while self.held:
                self.held.pop()[0].cancel()
            self.backend.close()
            self.backend, self.model = restored, expected
            self.at(*self.address)
        else:
            restored.close()

    @precondition(lambda self: self.held)
    @rule(number=st.integers(0, 9))
    def cancel_snapshot(self, number: int) -> None:
        self.held.pop(number % len(self.held))[0].cancel()

    @rule(namespace=NAMESPACES)
    def list_keys(self, namespace: str) -> None:
        keys = sorted(key for key, other in self.model if other == namespace)
        assert sorted(self.backend.get_keys(self.declared.name, namespace)) == keys
        visited = []
        self.backend.apply_to_all_keys(
            self.declared,
            lambda key, handle: visited.append((key, self.read(handle))),
            namespace,
            types.STRING,
        )
        assert sorted(visited) == [(key, self.shown(self.model[key, namespace])) for key in keys]
        self.at(*self.address)

    @invariant()
    def equals_its_model(self) -> None:
        assert self.backend.num_entries() == len(self.model)
        assert self.read(self.handle) == self.shown(self.model.get(self.address))
        assert sorted(self.backend.get_keys_and_namespaces(self.declared.name)) == sorted(self.model)

    def compare(self, backend: Any, expected: dict[tuple[int, str], Any]) -> None:
        for namespace in ("w1", "w2", "w3"):
            handle = backend.get_state(self.declared, namespace, types.STRING)
            shown = [self.shown(expected.get((key, namespace))) for key in range(5)]
            assert handle.get_many(range(5)) == shown
            for key in range(5):
                backend.set_current_key(key)
                assert self.read(handle) == shown[key]

    def teardown(self) -> None:
        self.compare(self.backend, self.model)
        for task, _ in self.held:
            task.cancel()
        self.backend.close()

    # -- what a kind says -----------------------------------------------------------------------------------

    state: Any

    def read(self, handle: Any) -> Any:
        return handle.get()

    def shown(self, stored: Any) -> Any:
        """Return what a handle shows of what the model holds."""
        return stored


class ValueMachine(KindMachine):
    state = ValueState("s", types.list_of(types.INT64), default=[7])

    @rule(value=st.one_of(st.none(), st.lists(NUMBERS, max_size=3)))
    def update(self, value: Any) -> None:
        self.handle.update(None if value is None else list(value))
        self.put(self.address, value)

    @rule(number=NUMBERS)
    def update_in_place(self, number: int) -> None:
        value = self.handle.value()
        value.append(number)
        self.handle.update(value)
        self.put(self.address, [*self.shown(self.model.get(self.address)), number])

    @rule(rows=st.lists(st.tuples(KEYS, st.one_of(st.none(), st.lists(NUMBERS, max_size=2))), max_size=5))
    def update_many(self, rows: Any) -> None:
        self.handle.update_many([key for key, _ in rows], [copy.copy(value) for _, value in rows])
        for key, value in rows:
            self.put((key, self.address[1]), value)

    def put(self, address: Any, value: Any) -> None:
        if value is None:
            self.model.pop(address, None)
        else:
            self.model[address] = list(value)

    def read(self, handle: Any) -> Any:
        return list(handle.value())

    def shown(self, stored: Any) -> Any:
        return [7] if stored is None else stored


class Merging:
    """Rules of the kinds whose namespaces merge; `merge` makes one stored form of two."""

    @rule(into=NAMESPACES, sources=st.lists(NAMESPACES, max_size=4))
    def merge_namespaces(self, into: str, sources: list[str]) -> None:
        self.handle.merge_namespaces(into, sources)
        key = self.address[0]
        for source in dict.fromkeys(sources):
            if source != into and (key, source) in self.model:
                stored, merged = self.model.pop((key, source)), self.model.get((key, into))
                self.model[key, into] = stored if merged is None else self.merge(merged, stored)

    @rule()
    def overwrite_what_is_stored(self) -> None:
        stored = self.handle.get_internal()
        assert stored == self.model.get(self.address)
        self.handle.update_internal(stored)


class ListMachine(Merging, KindMachine):
    state = ListState("s", types.INT64)

    @rule(value=NUMBERS)
    def add(self, value: int) -> None:
        self.handle.add(value)
        self.extend(self.address, [value])

    @rule(values=st.lists(NUMBERS, max_size=4))
    def add_all(self, values: list[int]) -> None:
        self.handle.add_all(values)
        self.extend(self.address, values)

    @rule(values=st.lists(NUMBERS, max_size=4))
    def update(self, values: list[int]) -> None:
        self.handle.update(values)
        self.model.pop(self.address, None)
        self.extend(self.address, values)

    @rule(rows=COLUMNS)
    def add_many(self, rows: Any) -> None:
        self.handle.add_many([key for key, _ in rows], [value for _, value in rows])
        for key, value in rows:
            self.extend((key, self.address[1]), [value])

    @rule(rows=st.lists(st.tuples(KEYS, st.lists(NUMBERS, max_size=3)), max_size=4))
    def update_many(self, rows: Any) -> None:
        self.handle.update_many([key for key, _ in rows], [values for _, values in rows])
        for key, values in rows:
            self.model.pop((key, self.address[1]), None)
            self.extend((key, self.address[1]), values)

    def extend(self, address: Any, values: list[int]) -> None:
        if values:
            self.model[address] = [*self.model.get(address, []), *values]

    def merge(self, merged: Any, stored: Any) -> Any:
        return merged + stored

    def shown(self, stored: Any) -> Any:
        return [] if stored is None else stored


class AccumulatingMachine(KindMachine):
    """Of a function that adds one value to what is stored; `accumulate` says how the model does it."""

    @rule(value=st.one_of(st.none(), NUMBERS))
    def add(self, value: Any) -> None:
        self.handle.add(value)
        self.put(self.address, value)

    @rule(rows=st.lists(st.tuples(KEYS, st.one_of(st.none(), NUMBERS)), max_size=6))
    def add_many(self, rows: Any) -> None:
        self.handle.add_many([key for key, _ in rows], [value for _, value in rows])
        for key, value in rows:
            self.put((key, self.address[1]), value)

    def put(self, address: Any, value: Any) -> None:
        if value is None:
            self.model.pop(address, None)
        else:
            self.model[address] = self.accumulate(self.model.get(address), value)


class ReducingMachine(Merging, AccumulatingMachine):
    # Neither commutative nor associative: the order of everything shows.
    state = ReducingState("s", lambda a, b: (2 * a - b) % 1009, types.INT64)

    def accumulate(self, stored: Any, value: int) -> int:
        return value if stored is None else (2 * stored - value) % 1009

    def merge(self, merged: int, stored: int) -> int:
        return (2 * merged - stored) % 1009


class Listed(AggregateFunction):
    """Changes its accumulator in place."""

    def create_accumulator(self) -> list[int]:
        return []

    def add(self, value: int, accumulator: list[int]) -> list[int]:
        accumulator.append(value)
        return accumulator

    def get_result(self, accumulator: list[int]) -> str:
        return ",".join(map(str, accumulator))

    def merge(self, first: list[int], second: list[int]) -> list[int]:
        first.extend(second)
        return first


class AggregatingMachine(Merging, AccumulatingMachine):
    state = AggregatingState("s", Listed(), types.list_of(types.INT64))

    def accumulate(self, stored: Any, value: int) -> Any:
        return [*(stored or []), value]

    def merge(self, merged: Any, stored: Any) -> Any:
        return merged + stored

    def shown(self, stored: Any) -> Any:
        return None if stored is None else ",".join(map(str, stored))


class FoldingMachine(AccumulatingMachine):
    state = FoldingState("s", 100, operator.sub, types.INT64)

    def accumulate(self, stored: Any, value: int) -> int:
        return (100 if stored is None else stored) - value


class MapMachine(KindMachine):
    state = MapState("s", types.INT64, types.nullable(types.INT64))

    @rule(key=NUMBERS, value=st.one_of(st.none(), NUMBERS))
    def put(self, key: int, value: Any) -> None:
        self.handle.put(key, value)
        self.model.setdefault(self.address, {})[key] = value

    @rule(entries=st.dictionaries(NUMBERS, st.one_of(st.none(), NUMBERS), max_size=4))
    def put_all(self, entries: dict[int, Any]) -> None:
        self.handle.put_all(entries)
        if entries:
            self.model.setdefault(self.address, {}).update(entries)

    @rule(rows=st.lists(st.tuples(KEYS, NUMBERS, NUMBERS), max_size=5))
    def put_many(self, rows: Any) -> None:
        keys, map_keys, values = ([row[column] for row in rows] for column in range(3))
        self.handle.put_many(keys, map_keys, values)
        for key, map_key, value in rows:
            self.model.setdefault((key, self.address[1]), {})[map_key] = value

    @rule(key=NUMBERS)
    def remove(self, key: int) -> None:
        self.handle.remove(key)
        self.drop([key])

    @rule(keys=st.lists(NUMBERS, max_size=4))
    def remove_all(self, keys: list[int]) -> None:
        self.handle.remove_all(keys)
        self.drop(keys)

    @rule(choice=st.lists(st.sampled_from(["keep", "set", "remove"]), min_size=1, max_size=4))
    def iterate(self, choice: list[str]) -> None:
        iterator, seen = self.handle.entries(), []
        for number, entry in enumerate(iterator):
            seen.append(tuple(entry))
            match choice[number % len(choice)]:
                case "set":
                    entry.set_value(number)
                case "remove":
                    iterator.remove()
        before = self.model.get(self.address, {})
        assert sorted(seen) == sorted(before.items(), key=lambda item: item[0])
        for number, (key, _) in enumerate(seen):
            match choice[number % len(choice)]:
                case "set":
                    before[key] = number
                case "remove":
                    self.drop([key])

    @rule(key=NUMBERS, low=st.one_of(st.none(), NUMBERS), high=st.one_of(st.none(), NUMBERS))
    def look(self, key: int, low: Any, high: Any) -> None:
        entries = dict(sorted(self.model.get(self.address, {}).items()))
        assert self.handle.get(key) == entries.get(key)
        assert self.handle.contains(key) == (key in entries)
        assert self.handle.size() == len(entries)
        assert self.handle.is_empty() == (not entries)
        assert self.handle.get_all([key, 3]) == {k: entries[k] for k in (key, 3) if k in entries}
        assert sorted(self.handle.keys()) == list(entries)
        within = [
            (k, v) for k, v in entries.items() if (low is None or k >= low) and (high is None or k <= high)
        ]
        assert self.handle.between(low, high) == within
        assert self.handle.first() == next(iter(entries.items()), None)
        assert self.handle.last() == next(reversed(entries.items()), None)

    def drop(self, keys: list[int]) -> None:
        entries = self.model.get(self.address, {})
        for key in keys:
            entries.pop(key, None)
        if not entries:
            self.model.pop(self.address, None)

    def read(self, handle: Any) -> Any:
        return dict(handle.items())

    def shown(self, stored: Any) -> Any:
        return {} if stored is None else stored


MACHINES = [ValueMachine, ListMachine, ReducingMachine, AggregatingMachine, FoldingMachine, MapMachine]


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.__name__)
def test_a_kind_of_state_does_what_a_dict_would(instances, machine):
    thorough = settings(max_examples=25, stateful_step_count=30, deadline=None, derandomize=True)
    run_state_machine_as_test(lambda: machine(instances), settings=thorough)
