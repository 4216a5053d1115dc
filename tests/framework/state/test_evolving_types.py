"""State of the user's own classes over restarts of the program, between which the classes change."""

from __future__ import annotations

import enum
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keyedstate import errors, types
from keyedstate.errors import StateConversionError, StateMigrationError
from keyedstate.state import ListState, MapState, ValueState

PAIRS = {1: ("foo", 1456), 2: ("bar", 478), 3: ("hello", 189)}


class Level(enum.Enum):
    LOW = 1
    HIGH = 2


class MoreLevels(enum.Enum):
    HIGH = 2
    MIDDLE = 3
    LOW = 1


@dataclass
class V1:
    name: str
    count: int
    level: Level = Level.LOW


@dataclass
class V2:
    """V1 without its level, and with a note."""

    count: int
    name: str
    note: str | None = None


@dataclass
class V3:
    """V1 whose levels were reordered, and one added."""

    name: str
    count: int
    level: MoreLevels = MoreLevels.LOW


@dataclass
class Changed:
    name: int
    count: int


def click(cls: type[Any]) -> types.TypeSerializer[Any]:
    levels = {V1: Level, V3: MoreLevels}
    given = {"level": types.enum_of(levels[cls], name="Level")} if cls in levels else {}
    return types.record_of(cls, fields=given, name="Click")


def entries(backend: Any, state: Any) -> dict[int, Any]:
    handle = backend.get_state(state)
    found = {}
    for key in PAIRS:
        backend.set_current_key(key)
        found[key] = handle.get() if isinstance(state, ListState) else handle.value()
    return found


def written(instances: Any, state: Any, make: Any) -> Any:
    """Return a snapshot in which each key has the value that `make` gives it."""
    backend = instances.open()
    handle = backend.get_state(state)
    for key, (name, count) in PAIRS.items():
        backend.set_current_key(key)
        handle.update(make(name, count))
    return instances.snapshot(backend)


def test_a_value_of_a_class_that_changed_is_read_written_and_kept(instances):
    """MIG-01: reads are equal, writes work, a further snapshot works."""
    snapshot = written(instances, ValueState("s", click(V1)), V1)
    for _ in range(2):  # once from the old class, once from the new one
        backend = instances.open([snapshot])
        state = ValueState("s", click(V2))
        assert entries(backend, state) == {key: V2(count, name) for key, (name, count) in PAIRS.items()}
        assert {type(value) for value in entries(backend, state).values()} == {V2}
        snapshot = instances.snapshot(backend)
    backend.set_current_key(1)
    backend.get_state(state).update(V2(0, "new", "note"))
    backend = instances.open([instances.snapshot(backend)])
    assert entries(backend, state)[1] == V2(0, "new", "note")


def test_the_same_class_is_restored(instances):
    state = ValueState("s", click(V1))
    backend = instances.open([written(instances, state, V1)])
    assert entries(backend, state) == {key: V1(*pair) for key, pair in PAIRS.items()}
    # A snapshot copies what the owner changes in place, with the class's own serializer.
    task = backend.snapshot(1)
    backend.set_current_key(1)
    if task.asynchronous:
        backend.get_state(state).value().count = -1
    restored = instances.open([instances.write(backend, task)])
    assert entries(restored, state)[1] == V1("foo", 1456)


def test_a_reconfigured_type_keeps_the_old_positions_and_is_found_again(instances):
    """MIG-02; a second look-up with the declared type is the first one's."""
    snapshot = written(instances, ValueState("s", click(V1)), lambda name, count: V1(name, count, Level.HIGH))
    backend = instances.open([snapshot])
    state = ValueState("s", click(V3))
    handle = backend.get_state(state)
    assert backend.get_state(state) is handle
    assert entries(backend, state)[2] == V3("bar", 478, MoreLevels.HIGH)
    backend.set_current_key(1)
    handle.update(V3("x", 0, MoreLevels.MIDDLE))
    [meta] = backend.metas()
    level: Any = meta.value_serializer.inners[-1]  # type: ignore[attr-defined]
    assert level.constants == ("LOW", "HIGH", "MIDDLE")
    assert entries(instances.open([instances.snapshot(backend)]), state)[1] == V3("x", 0, MoreLevels.MIDDLE)


def test_a_class_whose_field_changed_its_type_is_refused_by_field_and_state(instances):
    """MIG-03; the state stays as it was."""
    backend = instances.open([written(instances, ValueState("s", click(V1)), V1)])
    with pytest.raises(StateMigrationError, match=r"'s'.*the field 'name': STRING cannot be read as INT64"):
        backend.get_state(ValueState("s", click(Changed)))
    assert entries(backend, ValueState("s", click(V1)))[1] == V1("foo", 1456)


def test_lists_of_a_class_that_changed_keep_their_order_and_take_more(instances):
    """MIG-04."""
    lists = {1: [V1("a", 1), V1("b", 2), V1("c", 3)], 2: [V1("d", 4)], 3: [V1("e", 5), V1("f", 6)]}
    remaining = iter(lists.values())
    snapshot = written(instances, ListState("s", click(V1)), lambda name, count: next(remaining))
    backend = instances.open([snapshot])
    state = ListState("s", click(V2))
    assert {key: list(found) for key, found in entries(backend, state).items()} == {
        key: [V2(value.count, value.name) for value in values] for key, values in lists.items()
    }
    backend.set_current_key(2)
    backend.get_state(state).add(V2(7, "g"))
    assert list(entries(instances.open([instances.snapshot(backend)]), state)[2]) == [V2(4, "d"), V2(7, "g")]


def test_map_values_may_migrate_and_constants_be_map_keys(instances):
    """MIG-08, MIG-09: values migrate, map keys are reconfigured."""
    level, more = types.enum_of(Level, name="Level"), types.enum_of(MoreLevels, name="Level")
    backend = instances.open()
    backend.set_current_key(1)
    backend.get_state(MapState("s", level, click(V1))).put_all({Level.HIGH: V1("a", 1), Level.LOW: None})
    restored = instances.open([instances.snapshot(backend)])
    restored.set_current_key(1)
    handle = restored.get_state(MapState("s", more, click(V2)))
    assert handle.get(MoreLevels.HIGH) == V2(1, "a")
    assert handle.contains(MoreLevels.LOW)
    handle.put(MoreLevels.MIDDLE, V2(2, "b"))
    assert handle.size() == 3


def test_entries_are_found_again_under_namespaces_of_the_users_class(instances):
    """MIG-16: a namespace type may be reconfigured; restored namespaces become the program's own objects."""
    level, more = types.enum_of(Level, name="Level"), types.enum_of(MoreLevels, name="Level")
    backend = instances.open()
    state = ValueState("s", types.INT64)
    for namespace in Level:
        backend.set_current_key(1)
        backend.get_state(state, namespace, level).update(namespace.value)
    restored = instances.open([instances.snapshot(backend)])
    restored.set_current_key(1)
    assert restored.get_state(state, MoreLevels.HIGH, more).value() == 2
    assert restored.get_state(state, MoreLevels.LOW, more).value() == 1
    assert list(restored.get_keys("s", MoreLevels.LOW)) == [1]


def test_a_state_of_classes_survives_runs_that_do_not_use_it(instances):
    """Such a run has none of its classes, and yet writes it into every snapshot."""
    state = ValueState("s", types.map_of(types.STRING, click(V1)))
    snapshot = written(instances, state, lambda name, count: {name: V1(name, count, Level.HIGH)})
    for _ in range(2):
        idle = instances.open([snapshot])
        assert sorted(idle.get_keys("s")) == [1, 2, 3]
        snapshot = instances.snapshot(idle)
    assert entries(instances.open([snapshot]), state)[3] == {"hello": V1("hello", 189, Level.HIGH)}


def test_changes_of_a_converted_state_are_tracked(instances):
    state = ValueState("s", click(V1))
    snapshot = written(instances, state, V1)
    backend = instances.open([snapshot], track_changes=True)
    handle = backend.get_state(state)
    backend.begin_epoch(1)
    backend.set_current_key(2)
    handle.update(V1("changed", 0))
    changes = backend.changes_since(0)["s"]
    found = [
        (key, value)
        for key_group in backend.key_groups
        for batch in changes.written(key_group, 10)
        for key, value in zip(batch.keys, batch.values, strict=True)
    ]
    changes.release()
    assert found == [(2, V1("changed", 0))]


class Opened:
    """Its pickle makes a folder when it is opened, and cannot be opened twice."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def test_generic_values_that_cannot_be_unpickled_stay_in_the_checkpoint(instances, tmp_path):
    state = ValueState("s", types.pickled())
    backend = instances.open()
    backend.set_current_key(1)
    backend.get_state(state).update(Opened(tmp_path / "trace"))
    idle = instances.open([instances.snapshot(backend)])
    (tmp_path / "trace").mkdir()
    with pytest.raises(StateConversionError, match=r"the state 's' cannot be restored: .*FileExistsError"):
        idle.get_state(state)
    again = instances.open([instances.snapshot(idle)])
    (tmp_path / "trace").rmdir()
    again.get_state(state)
    assert (tmp_path / "trace").is_dir()


def test_a_forbidden_generic_state_is_refused_and_stays_in_checkpoints(instances):
    state = ValueState("s", types.list_of(types.pickled()))
    backend = instances.open()
    backend.set_current_key(1)
    backend.get_state(state).update([{"a": 1}])
    strict = instances.open([instances.snapshot(backend)], generic_types=False)
    with pytest.raises(
        errors.GenericTypeForbiddenError, match=r"the state 's'.*in its element.*types\.generic"
    ):
        strict.get_state(state)
    strict.get_state(ValueState("other", types.record_of(V1)))
    again = instances.open([instances.snapshot(strict)])
    again.set_current_key(1)
    assert again.get_state(state).value() == [{"a": 1}]


def test_an_unpicklable_value_is_refused_with_the_states_name(instances):
    backend = instances.open()
    backend.set_current_key(1)
    handle = backend.get_state(ValueState("s", types.pickled()))
    with pytest.raises(Exception, match=r"the state 's' refuses the value: .*cannot be pickled"):
        handle.update(number for number in range(3))
    assert handle.value() is None


def test_arrays_whose_elements_were_widened_become_wider(instances):
    """MIG-01 with a type that no class of the user is part of."""
    snapshot = written(
        instances,
        ValueState("s", types.array_of(types.INT16)),
        lambda name, count: np.array([count], np.int16),
    )
    backend = instances.open([snapshot])
    found = entries(backend, ValueState("s", types.array_of(types.INT64)))
    assert {key: (value.dtype, value.tolist()) for key, value in found.items()} == {
        key: (np.dtype(np.int64), [count]) for key, (_, count) in PAIRS.items()
    }
