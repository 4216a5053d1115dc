"""What a snapshot knows of the states in it: names, kinds and types, and the serializers of their own."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from keyedstate import errors, types
from keyedstate.backend import Capability, EntryBatch, SnapshotSink, StateKind, StateMeta
from keyedstate.errors import SnapshotCancelledError
from keyedstate.state import (
    AggregateFunction,
    AggregatingState,
    ListState,
    MapState,
    ReducingState,
    ValueState,
)
from keyedstate.types import Outcome


class Count(AggregateFunction):
    def create_accumulator(self):
        return 0

    def add(self, value, accumulator):
        return accumulator + 1

    def get_result(self, accumulator):
        return accumulator


STATES = [
    ValueState("value", types.decimal(10, 2)),
    ListState("list", types.nullable(types.STRING)),
    MapState("map", types.tuple_of(types.INT64, types.STRING), types.list_of(types.FLOAT32)),
    ReducingState("reducing", max, types.TIMESTAMP),
    AggregatingState("aggregating", Count(), types.INT32),
    ValueState("имя '\"\\ \n" + "x" * 1000, types.BYTES),
]
KEY = types.tuple_of(types.STRING, types.nullable(types.INT64))
NAMESPACE = types.tuple_of(types.INT64, types.INT64)


@pytest.mark.parametrize("compression", ["zstd", "lz4", "none"])
def test_a_snapshot_has_the_registered_meta_of_every_state(instances, compression):
    """SER-06: also of a state without any entry; the reader needs not know the compression."""
    backend = instances.open(key=KEY)
    for state in STATES:
        backend.get_state(state, (0, 10), NAMESPACE)
    writer = instances.writer(backend, compression)
    backend.snapshot(1).run(writer)
    handle = instances.finish(writer)
    expected = [StateMeta(state.name, state.kind, KEY, NAMESPACE, state.serializer) for state in STATES]
    assert list(handle.states) == expected == backend.metas()
    restored = instances.open([handle], key=KEY)
    assert restored.metas() == expected
    for meta in expected:
        assert StateMeta.from_json(json.loads(json.dumps(meta.to_json()))) == meta


@pytest.mark.parametrize("part", ["key", "namespace", "value"])
def test_a_serializer_of_a_newer_version_or_an_unknown_type_is_refused(part):
    """SER-06."""
    meta = StateMeta("s", StateKind.VALUE, types.INT64, types.VOID, types.INT64).to_json()
    newer = {**meta, part: {**meta[part], "version": 2}}
    with pytest.raises(
        errors.UnknownSerializerError, match=r"has version 2; .* up to 1\. Upgrade keyedstate"
    ):
        StateMeta.from_json(newer)
    with pytest.raises(errors.UnknownSerializerError, match=r"'int46'\. Did you mean 'int64'"):
        StateMeta.from_json({**meta, part: {"type": "int46", "version": 1}})


def test_the_names_in_checkpoints_never_change():
    """SER-06: names and order of what checkpoints, manifests and plugins know by name."""
    assert [(kind.name, kind.value) for kind in StateKind] == [
        ("VALUE", "value"),
        ("LIST", "list"),
        ("MAP", "map"),
        ("REDUCING", "reducing"),
        ("AGGREGATING", "aggregating"),
    ]
    assert [outcome.name for outcome in Outcome] == [
        "AS_IS",
        "RECONFIGURED",
        "AFTER_MIGRATION",
        "INCOMPATIBLE",
    ]


# -- a serializer that cannot be shared -----------------------------------------------------------------


class Buffered(type(types.STRING)):
    """Strings, by a serializer with a buffer of its own: two threads in one instance spoil each other's work.

    A writer may be made to wait inside for the others, so that their work overlaps in any case.
    """

    immutable = False

    def __init__(self, log: list[tuple[str, Buffered]], meeting: threading.Barrier | None = None) -> None:
        self.log = log
        self.meeting = meeting
        self.busy = threading.Lock()

    def duplicate(self):
        return Buffered(self.log, self.meeting)

    def copy(self, value):
        self.log.append(("copy", self))
        return value

    def to_arrow(self, values):
        assert self.busy.acquire(blocking=False), "two threads in one serializer"
        try:
            self.log.append(("to_arrow", self))
            if self.meeting is not None:
                self.meeting.wait(600)
            return super().to_arrow(values)
        finally:
            self.busy.release()

    def __eq__(self, other):
        return isinstance(other, Buffered)

    __hash__ = None


@pytest.fixture
def asynchronous(instances):
    if not instances.plugin.description.level(Capability.ASYNC_SNAPSHOT).usable:
        pytest.skip(f"{instances.plugin.name} claims no asynchronous snapshots")
    return instances


def used(log, what):
    return [serializer for done, serializer in log if done == what]


def test_a_snapshot_is_written_by_duplicates_of_each_serializer(instances):
    """SER-07: never by those with which the owner continues."""
    log: list[Any] = []
    key, namespace, value = Buffered(log), Buffered(log), Buffered(log)
    key.immutable = namespace.immutable = True
    backend = instances.open(key=key)
    backend.set_current_key("a")
    handle = backend.get_state(ValueState("s", value), "n", namespace)
    handle.update("v")
    log.clear()
    instances.snapshot(backend)
    writers = used(log, "to_arrow")
    assert len(writers) == 3
    assert not {id(key), id(namespace), id(value)} & set(map(id, writers))


def test_snapshots_that_are_written_at_the_same_time_share_no_serializer(asynchronous):
    """SB-52: four writers meet inside of their serializers, and each is alone in its own."""
    writers = 4
    log: list[Any] = []
    value = Buffered(log, threading.Barrier(writers))
    backend = asynchronous.open(max_parallelism=1)
    for number in range(50):
        backend.set_current_key(number)
        backend.get_state(ValueState("s", value)).update(str(number))
    log.clear()
    files = [asynchronous.writer(backend) for _ in range(writers)]
    failures: list[BaseException] = []

    def run(task, file):
        try:
            task.run(file)
        except BaseException as error:
            failures.append(error)

    threads = [
        threading.Thread(target=run, args=(backend.snapshot(number), file))
        for number, file in enumerate(files)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(600)
    assert failures == []
    assert len(set(map(id, used(log, "to_arrow")))) == writers
    for file in files:
        restored = asynchronous.open([asynchronous.finish(file)], max_parallelism=1)
        state = restored.get_state(ValueState("s", types.STRING))
        assert state.get_many(range(50)) == [str(number) for number in range(50)]


def test_after_a_migration_the_table_and_its_snapshots_have_the_new_serializer(instances):
    """SER-07."""
    backend = instances.open()
    backend.set_current_key(1)
    backend.get_state(ValueState("s", types.INT32)).update(7)
    restored = instances.open([instances.snapshot(backend)])
    assert restored.metas()[0].value_serializer == types.INT32
    untouched = instances.snapshot(restored)
    restored.get_state(ValueState("s", types.INT64))
    assert restored.metas()[0].value_serializer == types.INT64
    written = instances.snapshot(restored)
    assert [handle.states[0].value_serializer for handle in (untouched, written)] == [
        types.INT32,
        types.INT64,
    ]


class Failing(SnapshotSink):
    """A sink that fails at a chosen call, as a full disk does."""

    def __init__(self, at: int) -> None:
        self.left = at

    def begin_state(self, meta):
        self._step()

    def write_entries(self, key_group, batches):
        for _ in batches:
            self._step()

    def _step(self):
        if not self.left:
            raise OSError("no space left on device")
        self.left -= 1


class Reading(SnapshotSink):
    """A sink that takes everything."""

    def __init__(self):
        self.values: list[Any] = []

    def begin_state(self, meta: StateMeta) -> None:
        pass

    def write_entries(self, key_group: int, batches: Any) -> None:
        batch: EntryBatch[Any, Any, Any]
        for batch in batches:
            self.values.extend(batch.values)


@pytest.mark.parametrize("ending", ["success", "failure at begin", "failure in between", "cancel"])
def test_a_snapshot_is_released_however_it_ends(instances, ending):
    """SER-07: a value is copied for a live snapshot, and handed out as it is once that is released."""
    backend = instances.open()
    state = backend.get_state(ValueState("s", types.list_of(types.INT64)))
    values = {key: [key] for key in range(3)}
    for key, value in values.items():
        backend.set_current_key(key)
        state.update(value)
    task = backend.snapshot(1)
    if ending == "success":
        task.run(Reading())
    elif ending == "cancel":
        task.cancel()
        with pytest.raises(SnapshotCancelledError):
            task.run(Reading())
    else:
        with pytest.raises(OSError, match="no space"):
            task.run(Failing(0 if ending == "failure at begin" else 2))
    assert task.done
    for key, value in values.items():
        backend.set_current_key(key)
        assert state.value() is value
    task.cancel()  # once more does nothing
    sink = Reading()
    backend.snapshot(2).run(sink)
    assert sorted(sink.values) == [[0], [1], [2]]
