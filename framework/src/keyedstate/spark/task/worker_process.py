"""Two costs of Spark's Python workers that exceed a task of few rows, and how a task avoids them.

* A reused worker runs the garbage collector after each task, over all imported modules: 50 ms with pyspark,
  pandas and pyarrow.  `spare_the_collector` freezes the objects that exist after the first task, and lets it
  run less often from then on.
* The JVM writes a task's command and then its rows.  TCP delays the second small write until Linux
  acknowledges the first one, up to 40 ms later (Nagle's algorithm and delayed acknowledgements).
  `read_at_once` acknowledges at once, as does ``spark.python.unix.domain.socket.enabled``.
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

from keyedstate.spark.hosts.limits import collect_less_often

_OPEN_FILES = "/proc/self/fd"
#: Linux only; the kernel resets it now and then.
_QUICK_ACK: int | None = getattr(socket, "TCP_QUICKACK", None)


def read_at_once(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches that Spark sends to this worker, without delayed acknowledgements."""
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
    """Exclude all present objects from garbage collection, which runs less often from then on.

    Once in the life of a process.
    """
    gc.collect()
    gc.freeze()
    collect_less_often()


def _connections_to_this_machine() -> list[int]:
    """Return the descriptors of TCP connections to this machine; one is that to the JVM."""
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
    # The user's function may have closed a connection of its own.
    with contextlib.suppress(OSError), _borrowed(descriptor) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, option, 1)


@contextlib.contextmanager
def _borrowed(descriptor: int) -> Iterator[socket.socket]:
    """Give a socket of a descriptor, and leave the descriptor open."""
    connection = socket.socket(fileno=descriptor)
    try:
        yield connection
    finally:
        connection.detach()
