"""A program that one of its tasks kills: a channel with rows that take long to process, and a fast one.

The slow channel is read ahead of the fast one, and of the task. So each barrier comes to the task on the fast
channel first, and rows of that channel follow before it comes on the other.

Arguments: the folder, ``checkpoint.mode`` with an alignment timeout or without, and ``parallelism``. The rows
of both channels have one key.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pyarrow as pa

from keyedstate.local import keyed
from keyedstate.runtime import KeyedProcessFunction
from keyedstate.state import MapState
from keyedstate.types import INT64, STRING

ROWS, KILLED_AT = 100, 60
#: Rows by which the slow channel is read ahead of the fast one, and of the task.
AHEAD_OF_FAST, AHEAD_OF_TASK = 20, 10
COUNTED = "key string, channel string, n long"
_SCHEMA = pa.schema([("key", pa.string()), ("channel", pa.string()), ("number", pa.int64())])


class Source:
    """Rows of both channels, which are read at the same pace, the slow one's first."""

    schema = _SCHEMA

    def __init__(self, folder):
        self._folder = folder

    def channels(self):
        slow = _Channel("slow", self._folder, None)
        return [_Channel("fast", self._folder, slow), slow]


class _Channel:
    def __init__(self, name, folder, ahead):
        self.name = name
        self._ahead = ahead
        self._read = folder / f"read-{name}"
        self._next = 0

    def read(self):
        if self._next == ROWS:
            return None
        if self._ahead is not None and self._ahead.offset() < min(self._next + AHEAD_OF_FAST, ROWS):
            return pa.RecordBatch.from_pylist([], schema=_SCHEMA)
        time.sleep(0.001)
        row = {"key": "k", "channel": self.name, "number": self._next}
        self._next += 1
        self._read.write_text(str(self._next))
        return pa.RecordBatch.from_pylist([row], schema=_SCHEMA)

    def offset(self):
        return self._next

    def seek(self, offset):
        self._next = offset


class Counting(KeyedProcessFunction):
    """Counts rows by channel; the program is killed once, at a row of the slow channel."""

    counts = MapState("counts", STRING, INT64)

    def __init__(self, folder):
        self._checkpoints = folder / "checkpoints" / "counts"
        self._killed = folder / "killed"
        self._read = folder / "read-slow"

    def process(self, row, ctx):
        if row.channel == "slow":
            # Far longer than a row takes to be read: the channel falls behind.
            time.sleep(0.015)
            # A later run may read here.
            if not self._killed.exists():
                self._wait_for_rows(min(row.number + AHEAD_OF_TASK, ROWS))
                if row.number == KILLED_AT:
                    self._wait_for_a_checkpoint()
                    self._killed.touch()
                    os.kill(os.getppid(), signal.SIGKILL)
                    os.kill(os.getpid(), signal.SIGKILL)
        count = (self.counts.get(row.channel) or 0) + 1
        self.counts.put(row.channel, count)
        yield ctx.key, row.channel, count

    def _wait_for_rows(self, count):
        while int(self._read.read_text() or 0) < count:
            time.sleep(0.005)

    def _wait_for_a_checkpoint(self):
        while not any(self._checkpoints.glob("chk-*/_metadata")):
            time.sleep(0.005)


def counted(folder, mode, parallelism):
    mode, _, timeout = mode.partition(" after ")
    config = {
        "parallelism": parallelism,
        "checkpoint.dir": str(folder / "checkpoints"),
        "checkpoint.interval": "30 ms",
        "checkpoint.mode": mode,
        "checkpoint.alignment-timeout": timeout or 0,
    }
    return keyed(Source(folder), "key", uid="counts", config=config).process(Counting(folder), COUNTED)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    counted(folder, sys.argv[2], int(sys.argv[3])).write_parquet(folder / "out")
