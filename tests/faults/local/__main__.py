"""``python -m faults.local``: a seeded campaign of runs without Spark, see `faults.local.plans`."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from faults.local.histories import execute
from faults.local.plans import plan_of


def main(arguments: list[str]) -> int:
    """Execute histories until they have so many runs; 0 where all of them survived."""
    parser = argparse.ArgumentParser(prog="python -m faults.local", description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, nargs="*", default=[], help="numbers of histories")
    chosen = parser.parse_args(arguments)
    runs: Counter[str] = Counter()
    failed = number = 0
    waiting = list(chosen.only)
    while waiting if chosen.only else sum(runs.values()) < chosen.runs:
        number = waiting.pop(0) if chosen.only else number + 1
        plan = plan_of(chosen.seed, number)
        with tempfile.TemporaryDirectory(prefix="keyedstate-local-") as folder:
            began = time.monotonic()
            problems = execute(plan, Path(folder))
            seconds = time.monotonic() - began
            logs = [path.read_text(errors="replace") for path in sorted(Path(folder).glob("*.log"))]
        for run in plan.runs:
            runs[f"{run.mode}, {run.tasks} tasks, {run.ending}"] += 1
        failed += bool(problems)
        verdict = "FAILED  " if problems else "survived"
        how = ", ".join(f"{run.ending} ({run.mode}, {run.tasks})" for run in plan.runs)
        _say(f"history {number:>3}  {verdict}  {seconds:5.1f} s  {plan.operator:<11}  {how}")
        if problems:
            _say(*(f"    {problem}" for problem in problems[:20]), *logs)
            _say(f"    again: make faults-local SEED={chosen.seed} ONLY={number}")
    _say(*(f"{count:>5}  {kind}" for kind, count in sorted(runs.items())))
    _say(f"{sum(runs.values())} runs in histories, of which {failed} failed")
    return 1 if failed else 0


def _say(*lines: str) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
