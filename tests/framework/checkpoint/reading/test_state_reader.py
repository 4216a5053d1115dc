"""Stored state is read as typed columns, equal to what a restored operator finds."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.backends import backend_of
from support.mean import Mean

from keyedstate import types
from keyedstate.backend import EntryBatch, StateKind, StateMeta
from keyedstate.checkpoint.format.manifest import AttemptManifest, CheckpointMetadata, TaskIdentity
from keyedstate.checkpoint.format.segment import SegmentWriter
from keyedstate.checkpoint.protocol.coordinator import Acknowledgement, CheckpointCoordinator
from keyedstate.checkpoint.protocol.full_snapshots import FullSnapshotRules, SnapshotKind
from keyedstate.checkpoint.protocol.operator_folder import OperatorFolder
from keyedstate.checkpoint.protocol.recovery import handles_for
from keyedstate.checkpoint.reading.state_reader import KeyedStateReader, StateReader, reader_of
from keyedstate.checkpoint.reading.survey import deltas_of
from keyedstate.checkpoint.savepoint.operator_snapshot import OperatorSnapshot
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.epoch.epoch_writer import EpochWriter
from keyedstate.errors import CorruptFileError, GenericStateRefusedError, UnknownStateError
from keyedstate.keygroups import KeyGroupRange, key_group_range_for
from keyedstate.state import (
    AggregatingState,
    BroadcastState,
    ListState,
    ManualClock,
    MapState,
    OperatorListState,
    ReducingState,
    Ttl,
    UnionListState,
    ValueState,
)
from keyedstate.state.context import KeyContext
from keyedstate.state.operator.backend import OperatorStateBackend
from keyedstate.state.registry.chosen_backend import KeySpace
from keyedstate.state.registry.keyed_backend import KeyedStateBackend

GROUPS = 8
EPOCH_MS = 1000


def instant(ms: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(milliseconds=ms)


@dataclass
class Visit:
    page: str
    seconds: float | None


class Writer:
    """An operator of two tasks whose every epoch does to each key what a test says."""

    def __init__(self, path: Path, backend: str, key: Any, columns: tuple[tuple[str, str], ...]) -> None:
        self.folder = OperatorFolder(CheckpointStorage.open(path), "views")
        self.coordinator = CheckpointCoordinator(self.folder, retained=10)
        self.backend = backend
        self.key = key
        self.columns = columns
        self.epochs = 0

    def epoch(
        self,
        change: Callable[[KeyedStateBackend, list[Any]], None],
        keys: list[Any],
        of_task: Callable[[OperatorStateBackend, int], None] | None = None,
    ) -> None:
        """Run both tasks; from the second epoch on they write deltas."""
        epoch, self.epochs = self.epochs, self.epochs + 1
        restore_point = self.folder.read_metadata(epoch - 1) if epoch else None
        chosen = backend_of(self.backend)
        for partition in range(2):
            identity = TaskIdentity(
                "views", "query", "run", epoch, partition, 2, GROUPS, 2 * epoch + partition,
                f"n{epoch}p{partition}",
            )  # fmt: skip
            self.folder.write_started(identity)
            groups = key_group_range_for(partition, 2, GROUPS)
            before = None if restore_point is None else restore_point.parts[partition]
            backend = KeyedStateBackend.open(
                chosen,
                KeySpace(self.key, groups, GROUPS),
                [] if restore_point is None else handles_for(restore_point, self.folder.storage, groups),
                clock=ManualClock(epoch * EPOCH_MS),
                track_changes=before is not None,
            )
            operator = OperatorStateBackend()
            writer = EpochWriter(backend, operator, self.folder, FullSnapshotRules(9, 0), "zstd")
            writer.begin(
                identity, restore_point, SnapshotKind.FULL if restore_point is None else SnapshotKind.DELTA
            )
            change(backend, [key for key in keys if self.group_of(key) in groups])
            if of_task is not None:
                of_task(operator, partition)
            saved = writer.end()
            manifest = AttemptManifest(
                identity, groups, self.backend, "1", tuple(meta.to_json() for meta in backend.metas()),
                saved.segments, saved.entries, 0, 0, None, 0.0, 0.0, 0.0, 0.0, saved.bytes,
                key_columns=self.columns, operator_state=saved.operator_state, deltas=saved.deltas,
                ttl_ms={meta.name: meta.expiry.ttl_ms for meta in backend.metas() if meta.expiry},
            )  # fmt: skip
            backend.close()
            path = self.folder.write_manifest(manifest, () if before is None else before.data_files)
            self.coordinator.acknowledge(Acknowledgement(identity, path))

    def group_of(self, key: Any) -> int:
        return KeyContext(self.key, KeyGroupRange(0, GROUPS - 1), GROUPS).key_group_of(key)

    def reader(self, name: str, **options: Any) -> StateReader:
        return reader_of(OperatorSnapshot.open(self.folder.storage.uri), name, **options)


def rows_of(reader: StateReader, **wanted: Any) -> list[dict[str, Any]]:
    """Read a state in all of its slices, from a reader that was sent to another process."""
    sent = pickle.loads(pickle.dumps(reader))
    batches = [batch for piece in reader.slices(**wanted) for batch in sent.read(piece)]
    assert all(batch.schema == reader.schema for batch in batches)
    return pa.Table.from_batches(batches, reader.schema).to_pylist()


@pytest.fixture(params=["heap-cow", "nested-map"])
def writer(request: pytest.FixtureRequest, tmp_path: Path) -> Writer:
    return Writer(tmp_path, request.param, types.nullable(types.STRING), (("app_id", "string"),))


def by_key(rows: list[dict[str, Any]], column: str = "value") -> dict[Any, Any]:
    assert len({row["app_id"] for row in rows}) == len(rows)
    return {row["app_id"]: row[column] for row in rows}


def test_every_kind_of_state_is_read_with_its_type(writer: Writer) -> None:
    states: dict[str, Any] = {
        "count": ValueState("count", types.INT64),
        "visit": ValueState("visit", types.record_of(Visit)),
        "pages": ListState("pages", types.STRING),
        "seen": MapState("seen", types.STRING, types.INT64),
        "sum": ReducingState("sum", lambda a, b: a + b, types.INT64),
    }

    def change(backend: KeyedStateBackend, keys: list[Any]) -> None:
        for number, key in enumerate(keys):
            backend.set_current_key(key)
            backend.get_state(states["count"]).update(len(key or ""))
            backend.get_state(states["visit"]).update(Visit(str(key), None if key == "a" else 1.5))
            backend.get_state(states["pages"]).update(["x", str(key)])
            backend.get_state(states["seen"]).put_all({"p": number, "q": None})
            backend.get_state(states["sum"]).add(5)
        if not keys:
            backend.get_state(states["count"])

    writer.epoch(change, ["a", "bb", None, "dddd"])
    types_found = {name: writer.reader(name).schema.field("value").type for name in states}
    assert types_found == {
        "count": pa.int64(),
        "visit": pa.struct([("page", pa.string()), ("seconds", pa.float64())]),
        "pages": pa.list_(pa.string()),
        "seen": pa.map_(pa.string(), pa.int64()),
        "sum": pa.int64(),
    }
    assert by_key(rows_of(writer.reader("count"))) == {"a": 1, "bb": 2, None: 0, "dddd": 4}
    visits = by_key(rows_of(writer.reader("visit")))
    assert visits["a"] == {"page": "a", "seconds": None} and visits[None]["seconds"] == 1.5
    assert by_key(rows_of(writer.reader("pages")))["bb"] == ["x", "bb"]
    assert [entry[0] for entry in by_key(rows_of(writer.reader("seen")))["a"]] == ["p", "q"]
    assert set(by_key(rows_of(writer.reader("sum"))).values()) == {5}
    row = next(row for row in rows_of(writer.reader("count")) if row["app_id"] == "a")
    assert row == {
        "app_id": "a",
        "namespace": None,
        "value": 1,
        "written_at": None,
        "expires_at": None,
        "key_group": writer.group_of("a"),
        "state": "count",
    }


def test_deltas_are_laid_over_their_base(writer: Writer) -> None:
    count = ValueState("count", types.INT64)
    keys = [None, *map(str, range(200))]

    def first(backend: KeyedStateBackend, keys: list[Any]) -> None:
        for key in keys:
            backend.set_current_key(key)
            backend.get_state(count).update(0)

    def second(backend: KeyedStateBackend, keys: list[Any]) -> None:
        for key in keys:
            backend.set_current_key(key)
            if key == "7":
                backend.get_state(count).clear()
            elif key is None or int(key) % 3 == 0:
                backend.get_state(count).update((backend.get_state(count).value() or 0) + 1)

    def third(backend: KeyedStateBackend, keys: list[Any]) -> None:
        second(backend, [key for key in keys if key is None or int(key) % 2 == 0])

    writer.epoch(first, keys)
    writer.epoch(second, keys)
    writer.epoch(third, [*keys, "900"])
    assert deltas_of(OperatorSnapshot.open(writer.folder.storage.uri).metadata) == 2
    expected = {
        key: (key is None or int(key) % 3 == 0) + (key is None or int(key) % 6 == 0)
        for key in keys
        if key != "7"
    }
    assert by_key(rows_of(writer.reader("count"))) == {**expected, "900": 1}


def test_keys_of_several_columns_come_in_columns_and_own_names_give_way(tmp_path: Path) -> None:
    key = types.tuple_of(types.nullable(types.STRING), types.INT64)
    columns = (("value", "string"), ("State", "bigint"))
    writer = Writer(tmp_path, "heap-cow", key, columns)
    count = ValueState("count", types.INT64)

    def change(number: int) -> Callable[[KeyedStateBackend, list[Any]], None]:
        def run(backend: KeyedStateBackend, keys: list[Any]) -> None:
            for key in keys:
                backend.set_current_key(key)
                backend.get_state(count).update(number)

        return run

    writer.epoch(change(1), [("a", 1), (None, 2), ("b", 1), ("a", 2)])
    writer.epoch(change(2), [("a", 1), (None, 2)])
    reader = writer.reader("count")
    assert reader.schema.names == [
        "value", "State", "namespace", "value_", "written_at", "expires_at", "key_group", "state_",
    ]  # fmt: skip
    found = {(row["value"], row["State"]): row["value_"] for row in rows_of(reader)}
    assert found == {("a", 1): 2, (None, 2): 2, ("b", 1): 1, ("a", 2): 1}


def test_times_to_live_have_columns_of_their_own(writer: Writer) -> None:
    ttl = Ttl.of("1 minute")
    value = ValueState("value", types.INT64, ttl=ttl)
    items = ListState("items", types.INT64, ttl=ttl)
    pages = MapState("pages", types.STRING, types.INT64, ttl=ttl)

    def change(number: int) -> Callable[[KeyedStateBackend, list[Any]], None]:
        def run(backend: KeyedStateBackend, keys: list[Any]) -> None:
            for key in keys:
                backend.set_current_key(key)
                backend.get_state(value).update(number)
                backend.get_state(items).add(number)
                backend.get_state(pages).put(f"p{number}", number)

        return run

    writer.epoch(change(1), ["a", "b"])
    writer.epoch(change(2), ["a"])
    (row,) = [row for row in rows_of(writer.reader("value")) if row["app_id"] == "a"]
    assert (row["value"], row["written_at"], row["expires_at"]) == (2, instant(1000), instant(61_000))
    (row,) = [row for row in rows_of(writer.reader("items")) if row["app_id"] == "a"]
    assert row["value"] == [1, 2]
    assert (row["written_at"], row["expires_at"]) == ([instant(0), instant(1000)], instant(61_000))
    (row,) = [row for row in rows_of(writer.reader("pages")) if row["app_id"] == "a"]
    assert row["value"] == [("p1", 1), ("p2", 2)]
    assert row["written_at"] == [("p1", instant(0)), ("p2", instant(1000))]
    assert by_key(rows_of(writer.reader("items")), "expires_at")["b"] == instant(60_000)


def test_a_folded_state_is_read_as_what_it_keeps(writer: Writer) -> None:
    state = AggregatingState("mean", Mean(), types.tuple_of(types.INT64, types.INT64))

    def change(backend: KeyedStateBackend, keys: list[Any]) -> None:
        for key in keys:
            backend.set_current_key(key)
            backend.get_state(state).add(4)
            backend.get_state(state).add(6)

    writer.epoch(change, ["a"])
    (row,) = rows_of(writer.reader("mean"))
    assert list(row["value"].values()) == [10, 2]


def test_slices_cover_the_state_and_key_groups_limit_them(writer: Writer) -> None:
    count = ValueState("count", types.INT64)
    keys = list(map(str, range(100)))

    def change(backend: KeyedStateBackend, keys: list[Any]) -> None:
        for key in keys:
            backend.set_current_key(key)
            backend.get_state(count).update(1)

    writer.epoch(change, keys)
    reader = writer.reader("count")
    assert [piece.key_groups for piece in reader.slices()] == [KeyGroupRange(0, 3), KeyGroupRange(4, 7)]
    assert len(reader.slices(bytes_each=1)) == GROUPS
    assert sorted(by_key(rows_of(reader, bytes_each=1))) == sorted(keys)
    wanted = KeyGroupRange(3, 4)
    assert sorted(by_key(rows_of(reader, key_groups=wanted))) == sorted(
        key for key in keys if writer.group_of(key) in wanted
    )


def test_operator_state_is_read_with_each_element_once(writer: Writer) -> None:
    """SPA-05: lists, union lists and broadcast maps; timers come with timers."""

    def of_task(backend: OperatorStateBackend, task: int) -> None:
        backend.get_state(OperatorListState("files", types.STRING)).update([f"{task}a", f"{task}b"])
        backend.get_state(UnionListState("offsets", types.INT64)).update([task])
        rules = backend.get_state(BroadcastState("rules", types.STRING, types.INT64))
        with backend.broadcast_side():
            rules.put("limit", 7)

    writer.epoch(lambda backend, keys: None, ["a"], of_task)
    files = rows_of(writer.reader("files"))
    assert [(row["task"], row["position"], row["value"]) for row in files] == [
        (0, 0, "0a"), (0, 1, "0b"), (1, 0, "1a"), (1, 1, "1b"),
    ]  # fmt: skip
    assert [(row["task"], row["value"]) for row in rows_of(writer.reader("offsets"))] == [(0, 0), (1, 1)]
    assert rows_of(writer.reader("rules")) == [{"key": "limit", "value": 7, "state": "rules"}]


def test_pickled_values_are_refused_unless_they_are_allowed(writer: Writer) -> None:
    state = ValueState("thing", types.tuple_of(types.INT64, types.pickled()))

    def change(backend: KeyedStateBackend, keys: list[Any]) -> None:
        for key in keys:
            backend.set_current_key(key)
            backend.get_state(state).update((1, {"set"}))

    writer.epoch(change, ["a"])
    with pytest.raises(GenericStateRefusedError, match=r"'thing' .* pickled values in 'f?1'.*allow-generic"):
        writer.reader("thing")
    (row,) = rows_of(writer.reader("thing", allow_generic=True))
    number, data = row["value"].values()
    assert (number, pickle.loads(data)) == (1, {"set"})


def test_a_state_that_is_not_there_is_refused_with_the_closest_names(writer: Writer) -> None:
    writer.epoch(lambda backend, keys: backend.get_state(ValueState("count", types.INT64)), ["a"])
    with pytest.raises(UnknownStateError, match=r"no state 'counts'. Did you mean 'count'\?"):
        writer.reader("counts")
    assert writer.reader("count").slices() == [] or rows_of(writer.reader("count")) == []


def test_a_damaged_file_is_found_before_its_entries_are_handed_out(writer: Writer) -> None:
    count = ValueState("count", types.INT64)

    def change(backend: KeyedStateBackend, keys: list[Any]) -> None:
        for key in keys:
            backend.set_current_key(key)
            backend.get_state(count).update(1)

    writer.epoch(change, list(map(str, range(20))))
    reader = writer.reader("count")
    path = Path(writer.folder.storage.root) / "data" / "n0p0.seg"
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptFileError, match=r"n0p0.seg is damaged"):
        rows_of(reader)


def test_a_namespace_is_read_with_its_type(jobs: Any, local: CheckpointStorage) -> None:
    meta = StateMeta(
        "sums", StateKind.VALUE, types.STRING, types.tuple_of(types.INT64, types.INT64), types.INT64
    )
    job = jobs.Job(local, parallelism=1)
    identity = job.identity("run-1", 0, 0)
    writer = SegmentWriter(job.folder.storage, job.folder.data_path(identity), KeyGroupRange(0, 7))
    writer.begin_state(meta)
    writer.write_entries(3, [EntryBatch([(0, 10), (10, 20)], ["a", "a"], [1, 2])])
    acknowledged = job.write_manifest(identity, writer.finish())
    metadata = job.folder.read_manifest(acknowledged.manifest)
    stored = OperatorSnapshot(job.folder.storage, CheckpointMetadata.of([metadata]), "chk-0/_metadata")
    rows = rows_of(KeyedStateReader(stored, meta))
    assert [(list(row["namespace"].values()), row["value"]) for row in rows] == [([0, 10], 1), ([10, 20], 2)]
