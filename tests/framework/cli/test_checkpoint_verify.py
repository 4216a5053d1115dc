"""``keyedstate checkpoint verify``: every byte is read, and each fault is named with its file."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from keyedstate.checkpoint.format.json_document import encode_document
from keyedstate.checkpoint.reading import inspection
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.errors import StorageError, UnknownEpochError
from keyedstate.types.contract.serializer import SerializerSnapshot


@pytest.fixture
def folder(query: Any, tmp_path: Path) -> Path:
    return tmp_path / "state" / "aircraft"


@pytest.fixture
def verify(invoke: Any, query: Any, tmp_path: Path) -> Any:
    """Return a function that verifies the state: the exit code and the report of the one operator."""

    def verify(*arguments: str) -> tuple[int, dict[str, Any]]:
        ran = invoke("checkpoint", "verify", str(tmp_path / "state"), *arguments, "--format", "json")
        document = json.loads(ran.stdout)
        (operator,) = document["operators"]
        assert document["ok"] is (ran.returncode == 0)
        return ran.returncode, operator

    return verify


def statuses(operator: dict[str, Any]) -> dict[int, str]:
    return {one["epoch"]: one["status"] for one in operator["checkpoints"]}


def data(folder: Path, pattern: str) -> Path:
    (found,) = (folder / "data").glob(pattern)
    return found


def test_whole_state_is_reported_as_such_with_how_much_was_read(verify, invoke, folder, tmp_path):
    code, operator = verify()
    assert (code, statuses(operator), operator["newest_whole_epoch"]) == (0, {1: "whole", 0: "whole"}, 1)
    assert (operator["problems"], operator["orphans"]) == ([], [])
    files = list((folder / "data").iterdir())
    assert (operator["files"], operator["bytes"]) == (len(files), sum(file.stat().st_size for file in files))
    people = invoke("checkpoint", "verify", str(tmp_path / "state"))
    assert people.returncode == 0
    assert people.stdout.splitlines()[-1].endswith("KiB: every byte is right.")
    assert people.stderr == ""


# -- each fault, with its file ---------------------------------------------------------------------


def test_every_flipped_byte_is_found_in_the_file_that_has_it(verify, folder):
    """Three bytes of each file, one after the other, at places that the seed decides."""
    at = random.Random(7)
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    needed = [name for name in names if not name.startswith("attempts/") and name != "_lock"]
    assert len(needed) == 11
    for name in needed:
        for _ in range(3):
            whole = (folder / name).read_bytes()
            damaged = bytearray(whole)
            damaged[at.randrange(len(whole))] ^= 1 << at.randrange(8)
            (folder / name).write_bytes(damaged)
            code, operator = verify()
            assert code == 1, name
            assert [(one["path"], one["problem"]) for one in operator["problems"]] == [(name, "damaged")]
            (folder / name).write_bytes(whole)
    assert verify()[0] == 0


@pytest.mark.parametrize("keep", [0, 10, 60, -1])
def test_a_truncated_file_is_damaged_and_the_other_checkpoint_is_whole(
    verify, invoke, folder, tmp_path, keep
):
    delta = data(folder, "*-e1p1*t[0-9].seg")
    delta.write_bytes(delta.read_bytes()[:keep])
    code, operator = verify()
    assert (code, statuses(operator), operator["newest_whole_epoch"]) == (1, {1: "damaged", 0: "whole"}, 0)
    (problem,) = operator["problems"]
    assert (problem["path"], problem["epochs"], problem["partitions"]) == (f"data/{delta.name}", [1], [1])
    people = invoke("checkpoint", "verify", str(tmp_path / "state")).stdout
    assert f"damaged    data/{delta.name} (epoch 1, partition 1): " in people
    assert "Its newest whole checkpoint is that of epoch 0." in people
    assert people.splitlines()[-1].endswith(": 1 damaged.")


def test_a_full_snapshot_that_is_missing_spoils_every_checkpoint_of_its_chain(
    verify, invoke, folder, tmp_path
):
    full = data(folder, "*-e0p0t[0-9].seg")
    full.unlink()
    code, operator = verify()
    assert (code, statuses(operator)) == (1, {1: "missing", 0: "missing"})
    assert operator["newest_whole_epoch"] is None
    (problem,) = operator["problems"]
    assert (problem["path"], problem["problem"]) == (f"data/{full.name}", "missing")
    assert (problem["epochs"], problem["partitions"]) == ([1, 0], [0])
    people = invoke("checkpoint", "verify", str(tmp_path / "state")).stdout
    assert f"missing    data/{full.name} (epochs 1, 0, partition 0): the file does not exist" in people
    assert "No checkpoint of it is whole." in people


def test_verify_reports_each_damaged_stream_and_reads_all_files(verify, folder):
    full, other = data(folder, "*-e0p0t[0-9].seg"), data(folder, "*-e0p1*.operator.seg")
    content = bytearray(full.read_bytes())
    for place in range(16, len(content) // 2, 40):
        content[place] ^= 255
    full.write_bytes(content)
    other.unlink()
    _, operator = verify()
    details = {one["path"]: one["detail"] for one in operator["problems"]}
    assert details.keys() == {f"data/{full.name}", f"data/{other.name}"}
    assert "does not have its checksum; and " in details[f"data/{full.name}"]


def test_a_file_in_the_place_of_another_is_damaged(verify, folder):
    first, second = data(folder, "*-e0p0t[0-9].seg"), data(folder, "*-e0p1t[0-9].seg")
    first.write_bytes(second.read_bytes())
    assert [one["path"] for one in verify()[1]["problems"]] == [f"data/{first.name}"]


def test_metadata_whose_counts_are_not_those_of_its_files_is_damaged(verify, folder):
    metadata = folder / "chk-0" / "_metadata"
    body = json.loads(metadata.read_bytes())["body"]
    body["parts"][1]["entries"]["flights"] += 1
    metadata.write_bytes(encode_document("checkpoint", 1, body))
    code, operator = verify()
    assert (code, statuses(operator)) == (1, {1: "whole", 0: "damaged"})
    assert "partition 1 claims other numbers of entries" in operator["problems"][0]["detail"]


def test_metadata_of_a_newer_keyedstate_is_no_damage_and_a_problem(verify, folder):
    metadata = folder / "chk-1" / "_metadata"
    metadata.write_bytes(encode_document("checkpoint", 99, json.loads(metadata.read_bytes())["body"]))
    code, operator = verify()
    assert (code, statuses(operator)) == (1, {1: "too new", 0: "whole"})


def test_an_unknown_type_is_unreadable_though_its_bytes_are_right(verify, monkeypatch):
    restore = SerializerSnapshot.restore_serializer

    def without_floats(self: SerializerSnapshot) -> Any:
        if self.type_name == "float64":
            raise ValueError("no floats here")
        return restore(self)

    monkeypatch.setattr(SerializerSnapshot, "restore_serializer", without_floats)
    code, operator = verify()
    assert (code, statuses(operator)) == (1, {1: "unreadable", 0: "unreadable"})
    assert all(one["problem"] == "unreadable" for one in operator["problems"])
    assert "the state 'delay'" in operator["problems"][0]["detail"]


def test_the_owner_of_the_folder_is_read_too(verify, invoke, folder, tmp_path):
    (folder / "_owner").unlink()
    code, operator = verify()
    assert (code, operator["problems"][0]["path"], operator["problems"][0]["problem"]) == (
        1,
        "_owner",
        "missing",
    )


def test_an_epoch_that_is_not_published_yet_is_read_too(verify, query, folder):
    query.epoch(2, publish=False)
    assert verify()[0] == 0
    lost = data(folder, "*-e2p0*t[0-9].seg")
    lost.unlink()
    code, operator = verify()
    assert (code, statuses(operator)) == (1, {1: "whole", 0: "whole"})
    assert [(one["path"], one["epochs"]) for one in operator["problems"]] == [(f"data/{lost.name}", [2])]


# -- what nothing names ----------------------------------------------------------------------------


def test_files_that_nothing_names_are_orphans_with_their_size_and_no_problem(
    verify, invoke, folder, tmp_path
):
    (folder / "data" / "gone-e9p0t9.seg").write_bytes(b"x" * 2048)
    (folder / "data" / f".left.seg.{'0' * 32}.tmp").write_bytes(b"xy")
    code, operator = verify()
    assert code == 0
    assert {one["path"]: one["bytes"] for one in operator["orphans"]} == {
        "data/gone-e9p0t9.seg": 2048,
        f"data/.left.seg.{'0' * 32}.tmp": 2,
    }
    people = invoke("checkpoint", "verify", str(tmp_path / "state")).stdout
    assert "orphan     data/gone-e9p0t9.seg: 2.0 KiB, written 20" in people
    assert people.splitlines()[-1].endswith("every byte is right, 2 orphans of 2.0 KiB.")


def test_what_a_running_attempt_writes_is_no_orphan(verify, query, folder):
    identity = query.identity(2, 0)
    query.folder.write_started(identity)
    (folder / query.folder.data_path(identity)).write_bytes(b"half a segme")
    code, operator = verify()
    assert (code, operator["orphans"]) == (0, [])


def test_where_metadata_is_damaged_no_file_is_called_an_orphan(verify, folder):
    (folder / "chk-1" / "_metadata").write_bytes(b"")
    code, operator = verify()
    assert (code, operator["orphans"]) == (1, None)


# -- which checkpoints -----------------------------------------------------------------------------


def test_the_newest_or_one_epoch_may_be_asked_for(verify, invoke, folder, tmp_path):
    data(folder, "*-e0p0*.operator.seg").unlink()
    assert verify()[0] == 1
    code, operator = verify("--newest")
    assert (code, statuses(operator)) == (0, {1: "whole"})
    code, operator = verify("--epoch", "0")
    assert (code, statuses(operator)) == (1, {0: "missing"})
    ran = invoke("checkpoint", "verify", str(folder / "chk-1"), "--format", "json")
    assert (ran.returncode, statuses(json.loads(ran.stdout)["operators"][0])) == (0, {1: "whole"})


def test_an_epoch_that_is_not_there_is_wrong_usage(run, query, verify, tmp_path):
    with pytest.raises(
        UnknownEpochError, match=r"no checkpoint of epoch 5\. It has those of the epochs 1, 0"
    ):
        verify("--epoch", "5")
    assert run("checkpoint", "verify", str(tmp_path / "state"), "--epoch", "1", "--newest").returncode == 2


def test_an_operator_without_a_checkpoint_is_a_problem(invoke, stored, tmp_path):
    stored.Query(tmp_path / "state").task(0, 0)
    ran = invoke("checkpoint", "verify", str(tmp_path / "state"))
    assert ran.returncode == 1
    assert "It has no checkpoint." in ran.stdout


def test_a_process_of_its_own_ends_with_the_status_and_no_traceback(run, folder, tmp_path):
    data(folder, "*-e0p0t[0-9].seg").write_bytes(b"")
    ran = run("checkpoint", "verify", str(tmp_path / "state"))
    assert (ran.returncode, ran.stderr) == (1, "")


# -- beside a running query ------------------------------------------------------------------------


@pytest.fixture
def busy_query(query: Any, monkeypatch: Any) -> Any:
    """A query that completes three epochs between the moment that a command looks and that it reads."""
    run = inspection.Inspector.run

    def late(self: inspection.Inspector, advance: Any) -> Any:
        for epoch in (2, 3, 4):
            query.epoch(epoch)
        return run(self, advance)

    monkeypatch.setattr(inspection.Inspector, "run", late)
    return query


def test_a_running_query_leaves_what_is_read_and_cleans_it_up_afterwards(verify, busy_query, folder):
    code, operator = verify()
    assert (code, statuses(operator)) == (0, {1: "whole", 0: "whole"})
    assert operator["orphans"] == []
    busy_query.epoch(5)
    assert sorted(path.name for path in folder.glob("chk-*")) == ["chk-4", "chk-5"]
    assert list(folder.glob("holds/*")) == []


def test_a_checkpoint_cleaned_up_on_read_only_storage_is_deleted(verify, busy_query, monkeypatch):
    write = CheckpointStorage.write_atomic

    def refuse_holds(self: CheckpointStorage, path: str, data: bytes, **how: bool) -> None:
        if path.startswith("holds/"):
            raise StorageError(self.location(path), "write", "Read-only file system")
        write(self, path, data, **how)

    monkeypatch.setattr(CheckpointStorage, "write_atomic", refuse_holds)
    code, operator = verify()
    # No file is damaged or missing, and yet nothing that is there was found to be whole.
    assert (operator["problems"], operator["orphans"]) == ([], [])
    assert (code, statuses(operator)) == (1, {1: "deleted", 0: "deleted"})
    assert operator["newest_whole_epoch"] is None


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_unreadable(verify, folder):
    data(folder, "*-e0p0t[0-9].seg").chmod(0)
    code, operator = verify()
    assert (code, operator["problems"][0]["problem"]) == (1, "unreadable")
