"""A program that one of its tasks kills: a channel with rows that take long to process, and a fast one.

The slow channel is read ahead of the fast one and of the task, but not far. So each barrier comes to the
task on the fast channel first, and rows of that channel follow before it comes on the other. And the last
checkpoint before the kill is one of the middle of the rows.

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
#: Rows by which the slow channel is read ahead of the fast one.
AHEAD_OF_FAST = 20
#: Rows by which the slow channel is read ahead of the task before the kill, at least and at most.
LEAST_AHEAD, MOST_AHEAD = 10, 20
#: Seconds between two checkpoints, and for each read: so few rows are read before the next barrier is due.
_INTERVAL, _READ = 0.03, 0.003
COUNTED = "key string, channel string, n long"
_SCHEMA = pa.schema([("key", pa.string()), ("channel", pa.string()), ("number", pa.int64())])


class Source:
    """Rows of both channels, which are read at the same pace, the slow one's first."""

    schema = _SCHEMA

    def __init__(self, folder):
        self._folder = folder

    def channels(self):
        slow = _Slow("slow", self._folder)
        return [_Fast("fast", slow), slow]


class _Channel:
    def __init__(self, name):
        self.name = name
        self._next = 0

    def read(self):
        if self._next == ROWS:
            return None
        if not self._may_read():
            return pa.RecordBatch.from_pylist([], schema=_SCHEMA)
        time.sleep(_READ)
        row = {"key": "k", "channel": self.name, "number": self._next}
        self._next += 1
        return pa.RecordBatch.from_pylist([row], schema=_SCHEMA)

    def offset(self):
        return self._next

    def seek(self, offset):
        self._next = offset


class _Fast(_Channel):
    def __init__(self, name, slow):
        super().__init__(name)
        self._slow = slow

    def _may_read(self):
        return self._slow.offset() >= min(self._next + AHEAD_OF_FAST, ROWS)


class _Slow(_Channel):
    def __init__(self, name, folder):
        super().__init__(name)
        self._folder = folder

    def read(self):
        batch = super().read()
        _write(self._folder / "read", self._next)
        return batch

    def _may_read(self):
        is_killed = (self._folder / "killed").exists()
        return is_killed or self._next < _read(self._folder / "processed") + MOST_AHEAD


def _write(path, number):
    path.write_text(str(number))


def _read(path):
    """Return the number in a file that another process writes; 0 before it has."""
    return int((path.exists() and path.read_text()) or 0)


class Counting(KeyedProcessFunction):
    """Counts rows by channel; the program is killed once, at a row of the slow channel."""

    counts = MapState("counts", STRING, INT64)

    def __init__(self, folder):
        self._folder = folder

    def process(self, row, ctx):
        killed = self._folder / "killed"
        # A later run may read the files here.
        if row.channel == "slow" and not killed.exists():
            _write(self._folder / "processed", row.number)
            while _read(self._folder / "read") < row.number + LEAST_AHEAD:
                time.sleep(0.005)
            if row.number == KILLED_AT:
                killed.touch()
                os.kill(_read(self._folder / "program"), signal.SIGKILL)
                os.kill(os.getpid(), signal.SIGKILL)
        count = (self.counts.get(row.channel) or 0) + 1
        self.counts.put(row.channel, count)
        yield ctx.key, row.channel, count


def counted(folder, mode, parallelism):
    mode, _, timeout = mode.partition(" after ")
    config = {
        "parallelism": parallelism,
        "checkpoint.dir": str(folder / "checkpoints"),
        "checkpoint.interval": f"{_INTERVAL * 1000:g} ms",
        "checkpoint.mode": mode,
        "checkpoint.alignment-timeout": timeout or 0,
    }
    return keyed(Source(folder), "key", uid="counts", config=config).process(Counting(folder), COUNTED)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    _write(folder / "program", os.getpid())
    counted(folder, sys.argv[2], int(sys.argv[3])).write_parquet(folder / "out")
