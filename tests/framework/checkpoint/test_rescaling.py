"""Any parallelism after any other: whole key groups move, and each task reads its own alone."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pytest

from keyedstate import types
from keyedstate.backend import EntryBatch, StateKind, StateMeta
from keyedstate.checkpoint import (
    Acknowledgement,
    AttemptManifest,
    BaseRules,
    CheckpointCoordinator,
    CheckpointMetadata,
    CheckpointStorage,
    OperatorFolder,
    SegmentWriter,
    TaskIdentity,
    claim,
    find_restore_point,
    handles_for,
    read_operator_state,
)
from keyedstate.config import Configuration
from keyedstate.keygroups import KeyGroupRange, key_group_range_for
from keyedstate.plugins import PluginRegistry
from keyedstate.spark.saving import StateWriter
from keyedstate.state import (
    KeyedStateBackend,
    OperatorListState,
    OperatorStateBackend,
    UnionListState,
    ValueState,
)
from keyedstate.state.context import KeyContext
from keyedstate.types import VOID, VOID_NAMESPACE

COUNT = ValueState("count", types.INT64, default=0)
SPLIT = OperatorListState("split", types.INT64)
UNION = UnionListState("union", types.INT64)


class CountingOperator:
    """Counts the rows of each key; each task also notes the epochs that it has seen."""

    def __init__(self, storage: CheckpointStorage, backend: str, max_parallelism: int) -> None:
        self.folder = OperatorFolder(storage, "counts")
        self.backend = backend
        self.max_parallelism = max_parallelism
        self.rules = BaseRules(max_deltas=3, min_bytes=0, max_concurrent=0, tolerable_failures=99)
        self.numbers = itertools.count()
        self.parallelism = 1
        self.run = "run-0"
        self.counts: dict[str, int] = {}
        places = KeyContext(types.STRING, KeyGroupRange(0, max_parallelism - 1), max_parallelism)
        self.group_of = lambda keys: dict(zip(*places.locate(keys), strict=True))

    def restart(self, parallelism: int) -> None:
        self.parallelism = parallelism
        self.run = f"run-{next(self.numbers)}"
        self.coordinator = CheckpointCoordinator(self.folder)

    def epoch(self, epoch: int, keys: list[str]) -> None:
        """Run an epoch over rows with these keys; ``counts`` has what they count to then."""
        groups = self.group_of(sorted(set(keys)))
        self.counts = {}
        for partition in range(self.parallelism):
            own = key_group_range_for(partition, self.parallelism, self.max_parallelism)
            self.task(epoch, partition, own, [key for key in keys if groups[key] in own])
        self.coordinator.drain()

    def task(self, epoch: int, partition: int, own: KeyGroupRange, keys: list[str]) -> None:
        number = next(self.numbers)
        identity = TaskIdentity(
            "counts", "query", self.run, epoch, partition, self.parallelism, self.max_parallelism, number,
            f"n{number}",
        )  # fmt: skip
        claim(self.folder, identity)
        self.folder.write_started(identity)
        base = find_restore_point(self.folder, identity)
        writing = self.rules.writing(base, identity, asynchronous=False, now_ms=0)
        operator = OperatorStateBackend(self.operator_state(base, identity))
        with self.opened(base, own, track=base is not None) as backend:
            writer = StateWriter(backend, operator, self.folder, self.rules, "zstd")
            writer.begin(identity, base, writing)
            count = backend.get_state(COUNT)
            for key in keys:
                backend.set_current_key(key)
                count.update(count.value() + 1)
                self.counts[key] = count.value()
            operator.get_state(SPLIT).add(epoch)
            operator.get_state(UNION).update([epoch])
            saved = writer.end()
            states = tuple(meta.to_json() for meta in backend.metas())
            entries = backend.entries_by_state()
        manifest = AttemptManifest(
            identity, own, self.backend, "1", states, saved.segments, entries, len(keys), 0, None,
            0.0, 0.0, 0.0, 0.0, saved.bytes, deltas=saved.deltas, bases=saved.bases,
            operator_state=saved.operator_state,
        )  # fmt: skip
        same = base is not None and base.parallelism == self.parallelism
        shared = base.parts[partition].kept_files if base is not None and same else ()
        path = self.folder.write_manifest(manifest, shared)
        self.coordinator.acknowledge(Acknowledgement(identity, path))

    def operator_state(self, base: CheckpointMetadata | None, identity: TaskIdentity) -> Any:
        if base is None:
            return ()
        return read_operator_state(
            self.folder.storage,
            [part.operator_state for part in base.parts],
            identity.partition,
            self.parallelism,
            restarted=base.run_id != identity.run_id,
        )

    @contextlib.contextmanager
    def opened(
        self, base: CheckpointMetadata | None, own: KeyGroupRange, track: bool = False
    ) -> Iterator[KeyedStateBackend]:
        config = Configuration({"backend": self.backend})
        registry = PluginRegistry(config)
        handles = [] if base is None else handles_for(base, self.folder.storage, own)
        backend = KeyedStateBackend.open(
            registry.choose(),
            key_serializer=types.STRING,
            key_groups=own,
            max_parallelism=self.max_parallelism,
            options=config.plugin_options(registry.options, self.backend),
            handles=handles,
            track_changes=track,
        )
        for handle in handles:
            handle.close()
        with contextlib.closing(backend):
            yield backend

    def stored(self, epoch: int) -> dict[str, int]:
        """Return all counts of a checkpoint."""
        metadata = self.folder.read_metadata(epoch)
        assert metadata is not None
        with self.opened(metadata, KeyGroupRange(0, self.max_parallelism - 1)) as backend:
            count = backend.get_state(COUNT)
            found = {}
            for key in list(backend.get_keys("count")):
                backend.set_current_key(key)
                found[key] = count.value()
            return found

    def operator_lists(self, epoch: int) -> tuple[list[int], list[list[int]]]:
        """Return the split elements of all tasks of a checkpoint, and the union list of each."""
        metadata = self.folder.read_metadata(epoch)
        assert metadata is not None
        split, union = [], []
        for number, part in enumerate(metadata.parts):
            parts = [part.operator_state if other is part else None for other in metadata.parts]
            restored = read_operator_state(self.folder.storage, parts, number, len(parts), restarted=False)
            backend = OperatorStateBackend(restored)
            split += backend.get_state(SPLIT).get()
            union.append(backend.get_state(UNION).get())
        return sorted(split), union


KEYS = ["8", "5", "25", "13", "4", "7", "1", "6", "9", "3"]


@pytest.fixture
def operator(tmp_path: Path, backend_name: str) -> CountingOperator:
    return CountingOperator(CheckpointStorage.open(tmp_path), backend_name, 10)


def test_counts_go_on_over_1_then_2_then_3_tasks(operator: CountingOperator) -> None:
    """SCALE-01."""
    for epoch, parallelism in enumerate([1, 2, 3]):
        operator.restart(parallelism)
        operator.epoch(epoch, KEYS)
        assert operator.counts == dict.fromkeys(KEYS, epoch + 1)


def test_counts_go_on_over_3_then_2_then_1_tasks(operator: CountingOperator) -> None:
    """SCALE-02."""
    for epoch, parallelism in enumerate([3, 2, 1]):
        operator.restart(parallelism)
        operator.epoch(epoch, KEYS)
        assert operator.counts == dict.fromkeys(KEYS, epoch + 1)


def test_any_parallelism_follows_any_other(tmp_path: Path, backend_name: str) -> None:
    """SCALE-01, SCALE-02, CP-19: whatever it was before, and however long the chains of deltas are."""
    rng = random.Random(7)
    operator = CountingOperator(CheckpointStorage.open(tmp_path), backend_name, 7)
    expected: Counter[str] = Counter()
    split: list[int] = []
    epoch = 0
    for parallelism in [1, 7, *rng.sample(range(1, 8), 4)]:
        operator.restart(parallelism)
        for _ in range(rng.randrange(1, 3)):
            keys = [f"key {rng.randrange(60)}" for _ in range(rng.randrange(40))]
            operator.epoch(epoch, keys)
            expected.update(keys)
            split += [epoch] * parallelism
            assert operator.stored(epoch) == dict(expected)
            elements, unions = operator.operator_lists(epoch)
            assert elements == split, "each element once, whoever has it"
            assert unions == [[epoch]] * parallelism
            epoch += 1


def test_union_lists_reach_every_task_of_another_parallelism(tmp_path: Path) -> None:
    """CP-19."""
    operator = CountingOperator(CheckpointStorage.open(tmp_path), "nested-map", 10)
    operator.restart(3)
    operator.epoch(0, KEYS)
    base = operator.folder.read_metadata(0)
    for task in range(5):
        restored = read_operator_state(
            operator.folder.storage, [part.operator_state for part in base.parts], task, 5, restarted=True
        )
        assert OperatorStateBackend(restored).get_state(UNION).get() == [0, 0, 0]


# -- what is read ----------------------------------------------------------------------------------


class CountingFile:
    """A file that notes which of its bytes are read."""

    def __init__(self, stream: pa.NativeFile, path: str, reads: list[tuple[str, int, int]]) -> None:
        self._stream = stream
        self._path = path
        self._reads = reads

    closed = property(lambda self: self._stream.closed)

    def read(self, length: int = -1) -> bytes:
        start = self._stream.tell()
        data: bytes = self._stream.read(length if length >= 0 else None)
        self._reads.append((self._path, start, start + len(data)))
        return data

    def seek(self, position: int, whence: int = 0) -> int:
        return int(self._stream.seek(position, whence))

    def tell(self) -> int:
        return int(self._stream.tell())

    def close(self) -> None:
        self._stream.close()

    def flush(self) -> None: ...
    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return True


class CountingHandler(pafs.FileSystemHandler):
    """Passes everything on to a local disk, and notes what is read of data files."""

    def __init__(self) -> None:
        self.inner = pafs.LocalFileSystem()
        self.reads: list[tuple[str, int, int]] = []

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = None  # type: ignore[assignment]

    def get_type_name(self) -> str:
        return "counting"

    def normalize_path(self, path: str) -> str:
        return str(self.inner.normalize_path(path))

    def get_file_info(self, paths: list[str]) -> Any:
        return self.inner.get_file_info(paths)

    def get_file_info_selector(self, selector: pafs.FileSelector) -> Any:
        return self.inner.get_file_info(selector)

    def create_dir(self, path: str, recursive: bool) -> None:
        self.inner.create_dir(path, recursive=recursive)

    def delete_dir(self, path: str) -> None:
        self.inner.delete_dir(path)

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        self.inner.delete_dir_contents(path, missing_dir_ok=missing_dir_ok)

    def delete_root_dir_contents(self) -> None:
        raise NotImplementedError

    def delete_file(self, path: str) -> None:
        self.inner.delete_file(path)

    def move(self, source: str, target: str) -> None:
        self.inner.move(source, target)

    def copy_file(self, source: str, target: str) -> None:
        self.inner.copy_file(source, target)

    def open_input_stream(self, path: str) -> Any:
        return self.inner.open_input_stream(path)

    def open_input_file(self, path: str) -> Any:
        return pa.PythonFile(CountingFile(self.inner.open_input_file(path), path, self.reads), mode="r")

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        return self.inner.open_output_stream(path)

    def open_append_stream(self, path: str, metadata: Any) -> Any:
        return self.inner.open_append_stream(path)


GROUPS = 16
GROUP_BYTES = 300_000
BLOBS = StateMeta("blobs", StateKind.VALUE, types.INT64, VOID, types.BYTES)


def blob(group: int) -> bytes:
    return random.Random(group).randbytes(GROUP_BYTES)


@pytest.fixture(params=[1, 2])
def counted(
    request: pytest.FixtureRequest, tmp_path: Path
) -> tuple[CheckpointStorage, CheckpointMetadata, CountingHandler]:
    """A checkpoint of one or two tasks with much in each key group, behind a file system that counts."""
    handler = CountingHandler()
    storage = CheckpointStorage(pafs.PyFileSystem(handler), str(tmp_path), f"counting:{tmp_path}")
    folder = OperatorFolder(storage, "blobs")
    parts = []
    for partition in range(request.param):
        identity = TaskIdentity("blobs", "q", "r", 0, partition, request.param, GROUPS, 0, f"n{partition}")
        own = key_group_range_for(partition, request.param, GROUPS)
        writer = SegmentWriter(folder.storage, folder.data_path(identity), own, "none")
        writer.begin_state(BLOBS)
        for group in own:
            writer.write_entries(group, [EntryBatch([VOID_NAMESPACE], [group], [blob(group)])])
        file = writer.finish()
        parts.append(
            AttemptManifest(
                identity,
                own,
                "none",
                "1",
                (BLOBS.to_json(),),
                (file,),
                file.entries,
                0,
                0,
                None,
                0.0,
                0.0,
                0.0,
                0.0,
                file.bytes,
            )
        )
    return folder.storage, CheckpointMetadata.of(parts), handler


@pytest.mark.parametrize("parallelism", [1, 2, 4, 5, 16])
def test_each_task_reads_the_bytes_of_its_own_key_groups_and_none_of_others(
    counted: tuple[CheckpointStorage, CheckpointMetadata, CountingHandler], parallelism: int
) -> None:
    """CP-19."""
    storage, metadata, handler = counted
    for task in range(parallelism):
        own = key_group_range_for(task, parallelism, GROUPS)
        handler.reads.clear()
        found = {}
        for handle in handles_for(metadata, storage, own):
            for group in handle.key_groups.intersection(own):
                for batch in handle.entries("blobs", group):
                    found.update(zip(batch.keys, batch.values, strict=True))
            handle.close()
        assert found == {group: blob(group) for group in own}
        read = sum(stop - start for _, start, stop in handler.reads)
        # What Arrow puts around a column; and of each file its last 64 KiB, for the index.
        assert len(own) * GROUP_BYTES < read < len(own) * (GROUP_BYTES + 4_000) + 2 * 66_000
