"""``keyedstate savepoint``: create, stop, fork, convert, delete, and what other commands say of one."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from keyedstate.checkpoint.savepoint.savepoint import SavepointFolder
from keyedstate.checkpoint.savepoint.stop_request import StopRequest
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.errors import CorruptFileError, NotASavepointError, NotForkableError, UnknownEpochError


@pytest.fixture
def spark_checkpoint(query: Any, tmp_path: Path) -> Path:
    """What Spark has left of a query of two micro-batches, over a source that keeps no files."""
    folder = tmp_path / "spark"
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True)
    (folder / "metadata").write_text(json.dumps({"id": query.query_id}))
    for epoch in (0, 1):
        (folder / "offsets" / str(epoch)).write_text(f'v1\n{{"batchWatermarkMs":0}}\n{{"rate":{epoch}}}')
        (folder / "commits" / str(epoch)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    return folder


@pytest.fixture
def savepoint(invoke: Any, query: Any, spark_checkpoint: Path, tmp_path: Path) -> Path:
    """A savepoint of the state after epoch 1, with Spark's offsets."""
    place = tmp_path / "savepoint"
    ran = invoke(
        "savepoint",
        "create",
        str(tmp_path / "state"),
        str(place),
        "--spark-checkpoint",
        str(spark_checkpoint),
    )
    assert ran.returncode == 0
    return place


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


# -- create ----------------------------------------------------------------------------------------


def test_a_savepoint_of_a_query_has_its_state_and_its_offsets(invoke, savepoint, query, tmp_path):
    made = SavepointFolder.open(savepoint)
    assert (made.operators, made.spark.query_id, made.spark.epoch) == (("aircraft",), "query-1", 1)
    compared = invoke("checkpoint", "diff", str(savepoint), str(tmp_path / "state"))
    assert compared.returncode == 0
    assert query.folder.leases() == []


def test_without_sparks_location_one_epoch_may_be_asked_for(invoke, query, tmp_path):
    paths = str(tmp_path / "state"), str(tmp_path / "sp")
    ran = invoke("savepoint", "create", *paths, "--epoch", "0", "--uid", "aircraft", "--format", "json")
    document = json.loads(ran.stdout)
    assert document["created"].startswith("20")
    assert {name: document[name] for name in ("location", "operators", "forkable", "epoch", "drained")} == {
        "location": paths[1],
        "operators": ["aircraft"],
        "forkable": False,
        "epoch": None,
        "drained": False,
    }
    assert SavepointFolder.open(paths[1]).metadata("aircraft").epoch == 0
    with pytest.raises(UnknownEpochError):
        invoke("savepoint", "create", paths[0], str(tmp_path / "other"), "--epoch", "7")
    assert not (tmp_path / "other" / "_savepoint").exists()


@pytest.mark.long
def test_a_used_folder_or_missing_state_ends_with_status_2(run, savepoint, tmp_path):
    for paths in ((tmp_path / "state", savepoint), (tmp_path / "nowhere", tmp_path / "new")):
        ran = run("savepoint", "create", *map(str, paths))
        assert (ran.returncode, ran.stdout) == (2, "")
        assert ran.stderr.startswith("keyedstate: ") and ran.stderr.count("\n") == 1


# -- fork ------------------------------------------------------------------------------------------


def test_a_fork_has_everything_that_a_new_query_continues_from(invoke, savepoint, tmp_path):
    places = str(tmp_path / "new/spark"), str(tmp_path / "new/state")
    ran = invoke("savepoint", "fork", str(savepoint), *places, "--format", "json")
    document = json.loads(ran.stdout)
    query_id = document.pop("query_id")
    assert document == {
        "epoch": 1,
        "operators": ["aircraft"],
        "spark_checkpoint": places[0],
        "checkpoint_dir": places[1],
    }
    assert json.loads((tmp_path / "new/spark/metadata").read_text())["id"] == query_id
    assert invoke("checkpoint", "diff", str(savepoint), places[1]).returncode == 0
    listed = invoke("checkpoint", "list", places[1], "--format", "json")
    assert json.loads(listed.stdout)["operators"][0]["owner"]["query_id"] == query_id


def test_a_fork_tells_people_how_to_start_it(invoke, savepoint, tmp_path):
    places = str(tmp_path / "new/spark"), str(tmp_path / "new/state")
    people = invoke("savepoint", "fork", str(savepoint), *places).stdout
    assert f'.option("checkpointLocation", "{places[0]}")' in people
    assert f"--conf spark.keyedstate.checkpoint.dir={places[1]}" in people


def test_what_has_no_offsets_cannot_be_forked(invoke, query, tmp_path):
    invoke("savepoint", "create", str(tmp_path / "state"), str(tmp_path / "sp"))
    with pytest.raises(NotForkableError):
        invoke("savepoint", "fork", str(tmp_path / "sp"), str(tmp_path / "a"), str(tmp_path / "b"))


# -- convert ---------------------------------------------------------------------------------------


def test_a_converted_savepoint_is_the_same_in_other_files(invoke, savepoint, tmp_path, monkeypatch):
    # The key groups are small, which are not compressed otherwise.
    monkeypatch.setattr("keyedstate.checkpoint.format.segment._SMALL_BYTES", 0)
    out = tmp_path / "other"
    ran = invoke("savepoint", "convert", str(savepoint), str(out), "--compression", "lz4", "--format", "json")
    before, after = SavepointFolder.open(savepoint), SavepointFolder.open(out)
    assert json.loads(ran.stdout)["forkable"] is True
    assert (after.spark, after.spark_files()) == (before.spark, before.spark_files())
    assert after.id != before.id and after.data_bytes() != before.data_bytes()
    assert invoke("checkpoint", "diff", str(savepoint), str(out)).returncode == 0
    assert invoke("checkpoint", "verify", str(out)).returncode == 0


def test_one_checkpoint_of_an_operator_becomes_a_savepoint(invoke, query, tmp_path):
    checkpoint, out = str(tmp_path / "state/aircraft/chk-1"), str(tmp_path / "sp")
    assert invoke("savepoint", "convert", checkpoint, out).returncode == 0
    assert SavepointFolder.open(out).spark is None
    assert invoke("checkpoint", "diff", checkpoint, out).returncode == 0
    # The chain of a full snapshot and a delta is one file now.
    shown = json.loads(invoke("checkpoint", "show", out, "--format", "json").stdout)
    assert (shown["deltas"], {file["role"] for part in shown["parts"] for file in part["files"]}) == (
        0,
        {"full snapshot", "operator state"},
    )
    assert query.folder.leases() == []


def test_a_damaged_savepoint_is_not_converted_and_leaves_nothing(invoke, savepoint, tmp_path):
    flipped(savepoint / "spark/offsets/1")
    with pytest.raises(CorruptFileError, match="spark/offsets/1"):
        invoke("savepoint", "convert", str(savepoint), str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_an_unknown_compression_is_wrong_usage(invoke, savepoint, tmp_path):
    ran = invoke("savepoint", "convert", str(savepoint), str(tmp_path / "out"), "--compression", "zip")
    assert (ran.returncode, (tmp_path / "out").exists()) == (2, False)


# -- delete ----------------------------------------------------------------------------------------


def test_a_savepoint_is_deleted_where_it_was_said_so(invoke, savepoint):
    ran = invoke("savepoint", "delete", str(savepoint))
    assert (ran.returncode, savepoint.exists()) == (2, True)
    ran = invoke("savepoint", "delete", str(savepoint), "--yes", "--format", "json")
    assert json.loads(ran.stdout) == {"location": str(savepoint), "left": []}
    assert not savepoint.exists()


def test_files_of_others_stay_and_are_named(invoke, savepoint):
    (savepoint / "notes.txt").write_text("mine")
    assert (
        "Left, since it is not the savepoint's: notes.txt"
        in invoke("savepoint", "delete", str(savepoint), "--yes").stdout
    )
    assert [path.name for path in savepoint.rglob("*") if path.is_file()] == ["notes.txt"]


def test_what_is_no_savepoint_is_not_deleted(invoke, query, tmp_path):
    with pytest.raises(NotASavepointError):
        invoke("savepoint", "delete", str(tmp_path / "state"), "--yes")
    assert query.folder.read_metadata(1) is not None


# -- what the checkpoint commands say of one -------------------------------------------------------


def test_a_savepoint_is_listed_with_what_it_is(invoke, savepoint):
    document = json.loads(invoke("checkpoint", "list", str(savepoint), "--format", "json").stdout)
    assert (document["kind"], document["savepoint"]["query_id"]) == ("savepoint", "query-1")
    assert [one["uid"] for one in document["operators"]] == ["aircraft"]
    people = invoke("checkpoint", "list", str(savepoint)).stdout
    assert "Spark's offsets  epoch 1 of query query-1" in people


@pytest.mark.parametrize("name", ["spark/offsets/1", "aircraft/_metadata"])
def test_every_file_of_a_savepoint_is_verified(invoke, savepoint, name):
    assert invoke("checkpoint", "verify", str(savepoint)).returncode == 0
    flipped(savepoint / name)
    ran = invoke("checkpoint", "verify", str(savepoint), "--format", "json")
    document = json.loads(ran.stdout)
    assert (ran.returncode, document["problems"][0]["path"]) == (1, name)
    (savepoint / name).unlink()
    ran = invoke("checkpoint", "verify", str(savepoint), "--format", "json")
    assert json.loads(ran.stdout)["problems"][0]["problem"] == "missing"


def test_damaged_data_of_a_savepoint_is_named(invoke, savepoint):
    data = next((savepoint / "aircraft/data").iterdir())
    flipped(data)
    ran = invoke("checkpoint", "verify", str(savepoint), "--format", "json")
    (operator,) = json.loads(ran.stdout)["operators"]
    assert (ran.returncode, operator["problems"][0]["path"]) == (1, f"data/{data.name}")
    assert operator["newest_whole_epoch"] is None


def test_an_unfinished_savepoint_is_one_error(run, invoke, savepoint):
    flipped(savepoint / "_savepoint")
    with pytest.raises(CorruptFileError, match="_savepoint is damaged"):
        invoke("checkpoint", "verify", str(savepoint))
    (savepoint / "_savepoint").unlink()
    CheckpointStorage.open(savepoint).write_atomic("_unfinished", b"")
    ran = run("checkpoint", "list", str(savepoint))
    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (2, "", 1)
    assert "did not finish" in ran.stderr


def test_no_command_about_savepoints_imports_spark(query, tmp_path):
    script = (
        "import sys\n"
        "from keyedstate.cli import main\n"
        "sys.modules['pyspark'] = None\n"
        f"sys.argv[1:] = ['savepoint', 'create', {str(tmp_path / 'state')!r}, {str(tmp_path / 'sp')!r}]\n"
        "main()\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")


# -- stop ------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.long
def test_stopping_a_query_that_does_not_run_leaves_no_file(run, query, tmp_path):
    before = query.folder.storage.files()
    ran = run("savepoint", "stop", str(tmp_path / "state"), str(tmp_path / "savepoint"), "--timeout", "1")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "no driver has taken the request within 1 seconds. Check that the query runs" in ran.stderr
    assert query.folder.storage.files() == before
    assert not (tmp_path / "savepoint" / "_savepoint").exists()


def test_why_a_driver_could_not_stop_a_query_is_said(run, query, tmp_path):
    def refuse() -> None:
        while (request := StopRequest.read(query.folder)) is None:
            time.sleep(0.01)
        assert request.is_open and request.drain
        request.answered(query.folder, "failed", "QueryNotStoppedError: it has timers.")

    with ThreadPoolExecutor() as pool:
        driver = pool.submit(refuse)
        ran = run("savepoint", "stop", str(tmp_path / "state"), str(tmp_path / "savepoint"), "--drain")
        driver.result()
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.endswith("was not stopped with a savepoint: QueryNotStoppedError: it has timers.\n")


def test_a_request_is_not_open_after_its_time(query):
    StopRequest.new("/savepoint", drain=False, seconds=-1).write(query.folder)
    request = StopRequest.read(query.folder)
    assert request is not None and not request.is_open
