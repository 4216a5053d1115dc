"""Processor time and memory of this process and of all that it has started, however indirectly."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_MARK = "BENCH_SPARK_STARTED_BY"
_TICKS = os.sysconf("SC_CLK_TCK")


def mark() -> None:
    """Let processes that start from now on be found: they inherit it, also those that change parents."""
    os.environ[_MARK] = str(os.getpid())


def _processes() -> Iterator[Path]:
    """Find the folders in ``/proc`` of those that live."""
    wanted = f"\0{_MARK}={os.getpid()}\0".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int(folder.name) == os.getpid() or wanted in b"\0" + (folder / "environ").read_bytes():
                yield folder


def processor_seconds() -> float | None:
    """Return the processor time so far of those that live; None where the system does not tell."""
    ticks = 0
    for folder in _processes():
        with contextlib.suppress(OSError):
            # The command's name is in parentheses and may hold anything.
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / _TICKS if ticks else None


def resident_bytes() -> int:
    """Return the memory of those that live; what several of them share counts once."""
    kibibytes = 0
    for folder in _processes():
        with contextlib.suppress(OSError):
            rows = (folder / "smaps_rollup").read_text().splitlines()
            kibibytes += sum(int(row.split()[1]) for row in rows if row.startswith("Pss:"))
    return kibibytes * 1024
