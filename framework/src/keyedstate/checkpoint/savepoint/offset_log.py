"""Spark's log of offsets: one file for each micro-batch of a query, written before any of its tasks runs.

A file has a version, a JSON document, and a line for each source.  A micro-batch that runs again after a
restart has the same file, so that what tasks conclude from it is the same too.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.errors import KeyedStateError, MissingFileError

#: In the offset of a source of ours: how many micro-batches have looked for the end of the input.
END_KEY = "keyedstate-end"


@dataclass(frozen=True)
class OffsetLog:
    """The log in a folder, the ``offsets`` at the checkpoint location of a query."""

    storage: CheckpointStorage

    def time_of(self, epoch: int) -> int | None:
        """Return the time of a micro-batch, which all of its tasks and repetitions have in common.

        It is that of Spark's ``current_timestamp()``.  None where this process cannot read the log, or the
        log does not have the time.
        """
        try:
            document, _ = self._read(epoch)
            time = json.loads(document)["batchTimestampMs"]
        except (KeyedStateError, ValueError, KeyError, TypeError):
            return None
        return time if isinstance(time, int) else None

    def ends_input(self, epoch: int) -> bool:
        """Return whether a micro-batch of ``trigger(availableNow=True)`` comes after all input of its run.

        No source but ours has another offset than in the micro-batch before.  Raises `CheckpointError` where
        the log cannot be read.
        """
        if not epoch:
            return False
        _, now = self._read(epoch)
        try:
            _, before = self._read(epoch - 1)
        except MissingFileError:
            return False
        ours, others = _split(now)
        ours_before, others_before = _split(before)
        return others == others_before and any(line not in ours_before for line in ours)

    def _read(self, epoch: int) -> tuple[str, list[str]]:
        """Return the JSON document of a micro-batch, and the lines of its sources."""
        _, document, *sources = self.storage.read(str(epoch)).decode().split("\n")
        return document, sources


def _split(sources: list[str]) -> tuple[list[str], list[str]]:
    """Return the lines of our sources that look for the end, and those of all others."""
    ours = [line for line in sources if f'"{END_KEY}"' in line]
    return ours, [line for line in sources if line not in ours]
