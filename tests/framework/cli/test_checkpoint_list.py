"""``keyedstate checkpoint list``: what is stored under a path, and what is unfinished there."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from keyedstate.checkpoint.format.json_document import encode_document
from keyedstate.checkpoint.protocol.leases import lease
from keyedstate.errors import CheckpointError, NoSnapshotError, StorageError, UnknownOperatorError


def listed(ran: Any) -> dict[str, dict[str, Any]]:
    """Return the operators of a JSON list by uid."""
    return {operator["uid"]: operator for operator in json.loads(ran.stdout)["operators"]}


@pytest.fixture
def operator(query: Any, invoke: Any, tmp_path: Path) -> Any:
    """Return a function that lists the folder and returns the one operator in it."""
    return lambda: listed(invoke("checkpoint", "list", str(tmp_path / "state"), "--format", "json"))[
        "aircraft"
    ]


def test_every_operator_is_listed_with_its_checkpoints_the_newest_first(invoke, stored, query, tmp_path):
    other = stored.Query(tmp_path / "state", "origins", parallelism=1)
    other.epoch(0)
    ran = invoke("checkpoint", "list", str(tmp_path / "state"), "--format", "json")
    document, operators = json.loads(ran.stdout), listed(ran)
    assert (ran.returncode, document["kind"]) == (0, "folder of operators")
    assert document["path"] == str(tmp_path / "state")
    assert list(operators) == ["aircraft", "origins"]
    aircraft = operators["aircraft"]
    assert aircraft["owner"]["query_id"] == "query-1"
    assert aircraft["newest_epoch"] == 1
    newest, oldest = aircraft["checkpoints"]
    assert newest.pop("published").startswith("20") and newest["bytes"] > newest["bytes_written"]
    size = sum(file.stat().st_size for file in (tmp_path / "state/aircraft/data").iterdir())
    # The operator state of epoch 0 is the one thing that epoch 1 does not need.
    old = sum(file.stat().st_size for file in (tmp_path / "state/aircraft/data").glob("*-e0*.operator.seg"))
    assert newest.pop("bytes") == size - old
    assert newest.pop("bytes_written") > 0
    assert newest == {
        "epoch": 1,
        "status": "complete",
        "problem": "",
        "leased_until": None,
        "run_id": "run-1",
        "parallelism": 2,
        "max_parallelism": 8,
        "backends": ["nested-map 0.1.0"],
        "entries": 160,
        "deltas": 1,
    }
    assert (oldest["epoch"], oldest["deltas"]) == (0, 0)


def test_the_table_has_a_line_for_every_checkpoint(invoke, query, tmp_path):
    lines = invoke("checkpoint", "list", str(tmp_path / "state")).stdout.splitlines()
    assert lines[0] == f"aircraft  {tmp_path}/state/aircraft"
    assert lines[1] == "query query-1, max parallelism 8, 1 run since epoch 0"
    assert lines[2].split()[:3] == ["epoch", "status", "published"]
    assert [line.split()[:2] for line in lines[3:]] == [["1", "complete"], ["0", "complete"]]
    assert lines[3].endswith(" 1") and lines[4].endswith(" 0")


@pytest.mark.parametrize("path", ["state", "state/", "state/aircraft", "state/aircraft/"])
def test_the_folder_of_all_operators_and_that_of_one_may_be_named(invoke, query, tmp_path, path):
    ran = invoke("checkpoint", "list", f"{tmp_path}/{path}", "--format", "json")
    assert [one["epoch"] for one in listed(ran)["aircraft"]["checkpoints"]] == [1, 0]


def test_one_checkpoint_may_be_named(invoke, query, tmp_path):
    ran = invoke("checkpoint", "list", str(tmp_path / "state/aircraft/chk-0"), "--format", "json")
    assert json.loads(ran.stdout)["kind"] == "checkpoint"
    assert [one["epoch"] for one in listed(ran)["aircraft"]["checkpoints"]] == [0]


def test_one_operator_may_be_chosen(invoke, stored, query, tmp_path):
    stored.Query(tmp_path / "state", "origins").epoch(0)
    ran = invoke("checkpoint", "list", str(tmp_path / "state"), "--uid", "origins", "--format", "json")
    assert list(listed(ran)) == ["origins"]
    with pytest.raises(UnknownOperatorError, match=r"'aircrafts'.*aircraft, origins"):
        invoke("checkpoint", "list", str(tmp_path / "state"), "--uid", "aircrafts")


# -- what is unfinished ----------------------------------------------------------------------------


def test_an_epoch_that_runs_is_shown_with_the_partitions_that_finished(operator, query, invoke, tmp_path):
    query.task(2, 0)
    query.folder.write_started(query.identity(2, 1))
    (epoch,) = operator()["unpublished"]
    assert (epoch["epoch"], epoch["left_over"], epoch["run_id"]) == (2, False, "run-1")
    assert (epoch["finished_partitions"], epoch["begun_partitions"]) == ([0], [1])
    # An attempt that has finished has left its marker too.
    assert sorted((one["partition"], one["finished"]) for one in epoch["attempts"]) == [
        (0, False),
        (0, True),
        (1, False),
    ]
    lines = invoke("checkpoint", "list", str(tmp_path / "state")).stdout.splitlines()
    assert [line.split()[:2] for line in lines[3:6]] == [
        ["2", "unpublished"],
        ["1", "complete"],
        ["0", "complete"],
    ]
    assert lines[6] == "epoch 2: 1 partition finished, 1 began and did not finish yet, in run run-1"


def test_a_partition_that_finished_twice_is_named(query, invoke, tmp_path):
    query.task(2, 0)
    query.task(2, 1)
    query.task(2, 1)
    people = invoke("checkpoint", "list", str(tmp_path / "state")).stdout
    assert "2 partitions finished, and finished more than once: 1" in people


def test_attempts_older_than_a_checkpoint_are_listed_as_left_over(operator, query):
    query.epoch(3)
    query.folder.write_started(query.identity(2, 0))
    (epoch,) = operator()["unpublished"]
    assert (epoch["epoch"], epoch["left_over"]) == (2, True)


def test_an_operator_whose_first_epoch_runs_has_no_checkpoint_yet(invoke, stored, tmp_path):
    query = stored.Query(tmp_path / "state")
    query.task(0, 0)
    ran = invoke("checkpoint", "list", str(tmp_path / "state"), "--format", "json")
    operator = listed(ran)["aircraft"]
    assert (ran.returncode, operator["checkpoints"], operator["newest_epoch"]) == (0, [], None)
    assert operator["unpublished"][0]["finished_partitions"] == [0]


def test_a_checkpoint_folder_without_metadata_is_unfinished_and_no_problem(invoke, operator, query, tmp_path):
    (tmp_path / "state/aircraft/chk-7").mkdir()
    assert [one["status"] for one in operator()["checkpoints"]] == ["unfinished", "complete", "complete"]
    assert operator()["newest_epoch"] == 1
    assert invoke("checkpoint", "list", str(tmp_path / "state")).returncode == 0


def test_a_checkpoint_that_a_reader_holds_says_until_when(invoke, operator, query, tmp_path):
    with lease(query.folder, 0, 3600.0):
        newest, oldest = operator()["checkpoints"]
        people = invoke("checkpoint", "list", str(tmp_path / "state")).stdout
    assert newest["leased_until"] is None and oldest["leased_until"] > oldest["published"]
    assert "epoch 0: leased by a reader until 20" in people
    assert [one["leased_until"] for one in operator()["checkpoints"]] == [None, None]


# -- what is wrong ---------------------------------------------------------------------------------


def test_a_damaged_checkpoint_is_listed_with_its_problem_and_status_1(invoke, query, tmp_path):
    metadata = tmp_path / "state/aircraft/chk-1/_metadata"
    data = bytearray(metadata.read_bytes())
    data[100] ^= 1
    metadata.write_bytes(data)
    ran = invoke("checkpoint", "list", str(tmp_path / "state"), "--format", "json")
    newest, oldest = listed(ran)["aircraft"]["checkpoints"]
    assert (ran.returncode, newest["status"], oldest["status"]) == (1, "damaged", "complete")
    assert newest["problem"] and newest["entries"] is None
    assert listed(ran)["aircraft"]["newest_epoch"] == 0
    assert f"epoch 1: {newest['problem']}" in invoke("checkpoint", "list", str(tmp_path / "state")).stdout


def test_a_checkpoint_of_a_newer_keyedstate_is_marked(operator, query, tmp_path):
    metadata = tmp_path / "state/aircraft/chk-1/_metadata"
    body = json.loads(metadata.read_bytes())["body"]
    metadata.write_bytes(encode_document("checkpoint", 99, body))
    newest = operator()["checkpoints"][0]
    assert newest["status"] == "too new"
    assert "format version 99" in newest["problem"] and "Upgrade keyedstate" in newest["problem"]


def test_a_folder_whose_owner_is_gone_or_damaged_has_a_problem(invoke, operator, query, tmp_path):
    owner = tmp_path / "state/aircraft/_owner"
    owner.write_bytes(b"{}")
    assert "damaged" in operator()["problem"]
    owner.unlink()
    assert "_owner is gone" in operator()["problem"]
    ran = invoke("checkpoint", "list", str(tmp_path / "state"))
    assert ran.returncode == 1
    assert "_owner is gone" in ran.stdout


# -- what is not stored state ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (lambda path: None, "it is empty or does not exist"),
        (lambda path: path.mkdir(), "it is empty or does not exist"),
        (lambda path: (path / "photos").mkdir(parents=True), "it has photos"),
        (lambda path: [(path / n).mkdir(parents=True) for n in ("offsets", "commits")], "of a Spark query"),
    ],
    ids=["missing", "empty", "other things", "Spark's"],
)
def test_a_folder_without_state_is_refused_with_its_files_named(invoke, tmp_path, make, found):
    make(tmp_path / "x")
    with pytest.raises(NoSnapshotError, match=found) as raised:
        invoke("checkpoint", "list", str(tmp_path / "x"))
    assert "checkpoint.dir" in str(raised.value)


def test_files_next_to_the_operators_are_ignored(invoke, query, tmp_path):
    (tmp_path / "state/README.txt").write_text("mine")
    (tmp_path / "state/photos").mkdir()
    ran = invoke("checkpoint", "list", str(tmp_path / "state"), "--format", "json")
    assert list(listed(ran)) == ["aircraft"]


@pytest.mark.parametrize("path", ["{}/file", "{}/nowhere"])
def test_an_unreadable_path_ends_with_status_2(run, tmp_path, path):
    (tmp_path / "file").write_text("")
    ran = run("checkpoint", "list", path.format(tmp_path))
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("keyedstate: ") and ran.stderr.count("\n") == 1


def test_credentials_of_a_uri_are_not_printed(invoke):
    with pytest.raises(CheckpointError) as raised:
        invoke("checkpoint", "list", "s4://user:secret@bucket/state?secret_key=hidden")
    assert "secret@" not in str(raised.value) and "hidden" not in str(raised.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_without_permission_is_an_error(invoke, query, tmp_path):
    (tmp_path / "state").chmod(0)
    try:
        with pytest.raises(StorageError, match="Permission denied"):
            invoke("checkpoint", "list", str(tmp_path / "state"))
    finally:
        (tmp_path / "state").chmod(0o700)


def test_a_copy_under_another_name_says_whose_state_it_is(invoke, query, tmp_path):
    shutil.copytree(tmp_path / "state/aircraft", tmp_path / "state/copy")
    ran = invoke("checkpoint", "list", str(tmp_path / "state/copy"), "--format", "json")
    newest = listed(ran)["copy"]["checkpoints"][0]
    assert newest["problem"] == "it is the checkpoint of epoch 1 of 'aircraft'"
