"""Kill processes at one step of a savepoint after the other; each looks at first at what the last one left.

python killed_savepoint.py FOLDER {create,fork,delete} STEPS
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jobs import Job

from keyedstate.checkpoint.protocol.operator_folder import OperatorFolder
from keyedstate.checkpoint.protocol.recovery import claim, find_restore_point
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.errors import CheckpointError, NotASavepointError
from keyedstate.savepoints import Savepoint


def die_at(step: int) -> None:
    """End as ``kill -9`` does before one of the calls that change what is on the disk."""
    calls = 0

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls > step:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **options)

        return call

    os.fsync = counted(os.fsync)
    os.replace = counted(os.replace)
    for name in ("delete_file", "delete_dir"):
        setattr(CheckpointStorage, name, counted(getattr(CheckpointStorage, name)))


def main(folder: Path, what: str, step: int) -> None:
    savepoint = folder / "savepoint"
    if what == "create":
        with contextlib.suppress(NotASavepointError):
            Savepoint.open(savepoint).verify()
            shutil.rmtree(savepoint)
        die_at(step)
        Savepoint.create(savepoint, folder / "state", folder / "spark")
        Savepoint.open(savepoint).verify()
    elif what == "fork":
        targets = folder / "fork/spark", folder / "fork/state"
        check_fork(*targets)
        shutil.rmtree(folder / "fork", ignore_errors=True)
        die_at(step)
        Savepoint.open(savepoint).fork(*targets)
    else:
        copy = folder / "copy"
        try:
            Savepoint.open(copy).verify()
        except NotASavepointError:
            if copy.exists() and any(path.is_file() for path in copy.rglob("*")):
                assert Savepoint.delete(copy) == ()
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(savepoint, copy)
        die_at(step)
        Savepoint.delete(copy)


def check_fork(location: Path, state: Path) -> None:
    """Look at the files as a query would that is started over it."""
    job = Job(CheckpointStorage.open(state))
    if (location / "metadata").exists():
        owner = OperatorFolder(CheckpointStorage.open(state), "views").read_owner()
        assert owner is not None
        job.query = owner.query_id
        identity = job.identity("run-9", 4, 0)
        claim(job.folder, identity)
        restored = find_restore_point(job.folder, identity)
        assert restored is not None and job.read(restored) == job.state_of(0, 1, 2, 3)
        assert {path.name for path in (location / "commits").iterdir()} == {"2", "3"}
    elif (state / "views").exists():
        # Spark makes up an id for a location without one.
        job.query = "made-up"
        for epoch in (4, 0):
            try:
                claim(job.folder, job.identity("run-9", epoch, 0))
            except CheckpointError:
                continue
            there = sorted(path.name for path in (state / "views").rglob("*") if path.is_file())
            assert epoch == 0 and set(there) <= {"_lock", "_owner"}, (
                f"a fork that is not whole was believed: {there}"
            )


if __name__ == "__main__":
    base, mode, steps = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    for number in range(steps):
        # Before anything has started a thread, so that a child is a whole process.
        child = os.fork()
        if child == 0:
            try:
                main(base, mode, number)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            if os.WEXITSTATUS(status):
                sys.exit(f"step {number}")
            sys.stdout.write(str(number))
            sys.exit(0)
    sys.exit(f"not done after {steps} steps")
