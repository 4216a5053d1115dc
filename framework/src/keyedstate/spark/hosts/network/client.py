"""A task's side of a connection: one loop that sends and receives, each when the socket is ready.

So neither side waits for the other to read, and each keeps at most one batch per direction in memory.
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
from keyedstate.checkpoint.format.json_converter import from_json, to_json
from keyedstate.checkpoint.format.manifest import TaskIdentity
from keyedstate.checkpoint.protocol.coordinator import Acknowledgement
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

#: The broadcast and the keyed rows, given whether the run has had an epoch before.
Sides: TypeAlias = "Callable[[bool], tuple[Iterable[pa.RecordBatch], Iterator[pa.RecordBatch]]]"

#: How many hosts a task tries that end just as it connects.
_TRIES = 5


@dataclass(frozen=True)
class HostedEpoch:
    """An attempt at an epoch, to be run in a host."""

    identity: TaskIdentity
    #: The plan, pickled.
    packed: bytes
    sides: Sides
    #: 0 sets no limit.
    timeout_ms: int
    #: The facts of `TaskContext` in the host; by default those of this task.
    task: Mapping[str, Any] = field(default_factory=task_facts)
    #: None if other executors do not use the host.
    introduction: Introduction | None = None

    def run(self, connect: Callable[[], socket.socket]) -> Generator[pa.RecordBatch, None, Acknowledgement]:
        """Yield the output of the epoch and return its acknowledgement.

        `connect` returns a connection to the partition's host, and is called again if that ends before it
        answers. Raises the error in the host, a `KeyedStateError` of its own class, and
        `HostUnavailableError`, `HostLostError`, `HostProtocolError` or `EpochTimeoutError`.
        """
        for _ in range(_TRIES):
            with connect() as connection:
                conversation = _Conversation(self, connection)
                try:
                    conversation.begin()
                except HostLostError:
                    continue
                return (yield from conversation.run(conversation.prepare()))
        raise HostUnavailableError(f"{_TRIES} hosts, one after the other, have ended when a task connected")

    def offer(
        self, connection: socket.socket, session: Session, version: str, deadline: float
    ) -> Generator[pa.RecordBatch, None, Acknowledgement] | None:
        """Ask the host of another executor, at an authenticated connection, to run the epoch.

        Returns as `run`; None if the host does not keep the `Partition.version` from which the epoch starts.
        Its first answer has a deadline, by `time.monotonic`. Raises `KeyedStateError` if it fails before the
        first row.
        """
        conversation = _Conversation(self, connection, session, version)
        of_epoch, conversation.deadline = conversation.deadline, deadline
        try:
            conversation.begin()
        except EpochTimeoutError:
            raise HostUnavailableError("that of another executor does not answer") from None
        conversation.deadline = of_epoch
        ready = conversation.prepare()
        return None if ready.type is FrameType.NOT_KEPT else conversation.run(ready)


class _Conversation:
    """One attempt at a connection; a version is given to hosts of other executors only."""

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
        #: To be sent. A host that has failed may have stopped receiving.
        self._outgoing: list[memoryview] = []
        self._is_cut_off = False
        self.deadline = time.monotonic() + epoch.timeout_ms / 1000.0 if epoch.timeout_ms else None
        self._poller = select.poll()
        connection.setblocking(False)

    def begin(self) -> None:
        """Send HELLO and BEGIN, and receive HELLO."""
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
        self._host = Process.named(str(self._wait().json().get("process")))

    def prepare(self) -> Frame:
        """Let the host restore the partition, with the plan if it asks for it; return its answer."""
        self._reader.expected = {FrameType.READY, FrameType.FAILED}
        self._reader.expected.add(FrameType.NEED_PLAN if self._version is None else FrameType.NOT_KEPT)
        received = self._wait()
        if received.type is FrameType.NEED_PLAN:
            self._put(frame(FrameType.IMPORTS, _imports()), frame(FrameType.PLAN, self._epoch.packed))
            self._reader.expected = {FrameType.READY, FrameType.FAILED}
            received = self._wait()
        return received

    def run(self, ready: Frame) -> Generator[pa.RecordBatch, None, Acknowledgement]:
        """Yield the output and return the acknowledgement, after the answer to `prepare`."""
        sending = self._frames(bool(ready.json().get("goes_on")))
        self._reader.expected = {FrameType.SCHEMA, FrameType.BATCH, FrameType.DONE, FrameType.FAILED}
        decoder = BatchDecoder()
        exhausted = False
        while True:
            if not self._outgoing and not exhausted:
                # Waits for rows of Spark.
                pieces = next(sending, None)
                if pieces is None:
                    exhausted = True
                else:
                    self._put(pieces)
            answer = self._step()
            if answer is None:
                continue
            if answer.type is FrameType.DONE:
                return self._acknowledgement(answer.json())
            batch = decoder.batch(answer)
            if batch is not None:
                yield batch

    def _acknowledgement(self, done: Mapping[str, Any]) -> Acknowledgement:
        content = done.get("content")
        if content is not None and not isinstance(content, str):
            raise HostProtocolError("a DONE frame is malformed")
        return Acknowledgement(self._epoch.identity, str(done.get("manifest")), content)

    def _frames(self, continues_run: bool) -> Iterator[list[Any]]:
        broadcast_rows, batches = self._epoch.sides(continues_run)
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
        if self._is_cut_off:
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
        """Wait until the connection is ready, and send or receive; return the frame that is complete then."""
        events = select.POLLIN | (select.POLLOUT if self._outgoing else 0)
        self._poller.register(self._connection, events)
        left_ms = None if self.deadline is None else (self.deadline - time.monotonic()) * 1000.0
        ready = self._poller.poll(None if left_ms is None else max(left_ms, 0.0))
        if self.deadline is not None and time.monotonic() >= self.deadline:
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
            # Its last frame is still to be read.
            self._outgoing.clear()
            self._is_cut_off = True
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
                failure = from_json(Failure, received.json())
            except (KeyError, TypeError, ValueError) as error:
                raise HostProtocolError("a FAILED frame is malformed") from error
            raise failure.error()
        return received

    def _lost(self) -> HostLostError:
        identity = self._epoch.identity
        pid = 0 if self._host is None else self._host.pid
        return HostLostError(identity.uid, identity.partition, identity.epoch, pid)

    def _give_up(self) -> None:
        # A host of another executor interrupts the function, or ends, when the connection is closed.
        if self._host is not None and self._version is None:
            self._host.kill(signal.SIGKILL)
        identity = self._epoch.identity
        raise EpochTimeoutError(identity.uid, identity.partition, identity.epoch, self._epoch.timeout_ms)


def _imports() -> dict[str, Any]:
    """Return where this worker finds modules, and Spark's files."""
    return {"sys_path": list(filter(None, sys.path)), "spark_files": SparkFiles._root_directory}


def _broadcasts() -> dict[str, str]:
    """Return the paths of this worker's broadcast variables by number."""
    broadcast = sys.modules.get("pyspark.broadcast")
    registry = {} if broadcast is None else broadcast._broadcastRegistry
    paths = {str(number): getattr(value, "_path", None) for number, value in registry.items()}
    return {number: path for number, path in paths.items() if path is not None}
