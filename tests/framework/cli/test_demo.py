"""The demo is real: Spark streams flights, the job is killed in an epoch, and the answers are equal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from keyedstate.cli.demo.flights import read_flights, write_flights


def run_demo(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "keyedstate.cli", "demo", *arguments]
    return subprocess.run(
        command, cwd=cwd, env={**os.environ, "COLUMNS": "200"}, capture_output=True, text=True
    )


@pytest.mark.long
@pytest.mark.spark
def test_a_killed_job_ends_with_the_answer_of_a_batch_query(one_backend, tmp_path):
    done = run_demo("--backend", one_backend, "--epochs", "3", "--rows", "9000", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "kill -9 in epoch 1, before its checkpoint was published" in done.stdout
    assert "9,000 rows" in done.stdout
    assert "0 differ; equal to Spark's batch answer: yes" in done.stdout
    assert f"newest checkpoint: {tmp_path}/demo-work/state/aircraft/chk-2" in done.stdout


def test_a_killed_local_job_ends_with_the_answer_of_a_loop(one_backend, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    done = run_demo("--local", "--backend", one_backend, "--epochs", "8", "--rows", "80000", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "kill -9 in epoch" in done.stdout
    assert "0 differ; equal to a loop over the flights: yes" in done.stdout


def test_the_demo_leaves_a_folder_alone_that_it_did_not_make(tmp_path):
    (tmp_path / "demo-work").mkdir()
    precious = tmp_path / "demo-work" / "thesis.txt"
    precious.write_text("years of work")
    done = run_demo(cwd=tmp_path)
    assert done.returncode == 2
    assert "no demo can be written into" in done.stderr and "--work" in done.stderr
    assert precious.read_text() == "years of work"


def test_the_flights_are_all_there_with_their_missing_values():
    flights = read_flights()
    assert flights.num_rows == 336_776
    assert (flights["tailnum"].null_count, flights["arr_delay"].null_count) == (2_512, 9_430)
    assert flights["time_hour"].to_pylist()[0] <= flights["time_hour"].to_pylist()[-1]


def test_the_files_of_the_epochs_hold_every_flight_once(tmp_path):
    import pyarrow.parquet

    assert write_flights(tmp_path, files=7, rows=1_000) == 1_000
    files = sorted(tmp_path.iterdir())
    assert len(files) == 7
    tables = [pyarrow.parquet.read_table(file) for file in files]
    assert pyarrow.concat_tables(tables).equals(read_flights().slice(0, 1_000))
