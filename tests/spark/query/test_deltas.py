"""Epochs that write what they changed: restarts, rescaling and clean-up over chains of files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import DataFrame

from keyedstate import keyed, types
from keyedstate.backend import BackendDescription, Capability
from keyedstate.checkpoint.format.manifest import CheckpointMetadata
from keyedstate.checkpoint.protocol.operator_folder import OperatorFolder
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.runtime import Context, KeyedProcessFunction
from keyedstate.state import ListState, ValueState


class Totals(KeyedProcessFunction):
    total = ValueState("total", types.INT32, default=0)
    last = ListState("last", types.INT64)

    def process(self, row: Any, ctx: Context) -> Iterator[tuple[Any, ...]]:
        self.total.update(self.total.value() + row.v)
        self.last.add(row.v)
        if row.v % 5 == 0:
            self.last.clear()
        yield ctx.key, self.total.value(), len(self.last.get())


class WideTotals(Totals):
    total = ValueState("total", types.INT64, default=0)


def totals(
    stream: Any, backend: str, function: KeyedProcessFunction | None = None, **options: Any
) -> DataFrame:
    config = {"checkpoint.dir": str(stream.state), "parallelism": 2, "backend": backend}
    config |= {"checkpoint.max-deltas": 3, **options}
    frame = keyed(stream.frame(), "k", uid="totals", config=config)
    return frame.process(function or Totals(), "k string, total long, last long")


def checkpoint(stream: Any, epoch: int) -> CheckpointMetadata:
    folder = OperatorFolder(CheckpointStorage.open(str(stream.state)), "totals")
    metadata = folder.read_metadata(epoch)
    assert metadata is not None
    return metadata


def chains(stream: Any, epoch: int) -> list[int]:
    """Return how many deltas each partition has after an epoch."""
    return [len(part.deltas) for part in checkpoint(stream, epoch).parts]


#: Half of the keys come in each epoch, so that a delta never weighs half of the full snapshot by itself.
def add(stream: Any, epoch: int) -> None:
    rows = range(200) if epoch == 0 else range(epoch % 20, 200, 20)
    stream.add({"k": f"key {row}", "v": row + epoch} for row in rows)


def assert_all_there(stream: Any, epochs: int) -> None:
    expected: dict[str, tuple[int, int]] = {}
    for epoch in range(epochs):
        for row in range(200) if epoch == 0 else range(epoch % 20, 200, 20):
            total, last = expected.get(f"key {row}", (0, 0))
            value = row + epoch
            expected[f"key {row}"] = total + value, 0 if value % 5 == 0 else last + 1
    found = {row[0]: tuple(row[1:]) for row in stream.all_rows()}
    assert found == expected


def test_a_full_snapshot_is_written_when_the_chain_is_long_and_old_files_go(
    stream: Any, backend_name: str, description: BackendDescription
) -> None:
    for epoch in range(7):
        add(stream, epoch)
    stream.run(totals(stream, backend_name))
    assert_all_there(stream, 7)
    # Epoch 4 writes a full snapshot: of the state before it, in the background, or of that after it.
    beside = description.level(Capability.ASYNC_SNAPSHOT).usable
    assert chains(stream, 5) == [1 + beside] * 2 and chains(stream, 6) == [2 + beside] * 2
    part = checkpoint(stream, 6).parts[0]
    (full,) = part.full_snapshots
    assert (full.epoch, full.background, full.failed) == (4 - beside, beside, False)
    assert full.bytes == part.segments[0].bytes and full.entries == sum(part.segments[0].entries.values())
    assert part.bytes == part.deltas[-1].bytes < part.segments[0].bytes
    used = {path for epoch in (5, 6) for part in checkpoint(stream, epoch).parts for path in part.data_files}
    there = {f"data/{path.name}" for path in (stream.state / "totals" / "data").iterdir()}
    assert there == used, "what no retained checkpoint uses is gone, what one does is there"


@pytest.mark.long
def test_a_chain_is_read_over_other_ranges_and_by_another_backend(stream: Any) -> None:
    """SB-38: a restart with another parallelism begins with the full snapshot."""
    runs = [("heap-cow", 2, 5), ("nested-map", 3, 2), ("heap-cow", 1, 2), ("heap-cow", 1, 1)]
    epochs = 0
    for backend, parallelism, count in runs:
        for epoch in range(epochs, epochs + count):
            add(stream, epoch)
        epochs += count
        stream.run(totals(stream, backend, parallelism=parallelism))
    assert_all_there(stream, epochs)
    assert chains(stream, 8) == [1] and chains(stream, 9) == [2]


def test_a_type_that_changes_begins_a_new_chain(stream: Any, one_backend: str) -> None:
    """MIG-01."""
    add(stream, 0)
    add(stream, 1)
    stream.run(totals(stream, one_backend))
    assert chains(stream, 1) == [1, 1]
    add(stream, 2)
    add(stream, 3)
    stream.run(totals(stream, one_backend, WideTotals()))
    assert chains(stream, 3) == [1, 1]
    assert_all_there(stream, 4)
    (value,) = {
        state["value"]["type"]
        for part in checkpoint(stream, 3).parts
        for state in part.states
        if state["name"] == "total"
    }
    assert value == "int64"


def test_no_delta_is_written_for_small_states_or_where_they_are_off(stream: Any, one_backend: str) -> None:
    for epoch in range(2):
        add(stream, epoch)
    stream.run(totals(stream, one_backend, **{"checkpoint.delta-min-bytes": 1 << 20}))
    assert chains(stream, 1) == [0, 0]
    add(stream, 2)
    stream.run(totals(stream, one_backend, **{"checkpoint.max-deltas": 0}))
    assert chains(stream, 2) == [0, 0]
    assert_all_there(stream, 3)


def test_a_damaged_delta_stops_the_next_epoch_by_name(stream: Any, one_backend: str) -> None:
    for epoch in range(2):
        add(stream, epoch)
    stream.run(totals(stream, one_backend))
    (path, *_) = (part.deltas[0].path for part in checkpoint(stream, 1).parts)
    damaged = stream.state / "totals" / path
    data = bytearray(damaged.read_bytes())
    data[len(data) // 3] ^= 1
    damaged.write_bytes(data)
    add(stream, 2)
    assert f"{path} is damaged" in stream.failure(totals(stream, one_backend))
