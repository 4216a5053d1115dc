"""The memory and open files of a host, and how often a process with state looks for garbage."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
from pathlib import Path

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
#: New objects after which the collector looks for cycles: some for each row of a chunk, its state and output.
#: With CPython's 700 to 2,000 it visits the rows that a heap backend keeps for a quarter of a join's time.
_NEW_OBJECTS = 10_000


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


def collect_less_often() -> None:
    """Let the cycle collector run once for a chunk of rows, unless it runs more rarely already."""
    young, *older = gc.get_threshold()
    if 0 < young < _NEW_OBJECTS:
        gc.set_threshold(_NEW_OBJECTS, *older)
