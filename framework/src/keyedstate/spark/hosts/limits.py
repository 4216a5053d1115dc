"""What a host takes of its machine: memory and open files."""

from __future__ import annotations

import contextlib
import os
import resource
from pathlib import Path

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    """Return how much memory this process takes."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES
    except OSError:
        # In bytes on macOS, where there is no such file: the largest that it ever was.
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def allow_open_files() -> None:
    """Let this process have as many open files as the system lets it."""
    # As the JVM does: the databases of many partitions have more files than the usual 1,024.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
