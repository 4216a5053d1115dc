"""The host process: a thread for each connection, one for each partition, and one that watches over them."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import hashlib
import json
import logging
import os
import queue
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType as PythonFrame
from typing import Any

import cloudpickle
import pyarrow as pa

from keyedstate import version
from keyedstate.checkpoint import TaskIdentity, from_json
from keyedstate.epoch.configuration import configuration_in_task
from keyedstate.epoch.epoch_start import EpochStart
from keyedstate.epoch.local_folders import working_folders_of_this_host
from keyedstate.epoch.partition_plan import PartitionPlan
from keyedstate.errors import HostMemoryError, HostProtocolError, KeyedStateError
from keyedstate.spark.hosts.failures import Failure
from keyedstate.spark.hosts.launch import HostSettings, HostStart
from keyedstate.spark.hosts.limits import allow_open_files, resident_bytes
from keyedstate.spark.hosts.network.handshake import Session
from keyedstate.spark.hosts.network.protocol import (
    PROTOCOL,
    BatchDecoder,
    BatchEncoder,
    Frame,
    FrameReader,
    FrameType,
    frame,
)
from keyedstate.spark.hosts.network.tcp_listener import Door, Introduction
from keyedstate.spark.hosts.partition_cache import Resident, ResidentKey, Residents
from keyedstate.spark.hosts.processes import Process, process_of, user_at_other_end
from keyedstate.spark.hosts.socket_folder import HostFolder
from keyedstate.spark.hosts.task_context import take_on
from keyedstate.spark.hosts.task_files import import_from, know_broadcasts

_log = logging.getLogger(__name__)

#: How long a task that has failed may take to hang up, and functions to be closed when the host ends.
_PATIENCE_S = 3.0
#: How long the host sleeps where it waits for something that wakes nobody.
_SHORT_MS = 100
#: Of which a host remembers the newest.
_MAX_PLANS = 64
#: A task has hung up; Linux says so while there are bytes to be read, too.
_HUNG_UP = getattr(select, "POLLRDHUP", select.POLLHUP)


class _TaskGone(Exception):
    """The task has hung up; nobody is there to be told anything."""


class _Cancelled(BaseException):
    """Raised into the thread of a partition whose task has long gone."""


class _Connection:
    """A connection, and the attempt that goes on for it.

    Attributes
    ----------
    socket : socket.socket
    session : Session or None
        Of a task of another executor: the secret that it knows, and the seals of its frames.
    executor : str or None
        That of the task, if it says so.
    resident : Resident or None
        What the attempt uses, once it has begun.
    done : bool
        Whether nothing more happens for it.
    abandoned : float or None
        Since when it is known that the task has hung up, by `time.monotonic`.
    is_cancelled : bool
        Whether its thread was interrupted.
    """

    def __init__(self, connection: socket.socket, session: Session | None = None) -> None:
        self.socket = connection
        self.session = session
        self.executor: str | None = None
        self.resident: Resident | None = None
        self.done = False
        self.abandoned: float | None = None
        self.is_cancelled = False

    def reader(self) -> FrameReader:
        """Return what reads the task's frames, beginning with its HELLO."""
        return FrameReader(
            self.socket, {FrameType.HELLO}, None if self.session is None else self.session.received
        )

    def send(self, pieces: Iterable[Any]) -> None:
        """Send a frame."""
        for piece in pieces if self.session is None else self.session.sealed(pieces):
            self.socket.sendall(piece)

    def is_stuck(self, now: float) -> bool:
        """Whether it goes on, long after the task has hung up; before that, try to interrupt it."""
        if self.abandoned is None or self.done:
            return False
        if now - self.abandoned > _PATIENCE_S and not self.is_cancelled:
            self.is_cancelled = True
            thread = None if self.resident is None else self.resident.thread
            if thread is not None:
                # Ends a loop in Python; what waits in native code does not see it.
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(thread), ctypes.py_object(_Cancelled)
                )
        return now - self.abandoned > 3 * _PATIENCE_S


class Host:
    """One host.

    Parameters
    ----------
    listener : socket.socket
    settings : HostSettings
    """

    def __init__(self, listener: socket.socket, settings: HostSettings) -> None:
        self._listener = listener
        self._settings = settings
        self._residents = Residents()
        #: By digest; filled by tasks that were asked for one.
        self._plans: dict[str, PartitionPlan] = {}
        self._importing = threading.Lock()
        #: By the numbers of their sockets; only the thread that runs `run` knows them.
        self._connections: dict[int, _Connection] = {}
        #: Set when the host shall take no more tasks and end with those it has.
        self._retired = False
        self._idle_s = settings.idle_ms / 1000.0
        self._door = Door(self._arrive)
        #: Connections of other executors, on their way to the thread that runs `run`, and what wakes it.
        self._arrived: queue.SimpleQueue[tuple[socket.socket, Session]] = queue.SimpleQueue()
        self._bell, self._bell_rope = os.pipe()

    def run(self, parents: Sequence[Process], folder: HostFolder, number: int) -> None:
        """Serve tasks until a parent has ended, nobody needs the host any more, or it is sent SIGTERM.

        Parameters
        ----------
        parents : sequence of Process
        folder : HostFolder
            With the host's socket, which is removed at the end.
        number : int
            Which of an executor's hosts it is.
        """
        poller = select.poll()
        poller.register(self._listener, select.POLLIN)
        poller.register(self._bell, select.POLLIN)
        for parent in parents:
            if parent.handle is not None:
                poller.register(parent.handle, select.POLLIN)
        # Where a process has no handle, it is looked at once a second.
        longest_ms = min(self._idle_s * 250.0, 10_000 if all(parent.handle for parent in parents) else 1000)
        last_used = time.monotonic()
        listens = True
        try:
            while all(parent.is_alive for parent in parents):
                waits_for_end = any(one.abandoned is not None for one in self._connections.values())
                for descriptor, _ in poller.poll(_SHORT_MS if waits_for_end else longest_ms):
                    if descriptor in self._connections:
                        # Its thread sees it too, unless it is in the user's function.
                        self._connections[descriptor].abandoned = time.monotonic()
                        poller.unregister(descriptor)
                    elif descriptor == self._bell:
                        os.read(self._bell, 1)
                        poller.register(self._admit(*self._arrived.get()), _HUNG_UP)
                    elif listens and descriptor == self._listener.fileno():
                        self._accept(poller)
                now = time.monotonic()
                if self._connections:
                    last_used = now
                self._close_done(poller)
                stuck = [one for one in self._connections.values() if one.is_stuck(now)]
                if stuck and not self._retired:
                    _log.error("this host ends, because the function of a task that is long gone does not")
                    # With those tasks that are still there: it may be an epoch of another query.
                    self._retired = True
                self._residents.drop_unused(now - self._idle_s)
                ends = self._retired or (not self._connections and now - last_used > self._idle_s)
                # A task that has connected meanwhile is served first.
                if listens and ends and folder.withdraw(number, unless=self._is_wanted):
                    poller.unregister(self._listener)
                    self._listener.close()
                    self._door.close()
                    listens = False
                if not listens and len(stuck) == len(self._connections):
                    return
        finally:
            self._door.close()
            if listens:
                folder.withdraw(number)
            self._residents.close(_PATIENCE_S)

    def disown(self) -> None:
        """Close the sockets in a child of this process, which may outlive it: tasks would wait for it."""
        self._listener.close()
        for connection in list(self._connections.values()):
            connection.socket.close()

    def _accept(self, poller: select.poll) -> None:
        try:
            accepted, _ = self._listener.accept()
        except OSError as error:
            # The task waits until there is a file descriptor again; other tasks' epochs must not be lost.
            _log.warning("no further task is served for now: %s", error)
            time.sleep(_SHORT_MS / 1000.0)
        else:
            poller.register(self._admit(accepted), _HUNG_UP)

    def _is_wanted(self) -> bool:
        return not self._retired and bool(select.select([self._listener], [], [], 0)[0])

    def _arrive(self, connection: socket.socket, session: Session) -> None:
        """Take a connection of another executor; called in any thread."""
        self._arrived.put((connection, session))
        os.write(self._bell_rope, b".")

    def _admit(self, accepted: socket.socket, session: Session | None = None) -> socket.socket:
        connection = _Connection(accepted, session)
        self._connections[accepted.fileno()] = connection
        threading.Thread(target=self._serve, args=(connection,), name="keyedstate-task", daemon=True).start()
        return accepted

    def _close_done(self, poller: select.poll) -> None:
        # Closed here and not by their threads: else a number might be another file's when it is polled.
        for descriptor in [descriptor for descriptor, one in self._connections.items() if one.done]:
            connection = self._connections.pop(descriptor)
            if connection.abandoned is None:
                poller.unregister(descriptor)
            connection.socket.close()

    def _serve(self, connection: _Connection) -> None:
        try:
            if connection.session is None:
                _refuse_strangers(connection.socket)
            self._converse(connection)
        except (_TaskGone, ConnectionError):
            pass
        except BaseException as error:
            with contextlib.suppress(OSError):
                _send(connection, FrameType.FAILED, Failure.of(error).to_json())
        finally:
            _hang_up(connection.socket)
            connection.done = True

    def _converse(self, connection: _Connection) -> None:
        reader = connection.reader()
        hello = _read(reader).json()
        versions = {"protocol": PROTOCOL, "keyedstate": version.__version__}
        if hello != versions:
            raise HostProtocolError(f"the task speaks {hello}, and this host {versions}")
        me = process_of(os.getpid())
        assert me is not None
        _send(connection, FrameType.HELLO, {"process": me.name})
        reader.expected = {FrameType.BEGIN}
        document = _read(reader).json()
        digest, identity, task = _begin(document)
        plan = self._plans.get(digest)
        session = connection.session
        if session is not None:
            if plan is None or not self._keeps(session.name, plan, digest, identity, document):
                _send(connection, FrameType.NOT_KEPT)
                return
        elif plan is None:
            plan = self._ask_for_plan(connection, reader, digest)
            while len(self._plans) >= _MAX_PLANS:
                self._plans.pop(next(iter(self._plans)), None)
            self._plans[digest] = plan
            self._compare_settings(plan)
        if session is None:
            know_broadcasts(document.get("broadcasts", {}))
        if session is None and "introduction" in document:
            introduction = Introduction.from_json(document["introduction"])
            self._door.introduce(introduction, digest, plan.settings)
        executor = document.get("executor")
        connection.executor = executor if isinstance(executor, str) else None
        self._run(connection, reader, digest, plan, identity, task)

    def _compare_settings(self, plan: PartitionPlan) -> None:
        """Say so where a query wants its hosts otherwise than the one that has started this host."""
        wanted, here = HostSettings.of(configuration_in_task(plan.settings)), self._settings
        if wanted != here:
            assert plan.location is not None
            _log.warning(
                "hosts.idle-time=%d ms and hosts.memory=%d bytes of the operator %r have no effect: this "
                "host was started by a query that has %d ms and %d bytes. Queries of the same executors "
                "share hosts; give them the same values.",
                wanted.idle_ms,
                wanted.memory_bytes,
                plan.location.uid,
                here.idle_ms,
                here.memory_bytes,
            )

    def _keeps(
        self, key: bytes, plan: PartitionPlan, digest: str, identity: TaskIdentity, asked: Mapping[str, Any]
    ) -> bool:
        """Whether a task of another executor may have what it asks for, and that is here."""
        return self._door.allows(key, digest) and self._residents.keeps(
            _resident_key(plan, identity), digest, str(asked.get("version"))
        )

    def _ask_for_plan(self, connection: _Connection, reader: FrameReader, digest: str) -> PartitionPlan:
        _send(connection, FrameType.NEED_PLAN)
        reader.expected = {FrameType.IMPORTS}
        imports = _read(reader).json()
        reader.expected = {FrameType.PLAN}
        packed = bytes(_read(reader).content)
        if hashlib.sha256(packed).hexdigest() != digest:
            raise HostProtocolError("the plan is not the one that was announced")
        # Two threads at once trip over each other's entries in Python's cache of finders.
        with self._importing:
            import_from(imports)
            plan = cloudpickle.loads(packed)
        if not isinstance(plan, PartitionPlan) or plan.location is None:
            raise HostProtocolError("the plan is malformed")
        return plan

    def _run(
        self,
        connection: _Connection,
        reader: FrameReader,
        digest: str,
        plan: PartitionPlan,
        identity: TaskIdentity,
        task: Mapping[str, Any],
    ) -> None:
        place = plan.location
        assert place is not None
        beginning = EpochStart.of(plan, place, identity)
        attempt = self._residents.take(_resident_key(plan, identity), digest)
        connection.resident = resident = attempt.resident
        try:
            path = resident.run(lambda: self._epoch(connection, reader, plan, beginning, resident, task))
        except BaseException:
            self._residents.drop(attempt)
            raise
        # Before the task hears of it: the next epoch may begin at once.
        if connection.is_cancelled:
            # What was raised into its thread may come yet.
            self._residents.drop(attempt)
        else:
            self._residents.keep(attempt)
        _send(connection, FrameType.DONE, {"manifest": path})

    def _epoch(
        self,
        connection: _Connection,
        reader: FrameReader,
        plan: PartitionPlan,
        beginning: EpochStart,
        resident: Resident,
        task: Mapping[str, Any],
    ) -> str:
        take_on(task)
        partition = resident.bring(plan, beginning)
        self._check_memory()
        _send(connection, FrameType.READY, {"goes_on": beginning.continues_run})
        encoder = BatchEncoder()
        broadcast_rows = self._rows(reader, FrameType.KEYED)
        batches = self._rows(reader, FrameType.END, broadcast_rows)
        with contextlib.closing(partition.run(beginning, broadcast_rows, batches)) as results:
            for batch in results:
                for pieces in encoder.frames(batch):
                    connection.send(pieces)
        path = partition.finish(beginning, self._door.address, connection.executor)
        # Not an error any more: the epoch is complete, and a second attempt would only be another one.
        self._retired = self._retired or self._used_too_much() is not None
        return path

    def _rows(
        self, reader: FrameReader, last: FrameType, before: Iterable[pa.RecordBatch] = ()
    ) -> Iterator[pa.RecordBatch]:
        """Yield the batches that come before a frame of another type, and behind those of an iterator."""
        # Not read so far, where the function has no broadcast side.
        for _ in before:
            pass
        reader.expected = {FrameType.SCHEMA, FrameType.BATCH, last}
        decoder = BatchDecoder()
        while (received := _read(reader)).type is not last:
            batch = decoder.batch(received)
            if batch is not None:
                yield batch
                self._check_memory()

    def _check_memory(self) -> None:
        used = self._used_too_much()
        if used is not None:
            # Freed memory does not always go back to the system: what is next gets a process of its own.
            self._retired = True
            raise HostMemoryError(used, self._settings.memory_bytes)

    def _used_too_much(self) -> int | None:
        """Return how much memory the host takes where it is more than it may."""
        limit = self._settings.memory_bytes
        used = resident_bytes() if limit else 0
        return used if used > limit else None


def main() -> None:
    """Run a host, as `keyedstate.spark.hosts.launch` starts it, to its end."""
    document = json.loads(sys.argv[1])
    start = HostStart(**{**document, "settings": HostSettings(**document["settings"])})
    sys.argv = ["keyedstate-host"]
    faulthandler.enable(all_threads=False)
    # Spark's daemon ignores it, and what it starts has that from it: the user's own processes would be lost.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, _end)
    allow_open_files()
    parents = [parent for parent in map(Process.named, start.parents) if parent is not None]
    folder = HostFolder(parents[0], Path(start.place))
    try:
        with socket.socket(fileno=start.listener) as listener, working_folders_of_this_host():
            # Whatever programs the user's function starts: none shall listen here when this host has ended.
            listener.set_inheritable(False)
            host = Host(listener, start.settings)
            os.register_at_fork(after_in_child=host.disown)
            host.run(parents, folder, start.number)
    except SystemExit:
        pass
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    # A thread that is stuck in the user's function must not keep the process.
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(0)


def _end(number: int, where: PythonFrame | None) -> None:
    sys.exit(0)


def _refuse_strangers(connection: socket.socket) -> None:
    # The folder keeps other users out already; where the system can tell who it is, it is asked.
    user = user_at_other_end(connection)
    if user not in (None, os.getuid()):
        raise HostProtocolError(f"the task is one of the user {user}")


def _resident_key(plan: PartitionPlan, identity: TaskIdentity) -> ResidentKey:
    assert plan.location is not None
    return f"{plan.location.directory}/{plan.location.uid}", identity.partition


def _begin(document: Mapping[str, Any]) -> tuple[str, TaskIdentity, Mapping[str, Any]]:
    """Return what a BEGIN frame says."""
    try:
        digest, identity = document["digest"], from_json(TaskIdentity, document["identity"])
        task = document.get("task", {})
        if not isinstance(digest, str) or not isinstance(task, dict):
            raise TypeError("the digest is no string, or the task no object")
        for name, kind in TaskIdentity.__annotations__.items():
            if type(getattr(identity, name)).__name__ != kind:
                raise TypeError(f"{name} is not of the type {kind}")
    except (KeyError, TypeError, KeyedStateError) as error:
        raise HostProtocolError(f"a BEGIN frame is malformed ({error})") from error
    return digest, identity, task


def _read(reader: FrameReader) -> Frame:
    received = reader.read()
    if received is None:
        raise _TaskGone
    return received


def _send(connection: _Connection, kind: FrameType, content: Any = b"") -> None:
    connection.send(frame(kind, content))


def _hang_up(connection: socket.socket) -> None:
    """End a conversation so that the task reads what it was told last, though it may still be sending."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(_PATIENCE_S)
        while connection.recv(1 << 16):
            pass
