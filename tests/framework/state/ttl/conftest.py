"""Each kind of state as the tests of the time to live use it, with a model of what it must show."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from keyedstate import types
from keyedstate.backend import ExpiryCleanup, StateKind, StateMeta
from keyedstate.keygroups import KeyGroupRange
from keyedstate.state import (
    AggregateFunction,
    AggregatingState,
    ListState,
    ManualClock,
    MapState,
    ReducingState,
    StateDescriptor,
    Ttl,
    UpdateType,
    ValueState,
    Visibility,
)
from keyedstate.state.registry.keyed_backend import KeyedStateBackend
from keyedstate.testing import open_instance


class Sum(AggregateFunction[int, int, str]):
    """Begins at 3, and shows its accumulator as text."""

    def create_accumulator(self) -> int:
        return 3

    def add(self, value: int, accumulator: int) -> int:
        return accumulator + value

    def get_result(self, accumulator: int) -> str:
        return str(accumulator)

    def merge(self, first: int, second: int) -> int:
        return first + second


#: What a model keeps of one key: the time of writing and the written, per part that expires on its own.
Parts = dict[Any, tuple[int, Any]]


@dataclass(frozen=True)
class Kind:
    """How one kind of state is declared, written, read and modelled.

    Attributes
    ----------
    writes : tuple
        Three different things to write.
    fold : callable
        Returns the parts after a write: (living parts, written, time).
    show : callable
        Returns what a read shows of the parts: their values in the order of writing.
    """

    declare: Callable[[Ttl | None], StateDescriptor[Any]]
    write: Callable[[Any, Any], None]
    read: Callable[[Any], Any]
    empty: Any
    writes: tuple[Any, Any, Any]
    fold: Callable[[Parts, Any, int], Parts]
    show: Callable[[Parts], Any]


def _appended(parts: Parts, elements: list[Any], now: int) -> Parts:
    return {**parts, **{(now, number, len(parts)): (now, e) for number, e in enumerate(elements)}}


def _map_of(parts: Parts) -> dict[Any, Any]:
    return {key: value for key, (_, value) in parts.items()}


KINDS = {
    "value": Kind(
        lambda ttl: ValueState("state", types.STRING, ttl=ttl),
        lambda handle, value: handle.update(value),
        lambda handle: handle.value(),
        None,
        ("a", "b", "c"),
        lambda parts, value, now: {0: (now, value)},
        lambda parts: parts[0][1] if parts else None,
    ),
    "list of numbers": Kind(
        lambda ttl: ListState("state", types.INT64, ttl=ttl),
        lambda handle, values: handle.add_all(values),
        lambda handle: handle.get(),
        [],
        ([5, 7, 10], [8, 9, 11], [1, 2, 4]),
        _appended,
        lambda parts: [value for _, value in parts.values()],
    ),
    "list of strings": Kind(
        lambda ttl: ListState("state", types.STRING, ttl=ttl),
        lambda handle, values: [handle.add(value) for value in values],
        lambda handle: handle.get(),
        [],
        (["", "a much longer one", "c"], ["d"], ["e" * 300, "f"]),
        _appended,
        lambda parts: [value for _, value in parts.values()],
    ),
    "map": Kind(
        lambda ttl: MapState("state", types.INT64, types.STRING, ttl=ttl),
        lambda handle, entries: handle.put_all(entries),
        lambda handle: dict(handle.items()),
        {},
        ({3: "3", 5: "5", 10: "10"}, {12: "12", 7: "7"}, {15: "15", 4: "4"}),
        lambda parts, entries, now: {**parts, **{key: (now, value) for key, value in entries.items()}},
        _map_of,
    ),
    "map by its iterator": Kind(
        lambda ttl: MapState("state", types.INT64, types.STRING, ttl=ttl),
        lambda handle, entries: [handle.put(*entry) for entry in entries.items()],
        lambda handle: {entry.key: entry.value for entry in handle.entries()},
        {},
        ({3: "3", 5: "5", 10: "10"}, {3: "12", 7: "7"}, {5: "15", 4: "4"}),
        lambda parts, entries, now: {**parts, **{key: (now, value) for key, value in entries.items()}},
        _map_of,
    ),
    "map, one entry": Kind(
        lambda ttl: MapState("state", types.STRING, types.INT64, ttl=ttl),
        lambda handle, value: handle.put("k", value),
        lambda handle: handle.get("k"),
        None,
        (1, 2, 3),
        lambda parts, value, now: {0: (now, value)},
        lambda parts: parts[0][1] if parts else None,
    ),
    "map, a null value": Kind(
        lambda ttl: MapState("state", types.STRING, types.INT64, ttl=ttl),
        lambda handle, value: handle.put("k", value),
        lambda handle: handle.contains("k"),
        False,
        (None, None, None),
        lambda parts, value, now: {0: (now, True)},
        lambda parts: bool(parts),
    ),
    "reducing": Kind(
        lambda ttl: ReducingState("state", lambda a, b: a + b, types.INT64, ttl=ttl),
        lambda handle, value: handle.add(value),
        lambda handle: handle.get(),
        None,
        (5, 7, 11),
        lambda parts, value, now: {0: (now, value + (parts[0][1] if parts else 0))},
        lambda parts: parts[0][1] if parts else None,
    ),
    "aggregating": Kind(
        lambda ttl: AggregatingState("state", Sum(), types.INT64, ttl=ttl),
        lambda handle, value: handle.add(value),
        lambda handle: handle.get(),
        None,
        (5, 7, 11),
        lambda parts, value, now: {0: (now, value + (parts[0][1] if parts else 3))},
        lambda parts: str(parts[0][1]) if parts else None,
    ),
}


class Rig:
    """One state with a time to live, in a backend whose clock the test moves, beside its model.

    Every method may be followed by a snapshot and a restore into a new instance.

    Attributes
    ----------
    restores : bool
        Whether they are.
    """

    def __init__(self, instances: Any, kind: Kind, restores: bool) -> None:
        self.instances = instances
        self.kind = kind
        self.restores = restores
        self.clock = ManualClock(0)
        self.ttl: Ttl | None = None
        self.backend: KeyedStateBackend = instances.open(clock=self.clock)
        self.parts: dict[tuple[int, Any], Parts] = {}
        self.key = 1
        self.namespace: Any = 0

    def declare(self, ttl: Ttl | None) -> None:
        self.ttl = ttl
        self.use(self.key)

    def use(self, key: int, namespace: int = 0) -> None:
        """Go to a key and a namespace."""
        self.key, self.namespace = key, namespace
        self.handle = self.backend.get_state(self.kind.declare(self.ttl), namespace, types.INT64)
        self.backend.set_current_key(key)

    def at(self, now: int) -> Rig:
        if self.restores:
            self.restore(self.snapshot())
        self.clock.now = now
        self.backend.set_current_key(self.key)
        return self

    def snapshot(self) -> Any:
        return self.instances.snapshot(self.backend)

    def restore(self, segment: Any) -> None:
        self.backend = self.instances.open([segment], clock=self.clock)
        self.use(self.key, self.namespace)

    # -- with the model -----------------------------------------------------------------------------------

    def write(self, number: int) -> None:
        """Write the first, second or third thing."""
        address = self.key, self.namespace
        written = self.kind.writes[number]
        living = self._living(self.parts.get(address, {}))
        self.kind.write(self.handle, written)
        self.parts[address] = self.kind.fold(living, written, self.clock.now)

    def check(self) -> None:
        """Read, and compare with what the model shows."""
        assert self.ttl is not None
        address = self.key, self.namespace
        parts = self.parts.get(address, {})
        living = self._living(parts)
        shown = parts if self.ttl.visibility is Visibility.RETURN_EXPIRED_IF_NOT_CLEANED_UP else living
        expected = self.kind.show(shown) if shown else self.kind.empty
        assert self.kind.read(self.handle) == expected
        if self.ttl.update is UpdateType.ON_READ_AND_WRITE:
            living = {part: (self.clock.now, value) for part, (_, value) in living.items()}
        self.parts[address] = living

    def check_empty(self) -> None:
        assert self.kind.read(self.handle) == self.kind.empty

    def _living(self, parts: Parts) -> Parts:
        if self.ttl is None:
            return parts
        return {part: kept for part, kept in parts.items() if kept[0] + self.ttl.ms > self.clock.now}

    @property
    def stored(self) -> int:
        """The number of entries that are physically there."""
        return self.backend.num_entries()


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


@pytest.fixture(params=[False, True], ids=["", "restored between any two steps"])
def rig(request: pytest.FixtureRequest, instances: Any, kind: Kind) -> Rig:
    return Rig(instances, kind, request.param)


@pytest.fixture
def cleaned_by_use(instances: Any, tmp_path: Path) -> None:
    """Skip a test of the clean-up by use where tables clean themselves up at the end of an epoch."""
    meta = StateMeta("probe", StateKind.VALUE, types.INT64, types.VOID, types.INT64)
    probe = open_instance(
        instances.plugin.name,
        tmp_path / "probe",
        options=instances.options,
        key_groups=KeyGroupRange(0, 9),
        max_parallelism=10,
    )
    cleans_itself = isinstance(probe.table(meta), ExpiryCleanup)
    probe.close()
    if cleans_itself:
        pytest.skip(f"the tables of {instances.plugin.name} clean themselves up")
