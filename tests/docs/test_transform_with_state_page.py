"""The page about transformWithState: its code runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "transform-with-state.md"

BEFORE = """
from pyspark.sql import SparkSession

spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.sql.shuffle.partitions", "2")
    .getOrCreate()
)
spark.createDataFrame([("ann",), ("bob",), ("ann",)], "user string").write.json("events")
events = spark.readStream.schema("user string").json("events")
"""
AFTER = """
found = []
query = (
    visits.writeStream.foreachBatch(lambda batch, epoch: found.extend(map(tuple, batch.collect())))
    .option("checkpointLocation", "checkpoint")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
assert sorted(found) == [("ann", 2), ("bob", 1)], found
spark.stop()
print("the end")
"""


@pytest.mark.long
@pytest.mark.spark
def test_the_code_of_the_page_counts_visits(tmp_path: Path) -> None:
    pytest.importorskip("pyspark.sql.streaming.tws_tester", reason="transformWithState came with Spark 4.1")
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    script = tmp_path / "page.py"
    script.write_text("\n".join([BEFORE, *blocks, AFTER]), encoding="utf-8")
    environ = {**os.environ, "TMPDIR": str(tmp_path), "PYSPARK_PYTHON": sys.executable}
    result = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env=environ, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr[-4000:]
    assert result.stdout.rstrip().endswith("the end")
