"""A task's side of a connection: one loop that sends when the host takes, and receives when it gives.

So neither side waits for the other to read, and of each direction no more is in memory than a batch here, a
batch there and what the socket holds.
"""

from __future__ import annotations

import hashlib
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark import SparkFiles

from keyedstate import version
from keyedstate.checkpoint import TaskIdentity, to_json
from keyedstate.errors import EpochTimeoutError, HostLostError, HostProtocolError, HostUnavailableError
from keyedstate.spark.hosts.failures import Failure
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
from keyedstate.spark.hosts.network.tcp_listener import Introduction
from keyedstate.spark.hosts.processes import Process
from keyedstate.spark.hosts.task_context import task_facts

#: Given whether the run has had an epoch before: the rows of the broadcast side, and those of keys.
Sides: TypeAlias = "Callable[[bool], tuple[Iterable[pa.RecordBatch], Iterator[pa.RecordBatch]]]"

#: How often a task looks for another host where one ends just as it connects.
_TRIES = 5


@dataclass(frozen=True)
class HostedEpoch:
    """An attempt at an epoch, to be run in a host.

    Attributes
    ----------
    identity : TaskIdentity
    packed : bytes
        The plan, pickled.
    sides : callable
    timeout_ms : int
        How long it may take; 0 for any time.
    task : mapping, optional
        What `TaskContext` is to say in the host; by default what it says here.
    introduction : Introduction or None
        What other executors need to reach the host; None where they are not to.
    """

    identity: TaskIdentity
    packed: bytes
    sides: Sides
    timeout_ms: int
    task: Mapping[str, Any] = field(default_factory=task_facts)
    introduction: Introduction | None = None

    def run(self, connect: Callable[[], socket.socket]) -> Generator[pa.RecordBatch, None, str]:
        """Yield the output of the epoch and return the path of the attempt's manifest.

        Parameters
        ----------
        connect : callable
            Returns a connection to the partition's host; called again where that ends before it answers.

        Raises
        ------
        KeyedStateError
            What has failed in the host, under its own class.
        HostUnavailableError, HostLostError, HostProtocolError, EpochTimeoutError
        """
        for _ in range(_TRIES):
            with connect() as connection:
                conversation = _Conversation(self, connection)
                if conversation.begin():
                    return (yield from conversation.run(conversation.prepare()))
        raise HostUnavailableError(f"{_TRIES} hosts, one after the other, have ended when a task connected")

    def offer(
        self, connection: socket.socket, session: Session, version: str, deadline: float
    ) -> Generator[pa.RecordBatch, None, str] | None:
        """Ask the host of another executor to run the epoch.

        Parameters
        ----------
        connection : socket.socket
            To a host that has proved that it belongs to the query.
        session : Session
            What that proof has given.
        version : str
            The `Partition.version` from which the epoch begins.
        deadline : float
            By `time.monotonic`, for its answer.

        Returns
        -------
        generator or None
            As `run`; None where it does not keep that version.

        Raises
        ------
        KeyedStateError
            Where it has failed before it took any rows.
        """
        conversation = _Conversation(self, connection, session, version)
        conversation.begin_elsewhere(deadline)
        ready = conversation.prepare()
        return None if ready.type is FrameType.NOT_KEPT else conversation.run(ready)


class _Conversation:
    def __init__(
        self,
        epoch: HostedEpoch,
        connection: socket.socket,
        session: Session | None = None,
        version: str | None = None,
    ) -> None:
        self._epoch = epoch
        self._session = session
        self._version = version
        self._connection = connection
        self._reader = FrameReader(
            connection, {FrameType.HELLO, FrameType.FAILED}, None if session is None else session.received
        )
        self._host: Process | None = None
        #: What is being sent; the host may have hung up on it, since it has something to say.
        self._outgoing: list[memoryview] = []
        self._deaf = False
        self._deadline = time.monotonic() + epoch.timeout_ms / 1000.0 if epoch.timeout_ms else None
        self._poller = select.poll()
        connection.setblocking(False)

    def begin(self) -> bool:
        """Exchange greetings; False where the host ends instead."""
        self._greet()
        try:
            hello = self._wait()
        except HostLostError:
            return False
        self._host = Process.named(str(hello.json().get("process")))
        return True

    def begin_elsewhere(self, deadline: float) -> None:
        """Exchange greetings with a host that is no process of this executor, and none to be killed."""
        self._greet()
        longest, self._deadline = self._deadline, deadline
        try:
            hello = self._wait()
        except EpochTimeoutError:
            raise HostUnavailableError("that of another executor does not answer") from None
        self._host = Process.named(str(hello.json().get("process")))
        self._deadline = longest

    def _greet(self) -> None:
        epoch = self._epoch
        begin: dict[str, Any] = {
            "digest": hashlib.sha256(epoch.packed).hexdigest(),
            "identity": to_json(epoch.identity),
            "task": dict(epoch.task),
        }
        if epoch.introduction is not None:
            begin["executor"] = epoch.introduction.executor
            # The secret stays on this executor.
            if self._version is None:
                begin["introduction"] = epoch.introduction.to_json()
        if self._version is None:
            begin["broadcasts"] = _broadcasts()
        else:
            begin["version"] = self._version
        self._put(
            frame(FrameType.HELLO, {"protocol": PROTOCOL, "keyedstate": version.__version__}),
            frame(FrameType.BEGIN, begin),
        )

    def prepare(self) -> Frame:
        """Bring the host to the beginning of the epoch; returns its answer."""
        self._reader.expected = {FrameType.READY, FrameType.FAILED}
        self._reader.expected.add(FrameType.NEED_PLAN if self._version is None else FrameType.NOT_KEPT)
        received = self._wait()
        if received.type is FrameType.NEED_PLAN:
            self._put(frame(FrameType.IMPORTS, _imports()), frame(FrameType.PLAN, self._epoch.packed))
            self._reader.expected = {FrameType.READY, FrameType.FAILED}
            received = self._wait()
        return received

    def run(self, ready: Frame) -> Generator[pa.RecordBatch, None, str]:
        """Yield the output and return the path of the manifest; `ready` is what `prepare` has returned."""
        sending = self._frames(bool(ready.json().get("goes_on")))
        self._reader.expected = {FrameType.SCHEMA, FrameType.BATCH, FrameType.DONE, FrameType.FAILED}
        decoder = BatchDecoder()
        exhausted = False
        while True:
            if not self._outgoing and not exhausted:
                # Waits for Spark, which takes what this task has yielded meanwhile.
                pieces = next(sending, None)
                if pieces is None:
                    exhausted = True
                else:
                    self._put(pieces)
            answer = self._step()
            if answer is None:
                continue
            if answer.type is FrameType.DONE:
                return str(answer.json().get("manifest"))
            batch = decoder.batch(answer)
            if batch is not None:
                yield batch

    def _frames(self, goes_on: bool) -> Iterator[list[Any]]:
        broadcast_rows, batches = self._epoch.sides(goes_on)
        encoder = BatchEncoder()
        for batch in broadcast_rows:
            yield from encoder.frames(batch)
        yield frame(FrameType.KEYED)
        encoder = BatchEncoder()
        for batch in batches:
            if batch.num_rows:
                yield from encoder.frames(batch)
        yield frame(FrameType.END)

    def _put(self, *frames: list[Any]) -> None:
        if self._deaf:
            return
        for pieces in frames:
            sealed = pieces if self._session is None else self._session.sealed(pieces)
            self._outgoing += [memoryview(piece).cast("B") for piece in sealed]

    def _wait(self) -> Frame:
        while True:
            received = self._step()
            if received is not None:
                return received

    def _step(self) -> Frame | None:
        """Wait until the host takes or gives something; return the frame that this has completed."""
        events = select.POLLIN | (select.POLLOUT if self._outgoing else 0)
        self._poller.register(self._connection, events)
        left_ms = None if self._deadline is None else (self._deadline - time.monotonic()) * 1000.0
        ready = self._poller.poll(None if left_ms is None else max(left_ms, 0.0))
        if self._deadline is not None and time.monotonic() >= self._deadline:
            self._give_up()
        for _, event in ready:
            if event & select.POLLOUT and self._outgoing:
                self._send()
            if event & ~select.POLLOUT:
                return self._receive()
        return None

    def _send(self) -> None:
        try:
            sent = self._connection.send(self._outgoing[0])
        except BlockingIOError:
            return
        except OSError:
            # What it has said before it hung up is still to be read.
            self._outgoing.clear()
            self._deaf = True
            return
        if sent < len(self._outgoing[0]):
            self._outgoing[0] = self._outgoing[0][sent:]
        else:
            del self._outgoing[0]

    def _receive(self) -> Frame | None:
        try:
            received, ended = self._reader.step()
        except BlockingIOError:
            return None
        except OSError as error:
            raise self._lost() from error
        if ended:
            raise self._lost()
        if received is not None and received.type is FrameType.FAILED:
            try:
                failure = Failure.from_json(received.json())
            except (KeyError, TypeError) as error:
                raise HostProtocolError("a FAILED frame is malformed") from error
            raise failure.error()
        return received

    def _lost(self) -> HostLostError:
        identity = self._epoch.identity
        pid = 0 if self._host is None else self._host.pid
        return HostLostError(identity.uid, identity.partition, identity.epoch, pid)

    def _give_up(self) -> None:
        # That of another executor interrupts the function, or ends, when the connection does.
        if self._host is not None and self._version is None:
            self._host.kill(signal.SIGKILL)
        identity = self._epoch.identity
        raise EpochTimeoutError(identity.uid, identity.partition, identity.epoch, self._epoch.timeout_ms)


def _imports() -> dict[str, Any]:
    """Return where this worker finds modules and files of Spark."""
    return {
        "sys_path": [entry for entry in sys.path if entry],
        "spark_files": SparkFiles._root_directory,
    }


def _broadcasts() -> dict[str, str]:
    """Return where this worker reads broadcast variables, by their numbers."""
    broadcast = sys.modules.get("pyspark.broadcast")
    registry = {} if broadcast is None else broadcast._broadcastRegistry
    paths = {str(number): getattr(value, "_path", None) for number, value in registry.items()}
    return {number: path for number, path in paths.items() if path is not None}
