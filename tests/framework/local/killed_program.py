"""A program that another process kills: counts rows of a source that is slow enough, into Parquet files."""

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

    def __init__(self, batches: int) -> None:
        self._batches = batches

    def channels(self):
        return [_Channel(self._batches)]


class _Channel:
    name = "0"

    def __init__(self, batches: int) -> None:
        self._batches = batches
        self._read = 0

    def read(self):
        if self._read == self._batches:
            return None
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
        "parallelism": int(sys.argv[3]) if len(sys.argv) > 3 else 1,
    }
    rows = keyed(Batches(int(sys.argv[2])), "user", uid="counts", config=config)
    rows.process(Count(), COUNTS).write_parquet(folder / "out")
