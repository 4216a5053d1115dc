"""Every file of a checkpoint, damaged in every way: an error names it, or it is not used; no answer is wrong.

The checkpoints are real ones of two partitions: a full snapshot, or RocksDB's own files, and deltas over it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rocksdb_incremental import INCREMENTAL, Job

from keyedstate import types
from keyedstate.checkpoint.format.manifest import TaskIdentity
from keyedstate.checkpoint.protocol.full_snapshots import SnapshotKind
from keyedstate.checkpoint.protocol.recovery import claim, find_restore_point
from keyedstate.errors import KeyedStateError
from keyedstate.state import ListState, ValueState

pytestmark = pytest.mark.slow

COUNTS = ValueState("counts", types.INT64)
SEEN = ListState("seen", types.STRING)
KEYS = range(60)
Damage = Callable[[bytes, bytes], "bytes | None"]


def flipped(place: float) -> Damage:
    def flip(data: bytes, other: bytes) -> bytes:
        if not data:
            return data
        position = min(int(place * len(data)), len(data) - 1)
        return data[:position] + bytes([data[position] ^ 1 << position % 8]) + data[position + 1 :]

    return flip


#: From the content of a file, and that of another one, to what is put in its place; None removes it.
DAMAGES: dict[str, Damage] = {
    **{f"a bit flipped at {place}": flipped(place) for place in (0.0, 0.1, 0.35, 0.5, 0.8, 0.95, 1.0)},
    "the last byte cut off": lambda data, other: data[:-1],
    "half of it cut off": lambda data, other: data[: len(data) // 2],
    "all of it cut off": lambda data, other: b"",
    "garbage behind it": lambda data, other: data + random.Random(1).randbytes(100),
    "a zero behind it": lambda data, other: data + b"\0",
    "garbage of its length": lambda data, other: random.Random(2).randbytes(len(data)),
    "another file in its place": lambda data, other: other,
    "no file": lambda data, other: None,
}

LAYOUTS: dict[str, dict[str, Any]] = {
    "heap-cow": {"backend": "heap-cow", "options": {}},
    "nested-map": {"backend": "nested-map", "options": {}},
    "rocksdb": {"backend": "rocksdb", "options": {}},
    "rocksdb, native": {"backend": "rocksdb", "options": INCREMENTAL},
}


@pytest.fixture(params=LAYOUTS.values(), ids=LAYOUTS)
def job(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Job]:
    """Three published epochs: the full snapshot, and two deltas."""
    job = Job(tmp_path, retained=3, copies=tmp_path / "copies", **request.param)
    job.restart(2)
    for epoch in range(3):

        def change(instance: Any, epoch: int = epoch) -> None:
            for key in range(0, 60, 1 + 2 * epoch):
                try:
                    instance.set_current_key(key)
                except ValueError:  # of the other instance
                    continue
                counts = instance.get_state(COUNTS)
                counts.update((counts.value() or 0) + 10**epoch)
                instance.get_state(SEEN).add(f"epoch {epoch}")

        job.run(change, writing=SnapshotKind.FULL if epoch == 0 else SnapshotKind.DELTA)
    yield job
    job.close()


def restart(job: Job) -> dict[int, Any]:
    """Do what the tasks of the next epoch do: whose folder, which checkpoint, and its state."""
    identity = TaskIdentity("job", "q", "r", job.epoch, 0, 2, 10, 99, "n99")
    claim(job.folder, identity)
    job.point = find_restore_point(job.folder, identity)
    assert job.point is not None
    job.restart(2)
    found: dict[int, Any] = {}
    for instance in job.instances:
        for key in list(instance.get_keys("counts")):
            instance.set_current_key(key)
            assert key not in found
            found[key] = instance.get_state(COUNTS).value(), list(instance.get_state(SEEN).get())
    return found


def each_damage(folder: Path, files: list[Path]) -> Iterator[tuple[str, Path]]:
    """Damage each file in each way, one after the other, and put everything right in between."""
    intact = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for place, path in enumerate(files):
        others = [other for other in files[place + 1 :] + files[:place] if intact[other] != intact[path]]
        data = intact[path]
        for name, damage in DAMAGES.items():
            for other in others[:: max(1, len(others) // 3)] if "another" in name else others[:1]:
                damaged = damage(data, intact[other])
                if damaged == data:
                    continue
                path.unlink()
                if damaged is not None:
                    path.write_bytes(damaged)
                yield f"{path.relative_to(folder)}: {name}", path
                for now in [now for now in folder.rglob("*") if now.is_file() and now not in intact]:
                    now.unlink()
                for there, content in intact.items():
                    there.parent.mkdir(parents=True, exist_ok=True)
                    there.write_bytes(content)


@pytest.mark.slow
def test_a_damaged_file_of_a_checkpoint_is_named_or_not_needed(job: Job, tmp_path: Path) -> None:
    job._copies = None
    folder = Path(job.folder.location)
    intact = restart(job)
    assert len(intact) == 60 and {len(seen) for _, seen in intact.values()} == {1, 2, 3}
    metadata = job.folder.read_metadata(2)
    assert metadata is not None
    # What no other file tells: missing metadata is made again out of the attempts.
    needed = {folder / name for name in metadata.data_files}
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    assert needed <= set(files)
    wrong = []
    for what, path in each_damage(folder, files):
        try:
            found = restart(job)
        except KeyedStateError as error:
            # Of a file that is gone, its folder may be named, and the file in it.
            named = str(path) in str(error) or (path.name in str(error) and str(path.parent) in str(error))
            if not named or "\n" in str(error):
                wrong.append(f"{what}: {error}")
        except Exception as error:
            wrong.append(f"{what}: {type(error).__name__}: {error}")
        else:
            if found != intact:
                wrong.append(f"{what}: another state")
            elif path in needed:
                wrong.append(f"{what}: not seen")
    assert wrong == []
    assert restart(job) == intact


@pytest.mark.long
def test_a_damaged_local_copy_is_not_used(job: Job, tmp_path: Path) -> None:
    intact = restart(job)
    copies = tmp_path / "copies"
    files = sorted(path for path in copies.rglob("*") if path.is_file() and path.stat().st_size)
    assert len(files) >= 4
    wrong = []
    for what, _ in each_damage(copies, files):
        try:
            if restart(job) != intact:
                wrong.append(f"{what}: another state")
        except Exception as error:
            wrong.append(f"{what}: {type(error).__name__}: {error}")
    assert wrong == []
