"""Count and sum per key over Quix Streams' RocksDB state, without a broker, a transaction per micro-batch.

Answers each line of its input, ``<batch> <rows> <keys>``, with the seconds that the micro-batch took.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from quixstreams.state.rocksdb import RocksDBStore

sys.path.append(str(Path(__file__).parent.parent))
from events import pairs


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        partition = RocksDBStore("counts", "events", folder).assign_partition(0)
        for line in sys.stdin:
            rows = list(pairs(*map(int, line.split())))
            began = time.perf_counter()
            with partition.begin() as transaction:
                for key, amount in rows:
                    state = transaction.as_state(key.encode())
                    count, total = state.get("counts", default=(0, 0))
                    state.set("counts", (count + 1, total + amount))
            print(time.perf_counter() - began, flush=True)


main()
