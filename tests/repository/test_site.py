"""The site of the documentation: its pages are reached, and its pictures are those of the source."""

from __future__ import annotations

import importlib.util
import re
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


def test_the_curve_is_committed_as_its_numbers_draw_it() -> None:
    curve = script("draw_curve")
    drawn = curve.PICTURE.read_text(encoding="utf-8")
    assert drawn == curve.picture(), "run `python scripts/draw_curve.py`"


def test_an_arrow_that_others_imply_is_left_out(diagrams: ModuleType) -> None:
    picture = diagrams.rooms().svg()
    direct = sum(len(others) for others in diagrams.imports_of_rooms().values())
    assert 20 < picture.count("url(#arrow)") < direct / 2


def test_the_places_that_the_architecture_page_names_exist() -> None:
    text = (DOCS / "explanation" / "architecture.md").read_text(encoding="utf-8")
    places = re.findall(r"`((?:framework|tests|scripts|docs|plugins|contrib)/[\w./-]*)`", text)
    assert len(places) > 15
    assert [place for place in places if not (ROOT / place).exists()] == []
