"""The page about joins: its examples run from top to bottom."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "joins.md"


def test_the_examples_of_the_page_run():
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert blocks
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile("\n".join(blocks), str(PAGE), "exec"), names)
    assert len(names["windy"]) > 100


@pytest.mark.parametrize("name", ["join.svg", "interval-join.svg"])
def test_the_pictures_are_some(name: str):
    picture = ElementTree.parse(PAGE.parents[1] / "images" / name).getroot()
    assert picture.tag.endswith("svg") and len(picture) > 20
