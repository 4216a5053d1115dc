"""The page about savepoints: its walk-through runs, top to bottom."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "savepoints.md"


@pytest.mark.long
@pytest.mark.spark
def test_the_walk_through_runs_from_top_to_bottom(tmp_path):
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 6
    script = tmp_path / "page.py"
    script.write_text("\n".join([*blocks, "print('the end')\n"]))
    environ = {**os.environ, "TMPDIR": str(tmp_path), "PYSPARK_PYTHON": sys.executable}
    result = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env=environ, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr[-4000:]
    assert result.stdout.rstrip().endswith("the end")
