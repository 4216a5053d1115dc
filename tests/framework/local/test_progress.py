"""The line that shows the progress of a run."""

from __future__ import annotations

import io
import sys

from rich.console import Console
from tests.framework.local.functions import COUNTS, Count, events

from keyedstate.local import keyed
from keyedstate.local.streams import progress


class Terminal(io.StringIO):
    """An error output that is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_long_run_shows_its_rows_and_its_checkpoint_on_a_terminal(tmp_path, monkeypatch):
    written = Terminal()
    monkeypatch.setattr(sys, "stderr", written)
    monkeypatch.setattr(progress, "_DELAY", 0.0)
    monkeypatch.setattr("rich.console.Console", lambda **_: Console(file=written, force_terminal=True))
    config = {"checkpoint.dir": str(tmp_path), "checkpoint.interval": 0}
    keyed(events("aab"), "user", uid="counts", config=config).process(Count(), COUNTS).to_table()
    assert "3 rows, checkpoint" in written.getvalue()


def test_a_short_run_shows_nothing(monkeypatch):
    written = Terminal()
    monkeypatch.setattr(sys, "stderr", written)
    # The slowest machine is done within an hour.
    monkeypatch.setattr(progress, "_DELAY", 3600.0)
    keyed(events("aab"), "user").process(Count(), COUNTS).to_table()
    assert written.getvalue() == ""
