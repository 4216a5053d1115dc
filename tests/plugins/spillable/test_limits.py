"""How well a process keeps its budget while its state grows to several times as much."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

MIB = 1 << 20
BUDGET = 48 * MIB
#: About a thousand bytes in memory each, so five times the budget.
ENTRIES, VALUE_BYTES = 250_000, 850


def run(job: str, folder: Path, *numbers: int) -> tuple[subprocess.Popen[str], float]:
    """Run a job; return it, and the largest resident set seen as a part of the budget."""
    ran = subprocess.Popen(
        [sys.executable, Path(__file__).with_name(job), folder, *map(str, numbers)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert ran.stdout is not None
    most = json.loads(ran.stdout.readline())["most"]
    status, seen = Path(f"/proc/{ran.pid}/statm"), 0
    while ran.poll() is None:
        try:
            seen = max(seen, int(status.read_text().split()[1]) * 4096)
            ran.wait(0.01)
        except (subprocess.TimeoutExpired, ProcessLookupError, FileNotFoundError):
            continue
    return ran, seen / most


def grow(
    folder: Path, *, per_epoch: int, limit: int = 2 * BUDGET, file_bytes: int = 0
) -> tuple[subprocess.Popen[str], float]:
    return run("growing_job.py", folder, ENTRIES, VALUE_BYTES, BUDGET, limit, per_epoch, file_bytes)


@pytest.mark.long
@pytest.mark.parametrize("per_epoch", [20_000, ENTRIES], ids=["short epochs", "one epoch"])
def test_a_process_exceeds_its_budget_by_at_most_15_percent(tmp_path: Path, per_epoch: int) -> None:
    """Although changes are tracked: entries move within the epoch that has written them."""
    job, part = grow(tmp_path, per_epoch=per_epoch)
    assert job.returncode == 0, job.stderr.read() if job.stderr else ""
    assert part <= 1.15


@pytest.mark.long
def test_a_process_with_columns_exceeds_its_budget_by_at_most_15_percent(tmp_path: Path) -> None:
    """No second copy of a table is made while as many of its entries come as leave."""
    job, part = run("growing_columns.py", tmp_path, 3_000_000, BUDGET)
    assert job.returncode == 0, job.stderr.read() if job.stderr else ""
    assert part <= 1.15


def test_a_job_continues_in_memory_where_the_disk_is_full(tmp_path: Path) -> None:
    """What cannot be spilled stays, and the log says so."""
    job, _ = grow(tmp_path, per_epoch=20_000, limit=20 * BUDGET, file_bytes=256 << 10)
    assert job.stderr is not None
    log = job.stderr.read()
    assert job.returncode == 0, log
    assert "entries cannot be spilled and stay in memory" in log


_LARGE_PROCESS = """
import sys
from pathlib import Path
from keyedstate.keygroups import KeyGroupRange
from keyedstate.testing import open_instance
import keyedstate_spillable.plugin
from keyedstate_spillable.container import SystemMemory

left = bytearray(b"x") * (128 << 20)
budget = SystemMemory().process_bytes() - (32 << 20)
options = {"spillable.memory-budget": budget, "spillable.disk-memory": 8 << 20}
open_instance(
    "spillable", Path(sys.argv[1]), options=options, key_groups=KeyGroupRange(0, 1), max_parallelism=2
).close()
"""


def test_a_process_that_became_larger_than_the_budget_opens_an_instance(tmp_path: Path) -> None:
    """A part of it may be memory that an earlier job has freed, and a restart must not fail because of it."""
    command = [sys.executable, "-c", _LARGE_PROCESS, str(tmp_path)]
    opened = subprocess.run(command, capture_output=True, text=True, check=False)
    assert opened.returncode == 0, opened.stderr
