"""Arrow batches that wait in memory and on disk."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest

from keyedstate.spark.task.spool import BatchSpool


def batch(number: int) -> pa.RecordBatch:
    return pa.record_batch({"n": [number] * 100, "s": ["ä" * number, *[None] * 99]})


@pytest.mark.parametrize("memory_bytes", [0, 2_500, 1 << 20])
def test_batches_come_back_in_their_order_wherever_they_waited(tmp_path: Path, memory_bytes: int) -> None:
    batches = [batch(number) for number in range(10)]
    with BatchSpool(tmp_path, memory_bytes) as spool:
        for waiting in batches:
            spool.add(waiting)
        assert [found.to_pydict() for found in spool.drain()] == [given.to_pydict() for given in batches]


def test_no_batch_gives_none(tmp_path: Path) -> None:
    with BatchSpool(tmp_path) as spool:
        assert list(spool.drain()) == []
    with BatchSpool(None, 0) as spool:
        spool.add(batch(1))
        assert len(list(spool.drain())) == 1


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="open files are counted as Linux shows them")
def test_what_exceeds_the_memory_is_in_a_file_without_a_name_that_is_closed(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with BatchSpool(tmp_path, 0) as spool:
        for number in range(3):
            spool.add(batch(number))
        assert list(tmp_path.iterdir()) == [], "nothing is left where the process is killed"
        assert len(os.listdir("/proc/self/fd")) == before + 1
        # The function fails at the second batch.
        next(spool.drain())
    assert len(os.listdir("/proc/self/fd")) == before
