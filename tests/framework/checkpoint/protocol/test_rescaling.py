"""Any parallelism after any other: key groups move, and each task reads only its own."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pytest

from keyedstate import types
from keyedstate.backend import EntryBatch, StateKind, StateMeta
from keyedstate.checkpoint.format.manifest import AttemptManifest, CheckpointMetadata, TaskIdentity
from keyedstate.checkpoint.format.operator_state import read_operator_state
from keyedstate.checkpoint.format.segment import SegmentWriter
from keyedstate.checkpoint.protocol.operator_folder import OperatorFolder
from keyedstate.checkpoint.protocol.recovery import handles_for
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.keygroups import key_group_range_for
from keyedstate.state.operator.backend import OperatorStateBackend
from keyedstate.types import VOID, VOID_NAMESPACE

KEYS = ["8", "5", "25", "13", "4", "7", "1", "6", "9", "3"]


@pytest.fixture
def operator(counting: ModuleType, tmp_path: Path, backend_name: str) -> Any:
    return counting.CountingOperator(CheckpointStorage.open(tmp_path), backend_name, 10)


def test_counts_continue_over_1_then_2_then_3_tasks(operator: Any) -> None:
    """SCALE-01."""
    for epoch, parallelism in enumerate([1, 2, 3]):
        operator.restart(parallelism)
        operator.epoch(epoch, KEYS)
        assert operator.counts == dict.fromkeys(KEYS, epoch + 1)


def test_counts_continue_over_3_then_2_then_1_tasks(operator: Any) -> None:
    """SCALE-02."""
    for epoch, parallelism in enumerate([3, 2, 1]):
        operator.restart(parallelism)
        operator.epoch(epoch, KEYS)
        assert operator.counts == dict.fromkeys(KEYS, epoch + 1)


def test_any_parallelism_follows_any_other(counting: ModuleType, tmp_path: Path, backend_name: str) -> None:
    """SCALE-01, SCALE-02, CP-19: whatever it was before, and however long the chains of deltas are."""
    rng = random.Random(7)
    operator = counting.CountingOperator(CheckpointStorage.open(tmp_path), backend_name, 7)
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
            assert elements == split, "each element once, in any task"
            assert unions == [[epoch]] * parallelism
            epoch += 1


def test_union_lists_reach_every_task_of_another_parallelism(counting: ModuleType, tmp_path: Path) -> None:
    """CP-19."""
    operator = counting.CountingOperator(CheckpointStorage.open(tmp_path), "nested-map", 10)
    operator.restart(3)
    operator.epoch(0, KEYS)
    full = operator.folder.read_metadata(0)
    for task in range(5):
        restored = read_operator_state(
            operator.folder.storage, [part.operator_state for part in full.parts], task, 5, restarted=True
        )
        assert OperatorStateBackend(restored).get_state(counting.UNION).get() == [0, 0, 0]


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
