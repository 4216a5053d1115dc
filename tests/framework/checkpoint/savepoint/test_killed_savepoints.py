"""A process is killed with SIGKILL at each step of a savepoint; its leftovers are never taken for one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from keyedstate.checkpoint.protocol.coordinator import CheckpointCoordinator
from keyedstate.savepoints import Savepoint

SCRIPT = Path(__file__).parents[1] / "killed_savepoint.py"


@pytest.fixture
def query(job: Any, tmp_path: Path) -> Path:
    """The folder of a query that has come to epoch 3."""
    coordinator = CheckpointCoordinator(job.folder)
    for epoch in range(4):
        job.epoch("run-1", epoch, coordinator)
    spark = tmp_path / "spark"
    for folder in ("offsets", "commits"):
        (spark / folder).mkdir(parents=True)
        for epoch in range(4):
            text = "\n".join(["v1", '{"batchWatermarkMs":0}', json.dumps({"offset": epoch})])
            (spark / folder / str(epoch)).write_text(text)
    (spark / "metadata").write_text(json.dumps({"id": "query-1"}))
    return tmp_path


@pytest.mark.parametrize("what", ["create", "fork", "delete"])
@pytest.mark.slow
def test_a_killed_process_leaves_a_complete_savepoint_or_none(query: Path, what: str) -> None:
    if what != "create":
        Savepoint.create(query / "savepoint", query / "state", query / "spark")
    command = [sys.executable, str(SCRIPT), str(query), what, "200"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    # So many steps there were, one process for each.
    assert int(ended.stdout) > (30 if what != "delete" else 8)
