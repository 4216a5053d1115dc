"""The page about windows: its examples run, the one on the flights too, and their assertions hold."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "windows.md"


def test_the_examples_of_the_page_run_from_top_to_bottom():
    blocks = re.findall(
        r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    assert len(blocks) == 4
    names = {"__name__": __name__}
    exec(compile("\n".join(blocks), str(PAGE), "exec", dont_inherit=True), names)
    assert len(names["result"]) > 100


def test_the_picture_is_one():
    picture = ElementTree.parse(PAGE.parents[1] / "images" / "windows.svg").getroot()
    assert picture.tag.endswith("svg") and len(picture) > 20
