"""Operator states whose types have changed between two runs of a program."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import Any

import pytest

from keyedstate import types
from keyedstate.errors import StateConversionError, StateMigrationError
from keyedstate.state import BroadcastState, OperatorListState, UnionListState
from keyedstate.state.operator.backend import OperatorStateBackend

LISTS = [OperatorListState, UnionListState]
PAIRS = [("foo", 13), ("bar", 278)]


class Level(enum.Enum):
    LOW = 1
    HIGH = 2


class MoreLevels(enum.Enum):
    HIGH = 2
    MIDDLE = 3
    LOW = 1


class OtherLevels(enum.Enum):
    LOW = 1


@dataclass
class V1:
    name: str
    count: int


@dataclass
class V2:
    """V1 in another order, and with a note."""

    count: int
    name: str
    note: str | None = None


@dataclass
class Incompatible:
    name: int
    count: int


def pair(cls: type[Any]) -> types.TypeSerializer[Any]:
    return types.record_of(cls, name="Pair")


def level(cls: type[Any]) -> types.TypeSerializer[Any]:
    return types.enum_of(cls, name="Level")


def put(backend: OperatorStateBackend, state: BroadcastState[Any, Any], entries: dict[Any, Any]) -> Any:
    handle = backend.get_state(state)
    with backend.broadcast_side():
        handle.put_all(entries)
    return handle


def listed(files: Any, state: Any, elements: list[Any]) -> OperatorStateBackend:
    """Return a restarted task that holds these elements and has registered nothing."""
    backend = OperatorStateBackend()
    backend.get_state(state).update(elements)
    return files.again(backend)


def mapped(files: Any, state: Any, entries: dict[Any, Any]) -> OperatorStateBackend:
    backend = OperatorStateBackend()
    put(backend, state, entries)
    return files.again(backend)


@pytest.mark.parametrize("kind", LISTS)
def test_elements_of_a_class_that_changed_are_read_written_and_kept(files, kind):
    """MIG-18: the order is kept; a further restart and a further registration are as the first."""
    backend = listed(files, kind("s", pair(V1)), [V1(*values) for values in PAIRS])
    expected = [V2(count, name) for name, count in PAIRS]
    for _ in range(2):
        handle = backend.get_state(kind("s", pair(V2)))
        assert handle.get() == expected
        assert {type(element) for element in handle.get()} == {V2}
        handle.add(V2(1, "new", "note"))
        expected.append(V2(1, "new", "note"))
        backend = files.again(backend)
    assert backend.get_state(kind("s", pair(V2))).get() == expected


@pytest.mark.parametrize("kind", LISTS)
def test_the_numbers_of_a_list_may_become_wider(files, kind):
    """MIG-18."""
    backend = listed(files, kind("s", types.INT32), [1, 2])
    handle = backend.get_state(kind("s", types.INT64))
    handle.add(2**40)
    assert files.again(backend).get_state(kind("s", types.INT64)).get() == [1, 2, 2**40]


@pytest.mark.parametrize("kind", LISTS)
def test_elements_of_an_enum_that_was_reordered_are_read_by_name(files, kind):
    """MIG-19: reconfigured; new constants can be added to the list."""
    backend = listed(files, kind("s", level(Level)), [Level.HIGH, Level.LOW])
    handle = backend.get_state(kind("s", level(MoreLevels)))
    assert handle.get() == [MoreLevels.HIGH, MoreLevels.LOW]
    handle.add(MoreLevels.MIDDLE)
    handle = files.again(backend).get_state(kind("s", level(MoreLevels)))
    assert handle.get() == [MoreLevels.HIGH, MoreLevels.LOW, MoreLevels.MIDDLE]


@pytest.mark.parametrize("kind", LISTS)
@pytest.mark.parametrize("new", [pair(Incompatible), types.STRING, level(Level)], ids=repr)
def test_elements_of_an_incompatible_type_are_refused_and_kept(files, kind, new):
    """MIG-20: the error names the state and both types; with the old type the state is still there."""
    backend = listed(files, kind("s", pair(V1)), [V1(*values) for values in PAIRS])
    with pytest.raises(StateMigrationError, match="the element type of the state 's' is now") as caught:
        backend.get_state(kind("s", new))
    assert caught.value.part == "element"
    restored = files.again(backend)
    assert restored.get_state(kind("s", pair(V1))).get() == [V1(*values) for values in PAIRS]


def test_the_keys_of_a_broadcast_map_may_migrate(files):
    """MIG-21: they are read with the old serializer and written with the new one, unlike keyed state's."""
    backend = mapped(files, BroadcastState("s", types.INT32, types.STRING), {1: "a", 2: "b"})
    state = BroadcastState("s", types.INT64, types.STRING)
    put(backend, state, {2**40: "c"})
    for _ in range(2):
        assert dict(backend.get_state(state).items()) == {1: "a", 2: "b", 2**40: "c"}
        backend = files.again(backend)


def test_nan_is_found_under_a_migrated_key_type(files):
    """MIG-21: there is one NaN for all float types, so keys stay in the form by which a map finds them."""
    old = BroadcastState("s", types.tuple_of(types.FLOAT32, types.INT32), types.INT64)
    backend = mapped(files, old, {(math.nan, 1): 1, (0.0, 2): 2})
    handle = backend.get_state(BroadcastState("s", types.tuple_of(types.FLOAT64, types.INT64), types.INT64))
    assert (handle.get((float("nan"), 1)), handle.get((-0.0, 2))) == (1, 2)


def test_the_values_of_a_broadcast_map_may_migrate(files):
    """MIG-21."""
    state = BroadcastState("s", types.STRING, pair(V1))
    backend = mapped(files, state, {"a": V1("foo", 13), "none": None})
    state = BroadcastState("s", types.STRING, pair(V2))
    for _ in range(2):
        assert dict(backend.get_state(state).items()) == {"a": V2(13, "foo"), "none": None}
        backend = files.again(backend)


@pytest.mark.parametrize("part", ["key", "value"])
def test_the_enum_of_a_broadcast_map_may_be_reordered(files, part):
    """MIG-21: reconfigured keys are found under the new constants."""

    def state(cls: type[Any]) -> BroadcastState[Any, Any]:
        given = [types.INT64, types.INT64]
        given[part == "value"] = level(cls)
        return BroadcastState("s", *given)

    entry = {Level.HIGH: 1} if part == "key" else {1: Level.HIGH}
    backend = mapped(files, state(Level), entry)
    for _ in range(2):
        handle = backend.get_state(state(MoreLevels))
        found = handle.get(MoreLevels.HIGH) if part == "key" else handle.get(1)
        assert found == (1 if part == "key" else MoreLevels.HIGH)
        put(backend, state(MoreLevels), {MoreLevels.MIDDLE: 2} if part == "key" else {2: MoreLevels.MIDDLE})
        backend = files.again(backend)
    assert len(list(backend.get_state(state(MoreLevels)).keys())) == 2


@pytest.mark.parametrize(
    ("part", "state"),
    [
        ("key", BroadcastState("s", types.STRING, types.STRING)),
        ("value", BroadcastState("s", types.INT64, types.INT64)),
    ],
)
def test_an_incompatible_broadcast_map_is_refused_and_kept(files, part, state):
    """MIG-21."""
    before = BroadcastState("s", types.INT64, types.STRING)
    backend = mapped(files, before, {1: "a"})
    with pytest.raises(StateMigrationError, match=f"the {part} type of the state 's'") as caught:
        backend.get_state(state)
    assert caught.value.part == part
    assert dict(files.again(backend).get_state(before).items()) == {1: "a"}


def test_an_unreadable_value_leaves_the_state_unchanged(files):
    """A pickle whose class is gone: the state's name is in the error, and nothing is lost."""
    global Gone

    class Gone:
        pass

    Gone.__qualname__ = "Gone"
    state = OperatorListState("s", types.pickled())
    backend = OperatorStateBackend()
    backend.get_state(state).add(Gone())
    part = files.write(backend)
    kept, Gone = Gone, None  # type: ignore[misc]
    (backend,) = files.restore([part])
    with pytest.raises(StateConversionError, match="'s'"):
        backend.get_state(state)
    Gone = kept  # type: ignore[misc]
    assert isinstance(files.again(backend).get_state(state).get()[0], kept)


@pytest.mark.parametrize(
    ("old", "new", "values", "expected"),
    [
        (types.INT32, types.INT64, [1, 2**40], [1, 2**40]),
        (pair(V1), pair(V2), [V1("foo", 13), V2(278, "bar")], [V2(13, "foo"), V2(278, "bar")]),
        (
            level(Level),
            level(MoreLevels),
            [Level.HIGH, MoreLevels.MIDDLE],
            [MoreLevels.HIGH, MoreLevels.MIDDLE],
        ),
    ],
    ids=repr,
)
@pytest.mark.parametrize("first", ["old", "new"])
def test_parts_that_were_written_in_two_forms_become_one_state(files, old, new, values, expected, first):
    """A task that did not register the state wrote it as it found it, another one in its new form."""
    parts = []
    for serializer, value in zip((old, new), values, strict=True):
        backend = OperatorStateBackend()
        backend.get_state(OperatorListState("s", serializer)).add(value)
        parts.append(files.write(backend))
    if first == "new":
        parts.reverse()
        expected = expected[::-1]
    tasks = files.restore(parts, 3)
    assert sum(task.entries_by_state()["s"] for task in tasks) == 2
    found = [task.get_state(OperatorListState("s", new)).get() for task in tasks]
    assert [element for part in found for element in part] == expected
    (task,) = files.restore(parts, 1)
    with pytest.raises(
        StateMigrationError, match="tasks have written it in both forms, and this one has not"
    ):
        task.snapshot(1)
    assert task.get_state(OperatorListState("s", new)).get() == expected
    assert files.again(task).get_state(OperatorListState("s", new)).get() == expected


def test_parts_of_incompatible_types_are_refused_where_they_are_registered(files):
    parts = []
    for serializer, value in ((types.INT64, 1), (types.STRING, "a")):
        backend = OperatorStateBackend()
        backend.get_state(OperatorListState("s", serializer)).add(value)
        parts.append(files.write(backend))
    (task,) = files.restore(parts, 1)
    for serializer in (types.INT64, types.STRING):
        with pytest.raises(StateMigrationError, match="the element type of the state 's'"):
            task.get_state(OperatorListState("s", serializer))
    assert task.entries_by_state() == {"s": 2}
