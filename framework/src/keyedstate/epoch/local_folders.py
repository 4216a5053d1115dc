"""Local disks of an executor: where its processes keep files, and which files of dead processes they delete.

Spark gives the executor a folder, ``blockmgr-<uuid>``, which the JVM deletes at its end; a JVM that is killed
leaves it. So a process sweeps the working folders in the temporary folder, in Spark's, and in those of other
executors of the machine. Their marks say which of them may be deleted.
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

#: Prefixes of the nested folders that Spark makes below `spark.local.dir`; executors use the last one.
_LEVELS = ("spark-", "executor-", "blockmgr-")
_OF_SPARK = re.compile(f"(?:{'|'.join(_LEVELS)}).+")


def local_folder() -> Path | None:
    """Return Spark's first local folder on this executor that exists, or None."""
    for folder in os.environ.get("SPARK_LOCAL_DIRS", "").split(","):
        if folder and os.path.isdir(folder):
            return Path(folder)
    return None


@lru_cache(maxsize=1)
def sweep_once() -> None:
    """Delete the folders of this user's dead processes on the local disks; only the first call does it."""
    for folder in _folders():
        sweep_working_folders(folder)
        CopiesFolder.sweep(folder / DEFAULT_FOLDER)


@contextlib.contextmanager
def working_folders_of_this_host() -> Iterator[None]:
    """Delete the folders of dead processes, and at the end all working folders of this process."""
    sweep_once()
    try:
        yield
    finally:
        remove_own_folders()


def _folders() -> set[Path]:
    """Return the folders with working folders of this and other executors."""
    folders: set[Path] = set()
    # A container may let a process write to Spark's folder alone.
    with contextlib.suppress(FileNotFoundError):
        folders.add(Path(tempfile.gettempdir()))
    local = local_folder()
    if local is not None:
        top = local
        while _OF_SPARK.fullmatch(top.name):
            top = top.parent
        folders.update([local, top])
    for top in tuple(folders):
        found = [top]
        for level in _LEVELS:
            nested = [folder for parent in found for folder in parent.glob(f"{level}*")]
            found += [folder for folder in nested if folder.is_dir() and not folder.is_symlink()]
        folders.update(found)
    return folders
