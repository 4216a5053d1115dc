"""What the commands print: tables for people, JSON for scripts."""

from __future__ import annotations

import contextlib
import enum
import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from keyedstate.checkpoint.reading.json_values import time_of

#: Columns of a line where the output is no terminal and COLUMNS is not set.
_PIPE_WIDTH = 200


class Format(str, enum.Enum):
    """How a command prints its result."""

    table = "table"
    json = "json"


def console() -> Console:
    """Return standard output, which prints text as it is; wide enough for whole lines where it is a pipe."""
    out = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
    if not out.is_terminal and "COLUMNS" not in os.environ:
        out.width = _PIPE_WIDTH
    return out


def print_json(document: object) -> None:
    """Print a document for scripts."""
    print(json.dumps(document, indent=2))


def attributes(value: object, *names: str) -> dict[str, Any]:
    """Return some attributes of a value by their names, for a document."""
    return {name: getattr(value, name) for name in names}


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], numbers: Collection[str] = ()) -> Table:
    """Return a table of plain text, in which the columns `numbers` are flush right."""
    made = Table(box=None, pad_edge=False, show_header=any(columns))
    for column in columns:
        made.add_column(column, overflow="fold", justify="right" if column in numbers else "left")
    for row in rows:
        made.add_row(*map(Text, row))
    return made


def facts(lines: Iterable[tuple[str, str]]) -> Table:
    """Return a table of names and values, without a header."""
    return table(["", ""], lines)


def shown(value: object) -> str:
    """Return an option's value as people read it."""
    if value is None:
        return "not set"
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "empty"
    return str(value)


def shown_bytes(count: int) -> str:
    """Return a size as people read it: ``1.2 MiB``."""
    if count < 1024:
        return f"{count} B"
    size = float(count)
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if size < 1024:
            return f"{size:.1f} {unit}"
    return f"{size / 1024:.1f} TiB"


def shown_time(milliseconds: int | None) -> str:
    """Return a time as people read it, in UTC and to the second; a dash for None."""
    return (time_of(milliseconds) or "-").replace("T", " ").partition(".")[0]


def counted(count: int, noun: str) -> str:
    """Return a number of things: ``1 run``, ``2 runs``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


@contextlib.contextmanager
def progress(what: str, total: int | None = None) -> Iterator[Callable[..., None]]:
    """Show a progress bar on standard error, where that is a terminal.

    Yields a function that takes the bytes done since its last call, of `total`; without a total, one that
    takes the bytes done so far, and all of them.
    """
    err = Console(stderr=True)
    # A disabled bar of an older rich still ends with a newline.
    err.quiet = not err.is_terminal
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(True), TimeRemainingColumn()
    with Progress(*columns, console=err, transient=True, disable=err.quiet) as bar:
        task = bar.add_task(what, total=total)
        if total is None:
            yield lambda done, total: bar.update(task, completed=done, total=total)
        else:
            yield lambda done: bar.advance(task, done)
