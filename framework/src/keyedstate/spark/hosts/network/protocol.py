"""The frames of a connection between a task and its host.

A frame is its length (4 bytes, big-endian), its type (1 byte) and its content: a JSON object, an Arrow IPC
message, the pickled plan, or nothing.  A connection serves one attempt at one epoch::

    task                                      host
    HELLO   versions                     →
    BEGIN   digest of the plan, identity →
                                         ←    HELLO      process
                                         ←    NEED_PLAN  (for an unknown digest)
    IMPORTS, PLAN                        →
                                         ←    READY      the state is restored
    SCHEMA, BATCH...                     →               rows of the broadcast side
    KEYED                                →
    SCHEMA, BATCH...                     →    ←  SCHEMA, BATCH...    at the same time
    END                                  →
                                         ←    DONE       the path of the attempt's manifest
                                         ←    FAILED     instead of any of the host's frames
                                         ←    NOT_KEPT   instead of READY, to a task of another executor

A task of another executor authenticates itself first (`handshake`), and names the version that it needs.  The
host accepts no plan from it: without the plan or the version it answers NOT_KEPT.  Without TLS each frame in
both directions ends with a seal (`seals`), which the length does not count.

`FrameReader` accepts the expected types only, HELLO before all others, and enforces the limit of each type.
PLAN alone is pickled.
"""

from __future__ import annotations

import enum
import hmac
import json
import socket
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from keyedstate.checkpoint.protocol.coordinator import CARRIED_BYTES
from keyedstate.errors import HostProtocolError
from keyedstate.spark.hosts.network.seals import SEAL_BYTES, Seals

#: The version of the protocol; a host refuses others.
PROTOCOL = 1
_HEADER = struct.Struct(">IB")
#: Larger batches are split, which bounds the memory of both sides.
BATCH_BYTES = 16 << 20
_FIRST_PIECE = 1 << 20


class FrameType(enum.IntEnum):
    """The type of a frame, and the limit of its content in bytes."""

    limit: int

    HELLO = 1, 4 << 10
    BEGIN = 2, 4 << 20
    NEED_PLAN = 3, 0
    IMPORTS = 4, 4 << 20
    PLAN = 5, 1 << 30
    READY = 6, 4 << 10
    SCHEMA = 7, 16 << 20
    BATCH = 8, (1 << 32) - 1
    KEYED = 9, 0
    END = 10, 0
    #: Has a manifest as a string, which escapes make twice as long at most, and its path.
    DONE = 11, 4 * CARRIED_BYTES
    FAILED = 12, 1 << 20
    NOT_KEPT = 13, 0

    def __new__(cls, number: int, limit: int) -> FrameType:
        kind = int.__new__(cls, number)
        kind._value_ = number
        kind.limit = limit
        return kind


@dataclass(frozen=True)
class Frame:
    """A frame that was received."""

    type: FrameType
    content: bytearray

    def json(self) -> dict[str, Any]:
        """Return the content as a JSON object; raises `HostProtocolError`."""
        try:
            document = json.loads(self.content)
        except ValueError as error:
            raise HostProtocolError(f"the content of a {self.type.name} frame is no JSON") from error
        if not isinstance(document, dict):
            raise HostProtocolError(f"the content of a {self.type.name} frame is no JSON object")
        return document


def frame(kind: FrameType, content: Any = b"") -> list[Any]:
    """Return the pieces of a frame, to be sent in their order.

    Raises `HostProtocolError` if the content exceeds the limit of its type.
    """
    if isinstance(content, Mapping):
        content = json.dumps(content).encode()
    piece = memoryview(content).cast("B")
    if len(piece) > kind.limit:
        raise HostProtocolError(f"a {kind.name} frame of {len(piece)} bytes is above the limit {kind.limit}")
    return [_HEADER.pack(len(piece), kind), piece] if len(piece) else [_HEADER.pack(0, kind)]


class BatchEncoder:
    """Makes frames of the batches of one direction: a schema before the first one, and when it changes."""

    def __init__(self) -> None:
        self._schema: pa.Schema | None = None

    def frames(self, batch: pa.RecordBatch) -> Iterator[list[Any]]:
        """Yield the frames of one batch; a large one is split."""
        if batch.schema != self._schema:
            self._schema = batch.schema
            yield frame(FrameType.SCHEMA, batch.schema.serialize())
        parts = 1 + min(batch.nbytes // BATCH_BYTES, max(batch.num_rows - 1, 0))
        rows = -(-batch.num_rows // parts)
        for start in range(0, batch.num_rows, max(rows, 1)):
            yield frame(FrameType.BATCH, batch.slice(start, rows).serialize())


class BatchDecoder:
    """Makes batches of the frames of one direction."""

    def __init__(self) -> None:
        self._schema: pa.Schema | None = None

    def batch(self, received: Frame) -> pa.RecordBatch | None:
        """Return the batch of a frame, None for a schema; `HostProtocolError` for others and damaged ones."""
        content = pa.py_buffer(received.content)
        try:
            if received.type is FrameType.SCHEMA:
                self._schema = pa.ipc.read_schema(content)
                return None
            if received.type is FrameType.BATCH and self._schema is not None:
                batch = pa.ipc.read_record_batch(content, self._schema)
                batch.validate()
                return batch
        except (pa.ArrowException, OSError, ValueError) as error:
            raise HostProtocolError(f"a {received.type.name} frame is damaged ({error})") from error
        raise HostProtocolError(f"a {received.type.name} frame came where rows were expected")


class FrameReader:
    """Reads frames from a blocking or non-blocking socket, and checks their seals if it is given any.

    The caller changes the types that are expected during the conversation.
    """

    def __init__(
        self, connection: socket.socket, expected: set[FrameType], seals: Seals | None = None
    ) -> None:
        self.expected = expected
        self._connection = connection
        self._seals = seals
        self._header = bytearray(_HEADER.size)
        self._type: FrameType | None = None
        self._length = 0
        self._content = bytearray()
        self._filled = 0

    def read(self) -> Frame | None:
        """Wait for a frame; None if the other side has closed the connection. Raises as `step`."""
        while True:
            received, ended = self.step()
            if ended:
                return None
            if received is not None:
                return received

    def step(self) -> tuple[Frame | None, bool]:
        """Receive once: return the frame that is complete then, and whether the connection has ended.

        Raises `HostProtocolError`, and OSError if the connection is lost, also if it ends inside a frame.
        """
        if self._type is None:
            target, end = self._header, _HEADER.size
        else:
            target, end = self._content, len(self._content)
        with memoryview(target) as view:
            count = self._connection.recv_into(view[self._filled : end])
        if count == 0:
            if self._type is None and self._filled == 0:
                return None, True
            raise ConnectionResetError("the connection ended inside a frame")
        self._filled += count
        if self._filled < end:
            return None, False
        if self._type is None:
            self._begin()
        elif end < self._length:
            # Grows with the received bytes: a length alone takes no memory.
            self._content.extend(bytes(min(end, self._length - end)))
        if self._type is not None and self._filled == self._length:
            self._check_seal()
            done = Frame(self._type, self._content)
            self._type, self._filled, self._content = None, 0, bytearray()
            return done, False
        return None, False

    def _check_seal(self) -> None:
        if self._seals is None:
            return
        seal = bytes(self._content[-SEAL_BYTES:])
        del self._content[-SEAL_BYTES:]
        if not hmac.compare_digest(seal, self._seals.next((self._header, self._content))):
            raise HostProtocolError("a frame has the wrong seal: another process has changed or repeated it")

    def _begin(self) -> None:
        length, number = _HEADER.unpack(self._header)
        kind = next((kind for kind in self.expected if kind == number), None)
        if kind is None:
            known = next((kind.name for kind in FrameType if kind == number), str(number))
            names = ", ".join(sorted(kind.name for kind in self.expected))
            raise HostProtocolError(f"a frame of the type {known} came where one of {names} was expected")
        if length > kind.limit:
            raise HostProtocolError(f"a {kind.name} frame of {length} bytes is above the limit {kind.limit}")
        length += 0 if self._seals is None else SEAL_BYTES
        self._type, self._length, self._filled = kind, length, 0
        self._content = bytearray(min(length, _FIRST_PIECE))
