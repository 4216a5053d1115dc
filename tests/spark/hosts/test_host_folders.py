"""Folders of hosts' sockets that another user has taken, could change, or that cannot be used at all."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hosted import DEADLINE_S, HostedJob

from keyedstate.checkpoint.format.manifest import StateOrigin
from keyedstate.errors import HostFolderError, HostFolderLockedError
from keyedstate.spark.hosts.launch import Hosts, HostSettings
from keyedstate.spark.hosts.processes import Process, process_of
from keyedstate.spark.hosts.socket_folder import MAX_PATH_BYTES, HostFolder, socket_places

NOBODY = 65534
NAME = f"keyedstate-{os.getuid()}"
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can make another user's folder")


@pytest.fixture
def place() -> Iterator[Path]:
    """A temporary folder of all users, with a path that is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="ks-") as made:
        os.chmod(made, 0o1777)
        yield Path(made)


@pytest.fixture
def local(tmp_path: Path) -> Path:
    """Spark's local folder of the executor, whose path is too long for a socket."""
    path = tmp_path / "spark-local" / ("blockmgr-" + "x" * MAX_PATH_BYTES)
    path.mkdir(parents=True)
    return path


def me() -> Process:
    """Return this process."""
    found = process_of(os.getpid())
    assert found is not None
    return found


def another_users_folder(path: Path) -> None:
    """Let another user create the folder first."""
    path.mkdir(mode=0o700)
    os.chown(path, NOBODY, NOBODY)


def another_users_open_folder(path: Path) -> None:
    """Let another user create the folder, for everybody."""
    another_users_folder(path)
    path.chmod(0o777)


def open_folder(path: Path) -> None:
    """Create a folder of this user that others may change."""
    path.mkdir()
    path.chmod(0o777)


def another_users_link(path: Path) -> None:
    """Let another user plant a link to a folder of this user."""
    target = path.parent / "target"
    target.mkdir(mode=0o700)
    path.symlink_to(target)
    os.chown(path, NOBODY, NOBODY, follow_symlinks=False)


def dangling_link(path: Path) -> None:
    """Plant a link to nowhere."""
    path.symlink_to(path.parent / "nowhere")


def plain_file(path: Path) -> None:
    """Plant a file."""
    path.touch()


def pipe(path: Path) -> None:
    """Plant a named pipe, at which an opening process would wait."""
    os.mkfifo(path)


SQUATTERS = [
    pytest.param(another_users_folder, f"belongs to the user 'nobody' \\({NOBODY}\\)", marks=needs_root),
    pytest.param(another_users_open_folder, "belongs to the user 'nobody'", marks=needs_root),
    pytest.param(open_folder, "is open to others \\(mode 0777, not 0700\\)"),
    pytest.param(another_users_link, "is no folder; the user 'nobody'", marks=needs_root),
    pytest.param(dangling_link, "is no folder"),
    pytest.param(plain_file, "is no folder"),
    pytest.param(pipe, "is no folder"),
]


@pytest.mark.parametrize(("squat", "reason"), SQUATTERS)
def test_hosts_listen_elsewhere_where_the_folder_is_taken(
    tmp_path: Path,
    place: Path,
    local: Path,
    caplog: pytest.LogCaptureFixture,
    squat: Callable[[Path], None],
    reason: str,
) -> None:
    squat(place / NAME)
    before = os.lstat(place / NAME)
    with HostedJob(tmp_path) as job, caplog.at_level(logging.WARNING):
        job.hosts = Hosts([job.anchor], HostSettings(DEADLINE_S * 1000, 0), [place, local])
        assert job.epoch(0, ["a"]) == [("a", 1)]
        assert job.epoch(1, ["a"]) == [("a", 2)]
        assert job.part().state_origin is StateOrigin.HOST
        assert [path.name for path in local.rglob("*.sock")] == ["0.sock"]
        assert (local / NAME).stat().st_mode & 0o777 == 0o700
    [record] = [record for record in caplog.records if "sockets of hosts" in record.message]
    assert str(place / NAME) in record.message
    with pytest.raises(HostFolderError, match=reason):
        Hosts([me()], HostSettings(1000, 0), [place]).connect(0)
    assert os.path.samestat(before, os.lstat(place / NAME))
    assert list(local.iterdir()) == []


@pytest.mark.parametrize(("squat", "reason"), SQUATTERS[:1])
def test_epochs_run_in_tasks_where_every_folder_is_taken(
    tmp_path: Path,
    place: Path,
    caplog: pytest.LogCaptureFixture,
    squat: Callable[[Path], None],
    reason: str,
) -> None:
    squat(place / NAME)
    with HostedJob(tmp_path) as job, caplog.at_level(logging.WARNING):
        job.hosts = Hosts([job.anchor], HostSettings(DEADLINE_S * 1000, 0), [place])
        for epoch in range(3):
            assert job.epoch(epoch, ["a"]) == [("a", epoch + 1)]
        assert job.part().state_origin is StateOrigin.FILES
        assert job.processes() == []
    [record] = [record for record in caplog.records if "run in tasks" in record.message]
    assert str(place / NAME) in record.message
    assert "'nobody'" in record.message


def test_a_folder_that_cannot_be_created_is_named(tmp_path: Path) -> None:
    with pytest.raises(HostFolderError, match=f"{tmp_path}/missing.*No such file.*spark.local.dir"):
        Hosts([me()], HostSettings(1000, 0), [tmp_path / "missing"]).connect(0)


def test_a_socket_in_an_open_folder_is_not_connected_to(place: Path) -> None:
    """The user who created the folder would be sent the query's secret, its function and its rows."""
    folder = HostFolder(me(), place)
    folder.path.mkdir(parents=True)
    folder.path.parent.chmod(0o777)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
        stranger.bind(str(folder.socket_path(0)))
        stranger.listen(1)
        with pytest.raises(HostFolderError, match="open to others"):
            folder.connect(0)
        stranger.settimeout(0)
        with pytest.raises(BlockingIOError):
            stranger.accept()


_STRANGER = (
    "import os, socket, sys; here = socket.socket(socket.AF_UNIX); here.bind(sys.argv[1]); "
    "os.setuid(65534); here.listen(1); print(flush=True); sys.stdin.read()"
)


@contextlib.contextmanager
def listening_stranger(path: Path) -> Iterator[None]:
    """Let a process of another user listen at a socket."""
    command = [sys.executable, "-c", _STRANGER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline()
        yield
        process.communicate()


@needs_root
def test_a_process_of_another_user_is_not_spoken_to(place: Path, tmp_path: Path) -> None:
    """It listens where other users may replace folders: the temporary folder has no sticky bit."""
    place.chmod(0o777)
    with HostedJob(tmp_path) as job:
        folder = HostFolder(job.anchor, place)
        folder.path.mkdir(parents=True)
        folder.path.parent.chmod(0o700)
        with listening_stranger(folder.socket_path(0)):
            with pytest.raises(HostFolderError, match="a process of the user 'nobody'"):
                Hosts([job.anchor], HostSettings(DEADLINE_S * 1000, 0), [place]).connect(0)
            job.hosts = Hosts([job.anchor], HostSettings(DEADLINE_S * 1000, 0), [place, job.sockets])
            assert job.epoch(0, ["a"]) == [("a", 1)]
            assert len(job.processes()) == 1


def test_without_peer_credentials_a_folder_needs_a_sticky_parent(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on macOS, where the kernel does not name the user at the other end in this way."""
    monkeypatch.delattr(socket, "SO_PEERCRED")
    folder = HostFolder(me(), place)
    with folder.locked():
        pass
    place.chmod(0o777)
    with pytest.raises(HostFolderError, match="no sticky bit"), folder.locked():
        pass


def test_a_host_ends_although_its_folder_was_taken(tmp_path: Path, place: Path) -> None:
    """Another user moves it away, where the temporary folder has no sticky bit."""
    with HostedJob(tmp_path) as job:
        job.hosts = Hosts([job.anchor], HostSettings(DEADLINE_S * 1000, 0), [place])
        job.epoch(0, ["a"])
        (place / NAME).rename(place / "moved")
        plain_file(place / NAME)
        job.hosts = Hosts([job.anchor], HostSettings(DEADLINE_S * 1000, 0), [place, job.sockets])
        assert job.epoch(1, ["a"]) == [("a", 2)]
        assert len(job.processes()) == 2
    # Its end waits for both.
    assert (place / NAME).is_file()


def test_a_deleted_local_folder_is_not_restored_by_a_host(tmp_path: Path, local: Path) -> None:
    with HostedJob(tmp_path) as job:
        job.hosts = Hosts([job.anchor], HostSettings(DEADLINE_S * 1000, 0), [local])
        job.epoch(0, ["a"])
        local.rename(tmp_path / "deleted")
    assert not local.exists()


def test_places_are_the_temporary_folder_and_sparks_own(
    local: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/var/tmp")
    monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)
    assert socket_places() == [Path("/var/tmp")]
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"/nowhere,{local}")
    assert socket_places() == [Path("/var/tmp"), local]
    # A socket in it would have too long a path.
    monkeypatch.setattr(tempfile, "tempdir", str(local))
    assert socket_places() == [Path("/tmp"), local]
    folder = HostFolder(Process(4194304, str(2**64 - 1)), Path("/tmp"))
    assert len(os.fsencode(folder.socket_path(9999))) <= MAX_PATH_BYTES


def test_a_forked_process_does_not_keep_the_folder_locked(place: Path) -> None:
    """As one that a user's function makes in another thread of a host that ends."""
    read, write = os.pipe()
    folder = HostFolder(me(), place)
    with folder.locked():
        child = os.fork()
        if child == 0:
            os.close(write)
            os.read(read, 1)  # until the parent is done
            os._exit(0)
    descriptor = os.open(place / NAME, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(descriptor)
        os.close(write)
        os.waitpid(child, 0)
        os.close(read)


_LOCKS = (
    "import fcntl, os, sys; folder = os.open(sys.argv[1], os.O_RDONLY); "
    "fcntl.flock(folder, fcntl.LOCK_EX); print(flush=True); sys.stdin.read()"
)


def test_a_lock_that_another_process_keeps_is_an_error_that_names_the_folder(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keyedstate.spark.hosts.socket_folder.LOCK_TIMEOUT_S", 0.2)
    folder = HostFolder(me(), place)
    with folder.locked(), folder.listen(0):
        pass
    command = [sys.executable, "-c", _LOCKS, str(place / NAME)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline()
        message = f"{place / NAME} .* locked for more than 0.2 seconds.*fuser {place / NAME}.*TMPDIR"
        with pytest.raises(HostFolderLockedError, match=message):
            Hosts([me()], HostSettings(1000, 0), [place]).connect(0)
        assert not folder.withdraw(0)
        assert folder.socket_path(0).exists()
        process.communicate()
    assert folder.withdraw(0)
    assert not folder.socket_path(0).exists()


def test_sockets_of_a_living_host_in_another_container_stay(place: Path) -> None:
    """Its processes are not to be seen here, and it listens all the same."""
    unseen = HostFolder(Process(4_194_304, "1"), place)
    with unseen.locked():
        living, dead = unseen.listen(0), unseen.listen(1)
    dead.close()
    own = HostFolder(me(), place)
    with living, own.locked(), own.listen(0):
        assert [path.name for path in unseen.path.iterdir()] == ["0.sock"]
        connection = unseen.connect(0)
        assert connection is not None
        connection.close()


def test_a_foreign_file_among_dead_sockets_stays(place: Path) -> None:
    unseen = HostFolder(Process(4_194_304, "1"), place)
    with unseen.locked():
        unseen.listen(0).close()
    (unseen.path / "notes.txt").write_text("precious")
    own = HostFolder(me(), place)
    with own.locked(), own.listen(0):
        assert [path.name for path in unseen.path.iterdir()] == ["notes.txt"]
