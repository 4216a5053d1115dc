"""The command and its sub-commands; errors become one line and an exit code.

Exit codes: 0 done; 1 a problem was found (a job that cannot run here, damaged state, states that differ);
2 the command could not do what it was asked.
"""

from __future__ import annotations

import platform
import sys
from typing import Annotated

import typer

import keyedstate
from keyedstate.cli import checkpoint, contract, doctor, explain, plugins, savepoint
from keyedstate.cli.demo import command as demo
from keyedstate.errors import KeyedStateError
from keyedstate.options import Configuration
from keyedstate.plugins import PluginRegistry

app = typer.Typer(
    name="keyedstate",
    help="Keyed state for PySpark jobs: look at the installed backends, check this machine, see it work.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(plugins.app, name="plugins")
app.add_typer(checkpoint.app, name="checkpoint")
app.add_typer(savepoint.app, name="savepoint")
app.command("doctor")(doctor.doctor)
app.command("contract")(contract.contract)
app.command("explain")(explain.explain)
app.command("demo")(demo.demo)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"keyedstate {keyedstate.__version__} (Python {platform.python_version()})")
        # Not loaded: a broken plugin must not hide the version.
        for provider in PluginRegistry(Configuration()).providers():
            print(f"  {provider.name}: {provider}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show versions and exit."),
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command; the entry point of the console script ``keyedstate``."""
    try:
        app(prog_name="keyedstate")
    except KeyedStateError as error:
        print(f"keyedstate: {error}", file=sys.stderr)
        sys.exit(2)
