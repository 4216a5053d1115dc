"""What Spark's Python workers lose between a task's steps, and how a task gets it back.

Two things cost a task of few rows more than its work does (seen on Spark 4.3):

* A worker that is used again collects garbage after each task, and looks at all that was ever imported:
  50 ms of a processor where pyspark, pandas and pyarrow are.  What is there at the end of a worker's first
  task is taken out of the collector's sight (`gc.freeze`): it stays until the process ends anyway.
* The JVM writes a task's command and then its rows, and TCP holds small writes back until the one before is
  acknowledged, which Linux puts off for 40 ms where nothing is sent the other way (Nagle's algorithm and
  delayed acknowledgements).  So the task asks that what came be acknowledged at once, before it waits for
  more.  Spark's option ``spark.python.unix.domain.socket.enabled`` has the same effect.
"""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import stat
from collections.abc import Iterable, Iterator
from functools import lru_cache
from ipaddress import ip_address

import pyarrow as pa

#: Where Linux lists the open files of a process.
_OPEN_FILES = "/proc/self/fd"
#: Linux only; it holds until the kernel thinks better of it.
_QUICK_ACK: int | None = getattr(socket, "TCP_QUICKACK", None)


def read_at_once(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield what Spark sends to this worker, without the delays of acknowledgements."""
    connections = _connections_to_this_machine()
    for connection in connections:
        _set(connection, socket.TCP_NODELAY)
    source = iter(batches)
    while True:
        if _QUICK_ACK is not None:
            for connection in connections:
                _set(connection, _QUICK_ACK)
        batch = next(source, None)
        if batch is None:
            return
        yield batch


@lru_cache(maxsize=1)
def spare_the_collector() -> None:
    """Take what is in memory out of the garbage collector's sight, once in the life of a process."""
    gc.collect()
    gc.freeze()


def _connections_to_this_machine() -> list[int]:
    """Return the descriptors of TCP connections to this machine, of which the JVM's is one."""
    found = []
    with contextlib.suppress(OSError):
        for name in os.listdir(_OPEN_FILES):
            with contextlib.suppress(OSError, ValueError):
                if stat.S_ISSOCK(os.fstat(int(name)).st_mode) and _is_to_this_machine(int(name)):
                    found.append(int(name))
    return found


def _is_to_this_machine(descriptor: int) -> bool:
    with _borrowed(descriptor) as connection:
        if connection.family not in (socket.AF_INET, socket.AF_INET6):
            return False
        return connection.type == socket.SOCK_STREAM and ip_address(connection.getpeername()[0]).is_loopback


def _set(descriptor: int, option: int) -> None:
    # The user's own function may have had such a connection, and have closed it.
    with contextlib.suppress(OSError), _borrowed(descriptor) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, option, 1)


@contextlib.contextmanager
def _borrowed(descriptor: int) -> Iterator[socket.socket]:
    """Give a socket that stays open, since it belongs to somebody else."""
    connection = socket.socket(fileno=descriptor)
    try:
        yield connection
    finally:
        connection.detach()
