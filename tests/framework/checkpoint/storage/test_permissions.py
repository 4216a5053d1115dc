"""Who may read and lock what is on a local disk, whatever the umask is."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from keyedstate.checkpoint.protocol.coordinator import CheckpointCoordinator
from keyedstate.checkpoint.protocol.leases import lease
from keyedstate.checkpoint.protocol.owner import exclusive
from keyedstate.checkpoint.savepoint.savepoint import SavepointWriter
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.errors import StorageError
from keyedstate.options import Configuration

NOBODY = 65534
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def modes(folder: Path) -> dict[str, set[int]]:
    """Return the modes of the folders and of the files in a folder, itself included."""
    found: dict[str, set[int]] = {"folders": set(), "files": set()}
    for path in [folder, *folder.rglob("*")]:
        found["folders" if path.is_dir() else "files"].add(stat.S_IMODE(path.stat().st_mode))
    return found


@pytest.fixture
def job_of(jobs: ModuleType, tmp_path: Path) -> Callable[[str], Any]:
    """Makes the job of a query whose option ``checkpoint.permissions`` has a value."""

    def make(permissions: str) -> Any:
        config = Configuration({"checkpoint.permissions": permissions})
        return jobs.Job(CheckpointStorage.open(tmp_path / "new" / "state", config))

    return make


def run(job: Any) -> None:
    """Let a query publish checkpoints, a reader have one, and a clean-up run."""
    coordinator = CheckpointCoordinator(job.folder)
    for epoch in range(3):
        job.epoch("run-1", epoch, coordinator)
    lease(job.folder, 2, 600.0)


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077, 0o117])
@pytest.mark.parametrize(("value", "folders", "files"), [("owner", 0o700, 0o600), ("group", 0o770, 0o660)])
def test_a_checkpoint_has_the_modes_of_its_option(
    job_of: Callable[[str], Any], tmp_path: Path, mask: int, value: str, folders: int, files: int
) -> None:
    with umask(mask):
        run(job_of(value))
    assert modes(tmp_path / "new") == {"folders": {folders}, "files": {files}}


@pytest.mark.parametrize(("mask", "lock"), [(0o000, 0o666), (0o002, 0o660), (0o022, 0o600), (0o077, 0o600)])
def test_a_checkpoint_may_have_the_modes_of_the_umask(
    job_of: Callable[[str], Any], tmp_path: Path, mask: int, lock: int
) -> None:
    with umask(mask):
        job = job_of("umask")
        run(job)
    file = Path(job.folder.location, "_lock")
    # Who may write may lock; who may only read may not.
    assert stat.S_IMODE(file.stat().st_mode) == lock
    file.unlink()
    assert modes(tmp_path / "new") == {"folders": {0o777 & ~mask}, "files": {0o666 & ~mask}}


def test_checkpoints_are_private_by_default(jobs: ModuleType, tmp_path: Path) -> None:
    with umask(0o000):
        run(jobs.Job(CheckpointStorage.open(tmp_path / "new")))
    assert modes(tmp_path / "new") == {"folders": {0o700}, "files": {0o600}}


@pytest.mark.parametrize("mask", [0o000, 0o077])
def test_savepoints_have_the_modes_of_the_option(tmp_path: Path, mask: int) -> None:
    config = Configuration({"checkpoint.permissions": "group"})
    with umask(mask), SavepointWriter(CheckpointStorage.open(tmp_path / "new" / "one", config)) as writer:
        writer.add_spark_file("metadata", b"{}")
        writer.finish()
    assert modes(tmp_path / "new") == {"folders": {0o770}, "files": {0o660}}


def test_a_folder_of_the_user_keeps_its_mode(jobs: ModuleType, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    run(jobs.Job(CheckpointStorage.open(tmp_path)))
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755
    assert modes(tmp_path / "views") == {"folders": {0o700}, "files": {0o600}}


def test_new_folders_pass_the_group_of_their_parent_on(jobs: ModuleType, tmp_path: Path) -> None:
    tmp_path.chmod(0o2770)
    config = Configuration({"checkpoint.permissions": "group"})
    with umask(0o077):
        run(jobs.Job(CheckpointStorage.open(tmp_path, config)))
    assert modes(tmp_path)["folders"] == {0o2770}


@as_root
def test_a_lease_of_another_user_does_not_stop_the_clean_up(job_of: Callable[[str], Any]) -> None:
    """The reader has options of its own, and the query must be able to read its lease."""
    job = job_of("group")
    run(job)
    os.chown(job.folder.storage.root, NOBODY, NOBODY)
    held = lease(
        type(job.folder)(CheckpointStorage.open(Path(job.folder.location).parent), "views"), 2, 600.0
    )
    assert held.protects
    assert modes(Path(job.folder.location, "holds")) == {"folders": {0o770}, "files": {0o660}}


# -- the lock --------------------------------------------------------------------------------------


def as_nobody(action: Callable[[], None]) -> str:
    """Run an action as another user in a process of its own; returns what it raised."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            action()
        except BaseException as error:
            os.write(write, f"{type(error).__name__}: {error}".encode())
        os._exit(0)
    os.close(write)
    with open(read) as raised:
        said = raised.read()
    os.waitpid(child, 0)
    return said


@as_root
@pytest.mark.parametrize("value", ["owner", "group", "umask"])
def test_a_reader_cannot_lock_the_folder(job_of: Callable[[str], Any], tmp_path: Path, value: str) -> None:
    with umask(0o022):
        job = job_of(value)
        run(job)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.getuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o011)
    if value == "umask":
        assert as_nobody(lambda: os.close(os.open(f"{job.folder.location}/_owner", os.O_RDONLY))) == ""
    said = as_nobody(lambda: os.close(os.open(f"{job.folder.location}/_lock", os.O_RDONLY)))
    assert said.startswith("PermissionError")


def test_a_lock_that_readers_could_open_is_closed_to_them(job_of: Callable[[str], Any]) -> None:
    job = job_of("owner")
    run(job)
    file = Path(job.folder.location, "_lock")
    file.chmod(0o644)
    with exclusive(job.folder):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


@as_root
def test_a_lock_of_another_user_is_an_error_that_names_the_user(
    job_of: Callable[[str], Any], tmp_path: Path
) -> None:
    job = job_of("umask")
    run(job)
    file = Path(job.folder.location, "_lock")
    for folder in (file.parent, *file.parents):
        if folder.stat().st_uid == os.getuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o011)

    def enter() -> None:
        with exclusive(job.folder):
            pass

    file.chmod(0o600)
    said = as_nobody(enter)
    assert said.startswith("StorageError: cannot lock") and "it belongs to the user 'root'" in said
    assert "'checkpoint.permissions' to 'group'" in said


def _link(file: Path) -> None:
    file.symlink_to("/dev/null")


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, _link], ids=["pipe", "folder", "link"])
def test_what_is_no_file_in_the_place_of_the_lock_is_an_error(job: Any, make: Callable[[Path], None]) -> None:
    file = Path(job.folder.location, "_lock")
    file.parent.mkdir(parents=True)
    make(file)
    with pytest.raises(StorageError, match="cannot lock"), exclusive(job.folder):
        raise AssertionError("entered")


def test_the_error_of_a_lock_names_the_process_that_has_it(job: Any) -> None:
    with exclusive(job.folder):
        pass
    program = (
        "import fcntl, sys\n"
        f"lock = open({job.folder.location + '/_lock'!r})\n"
        "fcntl.flock(lock, fcntl.LOCK_EX)\n"
        "print(flush=True)\n"
        "sys.stdin.read()  # the name of this program\n"
    )
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(StorageError) as caught, exclusive(job.folder, timeout=0.01):
            raise AssertionError("entered twice")
        holder.communicate()
    assert f"the process {holder.pid} of the user" in str(caught.value)
    assert "import fcntl" in str(caught.value) and "end that process if it hangs" in str(caught.value)
