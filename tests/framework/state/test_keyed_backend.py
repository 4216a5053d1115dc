"""The keyed backend over every installed state backend: registration, enumeration, snapshot and restore."""

from __future__ import annotations

import enum
import threading
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from keyedstate import types
from keyedstate.backend import Capability, EntryBatch, SnapshotSink, StateMeta
from keyedstate.errors import (
    NoCurrentKeyError,
    NullNamespaceError,
    SnapshotCancelledError,
    StateKindMismatchError,
    StateMigrationError,
)
from keyedstate.keygroups import KeyGroupRange, key_group_range_for
from keyedstate.state import MapState, ValueState
from keyedstate.state.registry.keyed_backend import KeyedStateBackend

WORDS = ValueState("words", types.STRING)
COUNTS = MapState("counts", types.STRING, types.nullable(types.INT64))


class Size(enum.Enum):
    SMALL = 1
    LARGE = 2


@dataclass(frozen=True)
class Place:
    name: str
    size: Size | None


def put(
    backend: KeyedStateBackend, state: Any, key: object, value: Any, namespace: str | None = None
) -> None:
    backend.set_current_key(key)
    handle = (
        backend.get_state(state) if namespace is None else backend.get_state(state, namespace, types.STRING)
    )
    handle.update(value)


def read(backend: KeyedStateBackend, state: Any, key: object) -> Any:
    backend.set_current_key(key)
    return backend.get_state(state).value()


def test_keys_of_one_namespace_are_listed_once_each(backend):
    """SB-05."""
    for key in range(2000):
        put(backend, WORDS, key, "w", "ns1" if key < 1000 else "ns2")
    assert sorted(backend.get_keys("words", "ns1")) == list(range(1000))
    assert sorted(backend.get_keys("words", "ns2")) == list(range(1000, 2000))


def test_a_key_with_two_map_entries_is_listed_once(backend):
    """SB-06."""
    for key in range(2000):
        backend.set_current_key(key)
        counts = backend.get_state(COUNTS, "ns1" if key < 1000 else "ns2", types.STRING)
        counts.put("a", 1)
        counts.put("b", 2)
    assert sorted(backend.get_keys("counts", "ns1")) == list(range(1000))
    assert sorted(backend.get_keys("counts", "ns2")) == list(range(1000, 2000))


@pytest.mark.parametrize("state", [WORDS, COUNTS], ids=["value", "map"])
def test_keys_and_namespaces_are_listed_once_each_also_before_a_restored_state_is_registered(
    instances, state
):
    """SB-07, SB-08."""
    backend = instances.open()
    expected = []
    for namespace in ("ns1", "ns2"):
        for key in range(1000):
            backend.set_current_key(key)
            handle = backend.get_state(state, namespace, types.STRING)
            handle.put("x", key) if state is COUNTS else handle.update(str(key))
            expected.append((key, namespace))
    assert sorted(backend.get_keys_and_namespaces(state.name)) == sorted(expected)
    restored = instances.open([instances.snapshot(backend)])
    assert sorted(restored.get_keys_and_namespaces(state.name)) == sorted(expected)
    assert sorted(restored.get_keys(state.name, "ns2")) == list(range(1000))


def test_an_unknown_state_has_no_keys(backend):
    assert list(backend.get_keys("nothing")) == []
    assert list(backend.get_keys_and_namespaces("nothing")) == []


def test_two_snapshots_of_a_value_state_restore_what_each_saw(instances):
    """SB-09."""
    backend = instances.open()
    assert read(backend, WORDS, 1) is None
    put(backend, WORDS, 1, "1")
    put(backend, WORDS, 2, "2")
    first = instances.snapshot(backend)
    for key, value in ((1, "u1"), (2, "u2"), (3, "u3")):
        put(backend, WORDS, key, value)
    second = instances.snapshot(backend)
    assert [read(backend, WORDS, key) for key in (1, 2, 3)] == ["u1", "u2", "u3"]
    from_first = instances.open([first])
    assert [read(from_first, WORDS, key) for key in (1, 2, 3)] == ["1", "2", None]
    from_second = instances.open([second])
    assert [read(from_second, WORDS, key) for key in (1, 2, 3)] == ["u1", "u2", "u3"]


def test_states_of_one_backend_do_not_touch_each_other(instances):
    """SB-12."""
    number = ValueState("number", types.INT64)
    backend = instances.open(max_parallelism=1)
    put(backend, WORDS, 1, "Hello")
    assert read(backend, number, 1) is None
    put(backend, number, 1, 2)
    restored = instances.open([instances.snapshot(backend)], max_parallelism=1)
    assert (read(restored, WORDS, 1), read(restored, number, 1)) == ("Hello", 2)


def test_an_update_with_none_clears_and_the_default_shows_again(instances):
    """SB-13."""
    state = ValueState("defaulted", types.INT64, default=42)
    backend = instances.open()
    backend.set_current_key(1)
    handle = backend.get_state(state)
    assert handle.value() == 42
    handle.update(1)
    assert handle.value() == 1
    assert read(backend, state, 2) == 42
    backend.set_current_key(1)
    handle.clear()
    assert handle.value() == 42
    handle.update(17)
    handle.update(None)
    assert handle.value() == 42
    assert backend.num_entries() == 0
    assert read(instances.open([instances.snapshot(backend)]), state, 1) == 42


def test_a_value_without_a_default_reads_none_also_after_clear(backend):
    """SB-33."""
    backend.set_current_key(0)
    handle = backend.get_state(WORDS)
    assert handle.value() is None
    handle.update("Ciao")
    handle.clear()
    assert handle.value() is None


def test_a_value_default_shows_again_after_clear_and_restore(instances):
    """SB-34."""
    state = ValueState("greeting", types.STRING, default="Hello")
    backend = instances.open()
    backend.set_current_key(0)
    handle = backend.get_state(state)
    handle.update("Ciao")
    handle.clear()
    assert handle.value() == "Hello"
    assert read(instances.open([instances.snapshot(backend)]), state, 0) == "Hello"


def test_a_mutable_default_is_another_object_for_each_read(backend):
    """SB-44."""
    state = ValueState("listed", types.list_of(types.INT64), default=[1])
    first, second = read(backend, state, 1), read(backend, state, 2)
    assert first == second == [1]
    assert first is not second


def test_map_operations_stay_within_their_key(instances):
    """SB-29, without the iterator's remove."""
    backend = instances.open()
    backend.set_current_key(1)
    counts = backend.get_state(COUNTS)
    counts.put("a", 1)
    first = instances.snapshot(backend)
    counts.put("a", 101)
    backend.set_current_key(2)
    counts.put("b", 102)
    backend.set_current_key(3)
    counts.put_all({"c": 103, "d": 1031, "e": None})
    assert counts.contains("e") and counts.get("e") is None
    assert sorted(counts.items(), key=str) == [("c", 103), ("d", 1031), ("e", None)]
    assert sorted(counts.keys()) == ["c", "d", "e"] and counts.size() == 3
    counts.remove("d")
    counts.remove("never there")
    assert sorted(counts.values(), key=str) == [103, None]
    second = instances.snapshot(backend)

    def maps(opened: KeyedStateBackend) -> list[dict[str, Any]]:
        found = []
        for key in (1, 2, 3):
            opened.set_current_key(key)
            found.append(dict(opened.get_state(COUNTS).items()))
        return found

    assert maps(instances.open([first])) == [{"a": 1}, {}, {}]
    assert maps(instances.open([second])) == [{"a": 101}, {"b": 102}, {"c": 103, "e": None}]


def test_a_map_is_empty_exactly_while_it_has_no_entry(backend):
    """SB-30."""
    backend.set_current_key(0)
    counts = backend.get_state(COUNTS)
    assert counts.is_empty()
    for number in range(1024):
        counts.put(str(number), number)
        assert not counts.is_empty()
    for number in range(1024):
        assert not counts.is_empty()
        counts.remove(str(number))
    assert counts.is_empty()
    assert backend.num_entries() == 0


def test_an_unset_map_has_no_entries_also_after_clear(backend):
    """SB-36."""
    backend.set_current_key(0)
    counts = backend.get_state(COUNTS)
    assert list(counts.entries()) == list(counts.items()) == []
    counts.put("a", 1)
    counts.clear()
    assert list(counts.entries()) == list(counts.items()) == []
    assert (list(counts.keys()), list(counts.values())) == ([], [])


def test_put_all_of_nothing_leaves_no_entry(backend):
    backend.set_current_key(0)
    backend.get_state(COUNTS).put_all({})
    assert backend.num_entries() == 0


def test_a_state_that_a_run_never_touches_survives_its_snapshot(instances):
    """SB-37."""
    backend = instances.open()
    backend.set_current_key(1)
    backend.get_state(COUNTS).put("a", 1)
    untouched = instances.open([instances.snapshot(backend)])
    again = instances.open([instances.snapshot(untouched)])
    again.set_current_key(1)
    assert dict(again.get_state(COUNTS).items()) == {"a": 1}


@pytest.mark.parametrize(("old", "new"), [(4, 2), (2, 4), (2, 2), (15, 77), (77, 15)])
@pytest.mark.slow
def test_rescaling_gives_every_value_to_the_instance_that_owns_its_key_group(instances, old, new):
    """SB-38: one state of its own name for each of 128 key groups."""
    maximum = 128
    states = {group: ValueState(f"state-{group}", types.INT64) for group in range(maximum)}
    key_of = {}
    probe = instances.open(max_parallelism=maximum)
    for key in range(20_000):
        probe.set_current_key(key)
        key_of.setdefault(probe.current.key_group, key)
        if len(key_of) == maximum:
            break
    handles = []
    for index in range(old):
        part = instances.open(groups=key_group_range_for(index, old, maximum), max_parallelism=maximum)
        for group, state in states.items():
            if group in part.key_groups:
                put(part, state, key_of[group], group)
        handles.append(instances.snapshot(part))
    found = {}
    for index in range(new):
        wanted = key_group_range_for(index, new, maximum)
        part = instances.open(
            [handle for handle in handles if handle.key_groups.intersection(wanted)],
            groups=wanted,
            max_parallelism=maximum,
        )
        for group, state in states.items():
            if group in wanted:
                found[group] = read(part, state, key_of[group])
        assert part.num_entries() == sum(group in wanted for group in states)
    assert found == {group: group for group in states}


@pytest.mark.parametrize("key", [types.FLOAT64, types.STRING], ids=repr)
def test_a_restore_with_another_key_type_is_refused(instances, key):
    """SB-39; the key types that evolve, or do not, are in test_migration.py."""
    backend = instances.open()
    put(backend, WORDS, 1, "1")
    handle = instances.snapshot(backend)
    with pytest.raises(StateMigrationError, match="key type of the state 'words'"):
        instances.open([handle], key=key)


def test_a_value_state_of_an_incompatible_type_is_refused_and_left_as_it_was(instances):
    """SB-40, MIG-03."""
    backend = instances.open()
    put(backend, WORDS, 1, "1")
    restored = instances.open([instances.snapshot(backend)])
    with pytest.raises(StateMigrationError, match="'words'") as caught:
        restored.get_state(ValueState("words", types.FLOAT64))
    assert caught.value.part == "value"
    assert read(restored, WORDS, 1) == "1"


def test_a_map_state_of_an_incompatible_type_is_refused(instances):
    """SB-43, MIG-10."""
    backend = instances.open()
    backend.set_current_key(1)
    backend.get_state(COUNTS).put("a", 1)
    restored = instances.open([instances.snapshot(backend)])
    with pytest.raises(StateMigrationError, match="'counts'"):
        restored.get_state(MapState("counts", types.INT64, types.nullable(types.INT64)))
    with pytest.raises(StateMigrationError, match="'counts'"):
        restored.get_state(MapState("counts", types.STRING, types.STRING))


def test_a_map_key_that_would_have_to_migrate_is_refused(instances):
    """MIG-07 to MIG-10: only values of a map may evolve."""
    small = MapState("m", types.INT32, types.INT32)
    backend = instances.open()
    backend.set_current_key(1)
    backend.get_state(small).put(7, 8)
    handle = instances.snapshot(backend)
    with pytest.raises(StateMigrationError) as caught:
        instances.open([handle]).get_state(MapState("m", types.INT64, types.INT32))
    assert caught.value.part == "map key"
    wider = instances.open([handle])
    wider.set_current_key(1)
    values = wider.get_state(MapState("m", types.INT32, types.INT64))
    values.put(9, 2**40)
    assert dict(values.items()) == {7: 8, 9: 2**40}
    again = instances.open([instances.snapshot(wider)])
    again.set_current_key(1)
    assert dict(again.get_state(MapState("m", types.INT32, types.INT64)).items()) == {7: 8, 9: 2**40}


def test_another_kind_under_the_same_name_is_an_error_that_names_both(instances):
    """Registration by name, reference 1.1."""
    backend = instances.open()
    put(backend, WORDS, 1, "1")
    with pytest.raises(
        StateKindMismatchError, match=r"declared as map state.*already registered value state"
    ):
        backend.get_state(MapState("words", types.STRING, types.STRING))
    restored = instances.open([instances.snapshot(backend)])
    with pytest.raises(StateKindMismatchError, match=r"declared as map state.*checkpoint holds value state"):
        restored.get_state(MapState("words", types.STRING, types.STRING))


def test_a_second_look_up_returns_the_same_accessor(backend):
    assert backend.get_state(WORDS) is backend.get_state(ValueState("words", types.STRING))
    with pytest.raises(StateMigrationError, match="one type within a run"):
        backend.get_state(ValueState("words", types.INT64))


def test_a_namespace_or_its_serializer_of_none_is_refused(backend):
    """SB-45."""
    for namespace, serializer in ((None, types.STRING), ("ns", None), (None, None)):
        with pytest.raises(NullNamespaceError, match="words"):
            backend.get_state(WORDS, namespace, serializer)


def test_a_state_is_unusable_before_a_key_is_set(backend):
    handle = backend.get_state(WORDS)
    with pytest.raises(NoCurrentKeyError):
        handle.value()
    with pytest.raises(NoCurrentKeyError):
        handle.update("x")
    assert backend.num_entries() == 0


def test_a_key_of_another_instance_is_refused(instances):
    backend = instances.open(groups=KeyGroupRange(0, 4))
    foreign = next(key for key in range(100) if not _accepts(backend, key))
    with pytest.raises(ValueError, match="outside"):
        backend.set_current_key(foreign)


def _accepts(backend: KeyedStateBackend, key: int) -> bool:
    try:
        backend.set_current_key(key)
    except ValueError:
        return False
    return True


def test_a_snapshot_of_no_state_restores_to_no_state(instances):
    """SB-48."""
    restored = instances.open([instances.snapshot(instances.open())])
    assert restored.num_entries() == 0
    assert read(restored, WORDS, 1) is None


def test_a_nan_is_found_again_after_a_restore_as_key_and_as_map_key(instances):
    weights = MapState("weights", types.FLOAT64, types.INT64)
    backend = instances.open(key=types.FLOAT64)
    backend.set_current_key(float("nan"))
    handle = backend.get_state(weights)
    handle.put(float("nan"), 1)
    handle.put(-0.0, 2)
    restored = instances.open([instances.snapshot(backend)], key=types.FLOAT64)
    restored.set_current_key(-float("nan"))
    again = restored.get_state(weights)
    assert (again.get(float("nan")), again.get(0.0), again.size()) == (1, 2, 2)
    again.put_all({float("nan"): 3, 0.0: 4})
    again.remove(-0.0)
    assert again.contains(float("nan")) and again.size() == 1
    assert restored.num_entries() == 1


def test_entries_are_counted_once_per_key(backend):
    """SB-49."""
    assert backend.num_entries() == 0
    put(backend, WORDS, 0, "hello")
    put(backend, WORDS, 0, "world")
    assert backend.num_entries() == 1
    put(backend, WORDS, 1, "hello")
    assert backend.num_entries() == 2
    put(backend, WORDS, 0, None)
    assert backend.num_entries() == 1
    put(backend, WORDS, 1, None)
    assert backend.num_entries() == 0


# -- snapshots while the owner continues ------------------------------------------------------------------


class BlockingSink(SnapshotSink):
    """A real sink whose first write waits, as slow storage does, until it is let go."""

    def __init__(self, sink: SnapshotSink) -> None:
        self.sink = sink
        self.reached = threading.Event()
        self.go_on = threading.Event()

    def begin_state(self, meta: StateMeta) -> None:
        self.sink.begin_state(meta)

    def write_entries(self, key_group: int, batches: Iterable[EntryBatch[Any, Any, Any]]) -> None:
        self.reached.set()
        assert self.go_on.wait(600)
        self.sink.write_entries(key_group, batches)


@pytest.fixture
def asynchronous(instances):
    if not instances.plugin.description.level(Capability.ASYNC_SNAPSHOT).usable:
        pytest.skip(f"{instances.plugin.name} claims no asynchronous snapshots")
    return instances


def test_a_second_snapshot_finishes_while_the_first_is_blocked(asynchronous):
    """SB-50."""
    backend = asynchronous.open()
    for key in range(10):
        put(backend, WORDS, key, str(key))
    first_file = asynchronous.writer(backend)
    sink = BlockingSink(first_file)
    first = backend.snapshot(1)
    thread = threading.Thread(target=first.run, args=(sink,))
    thread.start()
    assert sink.reached.wait(600)
    for key in range(5, 15):
        put(backend, WORDS, key, str(key + 1))
    second = asynchronous.snapshot(backend)
    assert not first.done
    sink.go_on.set()
    thread.join(600)
    assert first.done
    restored = asynchronous.open([second])
    assert [read(restored, WORDS, key) for key in range(15)] == [
        str(key) if key < 5 else str(key + 1) for key in range(15)
    ]
    restored = asynchronous.open([asynchronous.finish(first_file)])
    assert [read(restored, WORDS, key) for key in range(15)] == [
        str(key) if key < 10 else None for key in range(15)
    ]


def test_changes_after_the_synchronous_part_are_not_in_the_snapshot(asynchronous):
    """SB-51."""
    number = ValueState("id", types.INT64)
    backend = asynchronous.open()
    for key in range(10):
        put(backend, number, key, key)
    writer = asynchronous.writer(backend)
    sink = BlockingSink(writer)
    task = backend.snapshot(1)
    thread = threading.Thread(target=task.run, args=(sink,))
    thread.start()
    assert sink.reached.wait(600)
    for key in range(20):
        put(backend, number, key, key + 1)
    sink.go_on.set()
    thread.join(600)
    assert [read(backend, number, key) for key in range(20)] == [key + 1 for key in range(20)]
    restored = asynchronous.open([asynchronous.finish(writer)])
    assert [read(restored, number, key) for key in range(10)] == list(range(10))
    assert read(restored, number, 11) is None


def test_a_map_changed_in_place_during_a_snapshot_keeps_its_old_entries_in_it(asynchronous):
    """SB-51 for a mutable value: the table copies it before the owner changes it."""
    backend = asynchronous.open()
    backend.set_current_key(1)
    counts = backend.get_state(COUNTS)
    counts.put("a", 1)
    task = backend.snapshot(1)
    counts.put("a", 2)
    counts.put("b", 3)
    restored = asynchronous.open([asynchronous.write(backend, task)])
    restored.set_current_key(1)
    assert dict(restored.get_state(COUNTS).items()) == {"a": 1}
    assert dict(counts.items()) == {"a": 2, "b": 3}


def test_closing_the_backend_cancels_a_blocked_snapshot(asynchronous):
    """SB-53."""
    backend = asynchronous.open()
    put(backend, WORDS, 1, "1")
    sink = BlockingSink(asynchronous.writer(backend))
    task = backend.snapshot(1)
    raised: list[BaseException] = []

    def run() -> None:
        try:
            task.run(sink)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert sink.reached.wait(600)
    backend.close()
    sink.go_on.set()
    thread.join(600)
    assert isinstance(raised[0], SnapshotCancelledError)
    assert task.done


def test_a_cancelled_snapshot_cannot_be_run(instances):
    backend = instances.open()
    put(backend, WORDS, 1, "1")
    task = backend.snapshot(3)
    task.cancel()
    with pytest.raises(SnapshotCancelledError, match="checkpoint 3"):
        task.run(instances.writer(backend))
    assert read(instances.open([instances.snapshot(backend)]), WORDS, 1) == "1"


def test_states_can_be_registered_while_snapshots_run(asynchronous):
    """SB-56: none of the ten snapshots can end before all ten states are registered."""
    backend = asynchronous.open()
    running = []
    for number in range(10):
        put(backend, ValueState(f"state-{number}", types.INT64), 1, number)
        writer = asynchronous.writer(backend)
        sink = BlockingSink(writer)
        thread = threading.Thread(target=backend.snapshot(number).run, args=(sink,))
        thread.start()
        assert sink.reached.wait(600)
        running.append((thread, sink, writer))
    for thread, sink, _ in running:
        assert thread.is_alive()
        sink.go_on.set()
    for number, (thread, _, writer) in enumerate(running):
        thread.join(600)
        assert not thread.is_alive()
        assert writer.finish().entries == {f"state-{known}": 1 for known in range(number + 1)}


def test_a_function_applied_to_all_keys_may_clear_and_rewrite_state(backend):
    """SB-54, SB-55."""
    for key in range(100):
        put(backend, WORDS, key, f"hello-{key}")
    seen = {}
    backend.set_current_key(99)
    backend.apply_to_all_keys(WORDS, lambda key, handle: seen.update({key: handle.value()}))
    assert seen == {key: f"hello-{key}" for key in range(100)}
    assert backend.current.key == 99

    def rewrite(key: int, handle: Any) -> None:
        handle.clear()
        handle.update("first")
        handle.clear()
        if key % 2:
            handle.update("last")

    backend.apply_to_all_keys(WORDS, rewrite)
    assert sorted(backend.get_keys("words")) == list(range(1, 100, 2))
    assert {read(backend, WORDS, key) for key in range(1, 100, 2)} == {"last"}


@pytest.mark.slow
def test_two_threads_read_snapshots_while_the_owner_writes(asynchronous):
    """SB-11, SB-47: what another thread may read is a snapshot, and it never shows a later write.

    The owner writes for as long as both threads read, and neither of them moves its key or namespace.
    """
    backend = asynchronous.open()
    for key in range(1000):
        put(backend, WORDS, key, "1", "ns")
    handle = backend.get_state(WORDS, "ns", types.STRING)
    found: dict[int, list[Any]] = {0: [], 1: []}
    started = threading.Barrier(3)

    def read_all(reader: int, task: Any) -> None:
        started.wait(600)
        task.run(Shown(found[reader]))

    tasks = [backend.snapshot(number) for number in range(2)]
    threads = [threading.Thread(target=read_all, args=(reader, task)) for reader, task in enumerate(tasks)]
    for thread in threads:
        thread.start()
    started.wait(600)
    rounds = 0
    while rounds == 0 or any(thread.is_alive() for thread in threads):
        rounds += 1
        for key in range(1000):
            backend.set_current_key(key)
            handle.update(f"later {rounds}")
            assert (backend.current.key, handle.namespace) == (key, "ns")
            assert handle.value() == f"later {rounds}"
    for thread in threads:
        thread.join(600)
    expected = [(key, "ns", "1") for key in range(1000)]
    assert [sorted(entries) for entries in found.values()] == [expected, expected]


class Shown(SnapshotSink):
    """Notes every entry, and gives the owner time between any two small pieces."""

    def __init__(self, entries: list[Any]) -> None:
        self.entries = entries

    def begin_state(self, meta: StateMeta) -> None:
        pass

    def write_entries(self, key_group: int, batches: Iterable[EntryBatch[Any, Any, Any]]) -> None:
        for batch in batches:
            for entry in zip(batch.keys, batch.namespaces, batch.values, strict=True):
                time.sleep(0)  # lets the owner run
                self.entries.append(entry)


@pytest.mark.parametrize(
    ("key_type", "keys"),
    [
        (types.INT32, [1, -1]),
        (types.enum_of(Size), list(Size)),
        (types.UUID, [uuid.UUID(int=1), uuid.UUID(int=2**127)]),
        (types.record_of(Place), [Place("a", Size.LARGE), Place("b", None)]),
        (types.tuple_of(types.STRING, types.enum_of(Size)), [("a", Size.SMALL)]),
        (types.numpy_scalar("int64"), [np.int64(5)]),
        (types.nullable(types.decimal(5, 2)), [None, Decimal("1.50")]),
    ],
    ids=repr,
)
def test_a_key_alone_and_among_many_has_the_same_key_group(instances, key_type, keys):
    backend = instances.open(key=key_type)
    for number, key in enumerate(keys):
        put(backend, WORDS, key, str(number))
    assert backend.get_state(WORDS).get_many(keys) == [str(number) for number in range(len(keys))]
    seen = {}
    backend.apply_to_all_keys(WORDS, lambda key, handle: seen.update({key: handle.value()}))
    assert seen == {key: str(number) for number, key in enumerate(keys)}
