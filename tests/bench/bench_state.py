"""State against a plain dict, in one run: tables, kinds of state, bulk methods, growth, snapshots and files.

    python tests/bench/bench_state.py [--only PART ...] [--entries N] [--rounds N] [--markdown FILE] ...

Every measurement is a median over interleaved rounds, and a ratio to its floor in the same run:

- access: one table call per operation against the same call of a class that wraps one plain dict;
- kinds: calls of the handles of each kind without and with TTL, set up like Flink's state benchmark, against
  the same work of a class over one plain dict;
- bulk: each bulk method against the loop of single calls;
- growth: the longest single put while a table grows, against the dict's;
- synchronous, synchronous-large: the synchronous part of a snapshot in milliseconds, and copying the dict;
- columns, columns-large: the memory of an entry of a table in columns, and how much longer the first change
  after a snapshot takes than another one, against a copy of all columns;
- files: entries per second of writing and restoring a snapshot, against writing the same columns with
  pyarrow, and against reading them with pyarrow and building a dict.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from measuring import BACKENDS, Result
from state_access import access, growth, synchronous
from state_bulk import bulk_against_loops
from state_columns import first_change
from state_files import files
from state_kinds import Sizes, kinds_against_plain


def markdown(parts: dict[str, list[Result]], machine: str) -> str:
    """Return the report with a table per part."""
    lines = [
        "# State benchmark",
        "",
        "Written by `make bench-state`: medians of interleaved rounds. Ratios carry over to other machines,",
        f"figures do not. {machine}",
    ]
    for part, results in parts.items():
        others = list(dict.fromkeys(name for result in results for name in result.others))
        headings = ["what", "figure", "floor in the same run", "ratio", *others, "asked for"]
        lines += ["", f"## {part}", "", f"| {' | '.join(headings)} |", "|---" * len(headings) + "|"]
        for result in results:
            ratios = [result.ratio, *(result.others.get(name) for name in others)]
            shown = ["" if ratio is None else f"{ratio:.2f}" for ratio in ratios]
            lines.append(
                f"| {' | '.join([result.what, result.figure, result.floor, *shown, result.limit])} |"
            )
    return "\n".join(lines) + "\n"


def line(result: Result) -> str:
    """Return one result as it is shown while the benchmark runs."""
    ratio = "" if result.ratio is None else f"{result.ratio:6.2f}"
    others = "".join(f"  {name} {value:.2f}" for name, value in result.others.items())
    return f"{result.what:44} {result.figure:>28} {result.floor:>24} {ratio:>6} {result.limit:16}{others}\n"


def main() -> None:
    """Run the chosen parts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--grow", type=int, default=5_000_000)
    parser.add_argument("--large", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--keys", type=int, default=500_000, help="preloaded for kinds")
    parser.add_argument("--added", type=int, default=500_000, help="added for kinds")
    parser.add_argument("--list-values", type=int, default=100, help="with a tenth of the keys")
    parser.add_argument("--map-entries", type=int, default=10)
    parser.add_argument("--bulk-keys", type=int, default=100_000)
    parser.add_argument("--only", nargs="*", default=[], help="parts to run: access, kinds, bulk, ...")
    parser.add_argument("--backends", nargs="*", default=list(BACKENDS), help="of kinds and bulk")
    parser.add_argument("--cases", nargs="*", default=[], help="names of kinds, parts of bulk methods' names")
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    entries, rounds, few, cases = (
        arguments.entries,
        arguments.rounds,
        min(arguments.rounds, 3),
        arguments.cases,
    )
    sizes = Sizes(arguments.keys, arguments.added, arguments.list_values, arguments.map_entries)
    parts: dict[str, list[Callable[[], list[Result]]]] = {
        "access": [lambda: access(entries, rounds)],
        "kinds": [
            lambda name=name: kinds_against_plain(name, sizes, few, cases)  # type: ignore[misc]
            for name in arguments.backends
        ],
        "bulk": [
            lambda name=name: bulk_against_loops(name, arguments.bulk_keys, rounds, cases)  # type: ignore[misc]
            for name in arguments.backends
        ],
        "growth": [lambda: growth(arguments.grow, few)],
        "synchronous": [lambda: synchronous(entries, rounds, "at most 2 ms")],
        "synchronous-large": [lambda: synchronous(arguments.large, rounds, "at most 10 ms")],
        "columns": [lambda: first_change(entries, rounds)],
        "columns-large": [lambda: first_change(arguments.large, rounds)],
        "files": [lambda: files(entries, rounds)],
    }
    for unknown in set(arguments.only) - parts.keys():
        parser.error(f"there is no part {unknown!r}; choose from {', '.join(parts)}")
    found: dict[str, list[Result]] = {}
    for part, measures in parts.items():
        if arguments.only and part not in arguments.only:
            continue
        for measure in measures:
            for result in measure():
                sys.stdout.write(line(result))
                sys.stdout.flush()
                found.setdefault(part, []).append(result)
            gc.collect()
    machine = f"Here: {platform.system()} {platform.machine()}, Python {platform.python_version()}."
    if arguments.markdown:
        arguments.markdown.write_text(markdown(found, machine))
    if arguments.json:
        report = {part: [asdict(result) for result in results] for part, results in found.items()}
        arguments.json.write_text(json.dumps({"machine": machine, **report}, indent=2))


if __name__ == "__main__":
    main()
