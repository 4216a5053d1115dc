"""The site of the documentation: its pages are reached, and its pictures are those of the source."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}


@pytest.fixture(scope="module")
def diagrams() -> ModuleType:
    return script("draw_diagrams")


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Where dataclasses look for what their annotations name.
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def linked(page: str) -> set[str]:
    """Return the pages that a page has a link to."""
    text = (DOCS / page).read_text(encoding="utf-8")
    goals = [((DOCS / page).parent / goal).resolve() for goal in re.findall(r"\]\(([^)\s:#]+\.md)", text)]
    return {goal.relative_to(DOCS).as_posix() for goal in goals if goal.is_relative_to(DOCS)}


def test_every_page_is_two_clicks_from_the_index() -> None:
    one = linked("index.md")
    two = {goal for page in one for goal in linked(page)}
    assert PAGES - {"index.md"} - one - two == set()


def test_every_page_is_in_the_navigation_once() -> None:
    named = re.findall(r"^\s+- (?:[^:]+: )?(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(named) == sorted(PAGES)


def test_pages_have_pictures_and_no_diagrams_that_a_browser_must_draw() -> None:
    assert [page for page in sorted(PAGES) if "```mermaid" in (DOCS / page).read_text(encoding="utf-8")] == []


def test_every_room_has_a_purpose_in_the_picture(diagrams: ModuleType) -> None:
    assert diagrams.imports_of_rooms().keys() - {diagrams.PLUGINS} <= diagrams.PURPOSES.keys()


def test_pictures_are_committed_as_their_source_draws_them(diagrams: ModuleType) -> None:
    stale = [
        name
        for name, picture in diagrams.pictures().items()
        if (DOCS / "images" / name).read_text(encoding="utf-8") != picture
    ]
    assert stale == [], "run `python scripts/draw_diagrams.py`"


def test_the_curves_are_committed_as_their_numbers_draw_them() -> None:
    curve = script("draw_curve")
    stale = [
        name
        for name, draw in curve.PICTURES.items()
        if (curve.IMAGES / name).read_text(encoding="utf-8") != draw()
    ]
    assert stale == [], "run `python scripts/draw_curve.py`"


def test_the_measurement_of_nexmark_is_drawn_and_put_into_its_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nexmark = script("draw_nexmark")
    if nexmark.NUMBERS.exists():
        drawn = nexmark.PICTURE.read_text(encoding="utf-8"), nexmark.PAGE.read_text(encoding="utf-8")
        assert drawn == (nexmark.picture(), nexmark.page()), "run `python scripts/draw_nexmark.py`"
    numbers = tmp_path / "nexmark.csv"
    numbers.write_text(
        "query,lane,rows_per_second,to_spark,processor_to_spark,code_lines,sql_lines\n"
        'q4,"keyedstate, heap-cow",90000,,,5,9\nq4,"keyedstate, rocksdb",40000,,,5,9\n'
        'q18,"keyedstate, heap-cow",60000,1.20,1.10,1,6\nq18,"keyedstate, rocksdb",30000,1.00,0.90,1,6\n'
        'q18,"Spark, HDFS-backed store",50000,,,1,6\nq18,Spark transformWithState,3000,,,1,6\n'
    )
    monkeypatch.setattr(nexmark, "NUMBERS", numbers)
    assert nexmark.picture().count('height="8"') == 5
    assert "| q18 | 60,000 | 1.20 | 1.10 | 30,000 | 1.00 | 0.90 | 20.0 | 1, 6 |" in nexmark.page()
    assert "| q4 | 90,000 | | | 40,000 | | | | 5, 9 |" in nexmark.page()


def test_an_arrow_that_others_imply_is_left_out(diagrams: ModuleType) -> None:
    picture = diagrams.rooms().svg()
    direct = sum(len(others) for others in diagrams.imports_of_rooms().values())
    assert 20 < picture.count("url(#arrow)") < direct / 2


def test_the_places_that_the_architecture_page_names_exist() -> None:
    text = (DOCS / "explanation" / "architecture.md").read_text(encoding="utf-8")
    places = re.findall(r"`((?:framework|tests|scripts|docs|plugins|contrib)/[\w./-]*)`", text)
    assert len(places) > 15
    assert [place for place in places if not (ROOT / place).exists()] == []
