"""Key groups of a column against pyarrow's search for the distinct values of the same column, in one run.

    python tests/bench/bench_murmur3.py [--rows N]

``pyarrow.compute.unique`` is the peer because it, too, hashes every row once.  The strings have 8 to 20
random letters, the numbers are random 64-bit integers; times are the best of five, taken in turns.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from keyedstate.murmur3 import key_groups

MAX_PARALLELISM = 128
_ROUNDS = 5


def random_strings(generator: np.random.Generator, rows: int) -> pa.Array:
    """Return a column of strings of 8 to 20 lower-case letters."""
    offsets = np.zeros(rows + 1, dtype=np.int32)
    np.cumsum(generator.integers(8, 20, rows, endpoint=True), out=offsets[1:])
    letters = generator.integers(ord("a"), ord("z"), offsets[-1], endpoint=True, dtype=np.uint8)
    return pa.StringArray.from_buffers(rows, pa.py_buffer(offsets), pa.py_buffer(letters))


def seconds(work: Callable[..., object], *arguments: object) -> float:
    """Return how long one call takes."""
    start = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - start


def main() -> None:
    """Measure both columns and write one line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    rows = parser.parse_args().rows
    generator = np.random.default_rng(1)
    columns = {
        "string": random_strings(generator, rows),
        "int64": pa.array(generator.integers(-(2**63), 2**63 - 1, rows)),
    }
    for name, column in columns.items():
        pairs = [
            (seconds(key_groups, [column], MAX_PARALLELISM), seconds(pc.unique, column))
            for _ in range(_ROUNDS)
        ]
        ours, peer = (min(times) for times in zip(*pairs, strict=True))
        sys.stdout.write(
            f"{name:>7}: key_groups {rows / ours:>13,.0f} rows/s   unique {rows / peer:>13,.0f} rows/s   "
            f"ratio of times {ours / peer:.2f}\n"
        )


if __name__ == "__main__":
    main()
