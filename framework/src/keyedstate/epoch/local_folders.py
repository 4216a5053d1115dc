"""Local disks of an executor: where its processes keep files, and which files of dead processes they delete.

Spark names a folder of the executor's own, ``blockmgr-<uuid>``, which the JVM deletes at its end.  A JVM that
is killed leaves it, with all that is in it.  So a process looks for working folders in the temporary folder,
in Spark's, and in those of other executors of the machine.  Their marks say which of them may be deleted.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from keyedstate.checkpoint.protocol.local_copies import DEFAULT_FOLDER
from keyedstate.checkpoint.protocol.local_copies_folder import CopiesFolder
from keyedstate.working_folder import remove_own_folders, sweep_working_folders

#: Folders that Spark makes, from the place that `spark.local.dir` names to the one that executors use.
_LEVELS = ("spark-", "executor-", "blockmgr-")
_OF_SPARK = re.compile(f"(?:{'|'.join(_LEVELS)}).+")


def local_folder() -> Path | None:
    """Return Spark's first local folder on this executor; None where it names none that exists."""
    for folder in os.environ.get("SPARK_LOCAL_DIRS", "").split(","):
        if folder and os.path.isdir(folder):
            return Path(folder)
    return None


@lru_cache(maxsize=1)
def sweep_once() -> None:
    """Delete what dead processes of this user have left on the local disks; only the first call looks."""
    for folder in _folders():
        sweep_working_folders(folder)
        CopiesFolder.sweep(folder / DEFAULT_FOLDER)


@contextlib.contextmanager
def working_folders_of_this_host() -> Iterator[None]:
    """Delete what dead processes have left, and at the end all working folders of this process."""
    sweep_once()
    try:
        yield
    finally:
        remove_own_folders()


def _folders() -> set[Path]:
    """Return the folders in which processes of this and of other executors have their working folders."""
    folders: set[Path] = set()
    # A container may let a process write to Spark's folder alone.
    with contextlib.suppress(FileNotFoundError):
        folders.add(Path(tempfile.gettempdir()))
    local = local_folder()
    if local is not None:
        place = local
        while _OF_SPARK.fullmatch(place.name):
            place = place.parent
        folders.update([local, place])
    for place in tuple(folders):
        found = [place]
        for level in _LEVELS:
            found += [folder for parent in found for folder in _subfolders(parent, level)]
        folders.update(found)
    return folders


def _subfolders(parent: Path, prefix: str) -> list[Path]:
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        return [
            Path(entry.path)
            for entry in entries
            if entry.name.startswith(prefix) and entry.is_dir(follow_symlinks=False)
        ]
    return []
