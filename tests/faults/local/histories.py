"""Executes a history of runs, and compares what is committed in the end with what the plan says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from faults.local.plans import Plan, RunPlan
from faults.local.program import BEGIN, WINDOW_SECONDS, rows_of

TESTS = Path(__file__).parents[2]
#: Seconds that a run may take, and that tasks may live on after their program.
_LIMIT, _ORPHANS = 600.0, 120.0


def execute(plan: Plan, folder: Path) -> list[str]:
    """Run a history in an empty folder; return what is wrong with it."""
    (folder / "plan.json").write_text(plan.to_json())
    problems = []
    for number, run in enumerate(plan.runs):
        problems += [f"run {number}: {problem}" for problem in _execute_run(folder, number, run)]
    out = folder / "out"
    committed = pq.read_table(out).to_pylist() if out.exists() else []
    return problems + JUDGES[plan.operator](plan, committed)


def _execute_run(folder: Path, number: int, run: RunPlan) -> list[str]:
    path = os.environ.get("PYTHONPATH")
    with (folder / f"run-{number}.log").open("wb") as log:
        program = subprocess.Popen(
            [sys.executable, "-m", "faults.local.program", str(folder), str(number)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *filter(None, [path])])},
            stdout=log,
            stderr=log,
            # Its tasks are in its process group, as they are in a terminal's.
            start_new_session=True,
        )
    try:
        if run.ending in ("kill program", "interrupt"):
            began = folder / f"began-{number}"
            _until(lambda: began.exists() or program.poll() is not None, _LIMIT)
            time.sleep(run.at / 1000.0)
            if run.ending == "kill program":
                program.kill()
            elif program.poll() is None:
                os.killpg(program.pid, signal.SIGINT)
        code = program.wait(_LIMIT)
        problems = [] if _is_expected(run, code) else [f"it ended with {code} after {run.ending!r}"]
        if not _until(lambda: not _is_alive(program.pid), _ORPHANS):
            problems.append("tasks live on without their program")
        return problems
    except subprocess.TimeoutExpired:
        return ["it does not end"]
    finally:
        if _is_alive(program.pid):
            os.killpg(program.pid, signal.SIGKILL)


def _is_expected(run: RunPlan, code: int) -> bool:
    if run.ending == "end":
        return code == 0
    # The run may be over before the blow. One task is the program itself, which has an error of a task else.
    return code in (0, 1, -signal.SIGKILL, -signal.SIGINT)


def _is_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def _until(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait for a condition; return whether it has come."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def judge_counts(plan: Plan, committed: Sequence[dict[str, Any]]) -> list[str]:
    """Return what is wrong with the committed rows of the counting function."""
    expected = [row for place in range(len(plan.channels)) for row in rows_of(plan, place)]
    found = Counter((row["key"], row["channel"], row["number"]) for row in committed)
    missing = [row for row in expected if not found[row.key, row.channel, row.number]]
    problems = [f"lost {len(missing)} rows, such as {missing[0]}"] if missing else []
    totals = Counter(row.key for row in expected)
    counts = {key: sorted(row["n"] for row in committed if row["key"] == key) for key in totals}
    if plan.exactly_once:
        problems += [f"{place} came {times} times" for place, times in found.items() if times > 1]
        problems += [f"{row} is out of order" for row in committed if not row.get("ordered", True)]
        problems += [
            f"the counts of {key} are not 1 to {total}: {counts[key]}"
            for key, total in totals.items()
            if counts[key] != list(range(1, total + 1))
        ]
    else:
        problems += [
            f"the count of {key} ends at {max(counts[key], default=0)} of {total}"
            for key, total in totals.items()
            if max(counts[key], default=0) < total
        ]
    return problems


def judge_chain(plan: Plan, committed: Sequence[dict[str, Any]]) -> list[str]:
    """Return what is wrong with the committed rows of a chain whose second operator counts by channel."""
    problems = judge_counts(plan, committed)
    for place, channel in enumerate(plan.channels):
        counts = sorted(row["of_channel"] for row in committed if row["channel"] == str(place))
        if plan.exactly_once and counts != list(range(1, channel.rows + 1)):
            problems.append(f"the counts of channel {place} are not 1 to {channel.rows}: {counts}")
        elif max(counts, default=0) < channel.rows:
            problems.append(
                f"the count of channel {place} ends at {max(counts, default=0)} of {channel.rows}"
            )
    return problems


def judge_once(plan: Plan, committed: Sequence[dict[str, Any]], *columns: str) -> list[str]:
    """Return what is wrong where each value of some columns of the source comes once."""
    expected = {
        tuple(getattr(row, name) for name in columns)
        for place in range(len(plan.channels))
        for row in rows_of(plan, place)
    }
    found = Counter(tuple(row[name] for name in columns) for row in committed)
    problems = [f"lost {row}" for row in expected if not found[row]]
    if plan.exactly_once:
        problems += [f"{row} came {times} times" for row, times in found.items() if times > 1]
    return problems


def judge_windows(plan: Plan, committed: Sequence[dict[str, Any]]) -> list[str]:
    """Return what is wrong with the committed windows."""
    expected: Counter[tuple[str, int]] = Counter()
    for place in range(len(plan.channels)):
        for row in rows_of(plan, place):
            expected[row.key, int((row.ts - BEGIN).total_seconds()) // WINDOW_SECONDS] += 1
    found: Counter[tuple[str, int]] = Counter()
    problems = []
    for window in committed:
        place = window["key"], int((window["window_start"] - BEGIN).total_seconds()) // WINDOW_SECONDS
        if place in found:
            problems.append(f"the window {place} came twice")
        found[place] += window["n"]
    for place in expected | found:
        if found[place] < expected[place] or (plan.exactly_once and found[place] > expected[place]):
            problems.append(f"the window {place} has {found[place]} rows of {expected[place]}")
    return problems


JUDGES: dict[str, Callable[[Plan, Sequence[dict[str, Any]]], list[str]]] = {
    "count": judge_counts,
    "windows": judge_windows,
    "chain": judge_chain,
    "running": judge_counts,
    "deduplicate": lambda plan, committed: judge_once(plan, committed, "key"),
    "join": lambda plan, committed: judge_once(plan, committed, "channel", "number"),
}
