"""The pages that follow from the source say what the source says."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer

from keyedstate import hooks
from keyedstate.cli.app import app
from keyedstate.options import OPTIONS

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_docs", ROOT / "scripts" / "generate_docs.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_pages_are_committed_as_their_source_makes_them(generator: ModuleType) -> None:
    # That of the behaviours has a test of its own, since it reads every test there is.
    stale = [
        name
        for name, page in generator.PAGES.items()
        if name != "behaviours.md"
        and (ROOT / "docs" / "reference" / name).read_text(encoding="utf-8") != page()
    ]
    assert stale == [], "run `python scripts/generate_docs.py`"


def test_every_page_of_a_module_belongs_to_a_public_one(generator: ModuleType) -> None:
    pages = {path.stem for path in (ROOT / "docs" / "reference" / "api").glob("keyedstate*.md")}
    assert pages == set(generator.PUBLIC_MODULES)


def test_every_hook_has_a_section(generator: ModuleType) -> None:
    sections = [line for line in generator.hooks_page().splitlines() if line.startswith("## ")]
    assert sections == [f"## {name}" for name in vars(hooks) if name.startswith("keyedstate_")]


def test_every_option_has_a_row(generator: ModuleType) -> None:
    page = generator.options_page()
    assert [option.name for option in OPTIONS if f"| `{option.name}` |" not in page] == []


def test_every_command_has_a_section_with_all_its_options(generator: ModuleType) -> None:
    page = generator.command_line_page()

    def missing(command: Any, name: str) -> list[str]:
        below = getattr(command, "commands", None)
        if below is not None:
            return [text for word, sub in below.items() for text in missing(sub, f"{name} {word}")]
        _, _, section = page.partition(f"\n### {name}\n")
        section = section.partition("\n### ")[0]
        options = [option for one in command.params for option in one.opts if option.startswith("--")]
        unknown = [option for option in options if option != "--help" and f"`{option}" not in section]
        return [f"{name} {option}" for option in unknown] + [name] * (not section)

    assert missing(typer.main.get_command(app), "keyedstate") == []
