"""The sub-command ``keyedstate demo``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from keyedstate.cli.demo.watch import run_demo
from keyedstate.cli.output import console

_app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@_app.command()
def _demo(
    backend: Annotated[str, typer.Option(help="Name of the state backend.")] = "heap-cow",
    work: Annotated[
        Path, typer.Option(help="Folder for the input, output, state and logs; made anew.")
    ] = Path("demo-work"),
    epochs: Annotated[int, typer.Option(min=2, help="Micro-batches to cut the flights into.")] = 16,
    rows: Annotated[int | None, typer.Option(min=1, help="Use only the first so many flights.")] = None,
) -> None:
    """Stream every flight of a year through keyed state on Spark, kill the job half way, and compare."""
    if not run_demo(work.resolve(), backend, epochs, rows, console()):
        raise typer.Exit(1)


def main(arguments: Sequence[str]) -> None:
    """Run the demo with command-line arguments; exits with 1 where the answers differ."""
    _app(args=list(arguments), prog_name="keyedstate demo")
