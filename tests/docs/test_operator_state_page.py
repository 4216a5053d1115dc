"""The page about operator state: its code runs, top to bottom."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "operator-state.md"

#: Uses what the page declares and does not run itself.
REST = """
out = ks.keyed(payments, "user").broadcast(limits).process(Reset(), "user string, over long")
assert [tuple(row) for row in out.collect()] == [("ann", 20)]
out = ks.keyed(payments, "user", config={"parallelism": 1}).process(Sample(), "task long, seen long")
assert [tuple(row) for row in out.collect()] == [(0, 1), (0, 2), (0, 3)]
spark.stop()
print("the end")
"""


@pytest.mark.long
@pytest.mark.spark
def test_the_examples_of_the_page_run(tmp_path):
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 3
    script = tmp_path / "page.py"
    script.write_text("\n".join([*blocks, REST]))
    environ = {**os.environ, "TMPDIR": str(tmp_path), "PYSPARK_PYTHON": sys.executable}
    result = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env=environ, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr[-4000:]
    assert result.stdout.rstrip().endswith("the end")
