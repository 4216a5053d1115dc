"""A program that another process kills: counts rows of a source, into Parquet files.

Arguments: the folder, the number of batches, and ``parallelism``.  With a fourth one the program waits before
its batch of that number, until its standard input ends: one that is to be killed does not end before.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pyarrow as pa
from tests.framework.local.functions import COUNTS, Count

from keyedstate.local import keyed


class Batches:
    """Batches of ten rows, each announced on the standard output before it is read."""

    schema = pa.schema([("user", pa.string())])

    def __init__(self, batches: int, waits_before: int | None) -> None:
        self._batches = batches
        self._waits_before = waits_before

    def channels(self):
        return [_Channel(self._batches, self._waits_before)]


class _Channel:
    name = "0"

    def __init__(self, batches: int, waits_before: int | None) -> None:
        self._batches = batches
        self._waits_before = waits_before
        self._read = 0
        self._announced = 0

    def read(self):
        if self._read == self._batches:
            return None
        if self._announced == self._waits_before:
            sys.stdin.read()
        self._announced += 1
        sys.stdout.write(f"{self._read}\n")
        sys.stdout.flush()
        time.sleep(0.002)
        first, self._read = self._read * 10, self._read + 1
        users = [f"u{number % 7}" for number in range(first, first + 10)]
        return pa.record_batch({"user": users}, schema=Batches.schema)

    def offset(self):
        return self._read

    def seek(self, offset):
        self._read = offset


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    config: dict[str, object] = {
        "checkpoint.dir": str(folder / "checkpoints"),
        "checkpoint.interval": "20 ms",
        "parallelism": int(sys.argv[3]),
    }
    batches = Batches(int(sys.argv[2]), int(sys.argv[4]) if len(sys.argv) > 4 else None)
    rows = keyed(batches, "user", uid="counts", config=config)
    rows.process(Count(), COUNTS).write_parquet(folder / "out")
