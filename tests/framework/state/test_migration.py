"""A type that changes between two runs: every kind of state, its keys and its namespaces."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

import pytest

from keyedstate import types
from keyedstate.errors import StateMigrationError
from keyedstate.state import (
    AggregateFunction,
    AggregatingState,
    ListState,
    MapState,
    ReducingState,
    ValueState,
)


class Level(enum.Enum):
    LOW = 1
    HIGH = 2


class MoreLevels(enum.Enum):
    """Level in another order, with a new constant."""

    HIGH = 2
    MIDDLE = 3
    LOW = 1


@dataclass(frozen=True)
class Written:
    name: str
    count: int
    level: Level = Level.LOW


@dataclass(frozen=True)
class Migrated:
    count: int
    name: str
    level: Level = Level.LOW
    note: str | None = None


@dataclass(frozen=True)
class Reconfigured:
    name: str
    count: int
    level: MoreLevels = MoreLevels.LOW


@dataclass(frozen=True)
class Incompatible:
    name: int
    count: int
    level: Level = Level.LOW


def event(cls: type[Any], count: types.TypeSerializer[int] = types.INT64) -> types.TypeSerializer[Any]:
    """Return the type of events; every version of the class is called Event in a checkpoint."""
    levels = MoreLevels if cls is Reconfigured else Level
    return types.record_of(
        cls, fields={"count": count, "level": types.enum_of(levels, name="Level")}, name="Event"
    )


WRITTEN = event(Written, types.INT32)


class Latest(AggregateFunction):
    """Keeps the last event as its accumulator, in a list."""

    def create_accumulator(self):
        return []

    def add(self, value, accumulator):
        return [value]

    def get_result(self, accumulator):
        return accumulator[0]


def latest(old, new):
    return new


#: By kind: a declaration of a type, a write of several events, and a read of what is kept of them.
KINDS = {
    "value": (
        ValueState,
        lambda handle, events: handle.update(events[-1]),
        lambda handle: [handle.value()],
        lambda events: events[-1:],
    ),
    "list": (
        ListState,
        lambda handle, events: handle.add_all(events),
        lambda handle: handle.get(),
        lambda events: events,
    ),
    "map": (
        lambda name, type_: MapState(name, types.INT64, type_),
        lambda handle, events: handle.put_all(dict(enumerate(events))),
        lambda handle: list(handle.values()),
        lambda events: events,
    ),
    "reducing": (
        lambda name, type_: ReducingState(name, latest, type_),
        lambda handle, events: [handle.add(event) for event in events],
        lambda handle: [handle.get()],
        lambda events: events[-1:],
    ),
    "aggregating": (
        lambda name, type_: AggregatingState(name, Latest(), types.list_of(type_)),
        lambda handle, events: [handle.add(event) for event in events],
        lambda handle: [handle.get()],
        lambda events: events[-1:],
    ),
}

EVENTS = {
    1: [Written("a", 1456), Written("b", -1), Written("c", 0, Level.HIGH)],
    2: [Written("bar", 478, Level.HIGH)],
    3: [Written("d", 5), Written("hello", 189)],
}


@pytest.fixture(params=KINDS)
def kind(request):
    return KINDS[request.param]


@pytest.fixture
def snapshot(instances, kind):
    """A snapshot in which each key has the events of `EVENTS`, as far as the kind keeps them."""
    backend = instances.open()
    write_all(backend, kind, WRITTEN, EVENTS)
    return instances.snapshot(backend)


def write_all(backend, kind, type_, events_by_key):
    handle = backend.get_state(kind[0]("events", type_))
    for key, events in events_by_key.items():
        backend.set_current_key(key)
        kind[1](handle, events)


def read_all(backend, kind, type_):
    handle = backend.get_state(kind[0]("events", type_))
    found = {}
    for key in EVENTS:
        backend.set_current_key(key)
        found[key] = kind[2](handle)
    return found


def kept(kind, make):
    return {key: kind[3]([make(event) for event in events]) for key, events in EVENTS.items()}


def test_an_unchanged_type_is_used_as_it_is(instances, kind, snapshot):
    """MIG-07, and the same for the other kinds."""
    restored = instances.open([snapshot])
    assert read_all(restored, kind, WRITTEN) == kept(kind, lambda event: event)
    write_all(restored, kind, WRITTEN, {1: [Written("new", 1)]})
    again = read_all(instances.open([instances.snapshot(restored)]), kind, WRITTEN)
    assert again[1][-1 if kind is KINDS["list"] else 0] == Written("new", 1)
    assert again[3] == kept(kind, lambda event: event)[3]


def test_a_type_that_migrates_is_read_written_and_kept(instances, kind, snapshot):
    """MIG-01, MIG-04, MIG-08: fields were reordered, widened and added; order is kept, writes work."""
    type_ = event(Migrated)
    expected = kept(kind, lambda event: Migrated(event.count, event.name, event.level))
    for _ in range(2):  # once from the old type, once from the new one
        restored = instances.open([snapshot])
        assert read_all(restored, kind, type_) == expected
        snapshot = instances.snapshot(restored)
    new = Migrated(2**40, "wide", Level.HIGH, "note")
    write_all(restored, kind, type_, {2: [new]})
    again = read_all(instances.open([instances.snapshot(restored)]), kind, type_)
    assert again[2] == ([*expected[2], new] if kind is KINDS["list"] else [new])
    assert (again[1], again[3]) == (expected[1], expected[3])


def test_a_reconfigured_type_keeps_the_positions_of_the_checkpoint(instances, kind, snapshot):
    """MIG-02, MIG-05, MIG-09."""
    restored = instances.open([snapshot])
    type_ = event(Reconfigured, types.INT32)
    expected = kept(kind, lambda event: Reconfigured(event.name, event.count, MoreLevels[event.level.name]))
    assert read_all(restored, kind, type_) == expected
    new = Reconfigured("new", 7, MoreLevels.MIDDLE)
    write_all(restored, kind, type_, {2: [new]})
    [meta] = restored.metas()
    assert "'LOW', 'HIGH', 'MIDDLE'" in str(meta.value_serializer.snapshot().to_json())
    again = read_all(instances.open([instances.snapshot(restored)]), kind, type_)
    assert again[2] == ([*expected[2], new] if kind is KINDS["list"] else [new])
    assert (again[1], again[3]) == (expected[1], expected[3])


def test_an_incompatible_type_is_refused_by_state_and_field_and_nothing_is_lost(instances, kind, snapshot):
    """MIG-03, MIG-06, MIG-10."""
    restored = instances.open([snapshot])
    for _ in range(2):  # a refusal leaves no trace, so the second is as the first
        with pytest.raises(StateMigrationError, match=r"'events'.*the field 'name'.*Declare it as") as caught:
            restored.get_state(kind[0]("events", event(Incompatible)))
        assert (caught.value.state, caught.value.part) == ("events", "value")
    kept_on = instances.open([instances.snapshot(restored)])
    assert read_all(kept_on, kind, WRITTEN) == kept(kind, lambda event: event)


# -- keys ---------------------------------------------------------------------------------------------

NUMBER = ValueState("number", types.INT64)


def numbered(instances, key_type, keys):
    """Return a snapshot in which each key has its number, from 1."""
    backend = instances.open(key=key_type)
    for number, key in enumerate(keys, 1):
        backend.set_current_key(key)
        backend.get_state(NUMBER).update(number)
    return instances.snapshot(backend)


def numbers(backend, keys):
    found = []
    for key in keys:
        backend.set_current_key(key)
        found.append(backend.get_state(NUMBER).value())
    return found


@pytest.mark.parametrize(
    ("written", "keys", "now"),
    [
        (types.INT32, [1, 2], types.INT64),
        (types.FLOAT32, [0.5, 1.5], types.FLOAT64),
        (types.tuple_of(types.INT32, types.STRING), [(1, "a")], types.tuple_of(types.INT64, types.STRING)),
        (types.INT32, [1, 2], types.nullable(types.INT32)),
    ],
    ids=repr,
)
def test_a_key_type_that_needs_a_migration_is_refused_at_the_opening(instances, written, keys, now):
    """MIG-12: an entry is found by its key's bytes and hash, so neither may change."""
    handle = numbered(instances, written, keys)
    with pytest.raises(
        StateMigrationError, match=r"key type of the state 'number' is now .*cannot migrate"
    ) as caught:
        instances.open([handle], key=now)
    assert caught.value.part == "key"
    assert numbers(instances.open([handle], key=written), keys) == list(range(1, len(keys) + 1))


def test_entries_are_found_again_under_keys_whose_type_was_reconfigured(instances):
    """MIG-13: constants in another order are the same keys, and a new one is a new key."""
    level, more = types.enum_of(Level, name="Level"), types.enum_of(MoreLevels, name="Level")
    handle = numbered(instances, level, Level)
    for _ in range(2):
        restored = instances.open([handle], key=more)
        assert numbers(restored, [MoreLevels.LOW, MoreLevels.HIGH]) == [1, 2]
        assert set(restored.get_keys("number")) == {MoreLevels.LOW, MoreLevels.HIGH}
        assert numbers(restored, [MoreLevels.MIDDLE]) == [None]
        handle = instances.snapshot(restored)
    restored.get_state(NUMBER).update(5)
    [meta] = restored.metas()
    assert meta.key_serializer.constants == ("LOW", "HIGH", "MIDDLE")
    again = instances.open([instances.snapshot(restored)], key=more)
    assert numbers(again, MoreLevels) == [2, 5, 1]


@pytest.mark.parametrize(
    ("written", "keys", "now"),
    [
        (types.INT64, [1, 2], types.FLOAT64),
        (types.INT64, [1], types.STRING),
        (types.INT64, [1], types.INT32),
        (types.tuple_of(types.INT64, types.STRING), [(1, "a")], types.tuple_of(types.INT64)),
    ],
    ids=repr,
)
def test_an_incompatible_key_type_is_refused_when_the_state_is_opened(instances, written, keys, now):
    """MIG-14, SB-39."""
    handle = numbered(instances, written, keys)
    with pytest.raises(StateMigrationError, match=r"key type of the state 'number' is now .*but it was"):
        instances.open([handle], key=now)


# -- namespaces ----------------------------------------------------------------------------------------


def in_namespaces(instances, type_, namespaces):
    backend = instances.open()
    backend.set_current_key(1)
    for number, namespace in enumerate(namespaces, 1):
        backend.get_state(NUMBER, namespace, type_).update(number)
    return instances.snapshot(backend)


@pytest.mark.parametrize(
    ("namespaces", "now"),
    [([1, 2], types.INT64), ([1, 2], types.nullable(types.INT32))],
    ids=["wider", "nullable"],
)
def test_a_namespace_type_that_would_have_to_migrate_is_refused(instances, namespaces, now):
    """MIG-15."""
    restored = instances.open([in_namespaces(instances, types.INT32, namespaces)])
    restored.set_current_key(1)
    with pytest.raises(
        StateMigrationError, match=r"namespace type of the state 'number' .*cannot migrate"
    ) as caught:
        restored.get_state(NUMBER, 1, now)
    assert caught.value.part == "namespace"
    assert restored.get_state(NUMBER, 2, types.INT32).value() == 2


def test_a_reconfigured_namespace_type_is_kept_in_the_next_snapshots(instances):
    """MIG-16."""
    level, more = types.enum_of(Level, name="Level"), types.enum_of(MoreLevels, name="Level")
    handle = in_namespaces(instances, level, Level)
    for _ in range(2):
        restored = instances.open([handle])
        restored.set_current_key(1)
        found = [restored.get_state(NUMBER, namespace, more).value() for namespace in MoreLevels]
        assert found == [2, None, 1]
        [meta] = restored.metas()
        assert meta.namespace_serializer.constants == ("LOW", "HIGH", "MIDDLE")
        handle = instances.snapshot(restored)


def test_an_incompatible_namespace_type_is_refused(instances):
    """MIG-17: also one that the state had none of."""
    restored = instances.open([in_namespaces(instances, types.INT32, [1, 2])])
    restored.set_current_key(1)
    for namespace, type_ in (("1", types.STRING), (types.VOID_NAMESPACE, types.VOID), (1, types.INT16)):
        with pytest.raises(StateMigrationError, match="namespace type of the state 'number'") as caught:
            restored.get_state(NUMBER, namespace, type_)
        assert caught.value.part == "namespace"
    assert restored.get_state(NUMBER, 1, types.INT32).value() == 1
