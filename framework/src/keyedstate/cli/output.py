"""What the commands print: tables for people, JSON for scripts."""

from __future__ import annotations

import enum
import json
import os
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

#: Columns of a line where the output is no terminal and COLUMNS is not set.
_PIPE_WIDTH = 200


class Format(str, enum.Enum):
    """How a command prints its result."""

    table = "table"
    json = "json"


def console() -> Console:
    """Return where tables go: standard output, wide enough for whole lines where it is a pipe or a file."""
    out = Console(highlight=False)
    if not out.is_terminal and "COLUMNS" not in os.environ:
        out = Console(highlight=False, width=_PIPE_WIDTH)
    return out


def print_json(document: object) -> None:
    """Print a document for scripts."""
    print(json.dumps(document, indent=2))


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Return a table of plain text, without header where no column has a name."""
    made = Table(box=None, pad_edge=False, show_header=any(columns))
    for column in columns:
        made.add_column(column, overflow="fold")
    for row in rows:
        made.add_row(*(escape(cell) for cell in row))
    return made


def shown(value: object) -> str:
    """Return an option's value as people read it."""
    if value is None:
        return "not set"
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "empty"
    return str(value)
