"""Files of users in checkpoint folders: no clean-up deletes them, even if they are added during one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from keyedstate.checkpoint.protocol.coordinator import CheckpointCoordinator
from keyedstate.checkpoint.savepoint.savepoint import SavepointWriter
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.cli.demo.watch import _prepare
from keyedstate.savepoints import Savepoint
from keyedstate.spark.savepoint.bootstrap import metadata_of


def before_the_first_deletion(monkeypatch: pytest.MonkeyPatch, path: str, act: Callable[[], object]) -> None:
    """Do something when a clean-up has looked into a folder and is about to delete a file in it."""
    delete, done = CheckpointStorage.delete_file, []

    def deleting(storage: CheckpointStorage, name: str) -> None:
        if name.startswith(path) and not done:
            done.append(act())
        delete(storage, name)

    monkeypatch.setattr(CheckpointStorage, "delete_file", deleting)


def test_a_file_that_comes_into_a_checkpoint_while_it_is_deleted_stays(
    job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign = Path(job.folder.location, "chk-0", "notes.txt")
    before_the_first_deletion(monkeypatch, "chk-0/", lambda: foreign.write_text("precious"))
    coordinator = CheckpointCoordinator(job.folder)
    for epoch in range(4):
        job.epoch("run-1", epoch, coordinator)
    assert coordinator.drain(600.0)
    assert foreign.read_text() == "precious"
    assert [path.name for path in foreign.parent.iterdir()] == ["notes.txt"]


def test_a_file_that_comes_into_a_savepoint_while_it_is_deleted_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SavepointWriter(tmp_path / "savepoint") as writer:
        writer.add_spark_file("metadata", b"{}")
        writer.finish()
    foreign = tmp_path / "savepoint" / "spark" / "notes.txt"
    before_the_first_deletion(monkeypatch, "spark/", lambda: foreign.write_text("precious"))
    Savepoint.delete(tmp_path / "savepoint")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [foreign]


def test_a_deleted_savepoint_leaves_no_folder(tmp_path: Path) -> None:
    with SavepointWriter(tmp_path / "savepoint") as writer:
        writer.add_spark_file("offsets/0", b"{}")
        writer.finish()
    assert Savepoint.delete(tmp_path / "savepoint") == ()
    assert list(tmp_path.iterdir()) == []


def test_a_foreign_file_among_the_data_of_a_savepoint_stays(job: Any) -> None:
    words = job.epoch("run-1", 0)
    manifests = [job.folder.read_manifest(word.manifest) for word in words]
    storage = job.folder.storage
    storage.write_atomic("data/notes.txt", b"precious")
    storage.write_atomic("data/of-a-failed-attempt.seg", b"")
    metadata_of(manifests, storage)
    used = [path for manifest in manifests for path in manifest.data_files]
    assert sorted(storage.files("data")) == sorted([*used, "data/notes.txt"])


def test_a_fork_that_fails_deletes_only_what_it_wrote(job: Any, tmp_path: Path) -> None:
    """Another process may have written into the targets since they were found empty."""
    spark = tmp_path / "spark"
    for name in ("metadata", "offsets/0", "commits/0"):
        file = spark / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text('{"id": "query-1"}' if name == "metadata" else 'v1\n{}\n{"offset": 0}')
    job.epoch("run-1", 0, CheckpointCoordinator(job.folder))
    Savepoint.create(tmp_path / "savepoint", Path(job.folder.location).parent, spark)
    targets = tmp_path / "fork" / "spark", tmp_path / "fork" / "state"
    foreign = [targets[0] / "notes.txt", targets[1] / "views" / "data" / "notes.txt"]

    def fail(done: int, total: int) -> None:
        for file in foreign:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("precious")
        raise RuntimeError("in the midst")

    with pytest.raises(RuntimeError, match="in the midst"):
        Savepoint.open(tmp_path / "savepoint").fork(*targets, progress=fail)
    assert sorted(path for path in (tmp_path / "fork").rglob("*") if path.is_file()) == sorted(foreign)


def test_a_second_demo_deletes_only_what_a_demo_makes(tmp_path: Path) -> None:
    _prepare(tmp_path / "work")
    for name in ("flights/0.parquet", "state/aircraft/_owner", "job-1.log", "notes.txt", "photos/1.jpg"):
        file = tmp_path / "work" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
    _prepare(tmp_path / "work")
    names = {path.name for path in (tmp_path / "work").rglob("*") if path.is_file()}
    assert names == {".keyedstate-demo", "notes.txt", "1.jpg"}
