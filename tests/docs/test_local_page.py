"""The examples of the page about local runs, run as one program."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "local.md"


def test_the_examples_of_the_page_run_as_one_program(capsys):
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {"__name__": "page"}
    exec("\n".join(examples), names)
    assert sorted(capsys.readouterr().out.splitlines()) == ["ann 1", "ann 2", "bob 1"]
    assert names["totals"].to_pylist() == [
        {"user": "ann", "n": 3, "euros": 11},
        {"user": "bob", "n": 1, "euros": 4},
    ]
    assert sorted(names["windows"]["euros"].to_pylist()) == [3, 4, 8]
    rows = names["pq"].read_table(names["folder"] / "counts").to_pylist()
    assert sorted((row["user"], row["visits"]) for row in rows) == [("ann", 1), ("ann", 2), ("bob", 1)]
    assert names["histogram"].to_pylist() == [{"visits": 1, "users": 2}, {"visits": 2, "users": 1}]
    assert names["warmest"].to_pylist() == [{"sensor": "cellar", "celsius": 23.0}]
