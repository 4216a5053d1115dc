"""A savepoint is taken while its query runs, and of the operators that belong to it."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from keyedstate.checkpoint.protocol.coordinator import CheckpointCoordinator
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.errors import NoSnapshotError, StateFolderOwnedError
from keyedstate.savepoints import Savepoint


def commit(location: Path, epoch: int) -> None:
    """Do what Spark does at the end of a micro-batch."""
    text = "\n".join(["v1", '{"batchWatermarkMs":0}', json.dumps({"offset": epoch})])
    written = {"metadata": json.dumps({"id": "query-1"}), f"offsets/{epoch}": text, f"commits/{epoch}": text}
    for name, content in written.items():
        path = location / name
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.tmp")
        temporary.write_text(content)
        temporary.rename(path)


def test_each_savepoint_of_a_running_query_is_of_one_epoch(
    jobs: ModuleType, local: CheckpointStorage, tmp_path: Path
) -> None:
    """CP-18: clean-up of the query leaves them alone."""
    operators = [jobs.Job(local, uid=uid, parallelism=1) for uid in ("first", "second")]
    coordinators = [CheckpointCoordinator(job.folder) for job in operators]
    first_done, enough = threading.Event(), threading.Event()

    def run() -> None:
        epoch = 0
        while not enough.is_set():
            for job, coordinator in zip(operators, coordinators, strict=True):
                job.epoch("run-1", epoch, coordinator)
            commit(tmp_path / "spark", epoch)
            first_done.set()
            epoch += 1

    query = threading.Thread(target=run)
    query.start()
    try:
        assert first_done.wait(600)
        taken = [Savepoint.create(tmp_path / f"{number}", local, tmp_path / "spark") for number in range(6)]
    finally:
        enough.set()
        query.join()
    for savepoint in taken:
        savepoint.verify()
        assert savepoint.spark is not None and savepoint.operators == ("first", "second")
        for job in operators:
            metadata = savepoint.metadata(job.folder.uid)
            assert metadata.epoch == savepoint.spark.epoch
            reader = jobs.Job(local, uid=job.folder.uid)
            reader.folder.storage = savepoint.storage(job.folder.uid)
            assert reader.read(metadata) == reader.state_of(*range(metadata.epoch + 1))
    assert all(job.files("holds") == [] for job in operators)


def test_operators_of_other_queries_in_the_folder_are_left_out_or_refused(
    jobs: ModuleType, local: CheckpointStorage, tmp_path: Path
) -> None:
    with pytest.raises(NoSnapshotError):
        Savepoint.create(tmp_path / "none", local)
    for uid, query in (("mine", "query-1"), ("others", "query-2")):
        job: Any = jobs.Job(local, uid=uid, query=query)
        job.epoch("run-1", 0, CheckpointCoordinator(job.folder))
    commit(tmp_path / "spark", 0)
    assert Savepoint.create(tmp_path / "one", local, tmp_path / "spark").operators == ("mine",)
    with pytest.raises(StateFolderOwnedError, match="query-2"):
        Savepoint.create(tmp_path / "two", local, tmp_path / "spark", uids=["mine", "others"])
    with pytest.raises(StateFolderOwnedError):
        Savepoint.create(tmp_path / "two", local)
    assert Savepoint.create(tmp_path / "two", local, uids=["others"]).operators == ("others",)
