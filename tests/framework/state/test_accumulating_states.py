"""Reducing, aggregating and folding state over every installed state backend."""

from __future__ import annotations

import operator

import pytest

from keyedstate import types
from keyedstate.errors import InvalidDescriptorError, MergeError, StateKindMismatchError, StateValueError
from keyedstate.state import AggregateFunction, AggregatingState, FoldingState, ReducingState

JOINED = ReducingState("joined", lambda a, b: f"{a},{b}", types.STRING)
TOTAL = ReducingState("total", operator.add, types.INT64)
SUM_AND_COUNT = types.tuple_of(types.INT64, types.INT64)


class Mean(AggregateFunction):
    """With an immutable accumulator."""

    def create_accumulator(self):
        return (0, 0)

    def add(self, value, accumulator):
        return (accumulator[0] + value, accumulator[1] + 1)

    def get_result(self, accumulator):
        return accumulator[0] / accumulator[1]

    def merge(self, first, second):
        return (first[0] + second[0], first[1] + second[1])


class Collected(AggregateFunction):
    """With an accumulator that is changed in place."""

    def create_accumulator(self):
        return ["|"]

    def add(self, value, accumulator):
        accumulator.append(value)
        return accumulator

    def get_result(self, accumulator):
        return "".join(accumulator)

    def merge(self, first, second):
        first.extend(second)
        return first


MEAN = AggregatingState("mean", Mean(), SUM_AND_COUNT)
COLLECTED = AggregatingState("collected", Collected(), types.list_of(types.STRING))
FOLDED = FoldingState("folded", 100, lambda folded, value: folded - len(value), types.INT64)


def read(backend, state, *keys):
    handle, found = backend.get_state(state), []
    for key in keys:
        backend.set_current_key(key)
        found.append(handle.get())
    return found


def test_two_snapshots_of_a_reducing_state_restore_what_each_saw(instances):
    """SB-22."""
    backend = instances.open()
    backend.set_current_key(1)
    joined = backend.get_state(JOINED)
    assert joined.get() is None
    joined.add("1")
    first = instances.snapshot(backend)
    joined.add("u1")
    assert joined.get() == "1,u1"
    second = instances.snapshot(backend)
    assert read(instances.open([first]), JOINED, 1, 2) == ["1", None]
    assert read(instances.open([second]), JOINED, 1, 2) == ["1,u1", None]


@pytest.mark.parametrize(
    ("state", "values", "expected"),
    [
        (JOINED, ["a", "b", "c"], "a,b,c"),
        (TOTAL, [1, 2, 3], 6),
        (MEAN, [1, 2, 6], 3.0),
        (COLLECTED, ["a", "b"], "|ab"),
        (FOLDED, ["a", "bb"], 97),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_values_are_folded_per_key_and_cleared(instances, state, values, expected):
    """Reference 1.1, SB-35: unset and cleared state reads None, also after a restore; add(None) clears."""
    backend = instances.open()
    handle = backend.get_state(state)
    for key in (1, 2):
        backend.set_current_key(key)
        assert handle.get() is None
        for value in values:
            handle.add(value)
    assert read(backend, state, 1, 2, 3) == [expected, expected, None]
    backend.set_current_key(1)
    handle.clear()
    assert handle.get() is None
    assert read(instances.open([instances.snapshot(backend)]), state, 1, 2) == [None, expected]
    backend.set_current_key(2)
    handle.add(None)
    assert handle.get() is None
    assert backend.num_entries() == 0


def test_an_accumulator_changed_in_place_after_a_snapshot_is_not_changed_in_it(instances):
    """SB-51."""
    backend = instances.open()
    backend.set_current_key(1)
    collected = backend.get_state(COLLECTED)
    collected.add("a")
    task = backend.snapshot(1)
    if task.asynchronous:
        collected.add("b")
    handle = instances.write(backend, task)
    assert read(instances.open([handle]), COLLECTED, 1) == ["|a"]
    collected.add("c")
    assert collected.get() == ("|abc" if task.asynchronous else "|ac")


def test_a_value_of_the_wrong_type_is_refused_where_it_is_added(backend):
    backend.set_current_key(1)
    total = backend.get_state(TOTAL)
    total.add(1)
    with pytest.raises(StateValueError, match=r"'total' refuses the value: expected INT64 .*got str 'x'"):
        total.add("x")
    with pytest.raises(StateValueError, match="'total'"):
        total.add_many([2, 1], [5, 2.5])
    assert read(backend, TOTAL, 1, 2) == [1, None]


@pytest.mark.parametrize(
    ("state", "value", "message"),
    [
        (
            ReducingState("s", operator.truediv, types.INT64),
            1,
            "truediv returned a wrong one. expected INT64",
        ),
        (ReducingState("s", print, types.INT64), 1, "print returned None. Return what is to be stored"),
        (AggregatingState("s", Mean(), types.INT64), 1, r"Mean.add returned a wrong one. expected INT64"),
        (FoldingState("s", 0, lambda _, value: value, types.INT64), "x", r"Fold.add returned a wrong one"),
    ],
    ids=["reducing", "none", "aggregating", "folding"],
)
def test_what_a_function_makes_is_checked_and_named(backend, state, value, message):
    backend.set_current_key(1)
    handle = backend.get_state(state)

    def add_two() -> None:
        handle.add(value)
        handle.add(value)

    with pytest.raises(StateValueError, match=f"the state 's' refuses the value: .*{message}"):
        add_two()


def test_a_function_that_raises_changes_nothing(backend):
    backend.set_current_key(1)
    handle = backend.get_state(ReducingState("quotient", operator.floordiv, types.INT64))
    handle.add(8)
    with pytest.raises(ZeroDivisionError):
        handle.add(0)
    with pytest.raises(ZeroDivisionError):
        handle.add_many([2, 1], [1, 0])
    assert read(backend, ReducingState("quotient", operator.floordiv, types.INT64), 1, 2) == [8, None]


@pytest.mark.parametrize(
    ("state", "by_namespace", "expected"),
    [
        (JOINED, {"target": ["t"], "w1": ["a", "b"], "w2": ["c"]}, "t,c,a,b"),
        (MEAN, {"target": [1], "w1": [2, 3], "w2": [6]}, 3.0),
        (COLLECTED, {"target": ["t"], "w1": ["a", "b"], "w2": ["c"]}, "|t|c|ab"),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_namespaces_merge_into_the_target(backend, state, by_namespace, expected):
    """Reference 1.1: all sources are removed and folded into the target; absent ones are fine."""
    backend.set_current_key(1)
    handle = backend.get_state(state, "target", types.STRING)
    for namespace, values in by_namespace.items():
        handle.set_namespace(namespace)
        for value in values:
            handle.add(value)
    handle.merge_namespaces("target", ["w2", "absent", "w1"])
    handle.set_namespace("target")
    assert handle.get() == expected
    assert list(backend.get_keys_and_namespaces(state.name)) == [(1, "target")]
    handle.merge_namespaces("elsewhere", ["target"])
    handle.set_namespace("elsewhere")
    assert handle.get() == expected


def test_a_merge_that_raises_leaves_every_namespace(backend):
    backend.set_current_key(1)
    handle = backend.get_state(
        ReducingState("quotient", operator.floordiv, types.INT64), "target", types.STRING
    )
    for namespace, value in (("target", 8), ("w1", 2), ("w2", 0)):
        handle.set_namespace(namespace)
        handle.add(value)
    with pytest.raises(ZeroDivisionError):
        handle.merge_namespaces("target", ["w1", "w2"])
    assert len(list(backend.get_keys_and_namespaces("quotient"))) == 3


def test_merging_folds_is_an_error(backend):
    backend.set_current_key(1)
    handle = backend.get_state(FOLDED, "a", types.STRING)
    handle.add("x")
    handle.merge_namespaces("b", ["a"])  # nothing to merge with
    handle.set_namespace("a")
    handle.add("y")
    with pytest.raises(MergeError, match=r"the state 'folded' cannot merge namespaces.*Define merge"):
        handle.merge_namespaces("b", ["a"])


def test_a_fold_begins_with_a_copy_of_its_initial_value(backend):
    initial = ["0"]

    def append(folded, value):
        folded.append(value)
        return folded

    handle = backend.get_state(FoldingState("folded", initial, append, types.list_of(types.STRING)))
    for key in (1, 2):
        backend.set_current_key(key)
        handle.add("a")
    assert handle.get() == ["0", "a"]
    assert initial == ["0"]


def test_a_fold_is_an_aggregating_state_in_a_checkpoint(instances):
    backend = instances.open()
    backend.set_current_key(1)
    backend.get_state(FOLDED).add("x")
    restored = instances.open([instances.snapshot(backend)])
    with pytest.raises(
        StateKindMismatchError, match=r"declared as reducing state.*checkpoint holds aggregating"
    ):
        restored.get_state(ReducingState("folded", operator.add, types.INT64))
    assert read(restored, FOLDED, 1) == [99]


def test_the_accumulator_can_be_read_and_overwritten(backend):
    backend.set_current_key(1)
    mean = backend.get_state(MEAN)
    assert mean.get_internal() is None
    mean.update_internal((6, 2))
    assert (mean.get(), mean.get_internal()) == (3.0, (6, 2))
    with pytest.raises(StateValueError, match="mean"):
        mean.update_internal((6,))
    mean.update_internal(None)
    assert mean.get() is None


@pytest.mark.parametrize(
    ("declare", "reason"),
    [
        (
            lambda: ReducingState("s", types.INT64, operator.add),
            "give a function of two values, then the type",
        ),
        (lambda: ReducingState("s", operator.add, int), "its type is <class 'int'>"),
        (lambda: AggregatingState("s", operator.add, types.INT64), "give an AggregateFunction"),
        (lambda: AggregatingState("s", Mean(), int), "its accumulator type is"),
        (
            lambda: FoldingState("s", "x", operator.add, types.INT64),
            "its initial value does not have its type",
        ),
        (lambda: FoldingState("s", 0, 1, types.INT64), "its function is 1"),
        (lambda: FoldingState("s", 0, operator.add, int), "its type is"),
    ],
)
def test_a_wrong_declaration_is_refused(declare, reason):
    with pytest.raises(InvalidDescriptorError, match=f"the state 's' is invalid: .*{reason}"):
        declare()
