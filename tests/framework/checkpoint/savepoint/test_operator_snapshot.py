"""One address finds the snapshot that a user means, or the error names what exists."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from keyedstate.backend import StateKind, StateMeta
from keyedstate.checkpoint.format.manifest import CheckpointMetadata
from keyedstate.checkpoint.protocol.coordinator import CheckpointCoordinator
from keyedstate.checkpoint.savepoint.location import operators_in
from keyedstate.checkpoint.savepoint.operator_snapshot import OperatorSnapshot
from keyedstate.checkpoint.savepoint.savepoint import SavepointWriter
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.checkpoint.storage.retry import RetryPolicy
from keyedstate.errors import (
    CorruptFileError,
    NoSnapshotError,
    NotASavepointError,
    UnknownEpochError,
    UnknownOperatorError,
    UnknownStateError,
    UnreadableStateError,
)
from keyedstate.types import INT64, STRING, VOID, list_of, nullable, row_of


@pytest.fixture
def checkpointed(job: Any) -> Any:
    """The operator ``views`` after the epochs 0 to 2, all of which are kept."""
    coordinator = CheckpointCoordinator(job.folder, retained=10)
    for epoch in range(3):
        job.epoch("run-1", epoch, coordinator)
    return job


def make_savepoint(folder: Path, metadata: CheckpointMetadata, *uids: str) -> Path:
    """Write a savepoint whose operators share one metadata and have no data."""
    with SavepointWriter(folder) as writer:
        for uid in uids:
            parts = tuple(
                replace(part, identity=replace(part.identity, uid=uid), segments=())
                for part in metadata.parts
            )
            writer.add_operator(replace(metadata, uid=uid, parts=parts))
        writer.finish()
    return folder


def test_a_checkpoint_folder_an_operator_and_one_checkpoint_lead_to_the_same_state(
    checkpointed: Any, tmp_path: Path
) -> None:
    directory = tmp_path / "state"
    found = [
        OperatorSnapshot.open(directory),
        OperatorSnapshot.open(directory, uid="views", epoch=2),
        OperatorSnapshot.open(directory / "views"),
        OperatorSnapshot.open(f"{directory}/views/"),
        OperatorSnapshot.open(directory / "views", uid="views"),
        OperatorSnapshot.open(directory / "views" / "chk-2"),
        OperatorSnapshot.open(directory / "views" / "chk-2", uid="views", epoch=2),
        OperatorSnapshot.open(f"file://{directory}/views/chk-2"),
    ]
    for state in found:
        assert (state.metadata.uid, state.metadata.epoch, state.is_savepoint) == ("views", 2, False)
        assert state.storage.read(state.path) == checkpointed.folder.storage.read("chk-2/_metadata")
        assert state.location == str(directory / "views" / "chk-2")


def test_an_epoch_chooses_an_older_checkpoint(checkpointed: Any, tmp_path: Path) -> None:
    state = OperatorSnapshot.open(tmp_path / "state", epoch=0)
    assert state.metadata == checkpointed.folder.read_metadata(0)
    assert state.path == "chk-0/_metadata"


def test_a_savepoint_and_an_operator_in_it_are_found(checkpointed: Any, tmp_path: Path) -> None:
    metadata = checkpointed.folder.read_metadata(1)
    folder = make_savepoint(tmp_path / "savepoint", metadata, "one", "two")
    for state in (OperatorSnapshot.open(folder, uid="two"), OperatorSnapshot.open(folder / "two")):
        assert (state.metadata.uid, state.metadata.epoch, state.is_savepoint) == ("two", 1, True)
        assert state.location == str(folder / "two")
    with pytest.raises(UnknownOperatorError, match=r"several operators: one, two\. Give the uid"):
        OperatorSnapshot.open(folder)
    with pytest.raises(UnknownOperatorError, match=r"no state of the operator 'thre'"):
        OperatorSnapshot.open(folder, uid="thre")
    with pytest.raises(UnknownEpochError, match="epochs 1:"):
        OperatorSnapshot.open(folder / "one", epoch=2)


def test_an_unfinished_savepoint_and_its_operators_are_refused(checkpointed: Any, tmp_path: Path) -> None:
    folder = make_savepoint(tmp_path / "savepoint", checkpointed.folder.read_metadata(1), "one")
    (folder / "_savepoint").rename(folder / "_unfinished")
    for place in (folder, folder / "one"):
        with pytest.raises(NotASavepointError):
            OperatorSnapshot.open(place)


def test_the_operators_of_a_checkpoint_folder_are_listed(checkpointed: Any, tmp_path: Path) -> None:
    (tmp_path / "state" / "something else").mkdir()
    assert operators_in(CheckpointStorage.open(tmp_path / "state")) == ["views"]


@pytest.mark.parametrize("below", ["", "views", "views/chk-2"])
def test_an_operator_that_is_not_there_is_refused_with_those_that_are(
    checkpointed: Any, tmp_path: Path, below: str
) -> None:
    with pytest.raises(UnknownOperatorError, match=r"'view'. Did you mean 'views'\? It has: views"):
        OperatorSnapshot.open(tmp_path / "state" / below, uid="view")


@pytest.mark.parametrize(("below", "known"), [("", "0, 1, 2"), ("views", "0, 1, 2"), ("views/chk-1", "1")])
def test_an_epoch_that_is_not_there_is_refused_with_those_that_are(
    checkpointed: Any, tmp_path: Path, below: str, known: str
) -> None:
    with pytest.raises(UnknownEpochError, match=f"no checkpoint of epoch 9.* epochs {known}:"):
        OperatorSnapshot.open(tmp_path / "state" / below, epoch=9)


def test_a_folder_without_state_is_refused_with_what_is_in_it(job: Any, tmp_path: Path) -> None:
    with pytest.raises(NoSnapshotError, match=r"it is empty or does not exist\. Give a savepoint"):
        OperatorSnapshot.open(tmp_path / "nowhere")
    (tmp_path / "data" / "part-0").mkdir(parents=True)
    with pytest.raises(NoSnapshotError, match="it has part-0"):
        OperatorSnapshot.open(tmp_path / "data")
    job.task("run-1", 0, 0)
    with pytest.raises(NoSnapshotError, match=r"_owner, .*'views' has no finished checkpoint yet\."):
        OperatorSnapshot.open(tmp_path / "state")


def test_damaged_metadata_is_found_under_every_address(checkpointed: Any, tmp_path: Path) -> None:
    path = tmp_path / "state" / "views" / "chk-2" / "_metadata"
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    for address in ("state", "state/views", "state/views/chk-2"):
        with pytest.raises(CorruptFileError, match="chk-2/_metadata is damaged"):
            OperatorSnapshot.open(tmp_path / address)


def test_the_folder_of_a_snapshot_has_the_retries_of_its_storage(checkpointed: Any, tmp_path: Path) -> None:
    """A lease is written through it, and read again and again where a query runs."""
    patient = replace(CheckpointStorage.open(tmp_path / "state" / "views"), retry=RetryPolicy(retries=17))
    folder = OperatorSnapshot.open(patient).folder
    assert folder is not None and folder.storage.retry.retries == 17


def test_a_state_that_is_not_there_is_refused_with_those_that_are(checkpointed: Any, tmp_path: Path) -> None:
    state = OperatorSnapshot.open(tmp_path / "state")
    assert state.state("epochs").value_serializer == list_of(INT64)
    with pytest.raises(UnknownStateError, match=r"no state 'epoch'. Did you mean 'epochs'\? It has epochs"):
        state.state("epoch")


def test_a_state_that_tasks_know_by_two_types_has_the_one_that_reads_both(
    checkpointed: Any, jobs: ModuleType, tmp_path: Path
) -> None:
    """A task that did not use the state since its type changed keeps it with the old one."""

    def stored(*types: Any) -> OperatorSnapshot:
        metadata = checkpointed.folder.read_metadata(2)
        parts = [
            replace(part, states=(StateMeta("s", StateKind.VALUE, STRING, VOID, kind).to_json(),))
            for part, kind in zip(metadata.parts, types, strict=True)
        ]
        return OperatorSnapshot(
            checkpointed.folder.storage, replace(metadata, parts=tuple(parts)), "chk-2/_metadata"
        )

    assert stored(INT64, nullable(INT64)).state("s").value_serializer == nullable(INT64)
    assert stored(nullable(INT64), INT64).state("s").value_serializer == nullable(INT64)
    narrow, wide = row_of({"a": INT64}), row_of({"a": INT64, "b": nullable(STRING)})
    assert stored(narrow, wide).state("s").value_serializer == wide
    assert stored(wide, narrow).state("s").value_serializer == wide
    with pytest.raises(UnreadableStateError, match=r"'s' .* INT64 and STRING, and none of these reads"):
        stored(INT64, STRING).states()


def test_a_printed_snapshot_is_its_location(checkpointed: Any) -> None:
    location = checkpointed.folder.storage.location()
    expected = f"OperatorSnapshot(storage=CheckpointStorage({location!r}), path='chk-2/_metadata')"
    assert repr(OperatorSnapshot.open(checkpointed.folder.storage)) == expected


def test_a_printed_storage_hides_credentials() -> None:
    storage = CheckpointStorage.open("s3://user:secret@bucket/state?endpoint_override=127.0.0.1:1&region=r")
    assert "secret" not in repr(storage)
    assert "bucket/state" in repr(storage)
