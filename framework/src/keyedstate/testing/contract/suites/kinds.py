"""What every kind of state must do over a backend, through the keyed backend that a job uses."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pytest

from keyedstate import types
from keyedstate.backend import Capability, StateKind
from keyedstate.errors import StateKindMismatchError, StateMigrationError
from keyedstate.state import (
    AggregateFunction,
    AggregatingState,
    ListState,
    MapState,
    ReducingState,
    StateDescriptor,
    ValueState,
)
from keyedstate.state.registry.keyed_backend import KeyedStateBackend
from keyedstate.testing.contract.base import ContractBase, requires
from keyedstate.testing.contract.keyed import KeyedInstances


class Joined(AggregateFunction[str, str, str]):
    """Concatenated strings."""

    def create_accumulator(self) -> str:
        return ""

    def add(self, value: str, accumulator: str) -> str:
        return accumulator + value

    def get_result(self, accumulator: str) -> str:
        return accumulator

    def merge(self, first: str, second: str) -> str:
        return first + second


@dataclass(frozen=True)
class Kind:
    """A kind of state with one text as its value, so that one test serves all kinds.

    Attributes
    ----------
    kind : StateKind
    declare : callable
        Returns a declaration with a name, the type that the text has in it, and settings such as ``ttl``.
    write, read : callable
        Write a text where nothing is; read it, as the empty one where nothing is.
    """

    kind: StateKind
    declare: Callable[..., StateDescriptor[Any]]
    write: Callable[[Any, str], object]
    read: Callable[[Any], str]


KINDS = {
    "value": Kind(
        StateKind.VALUE,
        ValueState,
        lambda handle, text: handle.update(text),
        lambda handle: handle.value() or "",
    ),
    "list": Kind(
        StateKind.LIST,
        ListState,
        # Two elements: the entries of a list are one entry of the table.
        lambda handle, text: handle.add_all([text[:1], text[1:]]),
        lambda handle: "".join(handle.get()),
    ),
    "map": Kind(
        StateKind.MAP,
        lambda name, type_, **settings: MapState(name, types.INT64, type_, **settings),
        lambda handle, text: handle.put_all({1: text[:1], 2: text[1:]}),
        lambda handle: "".join(value for _, value in sorted(handle.items())),
    ),
    "reducing": Kind(
        StateKind.REDUCING,
        lambda name, type_, **settings: ReducingState(name, operator.add, type_, **settings),
        lambda handle, text: (handle.add(text[:1]), handle.add(text[1:])),
        lambda handle: handle.get() or "",
    ),
    "aggregating": Kind(
        StateKind.AGGREGATING,
        lambda name, type_, **settings: AggregatingState(name, Joined(), type_, **settings),
        lambda handle, text: (handle.add(text[:1]), handle.add(text[1:])),
        lambda handle: handle.get() or "",
    ),
}
every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
merging_kinds = pytest.mark.parametrize(
    "kind",
    [KINDS[name] for name in ("list", "reducing", "aggregating")],
    ids=["list", "reducing", "aggregating"],
)


def at(
    backend: KeyedStateBackend, state: StateDescriptor[Any], key: object, namespace: str | None = None
) -> Any:
    """Return the handle of a state at a key and, where it has namespaces, at one of them."""
    backend.set_current_key(key)
    if namespace is None:
        return backend.get_state(state)
    return backend.get_state(state, namespace, types.STRING)


def text_of(key: object, namespace: str = "") -> str:
    """Return a text that no other address has."""
    return f"<{key}|{namespace}>"


class KindContract(ContractBase):
    """Tests of the kinds of state; each runs where the kind is claimed."""

    def fill(self, backend: KeyedStateBackend, kind: Kind, keys: Iterable[int], *namespaces: str) -> Any:
        """Write a text at each of some addresses; return the declaration."""
        state = kind.declare("state", types.STRING)
        for namespace in namespaces:
            for key in keys:
                kind.write(at(backend, state, key, namespace), text_of(key, namespace))
        return state

    # -- every kind ---------------------------------------------------------------------------------------

    @every_kind
    def test_what_was_written_is_read_at_its_key_and_namespace_only(
        self, keyed: KeyedInstances, kind: Kind
    ) -> None:
        backend = keyed.open()
        state = self.fill(backend, kind, range(50), "w1", "w2")
        for key in range(60):
            for namespace in ("w1", "w2", "w3"):
                there = key < 50 and namespace != "w3"
                assert kind.read(at(backend, state, key, namespace)) == (
                    text_of(key, namespace) if there else ""
                )
        assert backend.num_entries() == 100

    @every_kind
    def test_a_cleared_state_is_empty_and_its_neighbours_are_not(
        self, keyed: KeyedInstances, kind: Kind
    ) -> None:
        backend = keyed.open()
        state = self.fill(backend, kind, range(10), "w1", "w2")
        at(backend, state, 3, "w1").clear()
        at(backend, state, 99, "w1").clear()
        assert kind.read(at(backend, state, 3, "w1")) == ""
        assert kind.read(at(backend, state, 3, "w2")) == text_of(3, "w2")
        handle = at(backend, state, 0, "w2")
        handle.clear_many([1, 2, 2, 99])
        assert sorted(backend.get_keys("state", "w2")) == [0, *range(3, 10)]
        assert sorted(backend.get_keys("state", "w1")) == [0, 1, 2, *range(4, 10)]
        kind.write(at(backend, state, 3, "w1"), "again")
        assert kind.read(at(backend, state, 3, "w1")) == "again"

    @every_kind
    def test_entries_are_counted(self, keyed: KeyedInstances, kind: Kind) -> None:
        """SB-49."""
        backend = keyed.open()
        assert backend.num_entries() == 0
        state = self.fill(backend, kind, [1], "w1")
        kind.write(at(backend, state, 1, "w1"), "more")
        assert backend.num_entries() == 1
        kind.write(at(backend, state, 2, "w1"), "other")
        assert backend.entries_by_state() == {"state": 2}
        for left, key in ((1, 1), (0, 2)):
            at(backend, state, key, "w1").clear()
            assert backend.num_entries() == left

    @every_kind
    def test_keys_and_namespaces_are_listed_once_live_and_restored_before_registration(
        self, keyed: KeyedInstances, kind: Kind
    ) -> None:
        """SB-05 to SB-08."""
        backend = keyed.open()
        self.fill(backend, kind, range(100), "w1")
        self.fill(backend, kind, range(100, 200), "w2")
        self.fill(backend, kind, [5], "w2")
        pairs = [*((key, "w1") for key in range(100)), (5, "w2"), *((key, "w2") for key in range(100, 200))]
        for opened in (backend, keyed.open([keyed.snapshot(backend)])):
            assert sorted(opened.get_keys("state", "w1")) == list(range(100))
            assert sorted(opened.get_keys("state", "w2")) == [5, *range(100, 200)]
            assert list(opened.get_keys("state", "w3")) == []
            assert list(opened.get_keys("unknown", "w1")) == []
            assert sorted(opened.get_keys_and_namespaces("state")) == sorted(pairs)
            assert opened.num_entries() == 201

    @every_kind
    def test_a_function_visits_each_key_and_may_change_its_state(
        self, keyed: KeyedInstances, kind: Kind
    ) -> None:
        """SB-54, SB-55."""
        backend = keyed.open()
        state = self.fill(backend, kind, range(100), "w1", "w2")
        restored = keyed.open([keyed.snapshot(backend)])

        def rewrite(key: Any, handle: Any) -> None:
            assert kind.read(handle) == text_of(key, "w1")
            handle.clear()
            if key % 2:
                kind.write(handle, "last")

        for opened in (backend, restored):
            opened.apply_to_all_keys(state, rewrite, "w1", types.STRING)
            assert sorted(opened.get_keys("state", "w1")) == list(range(1, 100, 2))
            assert kind.read(at(opened, state, 7, "w1")) == "last"
            assert kind.read(at(opened, state, 8, "w2")) == text_of(8, "w2")

    @every_kind
    def test_a_later_write_shows_in_no_earlier_snapshot(self, keyed: KeyedInstances, kind: Kind) -> None:
        """SB-09, SB-14, SB-22, SB-29: two snapshots, each of which restores its own time."""
        backend = keyed.open()
        state = self.fill(backend, kind, [1, 2], "w1")
        first = keyed.snapshot(backend)
        at(backend, state, 1, "w1").clear()
        for key in (1, 3):
            kind.write(at(backend, state, key, "w1"), f"later-{key}")
        second = keyed.snapshot(backend)
        kind.write(at(backend, state, 4, "w1"), "latest")
        expected = {
            first: {1: text_of(1, "w1"), 2: text_of(2, "w1"), 3: "", 4: ""},
            second: {1: "later-1", 2: text_of(2, "w1"), 3: "later-3", 4: ""},
        }
        for handle, texts in expected.items():
            restored = keyed.open([handle])
            assert {key: kind.read(at(restored, state, key, "w1")) for key in texts} == texts

    @requires(Capability.ASYNC_SNAPSHOT)
    @every_kind
    def test_a_snapshot_that_is_written_later_shows_no_write_since_where_that_is_claimed(
        self, keyed: KeyedInstances, kind: Kind
    ) -> None:
        """SB-51: also of what is changed in place, and with several snapshots written in any order."""
        backend = keyed.open()
        state = self.fill(backend, kind, range(40), "w1", "w2")
        before = {(key, name): text_of(key, name) for key in range(40) for name in ("w1", "w2")}
        first = backend.snapshot(1)
        for key in range(0, 40, 2):
            kind.write(at(backend, state, key, "w1"), "more")
        at(backend, state, 1, "w1").clear()
        between = {
            (key, name): kind.read(at(backend, state, key, name))
            for key in range(40)
            for name in ("w1", "w2")
        }
        second = backend.snapshot(2)
        backend.snapshot(3).cancel()
        for key in range(60):
            kind.write(at(backend, state, key, "w2"), "most")
        for task, expected in ((second, between), (first, before)):
            restored = keyed.open([keyed.write(backend, task)])
            found = {address: kind.read(at(restored, state, *address)) for address in expected}
            assert found == expected
            assert kind.read(at(restored, state, 50, "w2")) == ""

    @every_kind
    def test_a_state_that_a_run_never_touches_survives(self, keyed: KeyedInstances, kind: Kind) -> None:
        """SB-37, SB-12: beside a state that the run does use."""
        backend = keyed.open()
        state = self.fill(backend, kind, range(20), "w1", "w2")
        untouched = keyed.open([keyed.snapshot(backend)])
        other = kind.declare("other", types.STRING)
        kind.write(at(untouched, other, 3), "used")
        again = keyed.open([keyed.snapshot(untouched)])
        for key in range(20):
            assert kind.read(at(again, state, key, "w2")) == text_of(key, "w2")
        assert kind.read(at(again, other, 3)) == "used"
        assert again.entries_by_state() == {"state": 40, "other": 1}

    @requires(Capability.RESCALING)
    @every_kind
    def test_state_moves_with_its_key_groups_to_more_and_to_fewer_instances(
        self, keyed: KeyedInstances, kind: Kind
    ) -> None:
        """SB-38."""
        backend = keyed.open()
        state = self.fill(backend, kind, range(60), "w1", "w2")
        handles = [keyed.snapshot(backend)]
        for parallelism in (3, 5, 2):
            instances = keyed.open_all(parallelism, handles)
            found = [address for one in instances for address in one.get_keys_and_namespaces("state")]
            assert sorted(found) == sorted((key, name) for key in range(60) for name in ("w1", "w2"))
            for one in instances:
                for key in list(one.get_keys("state", "w2")):
                    assert kind.read(at(one, state, key, "w2")) == text_of(key, "w2")
            handles = [keyed.snapshot(one) for one in instances]

    @every_kind
    def test_another_kind_under_the_name_of_a_state_is_refused(
        self, keyed: KeyedInstances, kind: Kind
    ) -> None:
        """Flink's rule; live, and where no program has registered the restored state."""
        backend = keyed.open()
        state = self.fill(backend, kind, [1], "w1")
        restored = keyed.open([keyed.snapshot(backend)])
        claimed = [other for other in KINDS.values() if keyed.supports(other.kind)]
        for other in (other for other in claimed if other is not kind):
            for opened in (backend, restored):
                with pytest.raises(StateKindMismatchError) as caught:
                    at(opened, other.declare("state", types.STRING), 1, "w1")
                assert (caught.value.registered, caught.value.requested) == (
                    kind.kind.value,
                    other.kind.value,
                )
        for opened in (backend, restored):
            assert kind.read(at(opened, state, 1, "w1")) == text_of(1, "w1")

    @every_kind
    def test_an_incompatible_type_is_refused_and_the_state_left_as_it_was(
        self, keyed: KeyedInstances, kind: Kind
    ) -> None:
        """SB-39 to SB-43."""
        backend = keyed.open()
        state = self.fill(backend, kind, [1], "w1")
        handle = keyed.snapshot(backend)
        restored = keyed.open([handle])
        with pytest.raises(StateMigrationError) as caught:
            at(restored, kind.declare("state", types.FLOAT64), 1, "w1")
        assert (caught.value.state, caught.value.part) == ("state", "value")
        with pytest.raises(StateMigrationError):
            restored.get_state(kind.declare("state", types.STRING), 1, types.INT64)
        assert kind.read(at(restored, state, 1, "w1")) == text_of(1, "w1")
        with pytest.raises(StateMigrationError) as caught:
            keyed.open([handle], key=types.FLOAT64)
        assert caught.value.part == "key"

    @every_kind
    def test_null_nan_and_unusual_keys_are_keys(self, keyed: KeyedInstances, kind: Kind) -> None:
        """All NaNs are one key and negative zero is zero, as in Spark's ``GROUP BY``."""
        floats = keyed.open(key=types.nullable(types.FLOAT64))
        state = kind.declare("state", types.STRING)
        for number, text in ((None, "null"), (math.nan, "nan"), (-0.0, "zero"), (math.inf, "inf")):
            kind.write(at(floats, state, number), text)
        strings = keyed.open(key=types.STRING)
        unusual = ["", " ", "\0", "\U0001f600", "a" * 100_000]
        for index, key in enumerate(unusual):
            kind.write(at(strings, state, key), f"text-{index}")
        for opened in (floats, keyed.open([keyed.snapshot(floats)], key=types.nullable(types.FLOAT64))):
            found = [kind.read(at(opened, state, key)) for key in (None, -math.nan, 0.0, math.inf)]
            assert found == ["null", "nan", "zero", "inf"]
            assert opened.num_entries() == 4
        for opened in (strings, keyed.open([keyed.snapshot(strings)], key=types.STRING)):
            assert [kind.read(at(opened, state, key)) for key in unusual] == [
                f"text-{index}" for index in range(len(unusual))
            ]

    @every_kind
    def test_long_keys_and_namespaces_that_begin_alike_are_kept_apart(
        self, keyed: KeyedInstances, kind: Kind
    ) -> None:
        """A store may limit the length of its keys; a state does not."""
        names = ["n" * length for length in (1, 500, 511, 512, 3000)]
        addresses = [(key, namespace) for key in names for namespace in names]
        backend, state = keyed.open(key=types.STRING), kind.declare("state", types.STRING)
        for key, namespace in addresses:
            kind.write(at(backend, state, key, namespace), f"{len(key)}/{len(namespace)}")
        for key, namespace in addresses[::3]:
            at(backend, state, key, namespace).clear()
        kept = sorted(set(addresses) - set(addresses[::3]))
        for opened in (backend, keyed.open([keyed.snapshot(backend)], key=types.STRING)):
            assert sorted(opened.get_keys_and_namespaces("state")) == kept
            for key, namespace in addresses:
                text = f"{len(key)}/{len(namespace)}" if (key, namespace) in kept else ""
                assert kind.read(at(opened, state, key, namespace)) == text

    @requires(StateKind.MAP)
    def test_long_map_keys_that_begin_alike_are_kept_apart_and_in_order(self, keyed: KeyedInstances) -> None:
        backend, state = keyed.open(), MapState("state", types.STRING, types.INT64)
        entries = {
            "n" * length + end: length for length in (1, 500, 511, 512, 3000) for end in ("", "a", "z")
        }
        for key in (1, 2):
            at(backend, state, key).put_all(entries)
        for name in list(entries)[::4]:
            at(backend, state, 1).remove(name)
        kept = {name: length for place, (name, length) in enumerate(entries.items()) if place % 4}
        for opened in (backend, keyed.open([keyed.snapshot(backend)])):
            assert dict(at(opened, state, 1).items()) == kept
            assert dict(at(opened, state, 2).items()) == entries
            assert [name for name in entries if at(opened, state, 1).contains(name)] == list(kept)

    @every_kind
    def test_a_huge_value_and_one_of_unusual_characters_come_back(
        self, keyed: KeyedInstances, kind: Kind
    ) -> None:
        texts = ["x" * 3_000_000, "\0\uffff\U0001f600" * 1000]
        backend, state = keyed.open(), kind.declare("state", types.STRING)
        for key, text in enumerate(texts):
            kind.write(at(backend, state, key), text)
        for opened in (backend, keyed.open([keyed.snapshot(backend)])):
            for key, text in enumerate(texts):
                assert kind.read(at(opened, state, key)) == text

    # -- merging ------------------------------------------------------------------------------------------

    @merging_kinds
    def test_namespaces_merge_into_one_in_their_order(self, keyed: KeyedInstances, kind: Kind) -> None:
        """An empty source and a target among the sources are fine; other keys stay as they are."""
        backend = keyed.open()
        state = kind.declare("state", types.STRING)
        for key in (1, 2):
            for namespace in ("a", "b", "c", "d"):
                kind.write(at(backend, state, key, namespace), f"{namespace}{key}")
        handle = at(backend, state, 1, "b")
        handle.merge_namespaces("b", ["c", "b", "nothing", "a"])
        assert kind.read(handle) == "b1c1a1"
        handle.merge_namespaces("new", ["d"])
        assert kind.read(at(backend, state, 1, "new")) == "d1"
        assert sorted(backend.get_keys_and_namespaces("state")) == [
            (1, "b"),
            (1, "new"),
            *((2, namespace) for namespace in "abcd"),
        ]
        restored = keyed.open([keyed.snapshot(backend)])
        assert kind.read(at(restored, state, 1, "b")) == "b1c1a1"
        assert kind.read(at(restored, state, 2, "b")) == "b2"
