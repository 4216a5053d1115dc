"""The page about testing is itself a test file: its examples run, top to bottom, with pytest."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "testing-your-function.md"


def test_the_examples_of_the_page_are_tests_that_pass(tmp_path, environment_with_pytest_plugin):
    blocks = re.findall(
        r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    tests = "\n".join(blocks).count("\ndef test_")
    assert tests >= 6
    (tmp_path / "test_page.py").write_text("\n".join(blocks), encoding="utf-8")
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_page.py"],
        cwd=tmp_path,
        env=environment_with_pytest_plugin,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"{tests} passed" in result.stdout
