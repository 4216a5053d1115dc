"""Values of classes without a type of their own: how the class says it is written, and when it says so later.

Flink has Kryo for them, with serializers that users register; here they are pickled, and ``copyreg`` is where
a program registers how.
"""

from __future__ import annotations

import copyreg
from dataclasses import dataclass
from typing import Any

import pytest

from keyedstate import types
from keyedstate.errors import StateConversionError, StateValueError
from keyedstate.state import ListState, MapState, ValueState

STATE = ValueState("s", types.pickled())


class Plain:
    """A class that knows nothing of being stored."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.number == self.number

    __hash__ = None  # type: ignore[assignment]


class Other(Plain):
    """A second one."""


class ExpectedError(Exception):
    """What a registered serializer raises."""


def refuse(value: Any) -> Any:
    raise ExpectedError("not written")


def fail_to_read(number: int) -> Any:
    raise ExpectedError("not read")


def written_to_fail(value: Plain) -> Any:
    return fail_to_read, (value.number,)


def marked(value: Plain) -> Any:
    return make_marked, (type(value), value.number)


def make_marked(cls: type[Plain], number: int) -> Plain:
    value = cls(number)
    value.made_by = "the registered serializer"  # type: ignore[attr-defined]
    return value


@pytest.fixture
def register():
    """Registers reducers, and forgets them after the test."""
    registered = []

    def register(cls: type, reducer: Any) -> None:
        copyreg.pickle(cls, reducer)
        registered.append(cls)

    yield register
    for cls in registered:
        copyreg.dispatch_table.pop(cls, None)


def written(instances, *values):
    backend = instances.open()
    for key, value in enumerate(values):
        backend.set_current_key(key)
        backend.get_state(STATE).update(value)
    return instances.snapshot(backend)


def read(backend, key):
    backend.set_current_key(key)
    return backend.get_state(STATE).value()


@pytest.mark.parametrize(
    ("state", "write"),
    [
        (STATE, lambda handle: handle.update(Plain(1))),
        (ListState("s", types.pickled()), lambda handle: handle.add(Plain(1))),
        (MapState("s", types.STRING, types.pickled()), lambda handle: handle.put("a", Plain(1))),
        (ValueState("s", types.list_of(types.pickled())), lambda handle: handle.update([Plain(1)])),
    ],
    ids=["value", "list", "map", "nested"],
)
def test_a_registered_serializer_that_refuses_fails_the_write_by_the_states_name(
    backend, register, state, write
):
    """SB-57: the write fails, not a checkpoint minutes later; the state stays as it was."""
    backend.set_current_key(1)
    handle = backend.get_state(state)
    register(Plain, refuse)
    with pytest.raises(StateValueError, match=r"'s' refuses the value: .*ExpectedError: not written"):
        write(handle)
    assert backend.num_entries() == 0


def test_values_of_a_registered_serializer_are_restored(instances, register):
    """SB-57."""
    register(Plain, marked)
    restored = instances.open([written(instances, Plain(1))])
    assert read(restored, 0).made_by == "the registered serializer"


def test_a_class_that_is_registered_later_is_read_as_it_was_written(instances, register):
    """SB-58."""
    handle = written(instances, Plain(1), Other(2))
    register(Plain, marked)
    restored = instances.open([handle])
    assert (read(restored, 0), read(restored, 1)) == (Plain(1), Other(2))
    assert not hasattr(read(restored, 0), "made_by")


def test_a_later_snapshot_is_written_by_the_newly_registered_serializer(instances, register):
    """SB-59: its failing read surfaces when the program registers the state, and nothing is lost by it."""
    handle = written(instances, Plain(1))
    register(Plain, written_to_fail)
    restored = instances.open([handle])
    assert read(restored, 0) == Plain(1)
    again = instances.open([instances.snapshot(restored)])
    again.set_current_key(0)
    with pytest.raises(StateConversionError, match=r"'s' cannot be restored: .*ExpectedError: not read"):
        again.get_state(STATE)
    assert list(again.get_keys("s")) == [0]


def test_a_state_that_is_not_registered_keeps_what_the_old_serializer_wrote(instances, register):
    """SB-59: only a program that opens the values rewrites them."""
    handle = written(instances, Plain(1))
    register(Plain, written_to_fail)
    idle = instances.snapshot(instances.open([handle]))
    assert read(instances.open([idle]), 0) == Plain(1)


def test_the_order_of_registration_does_not_matter(instances, register):
    """SB-60: pickles name classes; there are no ids that the order would give."""
    register(Plain, marked)
    register(Other, marked)
    handle = written(instances, Plain(1), Other(2))
    for cls in (Plain, Other):
        del copyreg.dispatch_table[cls]
    for cls in (Other, Plain):
        register(cls, marked)
    restored = instances.open([handle])
    assert (read(restored, 0), read(restored, 1)) == (Plain(1), Other(2))
    again = instances.open([instances.snapshot(restored)])
    assert (read(again, 0), read(again, 1)) == (Plain(1), Other(2))


@dataclass
class Event:
    user: str


@dataclass
class Login(Event):
    device: str = ""


@dataclass
class Logout(Event):
    seconds: int = 0


@dataclass
class Purchase(Event):
    cents: int = 0


def test_subclasses_registered_in_another_order_keep_the_ids_of_the_snapshot(instances):
    """SB-61: and a new one among them gets the next id."""
    handle = written_events(instances, types.record_of(Event, tagged=[Login, Logout]))
    expected = [Event("a"), Login("b", "phone"), Logout("c", 5)]
    for _ in range(2):
        state = ValueState("s", types.record_of(Event, tagged=[Purchase, Logout, Login]))
        restored = instances.open([handle])
        restored.get_state(state)
        assert events(restored, state) == expected
        [meta] = restored.metas()
        names = [record.name.rpartition(".")[2] for record in meta.value_serializer.tagged]
        assert names == ["Login", "Logout", "Purchase"]
        handle = instances.snapshot(restored)
    restored.set_current_key(1)
    restored.get_state(state).update(Purchase("d", 100))
    assert events(instances.open([instances.snapshot(restored)]), state)[1] == Purchase("d", 100)


def written_events(instances, type_):
    backend = instances.open()
    for key, event in enumerate((Event("a"), Login("b", "phone"), Logout("c", 5))):
        backend.set_current_key(key)
        backend.get_state(ValueState("s", type_)).update(event)
    return instances.snapshot(backend)


def events(backend, state):
    found = []
    for key in range(3):
        backend.set_current_key(key)
        found.append(backend.get_state(state).value())
    return found
