"""Files that were read: as the offset of a run that reads them itself, and as Spark's file source logs them.

So a query on Spark continues with the files that a local run has left, and the other way round.  Spark's
checkpoint location of a query that has read files has a log for each file source, ``sources/<n>/<entry>``, in
which each line is a file, and the offsets of a micro-batch name an entry of each log.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from keyedstate.checkpoint.format.json_converter import from_json
from keyedstate.checkpoint.format.manifest import CheckpointMetadata
from keyedstate.checkpoint.savepoint.savepoint import SavepointFolder

_LOG = re.compile(r"sources/(0|[1-9][0-9]*)/[0-9]+(\.compact)?")


@dataclass(frozen=True)
class FilePosition:
    """The offset of a channel that reads files one after the other."""

    #: The files that were read to their end.
    done: tuple[str, ...]
    #: The file that is being read, and how many of its rows were.
    file: str | None
    rows: int


def spark_files_of(checkpoints: Iterable[CheckpointMetadata]) -> dict[str, bytes]:
    """Return the files of Spark's checkpoint location for a query that continues after a local run.

    The first input is Spark's source 0, the second one source 1.  Empty where Spark cannot continue: where
    the sources are no files of a local disk, a file was read in part, or several operators have sources.
    """
    found = [checkpoint for checkpoint in checkpoints if _reads_sources(checkpoint.positions)]
    if len(found) != 1:
        return {}
    (checkpoint,) = found
    positions: Mapping[str, Mapping[str, Any]] = checkpoint.positions or {}
    files: dict[str, bytes] = {}
    for number in sorted(positions):
        done: list[str] = []
        for channel in positions[number].values():
            position = _file_position(channel["offset"])
            if position is None or position.file is not None:
                return {}
            done += position.done
        if not done or not all(os.path.isabs(path) for path in done):
            return {}
        entries = [json.dumps(_entry(path)) for path in sorted(done)]
        files[f"sources/{int(number) - 1}/0"] = "\n".join(["v1", *entries]).encode()
    facts = {"batchWatermarkMs": 0, "batchTimestampMs": int(time.time() * 1000), "conf": {}}
    ends = [json.dumps({"logOffset": 0})] * len(files)
    # Spark restarts sources with the micro-batch before, and reads where that one ended.
    for epoch in range(max(checkpoint.epoch - 1, 0), checkpoint.epoch + 1):
        files[f"offsets/{epoch}"] = "\n".join(["v1", json.dumps(facts), *ends]).encode()
        files[f"commits/{epoch}"] = b'v1\n{"nextBatchWatermarkMs":0}'
    files["metadata"] = json.dumps({"id": checkpoint.query_id}).encode()
    return files


def files_read_on_spark(savepoint: SavepointFolder) -> dict[str, FilePosition]:
    """Return which files a query on Spark has read, by input; its first file source is that of input 1."""
    read: dict[str, set[str]] = {}
    for path in savepoint.spark_files():
        found = _LOG.fullmatch(path)
        if found is None:
            continue
        for line in savepoint.read_spark_file(path).decode().split("\n")[1:]:
            with contextlib.suppress(ValueError):
                entry = json.loads(line)
                if isinstance(entry, dict) and isinstance(entry.get("path"), str):
                    read.setdefault(found[1], set()).add(_path_of(entry["path"]))
    numbered = enumerate(sorted(read, key=int), 1)
    return {str(number): FilePosition(tuple(sorted(read[source])), None, 0) for number, source in numbered}


def _reads_sources(positions: Mapping[str, Any] | None) -> bool:
    """Return whether an operator reads sources, and not the rows of another operator."""
    channels = [channel for of_input in (positions or {}).values() for channel in of_input.values()]
    return bool(channels) and all(channel["offset"] is not None for channel in channels)


def _file_position(offset: object) -> FilePosition | None:
    with contextlib.suppress(KeyError, TypeError, ValueError):
        return from_json(FilePosition, offset)
    return None


def _entry(path: str) -> dict[str, object]:
    """Return the line of a file in the log of Spark's file source."""
    modified = 0.0
    with contextlib.suppress(OSError):
        modified = os.path.getmtime(path)
    return {"path": Path(path).as_uri(), "timestamp": int(modified * 1000), "batchId": 0}


def _path_of(uri: str) -> str:
    """Return the path in its file system, as `pyarrow.fs` has it, of a file in Spark's log."""
    parts = urlsplit(uri)
    return unquote(f"{parts.netloc}{parts.path}")
