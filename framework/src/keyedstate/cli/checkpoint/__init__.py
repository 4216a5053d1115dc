"""``keyedstate checkpoint``: the stored state of a query, without Spark and without its program."""

from __future__ import annotations

import typer

from keyedstate.cli.checkpoint.diff_command import diff
from keyedstate.cli.checkpoint.export_command import export
from keyedstate.cli.checkpoint.list_command import list_checkpoints
from keyedstate.cli.checkpoint.show_command import show
from keyedstate.cli.checkpoint.verify_command import verify

app = typer.Typer(
    help="Stored state: which checkpoints exist, what they contain, whether every byte of it is right.",
    no_args_is_help=True,
)
app.command("list")(list_checkpoints)
app.command("show")(show)
app.command("verify")(verify)
app.command("diff")(diff)
app.command("export")(export)
