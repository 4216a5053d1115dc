"""A connection between two processes: record batches and messages, in order, over a socket.

A frame has its kind, its length, and either an Arrow stream with one batch or a pickled message. Both
processes are of one program.
"""

from __future__ import annotations

import pickle
import selectors
import socket
import struct
from collections import deque
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

_HEADER = struct.Struct("<BQ")
_BATCH, _MESSAGE = 0, 1


class Connection:
    """One end of a connection, a socket of a pair, which it closes; it does not block."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._socket = end
        #: What is not sent yet; the first part may be the rest of one.
        self._unsent: deque[memoryview] = deque()
        #: The header or the content of the frame that arrives, and how much of it has arrived.
        self._arriving = bytearray(_HEADER.size)
        self._arrived = 0
        #: Of the content that arrives; None while a header does.
        self._kind: int | None = None

    def fileno(self) -> int:
        """Return the file descriptor, by which `wait` knows the connection."""
        return self._socket.fileno()

    @property
    def unsent(self) -> bool:
        """Whether anything that was put is not sent yet."""
        return bool(self._unsent)

    def put(self, message: Any) -> None:
        """Send a record batch or any message behind all that was put before, as far as there is room now."""
        self._unsent.extend(_frame(message))
        self.flush()

    def flush(self) -> None:
        """Send what was put, as far as there is room now.

        Where the other process is gone, it is dropped: `take` reports that, behind what the process has sent.
        """
        while self._unsent:
            part = self._unsent[0]
            try:
                sent = self._socket.send(part)
            except BlockingIOError:
                return
            except ConnectionError:
                self._unsent.clear()
                return
            if sent == len(part):
                self._unsent.popleft()
            else:
                self._unsent[0] = part[sent:]

    def take(self) -> Any:
        """Return the next message or batch that has arrived; None where none has arrived completely.

        Raises EOFError where the other process is gone, or has closed the connection.
        """
        while True:
            with memoryview(self._arriving) as view:
                try:
                    count = self._socket.recv_into(view[self._arrived :])
                except BlockingIOError:
                    return None
                except ConnectionError:
                    count = 0
            if not count:
                raise EOFError
            self._arrived += count
            if self._arrived < len(self._arriving):
                continue
            content, kind, self._arrived = self._arriving, self._kind, 0
            if kind is None:
                self._kind, size = _HEADER.unpack(content)
                self._arriving = bytearray(size)
                continue
            self._kind, self._arriving = None, bytearray(_HEADER.size)
            if kind == _MESSAGE:
                return pickle.loads(content)
            with pa.ipc.open_stream(pa.py_buffer(content)) as reader:
                return reader.read_next_batch()

    def close(self) -> None:
        """Close the connection; calling it again does nothing."""
        self._socket.close()


def wait(reading: Sequence[Connection], writing: Sequence[Connection], timeout: float | None) -> None:
    """Return when a connection has something to read or room to write, or after so many seconds."""
    with selectors.DefaultSelector() as selector:
        for connection in {*reading, *writing}:
            events = selectors.EVENT_READ * (connection in reading)
            selector.register(connection, events | selectors.EVENT_WRITE * (connection in writing))
        selector.select(timeout)


def _frame(message: Any) -> list[memoryview]:
    if isinstance(message, pa.RecordBatch):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, message.schema) as writer:
            writer.write_batch(message)
        kind, content = _BATCH, memoryview(sink.getvalue())
    else:
        kind, content = _MESSAGE, memoryview(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))
    return [memoryview(_HEADER.pack(kind, len(content))), content]
