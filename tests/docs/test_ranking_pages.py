"""The pages about deduplication, top-n and row kinds: their examples run, and their assertions hold."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "how-to"


@pytest.mark.parametrize("page", ["deduplicate.md", "top-n.md", "changing-results.md"])
def test_the_example_of_the_page_runs(page: str) -> None:
    text = (FOLDER / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    assert blocks
    exec(compile("\n".join(blocks), page, "exec"), {})
