"""``keyedstate contract``: the whole contract of a backend, on an installed one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from keyedstate.cli.output import console
from keyedstate.cli.plugins import installed_backends
from keyedstate.options import Configuration
from keyedstate.plugins import PluginRegistry

if TYPE_CHECKING:
    from keyedstate.testing.contract.reports.outcomes import Outcome

Backend = Annotated[
    str,
    typer.Argument(
        metavar="BACKEND",
        help="The name of an installed backend.",
        autocompletion=installed_backends,
    ),
]
Option = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="NAME=VALUE", help="An option to run it with; may be repeated."),
]
Select = Annotated[
    str | None, typer.Option("-k", metavar="EXPR", help="Only tests with such names, as pytest's -k.")
]
Verbose = Annotated[
    bool,
    typer.Option("--verbose", "-v", help="Print each test as it ends, and of failures the lines of source."),
]
NoBaseline = Annotated[bool, typer.Option("--no-baseline", help="Do not measure its speed.")]
JsonFile = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Write everything into a JSON file.")
]
MarkdownFile = Annotated[
    Path | None, typer.Option("--markdown", metavar="FILE", help="Write everything as Markdown.")
]


def contract(
    backend: Backend,
    option: Option = None,
    select: Select = None,
    verbose: Verbose = False,
    no_baseline: NoBaseline = False,
    json_file: JsonFile = None,
    markdown_file: MarkdownFile = None,
) -> None:
    """Test an installed backend against the whole contract; exit code 1 if a test fails.

    Prints the result of each capability that it claims, each failing case with its error and, where all tests
    pass, a small measurement of its speed. Needs the extra keyedstate[test].
    """
    # pytest and Hypothesis are an extra, which no other command needs.
    from keyedstate.testing.contract.reports.baseline import measure
    from keyedstate.testing.contract.reports.report import Report
    from keyedstate.testing.contract.run import run_contract

    options = _read_options(option or [])
    settings = Configuration({**options, "backend": backend})
    registry = PluginRegistry(settings)
    chosen = registry.choose()
    settings.plugin_options(registry.options, backend)
    for file in (json_file, markdown_file):
        if file is not None and not file.absolute().parent.is_dir():
            raise typer.BadParameter(f"the folder of {str(file)!r} does not exist; make it first")

    out = console()
    columns = BarColumn(30), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}")
    bar = Progress(*columns, console=out, transient=True)
    task = bar.add_task("", total=None)
    # Elsewhere than on a terminal, the bar of an older rich ends with a newline.
    with bar if out.is_terminal else nullcontext():

        def follow(ended: Sequence[Outcome], test: str, total: int) -> None:
            bar.update(task, advance=len(ended), description=test, total=total or None)
            if verbose:
                for outcome in ended:
                    out.print(f"{outcome.ending.value:<9} {outcome.test}")

        outcomes = run_contract(backend, options, select, follow)
    report = Report(chosen, options, select, outcomes, None)
    # The speed of a wrong backend is of no use.
    if report.passed and not no_baseline:
        with out.status(f"measuring {backend}"):
            report = Report(chosen, options, select, outcomes, measure(backend, options))
    report.print(out, tracebacks=verbose)
    if json_file is not None:
        json_file.write_text(json.dumps(report.document(), indent=2) + "\n", encoding="utf-8")
    if markdown_file is not None:
        markdown_file.write_text(report.markdown(), encoding="utf-8")
    if not report.passed:
        raise typer.Exit(1)


def _read_options(words: list[str]) -> dict[str, str]:
    options: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not name or not equals:
            raise typer.BadParameter(f"{word!r} is no NAME=VALUE", param_hint="--option")
        options[name] = value
    return options
