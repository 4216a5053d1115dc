"""What makes a fault happen at a named step, inside the processes of a job and without a hook in the product.

Python tells an audit hook of every file that it opens, renames or lists.  The hook knows by a path's form to
which run it belongs, and that run's ``faults.json`` says what is to happen at which path and which time.
Counters and marks are files that are created exclusively, so that all processes of a run count together and
a fault happens once.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import re
import resource
import signal
import socket
import stat
import sys
import threading
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

#: A run's folder, and a path below its state folder.
_PLACE = re.compile(r"(/.*?/run-\d{4})/state/(.+)")
_RUN = re.compile(r"/.*?/run-\d{4}")
_ZOMBIE_DEADLINE_S = 60
#: After which a slow attempt continues though Spark has started no other one.
_RIVAL_DEADLINE_S = 30
_local = threading.local()
_role = ""
_file_size_limit: tuple[int, int] | None = None


def install(role: str) -> None:
    """Watch this process, and those that it forks; `role` is ``driver``, ``worker`` or ``host``."""
    global _role
    if not _role:
        sys.addaudithook(_watch)
    _role = role


def watch_frames() -> None:
    """Watch what this process, a host, receives and sends: each frame is a step, besides those of files.

    The steps are ``hears``, ``says`` and ``has said``; their path is ``frames/`` and the name of the frame,
    or ``hops/`` and that where the task is one of another executor, which has to meet a ``challenge`` first.
    """
    from keyedstate.spark.hosts import server
    from keyedstate.spark.hosts.network import tcp_listener as door

    run = _RUN.match(os.environ.get("SPARK_LOCAL_DIRS", ""))
    if run is None:
        return
    state = f"{run[0]}/state"
    read, send, prove = server._Connection.read, server._Connection.send, door.prove_host

    def place(connection: socket.socket) -> str:
        return f"{state}/{'frames' if connection.family == socket.AF_UNIX else 'hops'}"

    def hear(connection: server._Connection, *expected: server.FrameType) -> server.Frame:
        frame = read(connection, *expected)
        reached("hears", f"{place(connection.socket)}/{frame.type.name}")
        return frame

    def say(connection: server._Connection, kind: server.FrameType, content: Any = b"") -> None:
        reached("says", f"{place(connection.socket)}/{kind.name}")
        send(connection, kind, content)
        reached("has said", f"{place(connection.socket)}/{kind.name}")

    def challenge(connection: socket.socket, *rest: Any) -> server.Session:
        reached("hears", f"{state}/hops/challenge")
        session = prove(connection, *rest)
        reached("has said", f"{state}/hops/challenge")
        return session

    server._Connection.read, server._Connection.send = hear, say
    door.prove_host = challenge


def reached(step: str, path: str, temporary: str = "") -> None:
    """Do what the run has in store for a step: called by the audit hook, and by a job at its own steps.

    Parameters
    ----------
    step, path : str
        Faults of the run name both.
    temporary : str
        Where ``publish`` is to rename a file: its name so far.
    """
    place = _PLACE.fullmatch(path)
    if place is None or not _role:
        return
    _lift_file_size_limit()
    for fault in _faults_of(place[1]):
        if fault["step"] != step or fault["role"] != _role or not re.search(fault["path"], place[2]):
            continue
        if "until" in fault and Path(place[1], fault["until"]).exists():
            continue
        number = _count(Path(place[1]), fault["id"])
        if fault["nth"] <= number < fault["nth"] + fault.get("times", 1):
            _mark(Path(place[1]), fault["id"], f"{step} {place[2]}")
            _act(Path(place[1]), fault, step, path, temporary)


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open":
        path, _, flags = arguments
        if not isinstance(path, str) or "/state/" not in path:
            return
        if not flags & (os.O_WRONLY | os.O_RDWR):
            # On a local disk the folder is synced when a file of it was written: the file counts now.
            published = getattr(_local, "published", "")
            if published and os.path.dirname(published) == path:
                _local.published = ""
                reached("written", published)
        elif not os.path.basename(path).startswith("."):
            reached("create", path)
            _local.published = path
    elif event == "os.rename":
        source, target = arguments[:2]
        if isinstance(target, str) and "/state/" in target:
            reached("publish", target, temporary=source)
            _local.published = target
    elif event == "os.listdir":
        (path,) = arguments
        if isinstance(path, str) and "/state/" in path:
            reached("list", path)


@lru_cache(maxsize=64)
def _faults_of(root: str) -> list[dict[str, Any]]:
    try:
        faults: list[dict[str, Any]] = json.loads(Path(root, "faults.json").read_text())
    except FileNotFoundError:
        return []
    return faults


def _count(root: Path, fault: str) -> int:
    number = getattr(_local, "counted", 0)
    while True:
        try:
            (root / "faults" / f"{fault}.{number}").touch(exist_ok=False)
        except FileExistsError:
            number += 1
        else:
            return number


def _mark(root: Path, fault: str, what: str) -> None:
    with (root / "faults" / f"{fault}.happened").open("a") as file:
        file.write(f"{time.time():.3f} {_role} {os.getpid()} {what}\n")


def _act(root: Path, fault: dict[str, Any], step: str, path: str, temporary: str) -> None:
    action = fault["action"]
    if action == "slow":
        time.sleep(fault["seconds"])
    elif action == "fail":
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)
    elif action == "full":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
    elif action == "raise":
        raise RuntimeError("a fault that was asked for")
    elif action == "kill":
        kill(root, fault["target"])
    elif action == "tear":
        _tear(root, fault, path, temporary)
    elif action == "wait":
        _wait_until_committed(root, _commits(root) + 1, _RIVAL_DEADLINE_S)
        _mark(root, fault["id"], "the loser continues")
    elif action == "zombie":
        _outlive(root, fault["id"])
    elif action == "stop":
        os.killpg(_driver(root)["group"], signal.SIGSTOP)
    else:
        raise ValueError(action)


def kill(root: Path, target: str) -> None:
    """Kill the worker or host, the executor, the driver or the tasks of this process, and the process itself.

    A host whose tasks are killed continues.
    """
    if target == "tasks":
        daemon, _ = _parents_of_host()
        for pid in _children_of(daemon):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return
    if target == "executor":
        executor = _parents_of_host()[1] if _role == "host" else _parent_of(os.getppid())
        os.kill(executor, signal.SIGKILL)
    elif target == "driver":
        driver = _driver(root)
        for pid in (driver["jvm"], driver["python"]):
            if pid != os.getpid():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def _parents_of_host() -> tuple[int, int]:
    """Return the daemon and the executor with which a host was started to end."""
    start = json.loads(Path("/proc/self/cmdline").read_bytes().split(b"\0")[3])
    daemon, executor = (int(name.partition("-")[0]) for name in start["parents"])
    return daemon, executor


def _children_of(pid: int) -> list[int]:
    text = "".join(path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children"))
    return list(map(int, text.split()))


def _driver(root: Path) -> dict[str, int]:
    driver: dict[str, int] = json.loads((root / "driver.json").read_text())
    return driver


def _parent_of(pid: int) -> int:
    # The command's name is in parentheses and may hold anything.
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _tear(root: Path, fault: dict[str, Any], path: str, temporary: str) -> None:
    """Let half of a file reach the disk, and then an error or the process's death come."""
    global _file_size_limit
    dies = fault["then"] == "kill"
    if temporary:
        os.truncate(temporary, os.path.getsize(temporary) // 2)
        if dies:
            kill(root, fault["target"])
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)
    _file_size_limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (fault["bytes"], _file_size_limit[1]))
    if dies:
        # Python ignores the signal by which the kernel kills who writes beyond the limit; it would
        # leave a core file.
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        ctypes.CDLL(None).signal(signal.SIGXFSZ, ctypes.c_void_p(0))


def _lift_file_size_limit() -> None:
    global _file_size_limit
    if _file_size_limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, _file_size_limit)
        _file_size_limit = None


def _outlive(root: Path, fault: str) -> None:
    """Die for Spark, and continue in a copy of this process when the next epoch was committed."""
    committed = _commits(root)
    if os.fork() != 0:
        os.kill(os.getpid(), signal.SIGKILL)
    os.setpgid(0, 0)
    signal.alarm(_ZOMBIE_DEADLINE_S)
    with open(os.devnull, "r+b") as nothing:
        for descriptor in map(int, os.listdir("/proc/self/fd")):
            with contextlib.suppress(OSError):
                if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                    os.dup2(nothing.fileno(), descriptor)
    # Its own partition's retry is in the first of the commits that come, its successor in the second.
    _wait_until_committed(root, committed + 2, _ZOMBIE_DEADLINE_S)
    _mark(root, fault, "the zombie continues")


def _wait_until_committed(root: Path, epochs: int, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while _commits(root) < epochs and not (root / "consumed").exists() and time.monotonic() < deadline:
        time.sleep(0.02)


def _commits(root: Path) -> int:
    try:
        return sum(name.isdigit() for name in os.listdir(root / "spark" / "commits"))
    except FileNotFoundError:
        return 0
