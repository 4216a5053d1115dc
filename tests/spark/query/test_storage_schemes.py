"""A checkpoint folder of a scheme that a plugin brings, on the driver and in tasks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from keyedstate import keyed, types
from keyedstate.checkpoint.protocol.operator_folder import OperatorFolder
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.errors import UnknownSchemeError
from keyedstate.options import Configuration
from keyedstate.runtime import Context, KeyedProcessFunction
from keyedstate.state import ValueState

PAGE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "storage.md"


class Totals(KeyedProcessFunction):
    total = ValueState("total", types.INT64, default=0)

    def process(self, row: Any, ctx: Context) -> Any:
        self.total.update(self.total.value() + row.v)
        yield ctx.key, self.total.value()


def totals(source: DataFrame, config: dict[str, object]) -> DataFrame:
    return keyed(source, "k", uid="totals", config=config).process(Totals(), "k string, total long")


@pytest.fixture
def shelf(spark: SparkSession, tmp_path: Path) -> Path:
    """The page's own example, where tasks can import it."""
    module = tmp_path / "shelf_storage.py"
    (plugin,) = re.findall(
        r"^```python\n(# shelf_storage\.py\n.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
    module.write_text(plugin)
    spark.sparkContext.addPyFile(str(module))
    folder = tmp_path / "shelf"
    folder.mkdir()
    return folder


def test_a_query_keeps_its_checkpoints_under_a_plugins_scheme_over_a_restart(
    stream: Any, shelf: Path, one_backend: str
) -> None:
    config = {
        "backend": one_backend,
        "checkpoint.dir": "shelf://jobs/state",
        "parallelism": 2,
        "plugins.modules": "shelf_storage",
        "storage.options": {"folder": str(shelf)},
    }
    for epoch in range(4):
        stream.add({"k": f"key {row % 3}", "v": row} for row in range(epoch, epoch + 10))
        if epoch != 1:
            stream.run(totals(stream.frame(), config))
    found = {
        row[0]: max(total for key, total in stream.all_rows() if key == row[0]) for row in stream.all_rows()
    }
    answer = stream.batch().groupBy("k").agg(f.sum("v")).collect()
    assert found == {row[0]: row[1] for row in answer}
    assert (shelf / "jobs/state/totals/chk-3/_metadata").is_file()
    storage = CheckpointStorage.open("shelf://jobs/state", Configuration(config))
    metadata = OperatorFolder(storage, "totals").read_metadata(3)
    assert metadata is not None and metadata.parallelism == 2
    assert not list(shelf.rglob("*.tmp"))


def test_an_unknown_scheme_is_refused_when_the_operator_is_built(stream: Any) -> None:
    with pytest.raises(UnknownSchemeError, match="no file system has the scheme 'shelve'"):
        totals(stream.frame(), {"checkpoint.dir": "shelve://jobs/state"})
