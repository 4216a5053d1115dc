"""Local copies of data files: tried first, verified, never trusted over the storage, pruned."""

from __future__ import annotations

import logging
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from keyedstate.checkpoint.protocol import local_copies
from keyedstate.checkpoint.protocol.coordinator import CheckpointCoordinator
from keyedstate.checkpoint.protocol.local_copies import open_with_copies
from keyedstate.checkpoint.protocol.operator_folder import OperatorFolder
from keyedstate.checkpoint.protocol.recovery import claim, find_restore_point
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.errors import StorageError


class Machine:
    """Tasks of one operator that run on one machine, over a storage that notes what it is asked for."""

    def __init__(self, job: Any, handler: Any, folder: Path) -> None:
        self.job = job
        self.remote = job.folder
        self.handler = handler
        self.folder = folder
        self.coordinator = CheckpointCoordinator(job.folder)

    def epoch(self, run: str, epoch: int) -> None:
        """Run an epoch and publish it."""
        for partition in range(self.job.parallelism):
            self.coordinator.acknowledge(self.task(run, epoch, partition))

    def task(self, run: str, epoch: int, partition: int) -> Any:
        identity = self.job.identity(run, epoch, partition)
        claim(self.remote, identity)
        self.remote.write_started(identity)
        restore_point = find_restore_point(self.remote, identity)
        self.handler.calls.clear()
        self.job.folder = open_with_copies(self.folder, self.remote, epoch, restore_point)
        try:
            state = (
                {} if restore_point is None else self.job.read(restore_point, self.job.key_groups(identity))
            )
            return self.job.write_manifest(identity, self.job.write_data(identity, state))
        finally:
            self.job.folder = self.remote

    def read_remotely(self) -> list[str]:
        """Return the data files that the last task has read from the storage."""
        return [path for operation, path in self.handler.calls if operation == "open" and "/data/" in path]

    def copies(self) -> list[Path]:
        """Return all files but marks."""
        files = (path for path in self.folder.rglob("*") if path.is_file())
        return sorted(path for path in files if path.name != ".keyedstate-copies")

    def epochs_seen(self, *epochs: int) -> Any:
        return self.job.state_of(*epochs)


@pytest.fixture
def machine(jobs: ModuleType, unruly_storage: Callable[..., Any], tmp_path: Path) -> Machine:
    unruly = unruly_storage(tmp_path / "remote")
    return Machine(jobs.Job(unruly.storage), unruly.handler, tmp_path / "copies")


def test_a_restore_reads_the_copies_and_nothing_of_the_storage(machine: Machine) -> None:
    """LOC-01, LOC-02, LOC-03: the copies have the bytes of the files."""
    machine.epoch("run-1", 0)
    files = {path.name: path.read_bytes() for path in machine.copies()}
    assert files == {
        Path(path).name: machine.remote.storage.read(path) for path in machine.remote.data_files()
    }
    machine.epoch("run-1", 1)
    assert machine.read_remotely() == []
    assert machine.job.published(1) == machine.epochs_seen(0, 1)


def test_another_machine_reads_the_storage(machine: Machine, tmp_path: Path) -> None:
    """LOC-03: local, then remote."""
    machine.epoch("run-1", 0)
    machine.folder = tmp_path / "other machine"
    machine.epoch("run-1", 1)
    assert len(machine.read_remotely()) == 1
    assert machine.job.published(1) == machine.epochs_seen(0, 1)


def test_copies_serve_a_task_of_another_parallelism(machine: Machine) -> None:
    machine.epoch("run-1", 0)
    machine.job.parallelism = 1
    machine.coordinator = CheckpointCoordinator(machine.remote)
    machine.epoch("run-2", 1)
    assert machine.read_remotely() == []
    assert machine.job.published(1) == machine.epochs_seen(0, 1)


@pytest.mark.parametrize("damage", ["flip", "cut", "longer", "empty", "other"])
def test_a_copy_that_is_not_the_described_file_is_deleted_and_the_storage_read(
    machine: Machine, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """LOC-01, LOC-03: a copy is never trusted over the storage, and the state is right all the same."""
    machine.epoch("run-1", 0)
    first, second = machine.copies()
    data = first.read_bytes()
    first.write_bytes(
        {
            "flip": data[:50] + bytes([data[50] ^ 1]) + data[51:],
            "cut": data[:-1],
            "longer": data + b"\0",
            "empty": b"",
            "other": second.read_bytes(),
        }[damage]
    )
    machine.task("run-1", 1, 0)
    machine.task("run-1", 1, 1)
    assert not first.exists() and second.exists()
    assert f"the local copy {first} is not used, and deleted" in caplog.text
    assert machine.epochs_seen(0) == machine.job.published(0)


@pytest.mark.long
def test_every_flipped_byte_of_a_copy_is_found_before_it_is_used(machine: Machine) -> None:
    machine.epoch("run-1", 0)
    metadata = machine.remote.read_metadata(0)
    assert metadata is not None
    path = metadata.parts[0].segments[0].path
    copy = next(copy for copy in machine.copies() if copy.name == Path(path).name)
    storage = open_with_copies(machine.folder, machine.remote, 1, metadata).storage
    data = copy.read_bytes()
    for place in range(len(data)):
        copy.write_bytes(data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :])
        storage.open_input(path).close()
        assert not copy.exists(), place
    copy.write_bytes(data)
    storage.open_input(path).close()
    assert copy.exists()


def test_a_copy_that_cannot_be_read_in_the_midst_is_left_for_the_file(machine: Machine) -> None:
    """LOC-03: the next alternative on failure, here after a first range was read."""
    machine.epoch("run-1", 0)
    metadata = machine.remote.read_metadata(0)
    assert metadata is not None
    folder = open_with_copies(machine.folder, machine.remote, 1, metadata)
    path = metadata.parts[0].segments[0].path
    source: Any = folder.storage.open_input(path)
    whole = machine.remote.storage.read(path)
    assert bytes(source.read_at(0, 10)) == whole[:10]
    source._source.close()
    source._source._closed = False
    next(copy for copy in machine.copies() if copy.name == Path(path).name).unlink()
    assert bytes(source.read_at(10, 10_000_000)) == whole[10:]
    source.close()


def test_copies_of_earlier_epochs_go_as_soon_as_the_checkpoint_does_not_name_them(machine: Machine) -> None:
    """LOC-01: confirming an epoch removes what is older; the running epoch's are left alone."""
    for epoch in range(4):
        machine.epoch("run-1", epoch)
    names = {path.parent.parent.name for path in machine.copies()}
    assert names == {"epoch-2", "epoch-3"}
    assert len(machine.copies()) == 4
    machine.task("run-1", 4, 0)
    assert {path.parent.parent.name for path in machine.copies()} == {"epoch-3", "epoch-4"}


def test_a_late_task_of_an_older_epoch_deletes_nothing_newer(machine: Machine) -> None:
    for epoch in range(3):
        machine.epoch("run-1", epoch)
    before = machine.copies()
    metadata = machine.remote.read_metadata(1)
    open_with_copies(machine.folder, machine.remote, 1, metadata)
    assert machine.copies() == before


def test_what_failed_attempts_leave_goes_with_their_epoch(machine: Machine) -> None:
    """LOC-01: an aborted epoch's copies go, and no other's."""
    machine.epoch("run-1", 0)
    for _ in range(5):
        machine.task("run-1", 1, 0)
    machine.epoch("run-2", 1)
    machine.epoch("run-2", 2)
    machine.task("run-2", 3, 0)
    assert {path.parent.parent.name for path in machine.copies()} == {"epoch-2", "epoch-3"}


def test_a_copy_that_a_killed_process_was_writing_is_swept(machine: Machine) -> None:
    machine.epoch("run-1", 0)
    mine = open_with_copies(machine.folder, machine.remote, 1, None).storage.open_output("data/mine.seg")
    killed = subprocess.run(
        [sys.executable, "-c", _BEGIN_AND_DIE, machine.folder, machine.remote.storage.uri]
    )
    assert killed.returncode == -signal.SIGKILL
    assert sorted(name.split(".")[0] for name in unfinished(machine)) == ["left", "mine"]
    machine.task("run-1", 1, 0)
    assert [name.split(".")[0] for name in unfinished(machine)] == ["mine"]
    mine.close()
    assert "mine.seg" in [path.name for path in machine.copies()]


_BEGIN_AND_DIE = """
import os, signal, sys
from pathlib import Path
from keyedstate.checkpoint.protocol.local_copies_folder import CopiesFolder
CopiesFolder(Path(sys.argv[1]), sys.argv[2]).create(1, "data/left.seg")
os.kill(os.getpid(), signal.SIGKILL)
"""


def unfinished(machine: Machine) -> list[str]:
    return sorted(path.name for path in machine.copies() if path.suffix == ".tmp")


def test_two_operators_and_two_processes_share_a_folder(
    machine: Machine, jobs: ModuleType, tmp_path: Path
) -> None:
    """Other operators' copies are not touched, and a folder that another process deletes is no error."""
    other = Machine(jobs.Job(machine.job.folder.storage.child("other")), machine.handler, machine.folder)
    machine.epoch("run-1", 0)
    other.epoch("run-1", 0)
    machine.epoch("run-1", 1)
    machine.epoch("run-1", 2)
    other.task("run-1", 1, 0)
    assert other.read_remotely() == []
    identity = machine.job.identity("run-1", 3, 0)
    # Without this mark the clean-up of earlier epochs deletes the file: no checkpoint references it.
    machine.remote.write_started(identity)
    folder = open_with_copies(machine.folder, machine.remote, 3, None)
    output = folder.storage.open_output(f"data/{identity.nonce}.seg")
    for path in machine.copies():
        path.unlink()
    output.write(b"1")
    output.close()
    assert machine.remote.storage.read(f"data/{identity.nonce}.seg") == b"1"


@pytest.mark.parametrize("trouble", ["a file in the way", "not writable", "disk full"])
def test_a_copy_that_fails_does_not_fail_the_checkpoint(
    machine: Machine, trouble: str, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    """LOC-02: the second stream's failure only loses the local copy."""
    if trouble == "a file in the way":
        machine.folder.write_bytes(b"")
    elif trouble == "not writable":
        machine.folder = Path("/proc/keyedstate")
    else:
        machine.folder = request.getfixturevalue("full_disk_folder")
    with caplog.at_level(logging.WARNING):
        machine.epoch("run-1", 0)
        machine.epoch("run-1", 1)
    assert machine.job.published(1) == machine.epochs_seen(0, 1)
    assert "is abandoned" in caplog.text
    assert not [path for path in machine.copies() if path.suffix in (".seg", ".tmp")]


def test_a_file_that_fails_leaves_no_copy(machine: Machine) -> None:
    """LOC-02: the first stream's failure fails all."""
    folder = open_with_copies(machine.folder, machine.remote, 0, None)
    output = folder.storage.open_output("data/one.seg")
    output.write(b"1")
    machine.handler.fail("close", [OSError(28, "No space left on device")])
    with pytest.raises(StorageError):
        output.close()
    output.abort()
    assert machine.copies() == []
    assert machine.remote.data_files() == []
    finished = folder.storage.open_output("data/two.seg")
    finished.close()
    assert [path.name for path in machine.copies()] == ["two.seg"]
    finished.abort()
    assert machine.copies() == []


def test_files_that_no_manifest_describes_are_read_from_the_storage(machine: Machine) -> None:
    """LOC-01: without a description there is nothing to compare a copy with."""
    folder = open_with_copies(machine.folder, machine.remote, 0, None)
    output = folder.storage.open_output("data/one.seg")
    output.write(b"remote")
    output.close()
    machine.copies()[0].write_bytes(b"local!")
    source = folder.storage.open_input("data/one.seg")
    assert bytes(source.read_at(0, 10)) == b"remote"


# -- what is deleted, and what is not ------------------------------------------------------------


def age(folder: Path, *, files: bool = True) -> None:
    """Let a folder and what is in it be of the year 2001."""
    for path in [folder, *folder.rglob("*")]:
        if files or path.is_dir():
            os.utime(path, (1_000_000_000, 1_000_000_000), follow_symlinks=False)


def own_folder(machine: Machine) -> Path:
    [folder] = machine.folder.glob("keyedstate-copies-*")
    return folder


def sweep(machine: Machine) -> None:
    """Let a process that has not looked yet work for another operator below the same base."""
    local_copies._sweep_once.cache_clear()
    open_with_copies(machine.folder, OperatorFolder(machine.remote.storage, "other"), 0, None)


def test_copies_of_operators_that_ended_long_ago_are_swept(machine: Machine) -> None:
    machine.epoch("run-1", 0)
    age(own_folder(machine))
    sweep(machine)
    assert list(machine.folder.iterdir()) == []


def test_new_files_keep_copies_whose_folders_are_old(machine: Machine) -> None:
    machine.epoch("run-1", 0)
    folder = own_folder(machine)
    age(folder)
    copy = next(copy for copy in machine.copies() if copy.suffix == ".seg")
    os.utime(copy)
    sweep(machine)
    assert copy.exists()


@pytest.mark.parametrize("name", ["photos", "0123456789abcdef" * 2, "epoch-3", "keyedstate"])
def test_a_folder_of_another_name_is_never_deleted(machine: Machine, name: str) -> None:
    machine.epoch("run-1", 0)
    foreign = machine.folder / name / "epoch-0" / "data" / "one.seg"
    foreign.parent.mkdir(parents=True)
    foreign.write_bytes(b"precious")
    age(machine.folder / name)
    sweep(machine)
    machine.epoch("run-1", 1)
    assert foreign.read_bytes() == b"precious"


@pytest.mark.parametrize("lacking", ["mark", "owner", "privacy"])
def test_a_folder_that_only_has_our_name_is_never_deleted(machine: Machine, lacking: str) -> None:
    machine.epoch("run-1", 0)
    folder = own_folder(machine)
    if lacking == "mark":
        (folder / ".keyedstate-copies").unlink()
    elif lacking == "privacy":
        folder.chmod(0o755)
    elif os.getuid() != 0:
        pytest.skip("only root can give a folder to another user")
    else:
        os.chown(folder, 65534, 65534)
    age(folder)
    before = machine.copies()
    sweep(machine)
    assert machine.copies() == before


@pytest.mark.parametrize("place", ["notes.txt", "epoch-0/notes.txt", "epoch-0/data/notes.txt"])
def test_a_foreign_file_among_copies_is_never_deleted(machine: Machine, place: str) -> None:
    machine.epoch("run-1", 0)
    foreign = own_folder(machine) / place
    foreign.write_bytes(b"precious")
    for epoch in range(1, 4):
        machine.epoch("run-1", epoch)
    age(own_folder(machine))
    sweep(machine)
    assert [path for path in machine.copies() if path.suffix == ".seg"] == []
    assert foreign.read_bytes() == b"precious"


def test_a_link_to_another_folder_is_not_followed(machine: Machine, tmp_path: Path) -> None:
    outside = tmp_path / "outside" / "data" / "one.seg"
    outside.parent.mkdir(parents=True)
    outside.write_bytes(b"precious")
    machine.epoch("run-1", 0)
    (own_folder(machine) / "epoch-0").rename(machine.folder / "moved")
    (own_folder(machine) / "epoch-0").symlink_to(outside.parent.parent)
    for epoch in range(1, 4):
        machine.epoch("run-1", epoch)
    age(own_folder(machine))
    sweep(machine)
    assert outside.read_bytes() == b"precious"


def test_copies_are_not_put_into_a_folder_of_another_user(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can give a folder to another user")
    machine.epoch("run-1", 0)
    folder = own_folder(machine)
    os.chown(folder, 65534, 65534)
    before = machine.copies()
    machine.epoch("run-1", 1)
    assert machine.copies() == before
    assert machine.job.published(1) == machine.epochs_seen(0, 1)
    assert "the folder is another user's" in caplog.text


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_copies_are_private_whatever_the_umask(machine: Machine, umask: int) -> None:
    before = os.umask(umask)
    try:
        machine.epoch("run-1", 0)
    finally:
        os.umask(before)
    modes = {path.is_dir(): stat.S_IMODE(path.stat().st_mode) for path in machine.folder.rglob("*")}
    assert modes == {True: 0o700, False: 0o600}
    assert stat.S_IMODE(machine.folder.stat().st_mode) == 0o700


def test_the_storage_of_another_folder_has_no_copies(machine: Machine) -> None:
    folder = open_with_copies(machine.folder, machine.remote, 0, None)
    assert type(folder.storage.child("data")) is CheckpointStorage
    folder.storage.child("data").open_output("one.seg").close()
    assert machine.copies() == []
