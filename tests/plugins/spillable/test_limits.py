"""State several times the memory, in processes that may not have more."""

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


def run(
    backend: str, folder: Path, *, per_epoch: int, limit: int = 2 * BUDGET, file_bytes: int = 0
) -> tuple[subprocess.Popen[str], int, float]:
    """Run the job; return it, the largest resident set seen, and that as a part of the budget."""
    folder.mkdir(exist_ok=True)
    numbers = (ENTRIES, VALUE_BYTES, BUDGET, limit, per_epoch, file_bytes)
    job = subprocess.Popen(
        [sys.executable, Path(__file__).with_name("growing_job.py"), backend, folder, *map(str, numbers)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert job.stdout is not None
    most = json.loads(job.stdout.readline())["most"]
    status, seen = Path(f"/proc/{job.pid}/statm"), 0
    while job.poll() is None:
        try:
            seen = max(seen, int(status.read_text().split()[1]) * 4096)
            job.wait(0.01)
        except (subprocess.TimeoutExpired, ProcessLookupError, FileNotFoundError):
            continue
    return job, seen, seen / most


def test_a_state_of_five_times_the_budget_is_whole_where_heap_cow_runs_out_of_memory(tmp_path: Path) -> None:
    """Every entry is read again, and the process never exceeds its budget by more than 15 %."""
    job, _, part = run("spillable", tmp_path / "spillable", per_epoch=20_000)
    assert job.returncode == 0, job.stderr.read() if job.stderr else ""
    assert part <= 1.15
    job, _, _ = run("heap-cow", tmp_path / "heap", per_epoch=20_000)
    assert job.returncode != 0
    assert job.stderr is not None and "MemoryError" in job.stderr.read()


def test_one_epoch_may_bring_three_times_the_budget(tmp_path: Path) -> None:
    """Entries move within the epoch that has written them."""
    job, _, part = run("spillable", tmp_path / "spillable", per_epoch=ENTRIES)
    assert job.returncode == 0, job.stderr.read() if job.stderr else ""
    assert part <= 1.15


def test_a_job_continues_in_memory_where_the_disk_is_full(tmp_path: Path) -> None:
    """What cannot be spilled stays, and the log says so."""
    job, _, _ = run(
        "spillable", tmp_path / "spillable", per_epoch=20_000, limit=20 * BUDGET, file_bytes=256 << 10
    )
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
    """Nobody knows how much of it an earlier job has freed, and a restart must not fail for it."""
    command = [sys.executable, "-c", _LARGE_PROCESS, str(tmp_path)]
    opened = subprocess.run(command, capture_output=True, text=True, check=False)
    assert opened.returncode == 0, opened.stderr
