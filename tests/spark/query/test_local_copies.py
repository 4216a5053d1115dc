"""A streaming query that restores from local copies where it can, and from its storage where it cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from keyedstate import keyed, types
from keyedstate.runtime import Context, KeyedProcessFunction
from keyedstate.state import ValueState


class Totals(KeyedProcessFunction):
    total = ValueState("total", types.INT64, default=0)

    def process(self, row: Any, ctx: Context) -> Any:
        self.total.update(self.total.value() + row.v)
        yield ctx.key, self.total.value()


def totals(stream: Any, backend: str, **options: object) -> DataFrame:
    config = {"backend": backend, "checkpoint.dir": str(stream.state), "parallelism": 2}
    config |= {f"checkpoint.{name.replace('_', '-')}": value for name, value in options.items()}
    return keyed(stream.frame(), "k", uid="totals", config=config).process(Totals(), "k string, total long")


def test_a_query_resumes_from_local_copies_and_without_damaged_ones(
    stream: Any, one_backend: str, tmp_path: Path
) -> None:
    """LOC-03."""
    folder = tmp_path / "copies"
    # Full snapshots only: the copy of a damaged full snapshot would be missing for as long as its chain.
    options = {"max_deltas": 0, "local_copies": "on", "local_copies_dir": str(folder)}
    for epoch in range(4):
        stream.add({"k": f"key {row}", "v": row + epoch} for row in range(10))
        if epoch == 2:
            # Each copy is damaged: all is read from the storage.
            for copy in copies(folder):
                copy.write_bytes(copy.read_bytes()[:-1])
        if epoch == 3:
            # No file can be read from the storage any more: all is read from copies.
            for data in (stream.state / "totals" / "data").iterdir():
                data.write_bytes(b"")
        stream.run(totals(stream, one_backend, **options))
    last = dict(sorted(stream.all_rows(), key=lambda row: row[1]))
    assert last == {row[0]: row[1] for row in stream.batch().groupBy("k").agg(f.sum("v")).collect()}
    epochs = {copy.parent.parent.name for copy in copies(folder)}
    assert "epoch-3" in epochs and "epoch-0" not in epochs


def test_without_the_option_nothing_is_copied(stream: Any, one_backend: str, tmp_path: Path) -> None:
    """LOC-01: disabled."""
    stream.add({"k": "a", "v": row} for row in range(10))
    stream.run(totals(stream, one_backend, local_copies_dir=str(tmp_path / "copies")))
    assert copies(tmp_path / "copies") == []


def copies(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.seg") if path.is_file())
