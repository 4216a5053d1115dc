"""``python -m keyedstate.testing.contract BACKEND``: the whole contract on an installed backend.

Exit codes: 0 everything that is claimed holds; 1 a test fails; 2 the command could not do what it was asked.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from keyedstate.config import Configuration
from keyedstate.errors import KeyedStateError
from keyedstate.plugins import PluginRegistry
from keyedstate.testing.contract.baseline import measure
from keyedstate.testing.contract.report import Report
from keyedstate.testing.contract.run import run_contract

#: Columns of a line where the output is no terminal and COLUMNS is not set.
_PIPE_WIDTH = 200


def _read_options(words: list[str]) -> dict[str, str]:
    options: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not name or not equals:
            raise typer.BadParameter(f"{word!r} is no NAME=VALUE", param_hint="--option")
        options[name] = value
    return options


def contract(
    backend: Annotated[str, typer.Argument(help="The name of an installed backend.")],
    option: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="NAME=VALUE", help="An option to run it with; may be repeated."),
    ] = None,
    select: Annotated[
        str | None, typer.Option("-k", metavar="EXPR", help="Only tests with such names, as pytest's -k.")
    ] = None,
    baseline: Annotated[
        bool, typer.Option("--baseline/--no-baseline", help="Measure it where all tests pass.")
    ] = True,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write everything into a JSON file.")
    ] = None,
    markdown_file: Annotated[
        Path | None, typer.Option("--markdown", metavar="FILE", help="Write everything as Markdown.")
    ] = None,
) -> None:
    """Run the whole contract on an installed backend and print its capability matrix."""
    options = _read_options(option or [])
    settings = Configuration({**options, "backend": backend})
    registry = PluginRegistry(settings)
    chosen = registry.choose()
    settings.plugin_options(registry.options, backend)
    for file in (json_file, markdown_file):
        if file is not None and not file.absolute().parent.is_dir():
            raise typer.BadParameter(f"the folder of {str(file)!r} does not exist; make it first")

    console = Console(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = Console(highlight=False, width=_PIPE_WIDTH)
    with console.status(f"the contract on {backend}"):
        outcomes = run_contract(backend, options, select)
    report = Report(chosen, options, select, outcomes, None)
    # The speed of a backend that does not do what it claims is of no use.
    if baseline and report.passed:
        with console.status(f"the baseline of {backend}"):
            report = Report(chosen, options, select, outcomes, measure(backend, options))
    report.print(console)
    if json_file is not None:
        json_file.write_text(json.dumps(report.document(), indent=2) + "\n", encoding="utf-8")
    if markdown_file is not None:
        markdown_file.write_text(report.markdown(), encoding="utf-8")
    if not report.passed:
        raise typer.Exit(1)


def main() -> None:
    """Run the command."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(contract)
    try:
        app(prog_name="python -m keyedstate.testing.contract")
    except KeyedStateError as error:
        sys.stderr.write(f"keyedstate: {error}\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
