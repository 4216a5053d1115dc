"""Operator lists, union lists and broadcast maps: their methods, their snapshots, what comes back."""

from __future__ import annotations

import math
import threading
from itertools import permutations
from typing import Any

import pytest

from keyedstate import errors, types
from keyedstate.backend import SnapshotSink, StateMeta
from keyedstate.errors import (
    InvalidDescriptorError,
    ReadOnlyBroadcastStateError,
    SnapshotCancelledError,
    StateKindMismatchError,
    StateMigrationError,
    StateNotBoundError,
    StateValueError,
)
from keyedstate.state import BroadcastState, OperatorListState, UnionListState
from keyedstate.state.operator.backend import OperatorStateBackend
from keyedstate.state.operator.list_states import declared_operator_states

LISTS = [OperatorListState, UnionListState]
WORDS = types.list_of(types.STRING)
RULES = BroadcastState("rules", types.STRING, types.INT64)


@pytest.fixture
def backend() -> OperatorStateBackend:
    return OperatorStateBackend()


def put(backend: OperatorStateBackend, state: BroadcastState[Any, Any], entries: dict[Any, Any]) -> Any:
    handle = backend.get_state(state)
    with backend.broadcast_side():
        handle.put_all(entries)
    return handle


# -- registration ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "state",
    [OperatorListState("s", types.INT64), UnionListState("s", types.INT64), RULES],
    ids=lambda state: type(state).__name__,
)
def test_a_state_is_made_once_and_found_again_by_its_name(backend, state):
    """OP-01."""
    handle = backend.get_state(state)
    assert backend.get_state(state) is handle
    assert [meta.name for meta in backend.metas()] == [handle.name] == [state.name]


@pytest.mark.parametrize(
    ("first", "second"), list(permutations([OperatorListState, UnionListState, BroadcastState], 2))
)
@pytest.mark.parametrize("restored", [False, True])
def test_a_state_of_another_distribution_under_a_known_name_is_refused(files, first, second, restored):
    """OP-01: both kinds are named, and the state that is there stays as it is."""

    def state(kind: Any) -> Any:
        return kind("s", *[types.INT64] * (2 if kind is BroadcastState else 1))

    backend = OperatorStateBackend()
    backend.get_state(state(first))
    if restored:
        backend = files.again(backend)
    with pytest.raises(StateKindMismatchError) as caught:
        backend.get_state(state(second))
    assert f"is declared as {state(second).meta.kind.value} state" in str(caught.value)
    assert f"{state(first).meta.kind.value} state under that name" in str(caught.value)
    assert ("the restored checkpoint holds" in str(caught.value)) is restored
    assert backend.get_state(state(first)).name == "s"


@pytest.mark.parametrize(
    ("first", "second", "part"),
    [
        (OperatorListState("s", types.INT64), OperatorListState("s", types.STRING), "element"),
        (
            BroadcastState("s", types.INT64, types.INT64),
            BroadcastState("s", types.STRING, types.INT64),
            "key",
        ),
        (
            BroadcastState("s", types.INT64, types.INT64),
            BroadcastState("s", types.INT64, types.STRING),
            "value",
        ),
    ],
)
def test_another_type_at_a_second_look_up_is_refused(backend, first, second, part):
    backend.get_state(first)
    with pytest.raises(
        StateMigrationError, match=f"the {part} type of the state 's' is now STRING"
    ) as caught:
        backend.get_state(second)
    assert caught.value.part == part


def test_pickled_values_are_refused_where_that_is_forbidden():
    backend = OperatorStateBackend(generic_types=False)
    with pytest.raises(errors.GenericTypeForbiddenError, match="'s'"):
        backend.get_state(OperatorListState("s", types.pickled()))
    assert backend.metas() == []


def test_declared_states_of_a_class_and_its_bases_are_found_unbound():
    class Base:
        seen = OperatorListState("seen", types.INT64)

    class Function(Base):
        rules = RULES

    assert declared_operator_states(Function()) == [Base.seen, Function.rules]
    with pytest.raises(StateNotBoundError, match="'seen'"):
        Function().seen.add(1)
    assert "BroadcastState('rules', STRING, INT64)" in repr(RULES)
    assert "UnionListState('s', INT64)" in repr(UnionListState("s", types.INT64))


@pytest.mark.parametrize(
    "make",
    [
        lambda: OperatorListState("", types.INT64),
        lambda: UnionListState("s", int),
        lambda: BroadcastState("s", str, types.INT64),
        lambda: BroadcastState("s", types.STRING, None),
    ],
)
def test_an_impossible_declaration_is_refused_at_once(make):
    with pytest.raises(InvalidDescriptorError):
        make()


def test_a_broadcast_map_has_keys_that_a_dict_can_have():
    with pytest.raises(errors.UnsupportedTypeError, match="the key of a map"):
        BroadcastState("s", WORDS, types.INT64)


# -- lists -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", LISTS)
def test_a_list_keeps_the_order_of_adding_and_is_never_none(backend, kind):
    """OP-02: an empty list where there is nothing; `update` of no element clears."""
    handle = backend.get_state(kind("s", types.INT64))
    assert handle.get() == []
    handle.add(2)
    handle.add_all([1, 3])
    handle.add_all([])
    assert handle.get() == [2, 1, 3]
    handle.get().append(9)
    assert handle.get() == [2, 1, 3], "the list that is given out is the caller's own"
    handle.update(n for n in (7, 8))
    assert handle.get() == [7, 8]
    handle.update([])
    assert handle.get() == []
    handle.add(1)
    handle.clear()
    assert handle.get() == []


@pytest.mark.parametrize("kind", LISTS)
@pytest.mark.parametrize("element", [types.STRING, types.nullable(types.STRING)])
def test_a_list_refuses_none_and_other_types_and_stays_as_it_was(backend, kind, element):
    """OP-02: a null element and a null list are rejected, by methods that take one or several."""
    handle = backend.get_state(kind("s", element))
    handle.add("x")
    for call in (
        lambda: handle.add(None),
        lambda: handle.add_all(["a", None]),
        lambda: handle.update([None, 1]),
    ):
        with pytest.raises(StateValueError, match=r"the state 's' refuses the value: None.* is no element"):
            call()
    for call in (handle.add_all, handle.update):
        for none in (None, "word", b"", {"a": 1}):
            with pytest.raises(StateValueError, match="a list is needed"):
                call(none)
    with pytest.raises(StateValueError, match=r"STRING.*at \[1\], got int 5"):
        handle.update(["a", 5])
    with pytest.raises(StateValueError, match=r"STRING.*got int 5"):
        handle.add(5)
    assert handle.get() == ["x"]


# -- broadcast maps --------------------------------------------------------------------------------


def test_a_broadcast_map_is_written_on_the_broadcast_side(backend):
    handle = backend.get_state(RULES)
    with backend.broadcast_side():
        handle.put("a", 1)
        handle.put_all({"b": 2, "c": None})
        handle.remove("a")
        handle.remove("not there")
    assert (handle.get("a"), handle.get("b"), handle.get("c")) == (None, 2, None)
    assert (handle.contains("a"), handle.contains("c")) == (False, True)
    assert list(handle.items()) == [("b", 2), ("c", None)]
    assert (list(handle.keys()), list(handle.values())) == (["b", "c"], [2, None])
    with backend.broadcast_side():
        for key in handle.keys():  # noqa: SIM118 - a handle is no dict
            handle.put(key + key, 0)
        assert list(handle.keys()) == ["b", "c", "bb", "cc"]
        handle.clear()
    assert list(handle.items()) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda handle: handle.put("b", 2),
        lambda handle: handle.put_all({}),
        lambda handle: handle.remove("a"),
        lambda handle: handle.clear(),
    ],
)
def test_a_broadcast_map_is_read_only_elsewhere(backend, change):
    handle = put(backend, RULES, {"a": 1})
    with pytest.raises(
        ReadOnlyBroadcastStateError, match=r"'rules' can only be read here.*process_broadcast\(\)"
    ):
        change(handle)
    assert dict(handle.items()) == {"a": 1}


def test_a_broadcast_map_is_read_only_again_after_an_error(backend):
    handle = backend.get_state(RULES)
    with pytest.raises(RuntimeError), backend.broadcast_side():
        raise RuntimeError
    with pytest.raises(ReadOnlyBroadcastStateError):
        handle.clear()


def test_values_put_into_and_read_from_a_broadcast_map_are_copies(backend):
    """OP-02: mutable values are copied on both ways, through every method."""
    given = ["x"]
    handle = put(backend, BroadcastState("s", types.STRING, WORDS), {"a": given, "none": None})
    with backend.broadcast_side():
        handle.put("b", given)
    given.append("y")
    assert dict(handle.items()) == {"a": ["x"], "b": ["x"], "none": None}
    handle.get("a").append("z")
    for _, value in handle.items():
        if value:
            value.clear()
    for value in handle.values():
        if value:
            value.clear()
    assert dict(handle.items()) == {"a": ["x"], "b": ["x"], "none": None}


@pytest.mark.parametrize(
    "entries", [{"a": 1, 2: 2}, {"a": 1, "b": "2"}, {"a": 1, None: 2}, {"a": 1, "b": 2.0}], ids=repr
)
def test_a_broadcast_map_takes_all_entries_or_none(backend, entries):
    handle = put(backend, RULES, {"a": 0})
    with backend.broadcast_side():
        with pytest.raises(StateValueError, match="the state 'rules' refuses"):
            handle.put_all(entries)
        with pytest.raises(StateValueError, match="the state 'rules' refuses"):
            handle.put(["unhashable"], 1)
    assert dict(handle.items()) == {"a": 0}


def test_nans_are_one_broadcast_key_also_after_a_restart(backend, files):
    state = BroadcastState("s", types.FLOAT64, types.INT64)
    put(backend, state, {math.nan: 1})
    handle = put(backend, state, {-math.nan: 2, -0.0: 3})
    for _ in range(2):
        assert (handle.get(float("nan")), handle.get(0.0)) == (2, 3)
        assert (handle.contains(float("nan")), len(list(handle.keys()))) == (True, 2)
        backend = files.again(backend)
        handle = put(backend, state, {})
    with backend.broadcast_side():
        handle.remove(float("nan"))
    assert dict(handle.items()) == {0.0: 3}


# -- snapshots -------------------------------------------------------------------------------------

ALL = (
    OperatorListState("list", types.INT64),
    UnionListState("union", WORDS),
    BroadcastState("map", types.STRING, WORDS),
)


def fill(backend: OperatorStateBackend, number: int) -> list[Any]:
    """Set all three states; the mutable values are changed in place where they can be."""
    numbers, lists, rules = (backend.get_state(state) for state in ALL)
    numbers.update(range(number))
    if lists.get():
        lists.get()[0].append(str(number))
    else:
        lists.add([str(number)])
    with backend.broadcast_side():
        rules.put("key", [str(number)] * number)
    return contents(backend)


def contents(backend: OperatorStateBackend) -> list[Any]:
    numbers, lists, rules = (backend.get_state(state) for state in ALL)
    return [numbers.get(), [list(element) for element in lists.get()], dict(rules.items())]


@pytest.mark.parametrize("compression", ["zstd", "lz4", "none"])
def test_a_snapshot_does_not_see_later_changes(tmp_path, files_of, compression):
    """OP-03, OP-04: two snapshots one after another, compressed or not, written after the changes."""
    files = files_of(tmp_path, compression)
    backend = OperatorStateBackend()
    seen = [fill(backend, 3)]
    first = backend.snapshot(1)
    seen.append(fill(backend, 4))
    second = backend.snapshot(2)
    seen.append(fill(backend, 5))
    assert seen == [contents_of(3), contents_of(3, 4), contents_of(3, 4, 5)]
    for task, expected in ((second, seen[1]), (first, seen[0])):
        (restored,) = files.restore([files.write(backend, task)])
        assert contents(restored) == expected
    assert contents(backend) == seen[2]


def contents_of(*numbers: int) -> list[Any]:
    last = numbers[-1]
    return [list(range(last)), [list(map(str, numbers))], {"key": [str(last)] * last}]


class BlockingSink(SnapshotSink):
    """Waits before the first state, until it is released."""

    def __init__(self) -> None:
        self.reached, self.go_on = threading.Event(), threading.Event()
        self.entries: list[Any] = []

    def begin_state(self, meta: StateMeta) -> None:
        self.reached.set()
        assert self.go_on.wait(600)

    def write_entries(self, key_group: int, batches: Any) -> None:
        self.entries += [value for batch in batches for value in batch.values]


def started(backend: OperatorStateBackend) -> tuple[BlockingSink, threading.Thread, list[BaseException], Any]:
    """Start to write a snapshot in another thread, up to where the sink waits."""
    task, sink, raised = backend.snapshot(1), BlockingSink(), []
    assert task is not None

    def run() -> None:
        try:
            task.run(sink)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert sink.reached.wait(600)
    return sink, thread, raised, task


def test_the_owner_continues_while_a_blocked_snapshot_keeps_the_old_values(backend):
    """OP-03."""
    numbers = backend.get_state(OperatorListState("s", types.INT64))
    numbers.update([1, 2])
    sink, thread, raised, task = started(backend)
    numbers.add(3)
    assert numbers.get() == [1, 2, 3]
    sink.go_on.set()
    thread.join(600)
    assert (sink.entries, raised, task.done) == ([1, 2], [], True)


@pytest.mark.parametrize("cancel", ["the snapshot", "the backend"])
def test_a_snapshot_is_cancelled_while_it_is_written(backend, cancel):
    """OP-03: cancelled itself, or because its task ends."""
    backend.get_state(OperatorListState("s", types.INT64)).update([1, 2])
    sink, thread, raised, task = started(backend)
    task.cancel() if cancel == "the snapshot" else backend.close()
    sink.go_on.set()
    thread.join(600)
    assert isinstance(raised[0], SnapshotCancelledError)
    assert task.done


def test_a_cancelled_snapshot_leaves_no_file(backend, files):
    backend.get_state(RULES)
    task = backend.snapshot(3)
    task.cancel()
    with pytest.raises(SnapshotCancelledError, match="checkpoint 3"):
        files.write(backend, task)
    assert files.storage.list() == []


def test_no_registered_state_gives_no_snapshot(backend, files):
    """OP-04: nothing is written then, and nothing restored."""
    assert backend.snapshot(1) is None
    (restored,) = files.restore([files.write(backend)])
    assert restored.metas() == []


def test_empty_states_are_restored_as_empty_registered_states(backend, files):
    """OP-04."""
    for state in ALL:
        backend.get_state(state)
    assert contents(backend) == [[], [], {}]
    for parallelism in (1, 3):
        for restored in files.restore([files.write(backend)], parallelism):
            assert [meta.to_json() for meta in restored.metas()] == [state.meta.to_json() for state in ALL]
            assert restored.entries_by_state() == {"list": 0, "union": 0, "map": 0}
            assert contents(restored) == [[], [], {}]


def test_more_entries_than_one_batch_are_restored_in_their_order(backend, files):
    numbers = backend.get_state(OperatorListState("s", types.INT64))
    numbers.update(range(10_001))
    for parallelism in (1, 3):
        tasks = files.restore([files.write(backend)], parallelism)
        parts = [task.get_state(OperatorListState("s", types.INT64)).get() for task in tasks]
        assert [number for part in parts for number in part] == list(range(10_001))


def test_large_and_strange_values_are_restored(backend, files):
    strange = BroadcastState("s", types.tuple_of(types.STRING, types.INT64), types.BYTES)
    entries = {("ä\U0001f600\0", -(2**63)): b"\xff" * 3_000_000, ("", 2**63 - 1): b"", ("none", 0): None}
    put(backend, strange, entries)
    assert dict(files.again(backend).get_state(strange).items()) == entries


# -- several tasks ---------------------------------------------------------------------------------


def three_tasks() -> list[OperatorStateBackend]:
    tasks = [OperatorStateBackend() for _ in range(3)]
    for number, task in enumerate(tasks):
        task.get_state(ALL[0]).update(range(10 * number, 10 * number + 2 * number))
        task.get_state(ALL[1]).add([str(number)])
        put(task, ALL[2], {"a": ["rule"], "b": []})
    return tasks


@pytest.mark.parametrize("parallelism", [1, 2, 3, 5])
def test_a_restart_redistributes_lists_and_copies_union_lists_and_maps(files, parallelism):
    """OP-05: the broadcast map is the same on every task."""
    tasks = files.restore([files.write(task) for task in three_tasks()], parallelism)
    found = [contents(task) for task in tasks]
    assert [number for task in found for number in task[0]] == [10, 11, 20, 21, 22, 23]
    lengths = [len(task[0]) for task in found]
    assert lengths == [0, 2, 4] if parallelism == 3 else max(lengths) - min(lengths) <= 1
    assert [task[1] for task in found] == [[["0"], ["1"], ["2"]]] * parallelism
    assert [task[2] for task in found] == [{"a": ["rule"], "b": []}] * parallelism


def test_within_a_run_each_task_continues_with_its_own_elements(files):
    """A union list would otherwise grow with every epoch in which tasks are restored from files."""
    tasks = files.restore([files.write(task) for task in three_tasks()], restarted=False)
    assert [contents(task)[:2] for task in tasks] == [
        [[], [["0"]]],
        [[10, 11], [["1"]]],
        [[20, 21, 22, 23], [["2"]]],
    ]
    tasks = files.restore([files.write(task) for task in tasks], 2, restarted=False)
    assert [contents(task)[1] for task in tasks] == [[["0"], ["1"], ["2"]]] * 2, "another parallelism"


def test_a_restored_state_that_is_not_registered_is_kept_and_redistributed(files):
    """OP-05: it is there by its name, whenever it is asked for."""
    parts = [files.write(task) for task in three_tasks()]
    for parallelism in (2, 4, 1):
        parts = [files.write(task) for task in files.restore(parts, parallelism)]
    (task,) = files.restore(parts)
    assert set(task.entries_by_state()) == {"list", "union", "map"}
    numbers, lists, rules = contents(task)
    assert numbers == [10, 11, 20, 21, 22, 23]
    # After each of three restarts every task has all: 3 elements, times 2, times 4.
    assert len(lists) == 3 * 2 * 4
    assert rules == {"a": ["rule"], "b": []}


def test_a_state_that_some_tasks_only_have_registered_is_known_to_all(files):
    tasks = [OperatorStateBackend() for _ in range(3)]
    tasks[1].get_state(ALL[0]).update([1, 2])
    put(tasks[1], ALL[2], {"a": ["rule"]})
    restored = files.restore([files.write(task) for task in tasks])
    assert [contents(task) for task in restored] == [
        [[], [], {"a": ["rule"]}],
        [[1, 2], [], {"a": ["rule"]}],
        [[], [], {"a": ["rule"]}],
    ]


def test_two_kinds_under_one_name_in_two_tasks_are_refused(files):
    tasks = [OperatorStateBackend(), OperatorStateBackend()]
    tasks[0].get_state(OperatorListState("s", types.INT64))
    tasks[1].get_state(UnionListState("s", types.INT64)).add(1)
    with pytest.raises(StateKindMismatchError, match="'s'"):
        files.restore([files.write(task) for task in tasks])
