"""A write-behind cache gives the results of a table that has every change at once."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyedstate import types
from keyedstate.errors import StateValueError
from keyedstate.keygroups import KeyGroupRange
from keyedstate.state import AggregateFunction, AggregatingState, ManualClock, ReducingState, Ttl, ValueState
from keyedstate.state.context import KeySequence
from keyedstate.state.registry.chosen_backend import ChosenBackend, KeySpace
from keyedstate.state.registry.keyed_backend import KeyedStateBackend
from keyedstate.state.registry.latency import LatencySampling
from keyedstate.testing.instances import chosen_backend

GROUPS = 4
KEYS = ["key-a", "key-b", "key-c"]


class Mean(AggregateFunction[int, tuple[int, int], float]):
    def create_accumulator(self) -> tuple[int, int]:
        return 0, 0

    def add(self, value: int, accumulator: tuple[int, int]) -> tuple[int, int]:
        return accumulator[0] + 1, accumulator[1] + value

    def get_result(self, accumulator: tuple[int, int]) -> float:
        return accumulator[1] / accumulator[0]


def divide(first: int, second: int) -> int:
    """Raise for 0, and give what is no integer of the type for large numbers."""
    return first * first // second


WORD = ValueState("word", types.STRING)
COUNT = ValueState("count", types.tuple_of(types.INT64, types.STRING), default=(0, ""))
SINGLE = ValueState("single", types.FLOAT32)
TAGS = ValueState("tags", types.list_of(types.STRING))
KEPT = ValueState("kept", types.INT64, ttl=Ttl.of("1 hour"))
PRODUCT = ReducingState("product", divide, types.INT64)
MEAN = AggregatingState("mean", Mean(), types.tuple_of(types.INT64, types.INT64))
STATES = (WORD, COUNT, SINGLE, TAGS, KEPT, PRODUCT, MEAN)
#: With a namespace, as the contents of windows.
WINDOWED = ReducingState("windowed", divide, types.INT64)
NAMESPACES = ("one", "two")


class Side:
    """One keyed backend and what is done with it."""

    def __init__(self, name: str, folder: Any, latency: LatencySampling | None = None) -> None:
        plugin, options = chosen_backend(name, {})
        self.backend = KeyedStateBackend.open(
            ChosenBackend(plugin, options, latency=latency),
            KeySpace(types.STRING, KeyGroupRange(0, GROUPS - 1), GROUPS),
            local_base=folder,
            track_changes=True,
            clock=ManualClock(0),
        )
        self.accessors: dict[str, Any] = {state.name: self.backend.get_state(state) for state in STATES}
        self.accessors[WINDOWED.name] = self.backend.get_state(WINDOWED, NAMESPACES[0], types.STRING)
        self.backend.begin_epoch(1)

    def begin(self, keys: list[str]) -> None:
        """Begin with keys in turn, at the first of them."""
        keys, groups = self.backend.current.locate(keys)
        self.backend.begin_write_behind(KeySequence(keys, groups, len(set(keys)) == len(keys)))
        self.turn_to(0)

    def turn_to(self, turn: int) -> None:
        current = self.backend.current
        current.turn = turn
        current.key, current.key_group = current.sequence.keys[turn], current.sequence.key_groups[turn]

    def do(self, state: str, method: str, args: tuple[Any, ...]) -> Any:
        """Return what a method gives, or how it fails."""
        try:
            return getattr(self.accessors[state], method)(*args)
        except (StateValueError, ZeroDivisionError, ValueError) as error:
            return repr(error)

    def entries(self) -> Any:
        """Return all entries, and what has changed."""
        changed = self.backend.changes_since(0)
        written = {
            (name, key, namespace): value
            for name, changes in changed.items()
            for group in self.backend.key_groups
            for batch in changes.written(group, 100)
            for key, namespace, value in zip(batch.keys, batch.namespaces, batch.values, strict=True)
        }
        removed = {
            (name, key, namespace)
            for name, changes in changed.items()
            for group in self.backend.key_groups
            for addresses in changes.removed(group, 100)
            for key, namespace in zip(addresses.keys, addresses.namespaces, strict=True)
        }
        for changes in changed.values():
            changes.release()
        there = {
            (name, key): handle.get_many([key]) if hasattr(handle, "get_many") else None
            for name, handle in self.accessors.items()
            if name != WINDOWED.name
            for key in self.backend.get_keys(name)
        }
        return written, removed, there


_NUMBERS = st.sampled_from([0, 1, 2, 3, 2**40])
_VALUES = {
    "word": st.sampled_from(["one", "two", None, 3, "\ud800"]),
    "count": st.sampled_from([(1, "x"), (2, ""), None, (1, 2), [1, "x"]]),
    "single": st.sampled_from([0.1, 0.5, None, 1]),
    "tags": st.sampled_from([["x"], ["y", "z"], None, [1]]),
    "kept": st.sampled_from([1, 2, None, "1"]),
    "product": st.one_of(_NUMBERS, st.sampled_from([None, "x"])),
    "mean": st.one_of(_NUMBERS, st.none()),
    "windowed": st.one_of(_NUMBERS, st.none()),
}
_SOME_KEYS = st.lists(st.sampled_from(KEYS), min_size=1, max_size=3, unique=True)


def _operations(state: str) -> st.SearchStrategy[tuple[str, str, tuple[Any, ...]]]:
    value = _VALUES[state]
    several = st.tuples(_SOME_KEYS, st.lists(value, min_size=3, max_size=3)).map(
        lambda drawn: (drawn[0], drawn[1][: len(drawn[0])])
    )
    none = st.just(())
    if state in ("product", "mean", "windowed"):
        adding: list[Any] = [("add", st.tuples(value)), ("get", none), ("add_many", several)]
        adding += [("get_internal", none)]
    else:
        adding = [("update", st.tuples(value)), ("value", none), ("update_many", several)]
    methods = [*adding, *adding[:2], ("clear", none), ("clear_many", st.tuples(_SOME_KEYS))]
    methods.append(("get_many", st.tuples(_SOME_KEYS)))
    if state == "windowed":
        methods.append(("set_namespace", st.tuples(st.sampled_from(NAMESPACES))))
        merged = st.tuples(st.just(NAMESPACES[0]), st.just(NAMESPACES))
        methods.append(("merge_namespaces", merged))
    return st.one_of(
        *(st.tuples(st.just(state), st.just(method), arguments) for method, arguments in methods)
    )


def _sequence(states: list[str]) -> st.SearchStrategy[Any]:
    """Keys in turn, and what is done with each."""
    operations = st.lists(st.one_of(*map(_operations, states)), max_size=5)
    return st.lists(st.tuples(st.sampled_from(KEYS), operations), min_size=1, max_size=5)


#: Few states in one example, so that most keys are asked for.
_SEQUENCES = st.lists(
    st.sampled_from([state.name for state in (*STATES, WINDOWED, WINDOWED)]),
    min_size=1,
    max_size=2,
    unique=True,
).flatmap(lambda states: st.lists(_sequence(states), min_size=1, max_size=5))


@pytest.mark.parametrize(
    ("name", "sampled", "examples"),
    [("heap-cow", False, 60), ("heap-cow", True, 20), ("nested-map", False, 20), ("rocksdb", False, 6)],
)
@pytest.mark.slow
def test_a_write_behind_cache_changes_no_result_and_no_state(name, sampled, examples, tmp_path):
    @settings(max_examples=examples, deadline=None)
    @given(sequences=_SEQUENCES)
    def both_return_the_same(sequences: list[Any]) -> None:
        cached = Side(name, tmp_path, LatencySampling(interval=2) if sampled else None)
        plain = Side(name, tmp_path)
        try:
            _compare(cached, plain, sequences)
        finally:
            cached.backend.close()
            plain.backend.close()

    both_return_the_same()


def _compare(cached: Side, plain: Side, sequences: list[Any]) -> None:
    for sequence in sequences:
        # Equal keys are not the same object.
        cached.begin(["".join(list(key)) for key, _ in sequence])
        for turn, (key, operations) in enumerate(sequence):
            cached.turn_to(turn)
            plain.backend.set_current_key(key)
            for state, method, args in operations:
                assert cached.do(state, method, args) == plain.do(state, method, args), (state, method, args)
        cached.backend.end_write_behind()
        assert cached.entries() == plain.entries()


@pytest.fixture
def side(tmp_path):
    made = Side("heap-cow", tmp_path)
    yield made
    made.backend.close()


def test_a_cached_value_reaches_the_table_with_the_next_key_and_at_the_end(side):
    side.begin(KEYS)
    count = side.accessors["count"]
    table = count._table
    for number in range(1, 4):
        count.update((number, "a"))
    assert count.value() == (3, "a") and len(table) == 0
    side.turn_to(1)
    assert count.value() == (0, "") and len(table) == 1
    count.update((9, "b"))
    side.backend.end_write_behind()
    assert len(table) == 2
    assert count.get_many(KEYS) == [(3, "a"), (9, "b"), (0, "")]


def test_a_state_used_for_most_keys_is_read_and_written_at_once(side):
    count = side.accessors["count"]
    for _ in range(3):
        side.begin(KEYS)
        prefetched, entries = count._prefetched is not None, len(count._table)
        for turn in range(len(KEYS)):
            side.turn_to(turn)
            number, text = count.value()
            if turn == 1 and number == 2:
                count.clear()
                assert count.value() == (0, "")
            else:
                count.update((number + 1, text + "x"))
        assert len(count._table) == entries or not prefetched
        side.backend.end_write_behind()
    assert prefetched and count.get_many(KEYS) == [(3, "xxx"), (0, ""), (3, "xxx")]
    assert sorted(side.backend.get_keys("count")) == ["key-a", "key-c"]


def test_a_key_that_is_cleared_first_leaves_what_the_key_before_it_has(side):
    count = side.accessors["count"]
    for round_ in range(2):
        side.begin(KEYS)
        for turn in range(len(KEYS)):
            side.turn_to(turn)
            if round_ and turn == 1:
                count.clear()
            count.update((count.value()[0] + 1, ""))
        side.backend.end_write_behind()
    assert count.get_many(KEYS) == [(2, ""), (1, ""), (2, "")]


def test_keys_that_may_come_twice_are_not_prefetched(side):
    count = side.accessors["count"]
    for _ in range(3):
        side.begin([*KEYS, *KEYS])
        for turn in range(2 * len(KEYS)):
            side.turn_to(turn)
            count.update((count.value()[0] + 1, ""))
        side.backend.end_write_behind()
    assert count.get_many(KEYS) == [(6, "")] * 3


def test_a_state_used_for_few_keys_is_not_prefetched(side):
    word = side.accessors["word"]
    for _ in range(2):
        side.begin(KEYS)
        assert word._prefetched is None
        word.value()
        side.backend.end_write_behind()


def test_a_second_accessor_of_a_state_sees_what_the_first_one_writes(side):
    side.begin(KEYS)
    count = side.accessors["count"]
    count.update((1, "cached"))
    other = side.backend.accessor_at("count", "key-a", side.backend.current.key_group)
    assert other.value() == (1, "cached")
    count.update((2, "again"))
    assert other.value() == (2, "again")
    side.backend.end_write_behind()
    side.begin(KEYS)
    count.update((3, "later"))
    assert other.value() == (3, "later")


def test_an_equal_key_of_another_object_sees_and_removes_what_the_first_one_cached(side):
    word = side.accessors["word"]
    keys = ["".join(["k", "ey"]) for _ in range(4)]
    assert len(set(map(id, keys))) == 4
    side.begin(keys)
    word.update("one")
    side.turn_to(1)
    assert word.value() == "one"
    side.turn_to(2)
    word.update("two")
    side.turn_to(3)
    word.clear()
    side.backend.end_write_behind()
    assert list(side.backend.get_keys("word")) == []
