"""The page about side outputs: its example runs, and its assertions hold."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "side-outputs.md"


def test_the_example_of_the_page_runs():
    blocks = re.findall(
        r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    assert len(blocks) == 1
    names = {"__name__": __name__}
    exec(compile(blocks[0], str(PAGE), "exec", dont_inherit=True), names)
    assert len(names["rows"]) == 3
