"""Many runs, a few at a time: their table, the lines about them, and an exit code that a script can use."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa

from faults import answer
from faults.harness import Result, end_of_log, load_flights, remove
from faults.plans import Plan

_COUNTS = ("tried", "survived", "lost", "duplicated", "stuck", "not reached")

#: Runs a plan in a folder, with the flights of the year.
Execute = Callable[[Plan, Path, pa.Table], Result]


def tabulate(results: Iterable[Result], names: Iterable[str]) -> dict[str, dict[str, int]]:
    """Return the counts by fault; a run with two faults counts for both."""
    rows: dict[str, dict[str, int]] = {name: dict.fromkeys(_COUNTS, 0) for name in names}
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


def describe(result: Result, again: str) -> str:
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
    facts = [*result.verdict.lost, *result.verdict.duplicated, *result.problems]
    if not result.finished:
        facts.append("the input was not used up")
    return "\n".join([head, *(f"    {fact}" for fact in facts), f"    again: {again}", result.log])


def add_arguments(parser: argparse.ArgumentParser, runs: int) -> None:
    """Add the arguments of every campaign."""
    parser.add_argument("--runs", type=int, default=runs)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, nargs="*", help="numbers of the runs to do, instead of all")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--json", type=Path, help="file for the report")
    parser.add_argument("--keep", type=Path, help="folder in which the runs' files are left")


def conduct(
    chosen: argparse.Namespace,
    planned: Sequence[Plan],
    execute: Execute,
    names: Iterable[str],
    again: Callable[[Plan], str],
    traits: Callable[[Plan], Iterable[str]] = lambda plan: (),
) -> int:
    """Execute plans, print what became of them, and write the report; 0 where all runs survived.

    Parameters
    ----------
    chosen : argparse.Namespace
        Of the arguments of `add_arguments`.
    planned : sequence of Plan
    execute : callable
    names : iterable of str
        Rows of the table, in their order.
    again : callable
        Gives the command that executes a plan again.
    traits : callable, optional
        What else runs are counted under.
    """
    # As Ctrl-C: the runs that have begun come to their end, and the table is of what there is.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    flights = load_flights()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="keyedstate-faults-") as temporary:
        work = Path(os.path.abspath(chosen.keep or temporary))
        pool = ThreadPoolExecutor(chosen.jobs)
        futures = [
            pool.submit(_one, execute, plan, work, flights, chosen.keep is not None) for plan in planned
        ]
        try:
            for future in as_completed(futures):
                result = future.result()
                sys.stdout.write(describe(result, again(result.plan)) + "\n")
                sys.stdout.flush()
        except KeyboardInterrupt:
            sys.stdout.write("stopped: waiting for the runs that have begun\n")
        finally:
            pool.shutdown(cancel_futures=True)
    results = [future.result() for future in futures if not future.cancelled()]
    rows = tabulate(results, names)
    survived = sum(result.survived for result in results)
    minutes = (time.monotonic() - began) / 60
    keys = sum(result.verdict.keys for result in results)
    endings: Counter[str] = sum((Counter(result.endings) for result in results), Counter())
    sys.stdout.write(f"\n{as_text(rows)}\n\n")
    tried = Counter(trait for result in results for trait in traits(result.plan))
    for trait, count in sorted(tried.items()):
        good = sum(result.survived for result in results if trait in traits(result.plan))
        sys.stdout.write(f"{trait}: {good} of {count} runs survived\n")
    if endings:
        ends = ", ".join(f"{ending}: {count}" for ending, count in endings.most_common())
        sys.stdout.write(f"How {endings.total()} drivers ended: {ends}\n")
    sys.stdout.write(f"{survived} of {len(results)} runs survived, seed {chosen.seed}: ")
    sys.stdout.write(f"{keys} keys compared, {minutes:.1f} minutes\n")
    if chosen.json:
        _report(chosen, rows, endings, results)
    return 0 if survived == len(planned) else 1


def _report(
    chosen: argparse.Namespace,
    rows: dict[str, dict[str, int]],
    endings: Counter[str],
    results: Sequence[Result],
) -> None:
    report = {
        "seed": chosen.seed,
        "faults": rows,
        "endings": dict(endings),
        "runs": [
            {**asdict(result), "survived": result.survived, "log": "" if result.survived else result.log}
            for result in sorted(results, key=lambda result: result.plan.number)
        ],
    }
    chosen.json.parent.mkdir(parents=True, exist_ok=True)
    chosen.json.write_text(json.dumps(report, indent=1))


def _one(execute: Execute, plan: Plan, work: Path, flights: Any, keep: bool) -> Result:
    folder = work / f"run-{plan.number:04}"
    began = time.monotonic()
    try:
        return execute(plan, folder, flights)
    except Exception:
        # A run that the campaign itself cannot judge is no run that survived.
        seconds = time.monotonic() - began
        happened = {fault["id"]: "" for fault in plan.faults}
        log = traceback.format_exc() + end_of_log(folder)
        return Result(plan, False, answer.Verdict(), happened, 0, seconds, log)
    finally:
        if not keep:
            remove(folder)
