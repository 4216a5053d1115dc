"""State that is larger than the memory of its process, in a host and over restarts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import DataFrame

from keyedstate import epoch_metrics, keyed, types
from keyedstate.runtime import Context, KeyedProcessFunction
from keyedstate.state import ListState, ValueState

KEYS_PER_EPOCH, EPOCHS = 12_000, 3
TEXT_BYTES = 9_000
#: Without state a host occupies about half of it, less on older Pythons, and the texts are 324 MB.
MEMORY_BUDGET = "260m"


class Remembering(KeyedProcessFunction):
    """Keeps a long text and the numbers of each key; yields whether the text was its own, and the numbers."""

    text = ValueState("text", types.STRING)
    numbers = ListState("numbers", types.INT64)

    def process(self, row: Any, ctx: Context) -> Iterator[tuple[Any, ...]]:
        before = self.text.value()
        self.numbers.add(row.v)
        self.text.update(f"{ctx.key:>{TEXT_BYTES}}")
        yield ctx.key, before is not None and before.strip() == ctx.key, [*self.numbers.get()]


def remembered(stream: Any, backend: str, parallelism: int, options: dict[str, object]) -> DataFrame:
    config = {"checkpoint.dir": str(stream.state), "parallelism": parallelism, "backend": backend, **options}
    frame = keyed(stream.frame(), "k", uid="remembered", config=config)
    return frame.process(Remembering(), "k string, own boolean, numbers array<bigint>")


@pytest.mark.long
@pytest.mark.slow
def test_a_state_larger_than_the_memory_of_its_host_is_whole_after_a_restart(stream: Any) -> None:
    """Both partitions share one process; another parallelism and another backend read every entry."""
    options: dict[str, object] = {
        "host": "resident",
        "spillable.memory-budget": MEMORY_BUDGET,
        "spillable.disk-memory": 16 << 20,
    }
    keys = EPOCHS * KEYS_PER_EPOCH
    for first in range(0, keys, KEYS_PER_EPOCH):
        stream.add({"k": f"key {n}", "v": n} for n in range(first, first + KEYS_PER_EPOCH))
    query = stream.start(remembered(stream, "spillable", 2, options))
    query.awaitTermination()
    stream.settle()
    assert sorted(stream.all_rows()) == sorted((f"key {n}", False, [n]) for n in range(keys))
    native = epoch_metrics(query)[-1].native
    assert native["text.memory-entries"] + native["text.disk-entries"] == keys
    assert native["text.disk-entries"] > keys // 2

    expected = {f"key {n}": [n] for n in range(keys)}
    for parallelism, backend in ((3, "spillable"), (2, "rocksdb")):
        stream.add({"k": key, "v": parallelism} for key in expected)
        stream.rows.clear()
        stream.run(remembered(stream, backend, parallelism, options if backend == "spillable" else {}))
        for numbers in expected.values():
            numbers.append(parallelism)
        assert sorted(stream.all_rows()) == sorted((key, True, of_key) for key, of_key in expected.items())
