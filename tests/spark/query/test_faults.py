"""The campaign of faults in short: a few of its runs, on real Spark over real flights."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
# A driver and a host die, and a driver that was thought dead comes back.
# Other tests kill executors and tear writes.
FAULTS = ("kill driver: publication done", "kill host: manifest", "zombie run: publication")


@pytest.mark.long
@pytest.mark.timeout(2400)
def test_a_few_runs_of_the_campaign_lose_and_double_nothing(tmp_path: Path) -> None:
    """`make faults` has the whole of it."""
    chosen = [argument for fault in FAULTS for argument in ("--fault", fault)]
    report = tmp_path / "faults.json"
    command = [sys.executable, "-m", "faults", "--runs", str(len(FAULTS)), "--json", str(report), *chosen]
    path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(report.read_text())["faults"]
    assert {fault: row["survived"] >= 1 for fault, row in rows.items()} == dict.fromkeys(FAULTS, True)
    assert sum(row["lost"] + row["duplicated"] for row in rows.values()) == 0
