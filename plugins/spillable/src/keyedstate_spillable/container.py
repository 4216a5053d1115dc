"""What the system tells of memory: of the process, of its container, and whether processes wait for it.

Linux alone tells these (``/proc`` and cgroups, versions 1 and 2); elsewhere they are unknown.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from pathlib import Path

#: A version 1 limit that is no limit is the largest number of pages.
_UNLIMITED = 1 << 60


def return_freed_memory() -> None:
    """Let the C library return to the system what it keeps of freed memory, if it is one that can."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def resident_limit() -> int | None:
    """Return the limit of the process's resident set (``ulimit -m``), which no system enforces by itself."""
    if sys.platform == "win32":
        return None
    import resource

    limit = resource.getrlimit(resource.RLIMIT_RSS)[0]
    return None if limit == resource.RLIM_INFINITY else limit


class SystemMemory:
    """Reads what the system tells.

    Parameters
    ----------
    root : Path, optional
        Where ``proc`` and ``sys`` are.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._process = root / "proc/self/statm"
        self._machine = root / "proc/meminfo"
        self._page = os.sysconf("SC_PAGE_SIZE")
        #: The container's folder, the names of its files with the limit and the usage, and of the counter of
        #: what the kernel can drop.
        self._folder: Path | None = None
        self._names = ("", "", "")
        self._pressures = [root / "proc/pressure/memory"]
        self._find_container(root)

    def process_bytes(self) -> int | None:
        """Return the resident set of the process."""
        try:
            return int(self._process.read_bytes().split()[1]) * self._page
        except (OSError, IndexError, ValueError):
            return None

    def container(self) -> tuple[int, int] | None:
        """Return the memory of the container without what the kernel can drop, and its limit.

        None where the container has no limit.
        """
        if self._folder is None:
            return None
        limit, usage, dropped = self._names
        try:
            used, allowed = int((self._folder / usage).read_text()), int((self._folder / limit).read_text())
            counters = dict(line.split() for line in (self._folder / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):
            return None
        return max(used - int(counters.get(dropped, 0)), 0), allowed

    def pressure(self) -> float:
        """Return the percentage of the last ten seconds in which some process waited for memory."""
        for path in self._pressures:
            with contextlib.suppress(OSError, ValueError, IndexError):
                some = path.read_text().splitlines()[0].split()
                return float(some[1].removeprefix("avg10="))
        return 0.0

    def available_bytes(self) -> int | None:
        """Return the container's limit, or the memory of the machine where it has none."""
        container = self.container()
        if container is not None:
            return container[1]
        with contextlib.suppress(OSError, ValueError, IndexError):
            return int(self._machine.read_text().splitlines()[0].split()[1]) << 10
        return None

    def _find_container(self, root: Path) -> None:
        try:
            lines = (root / "proc/self/cgroup").read_text().splitlines()
        except OSError:
            return
        groups = root / "sys/fs/cgroup"
        for _, controllers, path in (line.split(":", 2) for line in lines if line.count(":") >= 2):
            if "memory" in controllers.split(","):
                files = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
                self._use_strictest(groups / "memory", path, files)
            elif not controllers:
                self._use_strictest(groups, path, ("memory.max", "memory.current", "inactive_file"))
                # Before the machine's: other containers may wait while this one does not.
                self._pressures.insert(0, groups / path.strip("/") / "memory.pressure")

    def _use_strictest(self, mount: Path, path: str, names: tuple[str, str, str]) -> None:
        """Choose the folder with the lowest limit, from the process's own up to the mount."""
        folder = mount / path.strip("/")
        # Inside of a container its own folder is mounted, whatever its path is outside.
        candidates = [folder, *folder.parents] if folder.is_dir() else [mount]
        lowest = _UNLIMITED
        for candidate in candidates:
            if not candidate.is_relative_to(mount):
                break
            with contextlib.suppress(OSError, ValueError):
                limit = int((candidate / names[0]).read_text())
                if limit < lowest:
                    lowest, self._folder, self._names = limit, candidate, names
