"""The pages about reading and writing stored state: their code runs, top to bottom."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs" / "how-to"

#: Uses what the page about reading makes.
REST = """
assert [(row.carrier, row.value) for row in delays.orderBy("carrier").collect()] == [("AA", 20), ("UA", 12)]
spark.stop()
print("the end")
"""


@pytest.mark.long
@pytest.mark.spark
def test_the_examples_of_the_pages_run(tmp_path):
    pytest.importorskip("pyspark.sql.datasource", reason="data sources in Python came with Spark 4")
    blocks = [
        block
        for page in ("bootstrap.md", "reading-state.md")
        for block in re.findall(
            r"^```python\n(.*?)^```", (DOCS / page).read_text(), flags=re.MULTILINE | re.DOTALL
        )
    ]
    assert len(blocks) >= 5
    script = tmp_path / "page.py"
    script.write_text("\n".join([*blocks, REST]))
    environ = {**os.environ, "TMPDIR": str(tmp_path), "PYSPARK_PYTHON": sys.executable}
    result = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env=environ, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr[-4000:]
    assert result.stdout.rstrip().endswith("the end")
