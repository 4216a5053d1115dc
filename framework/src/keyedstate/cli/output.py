"""What the commands print: tables for people, JSON for scripts."""

from __future__ import annotations

import contextlib
import enum
import json
import os
from collections.abc import Callable, Collection, Iterator, Sequence

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from keyedstate.checkpoint.reading.json_values import time_of

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


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], numbers: Collection[str] = ()) -> Table:
    """Return a table of plain text, without header where no column has a name.

    Parameters
    ----------
    columns, rows : sequence
    numbers : collection of str
        The columns to be set flush right.
    """
    made = Table(box=None, pad_edge=False, show_header=any(columns))
    for column in columns:
        made.add_column(column, overflow="fold", justify="right" if column in numbers else "left")
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


def shown_bytes(count: int) -> str:
    """Return a size as people read it: ``1.2 MiB``."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def shown_time(milliseconds: int | None) -> str:
    """Return a time as people read it, in UTC and to the second; a dash for None."""
    return (time_of(milliseconds) or "-").replace("T", " ").partition(".")[0]


@contextlib.contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show on standard error how many bytes of work are done, where that is a terminal.

    Parameters
    ----------
    what : str
        What is done, such as ``verifying``.
    total : int
        Bytes in all.

    Yields
    ------
    callable
        Takes the bytes that were done since it was called last.
    """
    with _bar(what, total) as (bar, task):
        yield lambda done: bar.advance(task, done)


@contextlib.contextmanager
def progress_of(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show the same of work that tells itself how many of how many bytes are done."""
    with _bar(what, None) as (bar, task):
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextlib.contextmanager
def _bar(what: str, total: int | None) -> Iterator[tuple[Progress, TaskID]]:
    err = Console(stderr=True)
    # Where nobody looks, a disabled bar of an older rich still ends with a newline.
    err.quiet = not err.is_terminal
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(True), TimeRemainingColumn()
    with Progress(*columns, console=err, transient=True, disable=err.quiet) as bar:
        yield bar, bar.add_task(what, total=total)
