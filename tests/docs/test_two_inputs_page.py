"""The page about functions of two inputs: its examples run from top to bottom."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "two-inputs.md"


def test_the_examples_of_the_page_run():
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert blocks
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile("\n".join(blocks), str(PAGE), "exec"), names)
