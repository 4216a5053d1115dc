"""The host process: a thread for each connection, one for each partition, and one that supervises them."""

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
from keyedstate.checkpoint.format.json_converter import from_json, to_json
from keyedstate.checkpoint.format.manifest import TaskIdentity
from keyedstate.checkpoint.protocol.coordinator import Acknowledgement
from keyedstate.epoch.configuration import configuration_in_task
from keyedstate.epoch.epoch_start import EpochStart
from keyedstate.epoch.local_folders import working_folders_of_this_host
from keyedstate.epoch.partition_plan import PartitionPlan
from keyedstate.errors import HostMemoryError, HostProtocolError, KeyedStateError
from keyedstate.spark.hosts.failures import Failure
from keyedstate.spark.hosts.launch import HostSettings, HostStart
from keyedstate.spark.hosts.limits import allow_open_files, collect_less_often, resident_bytes
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
from keyedstate.spark.hosts.network.tcp_listener import Introduction, TcpListener
from keyedstate.spark.hosts.partition_cache import CachedPartition, PartitionCache, PartitionKey
from keyedstate.spark.hosts.processes import Process, peer_user, process_of
from keyedstate.spark.hosts.socket_folder import HostFolder
from keyedstate.spark.hosts.task_context import set_task_facts
from keyedstate.spark.hosts.task_files import extend_import_path, register_broadcasts

_log = logging.getLogger(__name__)

#: How long a failed task may take to close its connection, and functions to close when the host ends.
_PATIENCE_S = 3.0
#: The poll interval for events without a file descriptor.
_SHORT_MS = 100
#: How many plans a host remembers; the oldest go first.
_MAX_PLANS = 64
#: The task has closed the connection; Linux reports it even before all bytes are read.
_HUNG_UP = getattr(select, "POLLRDHUP", select.POLLHUP)


class _TaskGone(Exception):
    """The task has closed its connection."""


class _Cancelled(BaseException):
    """Raised into the thread of a partition whose task is gone."""


class _Connection:
    """A connection and its attempt."""

    def __init__(self, connection: socket.socket, session: Session | None = None) -> None:
        self.socket = connection
        #: Of a task of another executor.
        self.session = session
        #: The task's executor, if it names it.
        self.executor: str | None = None
        #: The partition of the attempt, once it has started.
        self.cached: CachedPartition | None = None
        #: Whether the conversation has ended.
        self.done = False
        #: When the task was found to have closed the connection, by `time.monotonic`.
        self.abandoned: float | None = None
        #: Whether the partition's thread was interrupted.
        self.is_cancelled = False
        self._reader = FrameReader(connection, set(), None if session is None else session.received)

    def read(self, *expected: FrameType) -> Frame:
        """Wait for a frame of one of these types."""
        self._reader.expected = set(expected)
        received = self._reader.read()
        if received is None:
            raise _TaskGone
        return received

    def send(self, kind: FrameType, content: Any = b"") -> None:
        """Send a frame."""
        self.send_pieces(frame(kind, content))

    def send_pieces(self, pieces: Iterable[Any]) -> None:
        """Send the pieces of a frame."""
        for piece in pieces if self.session is None else self.session.sealed(pieces):
            self.socket.sendall(piece)

    def is_stuck(self, now: float) -> bool:
        """Whether the attempt runs on long after its task is gone; before that, interrupt it."""
        if self.abandoned is None or self.done:
            return False
        if now - self.abandoned > _PATIENCE_S and not self.is_cancelled:
            self.is_cancelled = True
            thread = None if self.cached is None else self.cached.thread
            if thread is not None:
                # Ends a loop in Python, but nothing that waits in native code.
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(thread), ctypes.py_object(_Cancelled)
                )
        return now - self.abandoned > 3 * _PATIENCE_S


class Host:
    """One host."""

    def __init__(self, listener: socket.socket, settings: HostSettings) -> None:
        self._listener = listener
        self._settings = settings
        self._cache = PartitionCache()
        #: By digest.
        self._plans: dict[str, PartitionPlan] = {}
        self._importing = threading.Lock()
        #: By file descriptor; only the thread of `run` uses them.
        self._connections: dict[int, _Connection] = {}
        #: Set when the host accepts no more tasks, and ends after those that it has.
        self._retired = False
        self._idle_s = settings.idle_ms / 1000.0
        self._tcp = TcpListener(self._arrive)
        #: Connections of other executors, for the thread of `run`, and a pipe that wakes it.
        self._arrived: queue.SimpleQueue[tuple[socket.socket, Session]] = queue.SimpleQueue()
        self._wake_read, self._wake_write = os.pipe()

    def run(self, parents: Sequence[Process], folder: HostFolder, number: int) -> None:
        """Serve tasks until a parent has ended, the host was idle for too long, or SIGTERM arrives.

        At the end the socket of the host, by its number, is removed from the folder.
        """
        poller = select.poll()
        poller.register(self._listener, select.POLLIN)
        poller.register(self._wake_read, select.POLLIN)
        handles = {parent.handle for parent in parents if parent.handle is not None}
        for handle in handles:
            poller.register(handle, select.POLLIN)
        # Those without one are looked up once a second: a look-up costs more than to serve an event.
        watched = [parent for parent in parents if parent.handle is None]
        longest_ms = min(self._idle_s * 250.0, 1000 if watched else 10_000)
        last_used = looked_up = time.monotonic()
        listens = True
        # After the handles were opened, so that none of them is of a later process with the same pid.
        orphaned = not all(parent.is_alive for parent in parents)
        try:
            while not orphaned:
                waits_for_end = any(one.abandoned is not None for one in self._connections.values())
                for descriptor, _ in poller.poll(_SHORT_MS if waits_for_end else longest_ms):
                    if descriptor in self._connections:
                        # Its thread notices it too, except in the user's function.
                        self._connections[descriptor].abandoned = time.monotonic()
                        poller.unregister(descriptor)
                    elif descriptor == self._wake_read:
                        os.read(self._wake_read, 1)
                        poller.register(self._admit(*self._arrived.get()), _HUNG_UP)
                    elif descriptor in handles:
                        orphaned = True
                    elif listens and descriptor == self._listener.fileno():
                        self._accept(poller)
                now = time.monotonic()
                if watched and now - looked_up > 1.0:
                    orphaned = orphaned or not all(parent.is_alive for parent in watched)
                    looked_up = now
                if self._connections:
                    last_used = now
                self._close_done(poller)
                stuck = [one for one in self._connections.values() if one.is_stuck(now)]
                if stuck and not self._retired:
                    _log.error("this host ends, because the function of a task that is long gone does not")
                    # After its other tasks, which may belong to another query.
                    self._retired = True
                self._cache.drop_unused(now - self._idle_s)
                self._cache.trim_unused(now)
                ends = self._retired or (not self._connections and now - last_used > self._idle_s)
                # A task that has connected meanwhile is served first.
                if listens and ends and folder.withdraw(number, unless=self._is_wanted):
                    poller.unregister(self._listener)
                    self._listener.close()
                    self._tcp.close()
                    listens = False
                if not listens and len(stuck) == len(self._connections):
                    return
        finally:
            self._tcp.close()
            if listens:
                folder.withdraw(number)
            self._cache.close(_PATIENCE_S)

    def close_sockets(self) -> None:
        """Close the sockets in a forked child, which may outlive this process: tasks would wait for it."""
        self._listener.close()
        for connection in list(self._connections.values()):
            connection.socket.close()

    def _accept(self, poller: select.poll) -> None:
        try:
            accepted, _ = self._listener.accept()
        except OSError as error:
            # Without a free file descriptor the task waits; the epochs of other tasks continue.
            _log.warning("no further task is served for now: %s", error)
            time.sleep(_SHORT_MS / 1000.0)
        else:
            poller.register(self._admit(accepted), _HUNG_UP)

    def _is_wanted(self) -> bool:
        return not self._retired and bool(select.select([self._listener], [], [], 0)[0])

    def _arrive(self, connection: socket.socket, session: Session) -> None:
        """Pass a connection of another executor to the thread of `run`."""
        self._arrived.put((connection, session))
        os.write(self._wake_write, b".")

    def _admit(self, accepted: socket.socket, session: Session | None = None) -> socket.socket:
        connection = _Connection(accepted, session)
        self._connections[accepted.fileno()] = connection
        threading.Thread(target=self._serve, args=(connection,), name="keyedstate-task", daemon=True).start()
        return accepted

    def _close_done(self, poller: select.poll) -> None:
        # Not in their threads: a descriptor could belong to another file by the time it is polled.
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
                connection.send(FrameType.FAILED, to_json(Failure.of(error)))
        finally:
            _hang_up(connection.socket)
            connection.done = True

    def _converse(self, connection: _Connection) -> None:
        hello = connection.read(FrameType.HELLO).json()
        versions = {"protocol": PROTOCOL, "keyedstate": version.__version__}
        if hello != versions:
            raise HostProtocolError(f"the task speaks {hello}, and this host {versions}")
        me = process_of(os.getpid())
        assert me is not None
        connection.send(FrameType.HELLO, {"process": me.name})
        document = connection.read(FrameType.BEGIN).json()
        digest, identity, task = _begin(document)
        plan = self._plans.get(digest)
        if connection.session is not None:
            # A task of another executor gets a plan and a version that are here, or nothing.
            if (
                plan is None
                or not self._tcp.allows(connection.session.name, digest)
                or not self._cache.has(_partition_key(plan, identity), digest, str(document.get("version")))
            ):
                connection.send(FrameType.NOT_KEPT)
                return
        else:
            if plan is None:
                plan = self._ask_for_plan(connection, digest)
                while len(self._plans) >= _MAX_PLANS:
                    self._plans.pop(next(iter(self._plans)), None)
                self._plans[digest] = plan
                self._compare_settings(plan)
            register_broadcasts(document.get("broadcasts", {}))
            if "introduction" in document:
                introduction = Introduction.from_json(document["introduction"])
                self._tcp.introduce(introduction, digest, plan.settings)
        executor = document.get("executor")
        connection.executor = executor if isinstance(executor, str) else None
        self._run(connection, digest, plan, identity, task)

    def _compare_settings(self, plan: PartitionPlan) -> None:
        """Warn of a query whose options for hosts differ from those of the query that started this host."""
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

    def _ask_for_plan(self, connection: _Connection, digest: str) -> PartitionPlan:
        connection.send(FrameType.NEED_PLAN)
        imports = connection.read(FrameType.IMPORTS).json()
        packed = bytes(connection.read(FrameType.PLAN).content)
        if hashlib.sha256(packed).hexdigest() != digest:
            raise HostProtocolError("the plan is not the one that was announced")
        # Two threads at once would disturb each other's entries in Python's cache of finders.
        with self._importing:
            extend_import_path(imports)
            plan = cloudpickle.loads(packed)
        if not isinstance(plan, PartitionPlan) or plan.location is None:
            raise HostProtocolError("the plan is malformed")
        return plan

    def _run(
        self,
        connection: _Connection,
        digest: str,
        plan: PartitionPlan,
        identity: TaskIdentity,
        task: Mapping[str, Any],
    ) -> None:
        """Run the epoch in the partition's thread."""
        assert plan.location is not None
        start = EpochStart.of(plan, plan.location, identity)
        attempt = self._cache.take(_partition_key(plan, identity), digest, identity.query_id)
        connection.cached = cached = attempt.cached

        def epoch() -> Acknowledgement:
            set_task_facts(task)
            partition = cached.at(plan, start)
            self._check_memory()
            connection.send(FrameType.READY, {"goes_on": start.continues_run})
            encoder = BatchEncoder()
            broadcast_rows = self._rows(connection, FrameType.KEYED)
            batches = self._rows(connection, FrameType.END, broadcast_rows)
            with contextlib.closing(partition.run(start, broadcast_rows, batches)) as results:
                for batch in results:
                    for pieces in encoder.frames(batch):
                        connection.send_pieces(pieces)
            return partition.finish(start, self._tcp.address, connection.executor)

        try:
            acknowledgement = cached.run(epoch)
        except BaseException:
            self._cache.drop(attempt)
            raise
        # No error: the epoch is complete.
        self._retired = self._retired or self._used_too_much() is not None
        # Before DONE is sent: the next epoch may start at once.
        if connection.is_cancelled:
            # The exception raised into its thread may still be pending.
            self._cache.drop(attempt)
        else:
            self._cache.put_back(attempt)
        done = {"manifest": acknowledgement.manifest, "content": acknowledgement.content}
        connection.send(FrameType.DONE, done)

    def _rows(
        self, connection: _Connection, last: FrameType, before: Iterable[pa.RecordBatch] = ()
    ) -> Iterator[pa.RecordBatch]:
        """Yield the batches after those of another iterator, up to a frame of the given type."""
        # A function without a broadcast side has not read them.
        for _ in before:
            pass
        decoder = BatchDecoder()
        while (received := connection.read(FrameType.SCHEMA, FrameType.BATCH, last)).type is not last:
            batch = decoder.batch(received)
            if batch is not None:
                yield batch
                self._check_memory()

    def _check_memory(self) -> None:
        used = self._used_too_much()
        if used is not None:
            # The system may not get freed memory back, so the next task starts a new process.
            self._retired = True
            raise HostMemoryError(used, self._settings.memory_bytes)

    def _used_too_much(self) -> int | None:
        """Return the host's memory if it exceeds the limit."""
        limit = self._settings.memory_bytes
        used = resident_bytes() if limit else 0
        return used if used > limit else None


def main() -> None:
    """Run a host, as `keyedstate.spark.hosts.launch` starts it, to its end."""
    document = json.loads(sys.argv[1])
    start = HostStart(**{**document, "settings": HostSettings(**document["settings"])})
    sys.argv = ["keyedstate-host"]
    faulthandler.enable(all_threads=False)
    # Spark's daemon ignores it, and its children inherit that: the exit codes of subprocesses would be lost.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, _end)
    allow_open_files()
    collect_less_often()
    parents = [parent for parent in map(Process.named, start.parents) if parent is not None]
    folder = HostFolder(parents[0], Path(start.place))
    try:
        with socket.socket(fileno=start.listener) as listener, working_folders_of_this_host():
            # No program that the user's function starts may listen here after this host.
            listener.set_inheritable(False)
            host = Host(listener, start.settings)
            os.register_at_fork(after_in_child=host.close_sockets)
            host.run(parents, folder, start.number)
    except SystemExit:
        pass
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    # A thread that is stuck in the user's function must not keep the process alive.
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(0)


def _end(number: int, where: PythonFrame | None) -> None:
    sys.exit(0)


def _refuse_strangers(connection: socket.socket) -> None:
    # In addition to the folder's permissions, if the system names the peer's user.
    user = peer_user(connection)
    if user not in (None, os.getuid()):
        raise HostProtocolError(f"the task is one of the user {user}")


def _partition_key(plan: PartitionPlan, identity: TaskIdentity) -> PartitionKey:
    assert plan.location is not None
    return f"{plan.location.directory}/{plan.location.uid}", identity.partition


def _begin(document: Mapping[str, Any]) -> tuple[str, TaskIdentity, Mapping[str, Any]]:
    """Return the plan's digest, the attempt and the task's facts of a BEGIN frame."""
    try:
        digest, identity = document["digest"], from_json(TaskIdentity, document["identity"])
        task = document.get("task", {})
        if not isinstance(digest, str) or not isinstance(task, dict):
            raise TypeError("the digest is no string, or the task no object")
    except (KeyError, TypeError, ValueError, KeyedStateError) as error:
        raise HostProtocolError(f"a BEGIN frame is malformed ({error})") from error
    return digest, identity, task


def _hang_up(connection: socket.socket) -> None:
    """Close a connection so that the task, which may still be sending, receives the last frame."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(_PATIENCE_S)
        while connection.recv(1 << 16):
            pass
