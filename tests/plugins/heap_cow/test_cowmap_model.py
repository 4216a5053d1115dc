"""Random operations on a map and on a plain dict, with snapshots held meanwhile and read by another thread.

``--cow-operations N`` sets the number of operations; ``make test-model`` takes 10,000,000.  The uncompiled
map, some ten times slower, gets a tenth of them.
"""

from __future__ import annotations

import copy
import queue
import random
import sys
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

Address = tuple[int, int]
Model = dict[Address, list[int]]


@pytest.fixture
def operations(request: pytest.FixtureRequest, cowmap: ModuleType) -> int:
    asked: int = request.config.getoption("--cow-operations") or 400_000
    return asked if cowmap.COMPILED else asked // 10


class Twin:
    """A map and the dict that says what it must hold; every operation goes to both."""

    def __init__(self, state_map: Any, rng: random.Random, keys: int, namespaces: int) -> None:
        self.map = state_map
        self.model: Model = {}
        self.rng = rng
        self.keys = keys
        self.namespaces = namespaces
        self.operations = (
            self.get,
            self.get,
            self.put,
            self.put_and_get_old,
            self.remove,
            self.remove_and_get_old,
            self.transform,
        )

    def operate(self) -> None:
        """Do one random operation."""
        rng = self.rng
        if rng.random() < 0.04 / self.keys:  # a visit touches every entry
            self.visit()
        else:
            rng.choice(self.operations)(rng.randrange(self.keys), rng.randrange(self.namespaces))
        assert len(self.map) == len(self.model)

    def value(self) -> list[int]:
        return [self.rng.randrange(1000) for _ in range(self.rng.randrange(3))]

    def mutate(self, state: list[int] | None, expected: list[int] | None) -> None:
        """Compare two values, and change both in place as a caller may."""
        assert state == expected
        if state is not None and expected is not None:
            if state and self.rng.random() < 0.5:
                state.pop()
                expected.pop()
            else:
                state.append(len(state))
                expected.append(len(expected))

    def get(self, key: int, namespace: int) -> None:
        self.mutate(self.map.get(key, namespace), self.model.get((key, namespace)))

    def put(self, key: int, namespace: int) -> None:
        value = self.value()
        self.map.put(key, namespace, value)
        self.model[key, namespace] = list(value)

    def put_and_get_old(self, key: int, namespace: int) -> None:
        value = self.value()
        old = self.map.put_and_get_old(key, namespace, value)
        self.mutate(old, self.model.get((key, namespace)))
        self.model[key, namespace] = list(value)

    def remove(self, key: int, namespace: int) -> None:
        assert self.map.remove(key, namespace) == (self.model.pop((key, namespace), None) is not None)

    def remove_and_get_old(self, key: int, namespace: int) -> None:
        self.mutate(self.map.remove_and_get_old(key, namespace), self.model.pop((key, namespace), None))

    def transform(self, key: int, namespace: int) -> None:
        added = self.rng.randrange(1000)

        def append(old: list[int] | None, value: int) -> list[int]:
            if old is None:
                return [value]
            old.append(value)
            return old

        self.map.transform(key, namespace, added, append)
        self.model.setdefault((key, namespace), []).append(added)

    def visit(self) -> None:
        """Walk through all entries in steps of five, and read, update or remove them."""
        expected, shown = set(self.model), set()
        visitor = self.map.visitor(5)
        while visitor.has_next():
            for entry in visitor.next_batch():
                key, namespace, value = entry
                assert value == self.model[key, namespace]
                assert (key, namespace) not in shown
                shown.add((key, namespace))
                draw = self.rng.random()
                if draw < 0.1:
                    visitor.remove(entry)
                    del self.model[key, namespace]
                elif draw < 0.4:
                    new = self.value()
                    visitor.update(entry, new)
                    self.model[key, namespace] = list(new)
            for _ in range(self.rng.randrange(3)):  # and meanwhile others come and change
                self.put(self.rng.randrange(self.keys), self.rng.randrange(self.namespaces))
        assert expected <= shown

    def contents(self) -> Model:
        return read(iter(self.map))


def read(entries: Iterator[tuple[int, int, list[int]]]) -> Model:
    found: Model = {}
    for key, namespace, value in entries:
        assert (key, namespace) not in found
        found[key, namespace] = value
    return found


@pytest.mark.parametrize(
    ("keys", "namespaces", "initial_capacity"),
    [(20, 4, 128), (1000, 2, 4)],
    ids=["20 keys x 4 namespaces", "growing through rehashes"],
)
def test_a_map_and_its_snapshots_are_what_a_dict_and_its_copies_are(
    cowmap: ModuleType, operations: int, keys: int, namespaces: int, initial_capacity: int
) -> None:
    """COW-06."""
    twin = Twin(
        cowmap.CopyOnWriteStateMap(list, initial_capacity),
        random.Random(42),
        keys=keys,
        namespaces=namespaces,
    )
    held, expected = None, None
    for i in range(1, operations + 1):
        twin.operate()
        if i % 500 == 0:
            if held is None:
                held, expected = twin.map.snapshot(), copy.deepcopy(twin.model)
            else:
                assert read(held.entries()) == expected
                assert len(held) == len(expected)
                if i % 1000 == 0:
                    twin.map.snapshot().release()
                if i % 5000 == 0:
                    held.release()
                    held = None
    assert twin.contents() == twin.model


def test_immutable_values_behave_the_same(cowmap: ModuleType, operations: int) -> None:
    """Without a copy function nothing but the structure is copied."""
    rng = random.Random(43)
    state_map, model = cowmap.CopyOnWriteStateMap(initial_capacity=4), {}
    held: list[tuple[Any, dict[int, int]]] = []
    for i in range(operations // 2):
        key = rng.randrange(1 + i % 4000)
        draw = rng.random()
        if draw < 0.35:
            state_map.put(key, "n", i)
            model[key] = i
        elif draw < 0.6:
            assert state_map.get(key, "n") == model.get(key)
        elif draw < 0.8:
            assert state_map.remove_and_get_old(key, "n") == model.pop(key, None)
        else:
            state_map.transform(key, "n", i, lambda old, value: (old or 0) + value)
            model[key] = (model.get(key) or 0) + i
        if rng.random() < 0.002:
            held.append((state_map.snapshot(), dict(model)))
        if len(held) > 4:
            snapshot, expected = held.pop(rng.randrange(5))
            assert {key: value for key, _, value in snapshot} == expected
            snapshot.release()
    assert {key: value for key, _, value in state_map} == model


@pytest.mark.slow
def test_snapshots_are_right_while_another_thread_reads_them(cowmap: ModuleType, operations: int) -> None:
    """The owner never waits: it continues to change the map, and the reader releases what it has read."""
    rng = random.Random(44)
    twin = Twin(cowmap.CopyOnWriteStateMap(list, 4), rng, keys=2000, namespaces=2)
    todo: queue.Queue[tuple[Any, Model] | None] = queue.Queue(maxsize=3)
    faults: list[BaseException] = []
    reads = 0

    def read_all() -> None:
        nonlocal reads
        while (task := todo.get()) is not None:
            snapshot, expected = task
            try:
                assert read(snapshot.entries()) == expected
                found: Model = {}
                for namespaces, keys, values in snapshot.batches(100):
                    found.update(zip(zip(keys, namespaces, strict=True), values, strict=True))
                assert found == expected
                snapshot.release()
                reads += 1
            except BaseException as fault:
                faults.append(fault)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    readers = [threading.Thread(target=read_all) for _ in range(2)]
    try:
        for reader in readers:
            reader.start()
        for i in range(operations // 2):
            twin.operate()
            if i % 1000 == 0 and not faults:
                todo.put((twin.map.snapshot(), copy.deepcopy(twin.model)))
    finally:
        for _ in readers:
            todo.put(None)
        for reader in readers:
            reader.join()
        sys.setswitchinterval(interval)
    if faults:
        raise faults[0]
    assert reads == len(range(0, operations // 2, 1000))
    assert twin.map.live_snapshot_versions == ()
    assert twin.contents() == twin.model


@pytest.mark.parametrize("way", ["entries", "batches"])
def test_releasing_under_a_reader_ends_it_with_an_error_or_after_all_entries(
    cowmap: ModuleType, operations: int, way: str
) -> None:
    """Never with wrong entries: the owner may change them in place from then on."""
    state_map = cowmap.CopyOnWriteStateMap(initial_capacity=4)
    state_map.put_many(range(3000), "n", [0] * 3000)
    outcomes = set()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for round_ in range(1, 1 + min(operations // 2000, 1000)):
            snapshot = state_map.snapshot()
            reader = Reader(snapshot, way)
            reader.start()
            reader.started.wait()
            snapshot.release()
            state_map.put_many(range(3000), "n", [round_] * 3000)
            reader.join()
            assert set(reader.seen) == {round_ - 1}
            assert len(reader.seen) == 3000 or reader.end == "released"
            outcomes.add(reader.end)
    finally:
        sys.setswitchinterval(interval)
    assert "released" in outcomes


class Reader(threading.Thread):
    """Reads the values of a snapshot until it ends or is released."""

    def __init__(self, snapshot: Any, way: str) -> None:
        super().__init__()
        self.snapshot = snapshot
        self.way = way
        self.started = threading.Event()
        self.seen: list[int] = []
        self.end = ""

    def run(self) -> None:
        try:
            if self.way == "entries":
                for _, _, value in self.snapshot.entries():
                    self.seen.append(value)
                    self.started.set()
            else:
                for _, _, values in self.snapshot.batches(20):
                    self.seen.extend(values)
                    self.started.set()
            self.end = "finished"
        except RuntimeError:
            self.end = "released"
        finally:
            self.started.set()
