"""Keys, namespaces and functions over all keys: every kind of state, live and restored."""

from __future__ import annotations

import operator

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


class Joined(AggregateFunction):
    def create_accumulator(self):
        return ""

    def add(self, value, accumulator):
        return accumulator + value

    def get_result(self, accumulator):
        return accumulator


def joined(name, type_):
    return AggregatingState(name, Joined(), type_)


#: By kind: a declaration of a type, a write of one string, and a read of what one write leaves.
KINDS = {
    "value": (ValueState, lambda handle, text: handle.update(text), lambda handle: handle.value()),
    "list": (ListState, lambda handle, text: handle.add(text), lambda handle: "".join(handle.get())),
    "map": (
        lambda name, type_: MapState(name, types.STRING, type_),
        lambda handle, text: handle.put_all({"a": text, "b": ""}),
        lambda handle: "".join(handle.values()),
    ),
    "reducing": (
        lambda name, type_: ReducingState(name, operator.add, type_),
        lambda handle, text: handle.add(text),
        lambda handle: handle.get(),
    ),
    "aggregating": (joined, lambda handle, text: handle.add(text), lambda handle: handle.get()),
}


@pytest.fixture(params=KINDS)
def kind(request):
    return KINDS[request.param]


@pytest.fixture
def state(kind):
    return kind[0]("state", types.STRING)


@pytest.fixture
def write(kind):
    return kind[1]


@pytest.fixture
def read(kind):
    return kind[2]


def fill(backend, state, write, keys, *namespaces):
    for namespace in namespaces:
        for key in keys:
            backend.set_current_key(key)
            write(backend.get_state(state, namespace, types.STRING), f"hello-{key}-{namespace}")


def test_keys_and_pairs_are_listed_once_each_live_and_restored(instances, state, write):
    """SB-05 to SB-08: a key with several elements is one key; a restored state need not be registered."""
    backend = instances.open()
    fill(backend, state, write, range(1000), "ns1")
    fill(backend, state, write, range(1000, 2000), "ns2")
    fill(backend, state, write, [5], "ns2")
    pairs = [*((key, "ns1") for key in range(1000)), (5, "ns2"), *((key, "ns2") for key in range(1000, 2000))]
    for opened in (backend, instances.open([instances.snapshot(backend)])):
        assert sorted(opened.get_keys("state", "ns1")) == list(range(1000))
        assert sorted(opened.get_keys("state", "ns2")) == [5, *range(1000, 2000)]
        assert list(opened.get_keys("state", "ns3")) == []
        assert sorted(opened.get_keys_and_namespaces("state")) == sorted(pairs)
        assert opened.num_entries() == 2001


def test_a_function_sees_each_key_with_its_own_state(instances, state, write, read):
    """SB-54, SB-55: live, and on a restored backend that had not registered the state."""
    backend = instances.open()
    fill(backend, state, write, range(100), "ns1", "ns2")
    for opened in (backend, instances.open([instances.snapshot(backend)])):
        seen = {}
        opened.apply_to_all_keys(
            state, lambda key, handle, seen=seen: seen.update({key: read(handle)}), "ns2", types.STRING
        )
        assert seen == {key: f"hello-{key}-ns2" for key in range(100)}


def test_a_function_may_clear_and_write_state_of_every_key(backend, state, write, read):
    """SB-54: what it leaves is what exists; it may go to another namespace or key."""
    fill(backend, state, write, range(100), "ns1", "ns2")
    backend.set_current_key(7)
    bound = backend.get_state(state, "ns2", types.STRING)

    def rewrite(key, handle):
        handle.clear()
        write(handle, "first")
        handle.clear()
        if key % 2:
            write(handle, "last")
        handle.set_namespace("ns3")
        write(handle, "new")
        backend.set_current_key((key + 1) % 100)

    backend.apply_to_all_keys(state, rewrite, "ns1", types.STRING)
    assert (backend.current.key, bound.namespace) == (7, "ns2")
    assert sorted(backend.get_keys("state", "ns1")) == list(range(1, 100, 2))
    found = {"ns1": set(), "ns2": set(), "ns3": set()}
    for namespace, texts in found.items():
        backend.apply_to_all_keys(
            state, lambda _, handle, texts=texts: texts.add(read(handle)), namespace, types.STRING
        )
    assert found["ns1"] == {"last"} and found["ns3"] == {"new"}
    assert found["ns2"] == {f"hello-{key}-ns2" for key in range(100)}


def test_a_function_that_raises_leaves_the_current_key(backend, state, write):
    fill(backend, state, write, range(10), "ns1")
    backend.set_current_key(3)

    def fail(key, handle):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        backend.apply_to_all_keys(state, fail, "ns1", types.STRING)
    assert backend.current.key == 3
    backend.apply_to_all_keys(state, fail, "nowhere", types.STRING)


def test_a_state_of_an_incompatible_type_is_refused_and_left_as_it_was(instances, kind, state, write, read):
    """SB-40 to SB-43."""
    backend = instances.open()
    fill(backend, state, write, [1], "ns1")
    restored = instances.open([instances.snapshot(backend)])
    with pytest.raises(StateMigrationError, match="value type of the state 'state'"):
        restored.get_state(kind[0]("state", types.FLOAT64), "ns1", types.STRING)
    restored.set_current_key(1)
    assert read(restored.get_state(state, "ns1", types.STRING)) == "hello-1-ns1"


def test_a_state_that_a_run_never_touches_survives_its_snapshot(instances, state, write, read):
    """SB-37."""
    backend = instances.open()
    fill(backend, state, write, range(20), "ns1", "ns2")
    untouched = instances.open([instances.snapshot(backend)])
    again = instances.open([instances.snapshot(untouched)])
    for key in range(20):
        again.set_current_key(key)
        assert read(again.get_state(state, "ns2", types.STRING)) == f"hello-{key}-ns2"
