"""The entry points of installed distributions, read again only where an installation has changed.

`importlib.metadata` opens two files of every distribution, which takes milliseconds, and each instance of a
backend asks.
"""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points


def installed_entry_points(*groups: str) -> list[EntryPoint]:
    """Return the entry points of some groups.

    A distribution may be found twice (an editable install and its build metadata); one counts.
    """
    unique = {
        (entry.group, entry.name, entry.value, entry.dist.name if entry.dist is not None else ""): entry
        for entry in _found(tuple((folder, _changed_ns(folder)) for folder in sys.path))
        if entry.group in groups
    }
    return list(unique.values())


@lru_cache(maxsize=1)
def _found(path: tuple[tuple[str, int], ...]) -> tuple[EntryPoint, ...]:
    """Return all entry points on a path of folders and the times at which they changed."""
    found = entry_points()
    return tuple(entry for group in sorted(found.groups) for entry in found.select(group=group))


def _changed_ns(folder: str) -> int:
    try:
        # As a new distribution is found: by the time of the folder that gets its metadata.
        return os.stat(folder or ".").st_mtime_ns
    except OSError:
        return 0
