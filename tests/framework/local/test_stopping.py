"""Ctrl-C: in any moment of a run, in several runs at once, and with processes of tasks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.framework.local.functions import COUNTS, Count, events

from keyedstate.local import keyed

ROOT = Path(__file__).parents[3]
BATCHES = 500


def _rows(config: dict[str, object], uid: str) -> Iterator[Any]:
    reader = events("a" * 50).to_reader(max_chunksize=1)
    return iter(keyed(reader, "user", uid=uid, config=config).process(Count(), COUNTS))


@pytest.mark.long
def test_ctrl_c_while_the_processes_of_tasks_start_stops_the_run_at_a_checkpoint(tmp_path: Path):
    """A terminal sends it to all processes; theirs does not run our code yet."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(
        textwrap.dedent(f"""
        import contextlib, os, pathlib, signal, sys

        if any("keyedstate.local.parallel.fork_server" in each for each in sys.orig_argv):
            # Once: a second Ctrl-C ends the run without a checkpoint.
            with contextlib.suppress(FileExistsError):
                pathlib.Path({str(tmp_path / "mark")!r}).touch(exist_ok=False)
                os.killpg(0, signal.SIGINT)
        """)
    )
    first = _program(tmp_path, [str(tmp_path / "site")])
    assert first.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in first.stderr
    assert "failed" not in first.stderr
    rows = pq.read_table(tmp_path / "out").num_rows
    assert rows < BATCHES * 10
    assert _program(tmp_path, []).returncode == 0
    assert pq.read_table(tmp_path / "out").num_rows == BATCHES * 10


def _program(folder: Path, path: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.framework.local.killed_program", folder, str(BATCHES), "2"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*path, str(ROOT)])},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        start_new_session=True,
        timeout=900,
        check=False,
    )


def test_ctrl_c_stops_all_runs_that_are_read_in_turn(config: dict[str, object]):
    first, second = _rows(config, "first"), _rows(config, "second")
    next(first), next(second)
    os.kill(os.getpid(), signal.SIGINT)
    for rows in (first, second):
        with pytest.raises(KeyboardInterrupt):
            list(rows)


def test_runs_that_end_in_another_order_than_they_began_leave_ctrl_c_as_it_was(config: dict[str, object]):
    before = signal.getsignal(signal.SIGINT)
    first, second = _rows(config, "first"), _rows(config, "second")
    next(first), next(second)
    list(first)
    assert signal.getsignal(signal.SIGINT) is not before
    list(second)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_run_leaves_a_handler_that_was_set_while_it_ran(config: dict[str, object]):
    before = signal.getsignal(signal.SIGINT)
    rows = _rows(config, "counts")
    next(rows)
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        list(rows)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_run_that_another_thread_ends_leaves_ctrl_c_to_the_program(config: dict[str, object]):
    rows = _rows(config, "counts")
    next(rows)
    thread = threading.Thread(target=lambda: list(rows))
    thread.start()
    thread.join()
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
