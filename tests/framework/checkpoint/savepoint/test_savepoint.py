"""The format of savepoints: published by one write, self-contained, movable, and checked byte by byte."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from keyedstate.checkpoint.format.json_document import encode_document
from keyedstate.checkpoint.protocol.coordinator import CheckpointCoordinator
from keyedstate.checkpoint.savepoint.canonical import write_canonical
from keyedstate.checkpoint.savepoint.savepoint import SavepointFolder, SavepointWriter, SparkPosition
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.errors import (
    CorruptFileError,
    FormatVersionError,
    MissingFileError,
    NotASavepointError,
    SavepointTakenOverError,
    StorageError,
    TargetExistsError,
    UnknownOperatorError,
    UnsafeNameError,
)


@pytest.fixture
def place(storage: CheckpointStorage) -> CheckpointStorage:
    """Where a savepoint may be written, in each kind of storage."""
    return storage.child("savepoints", "one")


@pytest.fixture
def done(job: Any) -> Any:
    """An operator with a checkpoint of the epoch 3."""
    coordinator = CheckpointCoordinator(job.folder)
    for epoch in range(4):
        job.epoch("run-1", epoch, coordinator)
    return job


def fill(writer: SavepointWriter, job: Any) -> None:
    metadata = job.folder.read_metadata(3)
    writer.add_operator(write_canonical(metadata, job.folder.storage, writer.storage(job.folder.uid)))
    writer.add_spark_file("offsets/3", b"v1\n{}\n-")
    writer.add_spark_file("sources/0/3", b"v1")


def write(place: Any, job: Any) -> SavepointFolder:
    with SavepointWriter(place) as writer:
        fill(writer, job)
        return writer.finish(spark=SparkPosition("query-1", 3), drained=True, watermark=7, created_ms=5)


def state_in(savepoint: SavepointFolder, job: Any) -> Any:
    metadata = savepoint.metadata("views")
    reader = job.folder
    reader.storage = savepoint.storage("views")
    return job.read(metadata)


def test_a_savepoint_describes_itself_and_has_the_state(place: CheckpointStorage, done: Any) -> None:
    written = write(place, done)
    savepoint = SavepointFolder.open(place)
    assert savepoint == written
    assert savepoint.operators == ("views",) and savepoint.created_ms == 5
    assert savepoint.spark == SparkPosition("query-1", 3)
    assert savepoint.drained and savepoint.watermark == 7
    assert savepoint.spark_files() == ("offsets/3", "sources/0/3")
    assert savepoint.read_spark_file("sources/0/3") == b"v1"
    assert sorted(place.list()) == ["_savepoint", "spark", "views"]
    savepoint.verify()
    assert state_in(savepoint, done) == done.state_of(0, 1, 2, 3)


def test_a_savepoint_may_be_moved_and_copied_to_another_storage(
    done: Any, tmp_path: Path, storage: CheckpointStorage
) -> None:
    write(tmp_path / "first", done)
    (tmp_path / "first").rename(tmp_path / "second")
    shutil.rmtree(tmp_path / "state" / "views")
    moved = SavepointFolder.open(tmp_path / "second")
    moved.verify()
    copy = storage.child("copy")
    for path in moved.root.files():
        copy.write_atomic(path, moved.root.read(path))
    copied = SavepointFolder.open(copy)
    copied.verify()
    assert copied.id == moved.id
    assert state_in(copied, done) == done.state_of(0, 1, 2, 3)


def test_a_folder_is_no_savepoint_until_it_is_finished(place: CheckpointStorage, done: Any) -> None:
    with pytest.raises(NotASavepointError, match="it is empty or does not exist"):
        SavepointFolder.open(place)
    writer = SavepointWriter(place)
    fill(writer, done)
    with pytest.raises(NotASavepointError, match="did not finish"):
        SavepointFolder.open(place)
    writer.finish()
    assert SavepointFolder.open(place).spark is None


def test_what_a_killed_writer_has_left_is_written_over(place: CheckpointStorage, done: Any) -> None:
    fill(SavepointWriter(place), done)
    left = set(place.files())
    savepoint = write(place, done)
    savepoint.verify()
    data = {path for path in left if path.endswith(".seg")}
    assert data and not data & set(place.files()), "nothing of the killed one stays"


def test_a_publication_that_is_given_up_is_never_a_savepoint_without_its_files(
    place: CheckpointStorage, done: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file was written, only the answer was lost; and then the clean-up is killed."""
    writer = SavepointWriter(place)
    fill(writer, done)
    place.write_atomic("Another/_metadata", b"of an operator whose name comes before the file's")
    write_atomic, delete_file = CheckpointStorage.write_atomic, CheckpointStorage.delete_file
    deleted: list[str] = []

    def lose_answer(storage: CheckpointStorage, path: str, data: bytes) -> None:
        write_atomic(storage, path, data)
        raise StorageError(path, "write", "the connection broke")

    def be_killed(storage: CheckpointStorage, path: str) -> None:
        if deleted:
            raise KeyboardInterrupt
        deleted.append(path)
        delete_file(storage, path)

    monkeypatch.setattr(CheckpointStorage, "write_atomic", lose_answer)
    with pytest.raises(StorageError):
        writer.finish()
    assert place.exists("_savepoint")
    monkeypatch.setattr(CheckpointStorage, "delete_file", be_killed)
    with pytest.raises(KeyboardInterrupt):
        writer.abort()
    assert deleted == ["_savepoint"] and place.exists("_unfinished")
    monkeypatch.undo()
    write(place, done).verify()


def test_a_failed_writer_leaves_nothing(place: CheckpointStorage, done: Any) -> None:
    def creation() -> Iterator[None]:
        with SavepointWriter(place) as writer:
            fill(writer, done)
            yield
            raise KeyError("the disk")

    with pytest.raises(KeyError, match="the disk"):
        list(creation())
    assert place.files() == []
    with SavepointWriter(place) as writer:
        fill(writer, done)
    assert place.files() == [], "a block that ends without finish() has made no savepoint"


@pytest.mark.parametrize("foreign", ["notes.txt", "views/notes.txt", "spark/offsets/x", "_savepoint"])
def test_nothing_is_written_over_what_is_not_ours(place: CheckpointStorage, foreign: str) -> None:
    place.write_atomic(foreign, b"mine")
    for unfinished in (False, True):
        if unfinished:
            place.write_atomic("_unfinished", b"")
        with pytest.raises(TargetExistsError, match=foreign) as caught:
            SavepointWriter(place)
        assert foreign in caught.value.found
        assert place.read(foreign) == b"mine"


def test_a_savepoint_is_never_written_over(place: CheckpointStorage, done: Any) -> None:
    write(place, done)
    before = {path: place.read(path) for path in place.files()}
    with pytest.raises(TargetExistsError, match=r"it has .* already"):
        SavepointWriter(place)
    # Killed after it was published: the mark is still there.
    place.write_atomic("_unfinished", b"")
    with pytest.raises(TargetExistsError, match="_savepoint"):
        SavepointWriter(place)
    place.delete_file("_unfinished")
    assert {path: place.read(path) for path in place.files()} == before


def test_of_two_writers_in_one_folder_the_later_one_wins(place: CheckpointStorage, done: Any) -> None:
    first = SavepointWriter(place)
    fill(first, done)
    second = SavepointWriter(place)
    fill(second, done)
    with pytest.raises(SavepointTakenOverError, match="another one was begun"):
        first.finish()
    first.abort()
    savepoint = second.finish()
    savepoint.verify()
    assert SavepointFolder.open(place).id == second.id


def test_a_changed_byte_anywhere_is_found_and_named(done: Any, tmp_path: Path) -> None:
    savepoint = write(tmp_path / "savepoint", done)
    files = savepoint.root.files()
    assert len(files) == 6
    for path in files:
        intact = savepoint.root.read(path)
        # Segment files and documents are flipped byte by byte in their own tests.
        for position in range(0, len(intact), 1 if path == "_savepoint" else 23):
            damaged = bytearray(intact)
            damaged[position] ^= 1 << (position % 8)
            Path(savepoint.root.root, path).write_bytes(damaged)
            with pytest.raises((CorruptFileError, FormatVersionError)) as caught:
                SavepointFolder.open(savepoint.root).verify()
            assert path in str(caught.value)
        Path(savepoint.root.root, path).write_bytes(intact)
    savepoint.verify()


def test_a_printed_savepoint_is_one_line(done: Any, tmp_path: Path) -> None:
    savepoint = write(tmp_path / "savepoint", done)
    position = savepoint.spark
    assert position is not None
    place = tmp_path / "savepoint"
    expected = f"savepoint {place} of views, epoch {position.epoch} of query {position.query_id}, drained"
    assert str(savepoint) == expected
    assert f"root=CheckpointStorage('{place}')" in repr(savepoint)
    assert "_digests" not in repr(savepoint)


def test_a_missing_or_exchanged_file_is_found(place: CheckpointStorage, done: Any) -> None:
    savepoint = write(place, done)
    other = write(place.child("other"), done)
    for path in ("views/_metadata", "spark/offsets/3"):
        intact = place.read(path)
        place.delete_file(path)
        with pytest.raises(MissingFileError, match=path):
            savepoint.verify()
        place.write_atomic(path, other.root.read("views/_metadata") if "views" in path else b"v2")
        with pytest.raises(CorruptFileError, match="not the file that _savepoint was written for"):
            savepoint.verify()
        place.write_atomic(path, intact)
    savepoint.verify()


def test_a_future_version_is_refused_by_its_number(place: CheckpointStorage) -> None:
    place.write_atomic("_savepoint", encode_document("savepoint", 2, {"anything": "else"}))
    with pytest.raises(FormatVersionError, match="has the format version 2"):
        SavepointFolder.open(place)
    place.write_atomic("_savepoint", encode_document("savepoint", 1, {"anything": "else"}))
    with pytest.raises(CorruptFileError, match="malformed"):
        SavepointFolder.open(place)
    place.write_atomic("_savepoint", encode_document("checkpoint", 1, {}))
    with pytest.raises(CorruptFileError, match="of the kind 'checkpoint'"):
        SavepointFolder.open(place)


def test_an_operator_that_is_not_in_it_is_refused_with_those_that_are(
    place: CheckpointStorage, done: Any
) -> None:
    savepoint = write(place, done)
    with pytest.raises(UnknownOperatorError, match=r"view.*It has: views"):
        savepoint.metadata("view")


def test_a_writer_refuses_metadata_that_its_files_do_not_bear_out(
    place: CheckpointStorage, done: Any
) -> None:
    metadata = done.folder.read_metadata(3)
    writer = SavepointWriter(place)
    with pytest.raises(ValueError, match="is not in the savepoint"):
        writer.add_operator(metadata)
    whole = write_canonical(metadata, done.folder.storage, writer.storage("views"))
    chained = replace(whole.parts[0], deltas=whole.parts[0].segments)
    with pytest.raises(ValueError, match="not a whole one"):
        writer.add_operator(replace(whole, parts=(chained, *whole.parts[1:])))
    writer.add_operator(whole)
    with pytest.raises(ValueError, match="already"):
        writer.add_operator(whole)
    with pytest.raises(ValueError, match="none of the files of Spark"):
        writer.add_spark_file("state/0", b"")
    with pytest.raises(UnsafeNameError, match="another name"):
        writer.storage("_savepoint")


def test_an_operator_may_have_the_name_of_sparks_folder(
    jobs: ModuleType, tmp_path: Path, place: CheckpointStorage
) -> None:
    job = jobs.Job(CheckpointStorage.open(tmp_path / "state"), uid="spark")
    coordinator = CheckpointCoordinator(job.folder)
    for epoch in range(4):
        job.epoch("run-1", epoch, coordinator)
    savepoint = write(place, job)
    savepoint.verify()
    assert savepoint.operators == ("spark",)
    assert savepoint.spark_files() == ("offsets/3", "sources/0/3")


def test_deletion_leaves_an_operator_alone_that_has_its_checkpoints_in_the_same_folder(
    place: CheckpointStorage, done: Any
) -> None:
    """A `checkpoint.dir` that is a savepoint's folder is a mistake, and not one to pay for with state."""
    write(place, done)
    place.write_atomic("live/_owner", b"a query's")
    place.write_atomic("live/data/n1.seg", b"its state")
    assert SavepointFolder.delete(place) == ("live/_owner", "live/data/n1.seg")
    assert place.files() == ["live/_owner", "live/data/n1.seg"]


def test_deletion_takes_a_savepoint_and_nothing_else(place: CheckpointStorage, done: Any) -> None:
    """CP-18: a savepoint goes only when somebody says so."""
    write(place, done)
    place.write_atomic("views/notes.txt", b"mine")
    assert SavepointFolder.delete(place) == ("views/notes.txt",)
    assert place.files() == ["views/notes.txt"]
    with pytest.raises(NotASavepointError, match=r"it holds .*views"):
        SavepointFolder.delete(place)
    other = place.child("other")
    write(other, done)
    assert SavepointFolder.delete(other) == ()
    assert "other" not in place.list()


def test_a_killed_deletion_leaves_what_can_be_deleted_or_written_over(
    place: CheckpointStorage, done: Any
) -> None:
    write(place, done)
    files = place.files()
    # Killed after the mark, after `_savepoint`, and after any of the other files.
    place.write_atomic("_unfinished", b"")
    SavepointFolder.open(place).verify()
    for path in files:
        place.delete_file(path)
        with pytest.raises(NotASavepointError, match="did not finish"):
            SavepointFolder.open(place)
        if path == files[2]:
            break
    assert SavepointFolder.delete(place) == () and place.files() == []
    write(place, done).verify()


def test_no_checkpoint_folder_is_taken_for_a_savepoint(done: Any) -> None:
    with pytest.raises(NotASavepointError, match=r"holds .*chk-3"):
        SavepointFolder.open(done.folder.storage)
    with pytest.raises(NotASavepointError):
        SavepointFolder.delete(done.folder.storage)
    with pytest.raises(TargetExistsError):
        SavepointWriter(done.folder.storage)
    assert done.published(3) == done.state_of(0, 1, 2, 3)
