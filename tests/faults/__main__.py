"""``python -m faults``: a seeded campaign, its table of faults, and an exit code that a script can use."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any

from faults import plans, runs

_COUNTS = ("tried", "survived", "lost", "duplicated", "stuck", "not reached")


def tabulate(results: Iterable[runs.Result]) -> dict[str, dict[str, int]]:
    """Return the counts by fault; a run with two faults counts for both."""
    rows: dict[str, dict[str, int]] = {entry.name: dict.fromkeys(_COUNTS, 0) for entry in plans.catalogue()}
    for result in results:
        for fault in result.plan.faults:
            row = rows[fault["name"]]
            if fault["id"] not in result.happened:
                row["not reached"] += 1
                continue
            row["tried"] += 1
            row["survived"] += result.survived
            row["lost"] += bool(result.verdict.lost) and result.finished
            row["duplicated"] += bool(result.verdict.duplicated)
            row["stuck"] += not result.finished
    return {name: row for name, row in rows.items() if any(row.values())}


def as_text(rows: dict[str, dict[str, int]]) -> str:
    """Return the table for people, with its sum."""
    total = {count: sum(row[count] for row in rows.values()) for count in _COUNTS}
    width = max(map(len, [*rows, "all faults"]))
    lines = ["".join([f"{'fault':<{width}}", *(f"  {count:>11}" for count in _COUNTS)])]
    for name, row in [*rows.items(), ("all faults", total)]:
        lines.append("".join([f"{name:<{width}}", *(f"  {row[count]:>11}" for count in _COUNTS)]))
    return "\n".join(lines)


def describe(result: runs.Result, again: str) -> str:
    """Return one line about a run, and where it did not survive all that is known."""
    plan = result.plan
    faults = "; ".join(
        fault["name"] + ("" if fault["id"] in result.happened else " (not reached)") for fault in plan.faults
    )
    head = (
        f"run {plan.number:>3}  {'survived' if result.survived else 'FAILED  '}  {result.seconds:5.1f} s  "
        f"{result.lives} starts  {plan.master.split('[')[0]:<13}  {plan.storage:<6}  {faults}"
    )
    if result.survived:
        return head
    facts = [*result.verdict.lost, *result.verdict.duplicated]
    if not result.finished:
        facts.append("the input was not used up")
    return "\n".join([head, *(f"    {fact}" for fact in facts), f"    again: {again}", result.log])


def _one(plan: plans.Plan, work: Path, flights: Any, keep: bool) -> runs.Result:
    folder = work / f"run-{plan.number:04}"
    began = time.monotonic()
    try:
        return runs.execute(plan, folder, flights)
    except Exception:
        # A run that the campaign itself cannot judge is no run that survived.
        seconds = time.monotonic() - began
        verdict = runs.answer.Verdict()
        happened = {fault["id"]: "" for fault in plan.faults}
        log = traceback.format_exc()
        if (folder / "log").exists():
            log += (folder / "log").read_text(errors="replace")[-6000:]
        return runs.Result(plan, False, verdict, happened, 0, seconds, log)
    finally:
        if not keep:
            runs.remove(folder)


def main(arguments: list[str]) -> int:
    """Run a campaign; 0 where all runs survived."""
    parser = argparse.ArgumentParser(prog="python -m faults", description=__doc__)
    parser.add_argument("--runs", type=int, default=140)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, nargs="*", help="numbers of the runs to do, instead of all")
    parser.add_argument("--fault", action="append", default=[], help="a row of the table; may come again")
    parser.add_argument("--backends", nargs="+", default=plans.BACKENDS, help="what the state is kept in")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--json", type=Path, help="file for the report")
    parser.add_argument("--keep", type=Path, help="folder in which the runs' files are left")
    chosen = parser.parse_args(arguments)
    # As Ctrl-C: the runs that have begun come to their end, and the table is of what there is.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    known = [entry.name for entry in plans.catalogue()]
    if unknown := sorted(set(chosen.fault).difference(known)):
        parser.error(f"there is no fault {unknown[0]!r}; there are {', '.join(known)}")
    numbers = chosen.only or range(chosen.runs)
    again_with = [f"--fault {shlex.quote(name)}" for name in chosen.fault]
    if tuple(chosen.backends) != plans.BACKENDS:
        again_with.append(f"--backends {' '.join(chosen.backends)}")
    flights = runs.load_flights()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="keyedstate-faults-") as temporary:
        work = Path(os.path.abspath(chosen.keep or temporary))
        pool = ThreadPoolExecutor(chosen.jobs)
        planned = (plans.plan_of(chosen.seed, number, chosen.fault, chosen.backends) for number in numbers)
        futures = [pool.submit(_one, plan, work, flights, chosen.keep is not None) for plan in planned]
        try:
            for future in as_completed(futures):
                result = future.result()
                again = f"make faults SEED={chosen.seed} ONLY={result.plan.number}"
                if again_with:
                    again += f' ARGS="{" ".join(again_with)}"'
                sys.stdout.write(describe(result, again) + "\n")
                sys.stdout.flush()
        except KeyboardInterrupt:
            sys.stdout.write("stopped: waiting for the runs that have begun\n")
        finally:
            pool.shutdown(cancel_futures=True)
    results = [future.result() for future in futures if not future.cancelled()]
    rows = tabulate(results)
    survived = sum(result.survived for result in results)
    minutes = (time.monotonic() - began) / 60
    keys = sum(result.verdict.keys for result in results)
    sys.stdout.write(f"\n{as_text(rows)}\n\n{survived} of {len(results)} runs survived, seed {chosen.seed}: ")
    sys.stdout.write(f"{keys} keys compared, {minutes:.1f} minutes\n")
    if chosen.json:
        report = {
            "seed": chosen.seed,
            "faults": rows,
            "runs": [
                {**asdict(result), "survived": result.survived, "log": "" if result.survived else result.log}
                for result in sorted(results, key=lambda result: result.plan.number)
            ],
        }
        chosen.json.parent.mkdir(parents=True, exist_ok=True)
        chosen.json.write_text(json.dumps(report, indent=1))
    return 0 if survived == len(numbers) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
