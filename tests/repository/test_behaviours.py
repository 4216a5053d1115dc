"""Every numbered behaviour of the reference has a test, or a reason why not."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_docs", ROOT / "scripts" / "generate_docs.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_behaviour_has_a_test_or_a_reason_why_not(generator: ModuleType) -> None:
    answered = set(generator.held_behaviours())
    answered |= generator.explained_behaviours("not_applicable") | generator.explained_behaviours("later")
    assert sorted(generator.known_behaviours() - answered) == []


def test_no_test_names_a_behaviour_that_the_reference_has_not(generator: ModuleType) -> None:
    """A family that is listed is listed whole, so a number beside it is a slip."""
    known = generator.known_behaviours()
    families = {name.partition("-")[0] for name in known}
    named = set(generator.held_behaviours()).union(*map(generator.explained_behaviours, generator.SECTIONS))
    assert sorted(name for name in named - known if name.partition("-")[0] in families) == []


def test_behaviours_that_do_not_apply_have_no_test_and_adapted_ones_have_one(
    generator: ModuleType,
) -> None:
    held = set(generator.held_behaviours())
    assert sorted(generator.explained_behaviours("not_applicable") & held) == []
    assert sorted(generator.explained_behaviours("later") & held) == []
    assert sorted(generator.explained_behaviours("other_form") - held) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SB-05.", ["SB-05"]),
        ("SB-14: as SB-14..16, COW-01", ["SB-14", "SB-15", "SB-16", "COW-01"]),
        ("MIG-07 to MIG-09", ["MIG-07", "MIG-08", "MIG-09"]),
        ("UTF-16 in 3 bytes, V-1", ["UTF-16"]),
        ("nothing", []),
    ],
)
def test_ranges_are_read_as_their_numbers(generator: ModuleType, text: str, expected: list[str]) -> None:
    assert generator.behaviours_in(text) == expected


def test_the_page_shows_what_the_table_says(generator: ModuleType) -> None:
    page = generator.behaviours_page()
    table = generator.behaviours_table()
    for section, (title, _) in generator.SECTIONS.items():
        rows = table.get(section, [])
        assert (f"## {title}" in page) is bool(rows)
        for row in rows:
            assert f"| {row['ids']} | {row['text']} |" in page
            assert re.search(r"[.!]$", row["text"])
