"""A program that one of its tasks kills: a channel with rows that take long to process, and a fast one.

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
CHANNELS = ("fast", "slow")
COUNTED = "key string, channel string, n long"
_SCHEMA = pa.schema([("key", pa.string()), ("channel", pa.string()), ("number", pa.int64())])


class Source:
    """Rows of both channels, which are read at the same pace."""

    schema = _SCHEMA

    def __init__(self, folder):
        self._folder = folder

    def channels(self):
        return [_Channel(name, self._folder) for name in CHANNELS]


class _Channel:
    def __init__(self, name, folder):
        self.name = name
        self._read = folder / f"read-{name}"
        self._next = 0

    def read(self):
        if self._next == ROWS:
            return None
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
        self._killed = folder / "killed"
        self._read = folder / "read-slow"

    def process(self, row, ctx):
        if row.channel == "slow":
            # Far longer than a row takes to be read: the channel falls behind.
            time.sleep(0.015)
            # Until the kill ten rows wait at least, however busy the machine is. A later run may read here.
            while not self._killed.exists() and int(self._read.read_text() or 0) < min(row.number + 10, ROWS):
                time.sleep(0.005)
            if row.number == KILLED_AT and not self._killed.exists():
                self._killed.touch()
                os.kill(os.getppid(), signal.SIGKILL)
                os.kill(os.getpid(), signal.SIGKILL)
        count = (self.counts.get(row.channel) or 0) + 1
        self.counts.put(row.channel, count)
        yield ctx.key, row.channel, count


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
