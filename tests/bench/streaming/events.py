"""The events that every engine of the comparison gets: the same rows, in the same batches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

#: Row groups of a micro-batch's file: one for each core, so that the reading is no bottleneck.
ROW_GROUPS = 2
FILL = -1


def batch(number: int, rows: int, keys: int) -> pa.Table:
    """Return the rows of one micro-batch: a string key out of `keys`, all equally likely, and an amount.

    The batch `FILL` has each of the keys in turn.
    """
    generator = np.random.default_rng([number + 1, rows, keys])
    drawn = np.arange(rows) % keys if number == FILL else generator.integers(0, keys, rows)
    names = pa.array([f"customer-{key:08}" for key in range(keys)])
    return pa.table(
        {"k": names.take(pa.array(drawn)), "c": pa.array(generator.integers(0, 100, rows), pa.int64())}
    )


def write_batch(path: Path, number: int, rows: int, keys: int) -> None:
    """Write a micro-batch as a parquet file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = batch(number, rows, keys)
    pq.write_table(table, path, row_group_size=-(-rows // ROW_GROUPS) or None, use_dictionary=False)


def pairs(number: int, rows: int, keys: int) -> Iterator[tuple[str, int]]:
    """Return the rows of one micro-batch as Python objects."""
    table = batch(number, rows, keys)
    return zip(table.column("k").to_pylist(), table.column("c").to_pylist(), strict=True)
