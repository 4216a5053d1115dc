"""Modules, files and broadcast variables of a task, made available in the host that runs its epoch."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from typing import Any

from pyspark import SparkFiles, broadcast


def extend_import_path(imports: Mapping[str, Any]) -> None:
    """Find modules, and Spark's files, where the task finds them."""
    new = [entry for entry in imports.get("sys_path", ()) if isinstance(entry, str) and entry not in sys.path]
    # As Spark's workers do: at the front, after the current folder.
    sys.path[1:1] = new
    importlib.invalidate_caches()
    SparkFiles._root_directory = imports.get("spark_files")
    SparkFiles._is_running_on_worker = True


def register_broadcasts(paths: Mapping[str, str]) -> None:
    """Read broadcast variables from the task's paths, which Spark may change."""
    for number, path in paths.items():
        known = broadcast._broadcastRegistry.get(int(number))
        if known is None:
            broadcast._broadcastRegistry[int(number)] = broadcast.Broadcast(path=path)
        else:
            # Functions refer to this object.
            known._path = path
