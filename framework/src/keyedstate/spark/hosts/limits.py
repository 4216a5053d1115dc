"""The memory and open files of a host."""

from __future__ import annotations

import contextlib
import os
import resource
from pathlib import Path

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    """Return the memory of this process; on macOS, which has no ``/proc``, its maximum so far."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def allow_open_files() -> None:
    """Raise the limit of open files to the hard limit, as the JVM does: databases exceed the usual 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
