"""Working folders: private, deleted with their process, and after its death by another process."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from keyedstate.working_folder import WorkingFolder, sweep_working_folders

MARK = ".keyedstate-work"
NOBODY = 65534
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")

OWNER = """
import os, signal, sys
from pathlib import Path
from keyedstate.working_folder import WorkingFolder
folder = WorkingFolder(Path(sys.argv[1])).path
(folder / "db").mkdir()
(folder / "db" / "000012.sst").write_bytes(b"state")
(folder / "link").symlink_to(sys.argv[1])
print(folder, flush=True)
sys.stdin.read()
"""


@contextmanager
def owner(base: Path, *before: str) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    """Run a process that has a working folder with files in it, and has not ended."""
    command = [*before, sys.executable, "-c", OWNER, str(base)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        try:
            assert process.stdout is not None
            yield Path(process.stdout.readline().strip()), process
        finally:
            process.kill()


def dead(base: Path) -> Path:
    """Return the working folder of a process that was killed."""
    with owner(base) as (folder, process):
        process.kill()
        process.wait()
    assert (folder / "db" / "000012.sst").exists()
    return folder


def test_the_folder_of_a_killed_process_is_deleted_by_another(tmp_path: Path) -> None:
    folder = dead(tmp_path)
    (tmp_path / "other").write_bytes(b"precious")
    sweep_working_folders(tmp_path)
    assert not folder.exists()
    assert (tmp_path / "other").read_bytes() == b"precious"


def test_the_first_folder_of_a_process_sweeps_its_base(tmp_path: Path) -> None:
    folder = dead(tmp_path)
    with WorkingFolder(tmp_path) as own:
        assert list(tmp_path.iterdir()) == [own] and own != folder


def test_the_folder_of_a_living_process_stays(tmp_path: Path) -> None:
    with owner(tmp_path) as (folder, _):
        sweep_working_folders(tmp_path)
        assert (folder / "db" / "000012.sst").read_bytes() == b"state"


def test_the_folder_of_a_living_process_in_another_container_stays(tmp_path: Path) -> None:
    unshared = ["unshare", "--pid", "--fork", "--kill-child"]
    if shutil.which("unshare") is None or subprocess.run([*unshared, "true"]).returncode != 0:
        pytest.skip("no namespaces of processes can be made here")
    with owner(tmp_path, *unshared) as (folder, process):
        number = json.loads((folder / MARK).read_text())["pid"]
        assert number < process.pid, "a number of its own namespace"
        sweep_working_folders(tmp_path)
        assert (folder / "db" / "000012.sst").exists()


def test_a_number_that_another_process_has_now_keeps_no_folder(tmp_path: Path) -> None:
    folder = dead(tmp_path)
    change(folder, pid=os.getpid())
    sweep_working_folders(tmp_path)
    assert not folder.exists()


def change(folder: Path, **values: object) -> None:
    mark = folder / MARK
    mark.write_text(json.dumps({**json.loads(mark.read_text()), **values}))


@pytest.mark.parametrize(
    ("values", "stays"),
    [
        ({"boot": "another"}, False),
        ({"machine": "another"}, False),
        ({"machine": "another", "boot": "another"}, True),
        ({"machine": "", "boot": ""}, True),
    ],
    ids=["restarted machine", "another container", "another machine", "unknown"],
)
def test_only_folders_of_this_machine_are_deleted(
    tmp_path: Path, values: dict[str, object], stays: bool
) -> None:
    """The locks of another machine may be invisible on a network file system."""
    folder = dead(tmp_path)
    change(folder, **values)
    sweep_working_folders(tmp_path)
    assert (folder / "db" / "000012.sst").exists() == stays


def _give_away(folder: Path) -> None:
    os.chown(folder, NOBODY, NOBODY)


def _replace_by_link(mark: Path) -> None:
    moved = mark.rename(mark.with_name("moved"))
    mark.symlink_to(moved)


def _replace_by_pipe(mark: Path) -> None:
    mark.unlink()
    os.mkfifo(mark)


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda folder: (folder / MARK).unlink(), id="no mark"),
        pytest.param(lambda folder: (folder / MARK).write_text("[1]"), id="strange mark"),
        pytest.param(lambda folder: (folder / MARK).write_bytes(b"\xff"), id="damaged mark"),
        pytest.param(lambda folder: (folder / MARK).write_bytes(b" " * 9999), id="long mark"),
        pytest.param(lambda folder: _replace_by_link(folder / MARK), id="linked mark"),
        pytest.param(lambda folder: _replace_by_pipe(folder / MARK), id="pipe as mark"),
        pytest.param(lambda folder: folder.chmod(0o750), id="others may enter"),
        pytest.param(_give_away, id="another user's", marks=as_root),
        pytest.param(lambda folder: _give_away(folder / MARK), id="another user's mark", marks=as_root),
    ],
)
def test_a_folder_that_is_not_certainly_ours_stays(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    folder = dead(tmp_path)
    spoil(folder)
    sweep_working_folders(tmp_path)
    assert (folder / "db" / "000012.sst").exists()


@pytest.mark.parametrize("name", ["keyedstate-work-old", "keyedstate-1000", "work", "keyedstate-work-{}x"])
def test_a_folder_of_another_name_stays(tmp_path: Path, name: str) -> None:
    folder = dead(tmp_path)
    renamed = folder.rename(tmp_path / name.format("0" * 32))
    sweep_working_folders(tmp_path)
    assert (renamed / "db" / "000012.sst").exists()


def test_a_link_with_the_name_of_a_folder_is_not_followed(tmp_path: Path) -> None:
    folder = dead(tmp_path / "outside")
    link = tmp_path / "base" / folder.name
    link.parent.mkdir()
    link.symlink_to(folder)
    sweep_working_folders(link.parent)
    assert link.is_symlink() and (folder / "db" / "000012.sst").exists()


def test_the_leftovers_of_a_killed_sweep_are_deleted_by_the_next(tmp_path: Path) -> None:
    folder = dead(tmp_path)
    for number in range(5):
        (folder / f"{number}.sst").write_bytes(b"")
    program = (
        "import os, signal\n"
        "from pathlib import Path\n"
        "from keyedstate.working_folder import sweep_working_folders\n"
        "unlink, left = os.unlink, [3]\n"
        "def dying(*args, **options):\n"
        "    left[0] -= 1\n"
        "    if left[0] < 0:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    unlink(*args, **options)\n"
        "os.unlink = dying\n"
        f"sweep_working_folders(Path({str(tmp_path)!r}))\n"
    )
    killed = subprocess.run([sys.executable, "-c", program])
    assert killed.returncode == -signal.SIGKILL
    assert len(list(folder.rglob("*"))) < 9
    sweep_working_folders(tmp_path)
    assert not folder.exists()


def test_sweeps_at_once_disturb_neither_each_other_nor_the_living(tmp_path: Path) -> None:
    folders = [dead(tmp_path) for _ in range(5)]
    with owner(tmp_path) as (living, _), ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: sweep_working_folders(tmp_path), range(32)))
        assert not any(folder.exists() for folder in folders)
        assert (living / "db" / "000012.sst").exists()


def test_a_process_that_was_forked_deletes_nothing_of_its_parent(tmp_path: Path) -> None:
    folder = WorkingFolder(tmp_path)
    child = os.fork()
    if child == 0:
        folder.remove()
        os._exit(0)
    os.waitpid(child, 0)
    assert folder.path.exists()
    folder.remove()
    folder.remove()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_a_working_folder_is_private_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        with WorkingFolder(tmp_path / "base") as folder:
            (folder / "db").mkdir()
            (folder / "db" / "LOG").touch()
            modes = {path: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
            assert modes[folder] == modes[folder.parent] == 0o700 and modes[folder / MARK] == 0o600
            if hasattr(os, "listxattr") and "system.posix_acl_default" in os.listxattr(folder):
                # Also of libraries that ask for 0644.
                assert modes[folder / "db"] == 0o700 and modes[folder / "db" / "LOG"] == 0o600
    finally:
        os.umask(before)


@as_root
def test_another_user_can_read_nothing_in_a_working_folder(tmp_path: Path) -> None:
    with WorkingFolder() as folder:
        (folder / "LOG").write_text("state")
        (folder / "LOG").chmod(0o644)
        program = "import os, sys; os.setuid(65534); open(sys.argv[1])"
        ran = subprocess.run([sys.executable, "-S", "-c", program, folder / "LOG"], capture_output=True)
        assert b"PermissionError" in ran.stderr
