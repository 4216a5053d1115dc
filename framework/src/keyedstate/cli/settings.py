"""The options `--config` and `--format` of the commands, and the settings that they read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.cli.output import Format
from keyedstate.options import Configuration

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="TOML file whose table keyedstate has options; the environment wins.",
    ),
]
OutputFormat = Annotated[Format, typer.Option("--format", help="A table for people or JSON for scripts.")]


def read_settings(file: Path | None) -> Configuration:
    """Return the options that the environment and a file set.

    Raises `ConfigError` where the file cannot be read or an option in it is unknown.
    """
    return Configuration(environ=os.environ, toml=file)


def open_storage(uri: str, file: Path | None) -> CheckpointStorage:
    """Open a path or URI with the options ``storage.*`` and ``plugins.*`` that are set.

    Raises `ConfigError` and `StorageError`.
    """
    return CheckpointStorage.open(uri, read_settings(file))
