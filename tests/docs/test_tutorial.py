"""The tutorial does what it says: its code runs, top to bottom, and its assertions hold."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TUTORIAL = Path(__file__).resolve().parents[2] / "docs" / "tutorial" / "index.md"


@pytest.mark.spark
def test_the_tutorial_runs_from_top_to_bottom(tmp_path):
    blocks = re.findall(r"^```python\n(.*?)^```", TUTORIAL.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 8
    script = tmp_path / "tutorial.py"
    script.write_text("\n".join(blocks) + "\nspark.stop()\nprint('the end')\n")
    environ = {**os.environ, "TMPDIR": str(tmp_path), "PYSPARK_PYTHON": sys.executable}
    result = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env=environ, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr[-4000:]
    assert result.stdout.rstrip().endswith("the end")
    assert "has no column 'usr'" in result.stdout or "usr" in result.stdout
