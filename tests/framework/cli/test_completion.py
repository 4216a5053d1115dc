"""Completion in a shell: the words that may follow, as typer's script asks the command for them."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("keyedstate ch", {"checkpoint"}),
        ("keyedstate savepoint con", {"convert"}),
        ("keyedstate checkpoint diff --lim", {"--limit"}),
        ("keyedstate contract nested", {"nested-map"}),
        ("keyedstate plugins show nested", {"nested-map"}),
    ],
)
def test_a_shell_gets_the_words_that_may_follow(run: Any, line: str, expected: set[str]) -> None:
    variables = {"_KEYEDSTATE_COMPLETE": "complete_bash", "COMP_WORDS": line}
    ran = run(**variables, COMP_CWORD=str(len(line.split()) - 1))
    assert set(ran.stdout.split()) == expected, ran.stderr


@pytest.mark.parametrize("option", ["--install-completion", "--show-completion"])
def test_completion_is_offered_by_the_command(run: Any, option: str) -> None:
    assert option in run("--help", TERMINAL_WIDTH="200").stdout
