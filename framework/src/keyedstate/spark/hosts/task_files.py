"""Modules, files and broadcast variables of a task, made available in the host that runs its epoch."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from typing import Any

from pyspark import SparkFiles, broadcast


def import_from(imports: Mapping[str, Any]) -> None:
    """Let modules be found where the task finds them, and Spark's files too."""
    new = [entry for entry in imports.get("sys_path", ()) if isinstance(entry, str) and entry not in sys.path]
    # As Spark's workers do: before what was there, but for the current folder.
    sys.path[1:1] = new
    importlib.invalidate_caches()
    SparkFiles._root_directory = imports.get("spark_files")
    SparkFiles._is_running_on_worker = True


def know_broadcasts(paths: Mapping[str, str]) -> None:
    """Let broadcast variables be read where the task reads them: Spark may have put one elsewhere since."""
    for number, path in paths.items():
        known = broadcast._broadcastRegistry.get(int(number))
        if known is None:
            broadcast._broadcastRegistry[int(number)] = broadcast.Broadcast(path=path)
        else:
            # Functions have this very object.
            known._path = path
