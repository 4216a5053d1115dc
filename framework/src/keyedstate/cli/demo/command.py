"""The sub-command ``keyedstate demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from keyedstate.cli.output import console

Backend = Annotated[str, typer.Option("--backend", help="Name of the state backend.")]
Work = Annotated[
    Path, typer.Option("--work", help="Folder for the input, output, state and logs; rewritten.")
]
Epochs = Annotated[int, typer.Option("--epochs", min=2, help="Micro-batches to cut the flights into.")]
Rows = Annotated[int | None, typer.Option("--rows", min=1, help="Use only the first so many flights.")]
Local = Annotated[bool, typer.Option("--local", help="Run without Spark and Java, on this machine alone.")]


def demo(
    backend: Backend = "heap-cow",
    work: Work = Path("demo-work"),
    epochs: Epochs = 16,
    rows: Rows = None,
    local: Local = False,
) -> None:
    """See it work: flights through keyed state on Spark, killed half way, compared with Spark's answer."""
    # No other command imports it.
    from keyedstate.cli.demo.watch import LOCAL, ON_SPARK, run_demo

    job = LOCAL if local else ON_SPARK
    if not run_demo(work.resolve(), job, backend, epochs, rows, console()):
        raise typer.Exit(1)
