"""Rows per second of a per-record function in a local run: keyedstate, a plain loop, Bytewax, Quix Streams.

    python tests/bench/bench_local.py [--rows N] [--keys N] [--rounds N] [--peers PYTHON]

Count and sum per string key, one result for each row.  The loop runs over dicts and keeps its totals in a
dict.  The function alone is the same process function, called by a loop that keeps its state in a dict and
checks nothing: the floor of a runner in one process.  In each round every engine gets the same rows, one
engine at a time; ratios are taken within a round, and their median is reported.  What an engine reads is in
memory before its time begins: for keyedstate and the function alone an Arrow table, for the others Python
objects.  The time of a run with subtasks begins when their processes are up, as that of the others does.

The processor time is that of all processes of an engine, without that of a run of one row, which starts and
ends processes.  On a machine with other work the ratios of processor time count: a run with two subtasks
takes half of its processor time where two cores are free.

With ``--peers PYTHON``, an interpreter that has Bytewax and Quix Streams, these run in the same rounds.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import repeat
from typing import Any, NamedTuple

import pyarrow as pa
from streaming.events import batch
from streaming.peer import peers_of

import keyedstate as ks
from keyedstate.local import keyed

LOOP = "loop over dicts"
ALONE = "the function alone, Arrow to Arrow"
OURS = "keyedstate, in the caller's process"
KEPT = "keyedstate, two subtasks"
OUTPUT = "k string, n long, total long"


class Totals(ks.KeyedProcessFunction):
    """Counts the rows of a key and adds up their amounts."""

    totals = ks.ValueState("totals", ks.types.tuple_of(ks.types.INT64, ks.types.INT64), default=(0, 0))

    def process(self, row: Any, ctx: ks.Context) -> Iterator[tuple[str, int, int]]:
        """Yield the new totals."""
        n, total = self.totals.value()
        n, total = n + 1, total + row.c
        self.totals.update((n, total))
        yield ctx.key, n, total


def run_loop(rows: list[dict[str, Any]]) -> float:
    """Count and sum with a dict; return the seconds that it took."""
    began = time.perf_counter()
    totals: dict[str, tuple[int, int]] = {}
    made = []
    for row in rows:
        key = row["k"]
        n, total = totals.get(key, (0, 0))
        totals[key] = state = (n + 1, total + row["c"])
        made.append((key, *state))
    return time.perf_counter() - began


class PlainState:
    """The state of one key after the other in a dict: no check, no changes, no key groups, no files."""

    def __init__(self) -> None:
        self.key: Any = None
        self._values: dict[Any, tuple[int, int]] = {}

    def value(self) -> tuple[int, int]:
        """Return the value of the key."""
        return self._values.get(self.key, (0, 0))

    def update(self, value: tuple[int, int]) -> None:
        """Set the value of the key."""
        self._values[self.key] = value


class Row(NamedTuple):
    """A row as the function reads it."""

    k: str
    c: int


def run_alone(table: pa.Table) -> float:
    """Call the function with each row, its state in a dict, and do nothing else; return the seconds.

    That is the least which a runner of such functions takes in one process, since the function is the user's.
    """
    began = time.perf_counter()
    function: Any = Totals()
    state: Any = PlainState()
    Totals.totals.bind(function, state)
    process = function.process
    count = 0
    for some in table.to_batches(max_chunksize=1_000):
        out: list[tuple[str, int, int]] = []
        values = (column.to_numpy(zero_copy_only=False).tolist() for column in some.columns)
        # Half of the time of Row(...), which is a Python function.
        for row in map(tuple.__new__, repeat(Row), zip(*values, strict=True)):
            state.key = row.k
            # The function reads nothing but the key of its context.
            out += process(row, state)
        columns = list(map(pa.array, zip(*out, strict=True)))
        count += pa.RecordBatch.from_arrays(columns, ["k", "n", "total"]).num_rows
    assert count == table.num_rows
    return time.perf_counter() - began


class Timed:
    """A table as a source that notes when its first row was read."""

    def __init__(self, table: pa.Table) -> None:
        self.schema = table.schema
        self._batches = table.to_batches(max_chunksize=131_072)

    def channels(self) -> list[Timed]:
        """Return itself: it is read once."""
        return [self]

    name = "0"
    began = 0.0

    def read(self) -> pa.RecordBatch | None:
        """Return the next batch."""
        self.began = self.began or time.perf_counter()
        return self._batches.pop() if self._batches else None

    def offset(self) -> int:
        """Return nothing of use: no run continues another one."""
        return 0

    def seek(self, offset: int) -> None:
        """Do nothing."""


def run_local(table: pa.Table, uid: str | None, config: dict[str, object]) -> float:
    """Run the function; return the seconds that it took."""
    rows = Timed(table)
    result = keyed(rows, "k", uid=uid, config=config).process(Totals(), OUTPUT)
    made = sum(made.num_rows for made in result.batches())
    assert made == table.num_rows, f"{made} results for {table.num_rows} rows"
    return time.perf_counter() - rows.began


def main() -> None:
    """Measure all engines and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peers", help="an interpreter with Bytewax and Quix Streams")
    options = parser.parse_args()
    rows, keys = options.rows, options.keys
    table = batch(0, rows, keys)
    dicts = table.to_pylist()
    peers = peers_of(options.peers) if options.peers else []
    with tempfile.TemporaryDirectory() as folder:

        def kept(table: pa.Table) -> float:
            # Another operator each time: the state of the last one would be continued.
            uid = f"totals-{time.monotonic_ns()}"
            return run_local(table, uid, {"checkpoint.dir": os.path.join(folder, "state"), "parallelism": 2})

        engines: dict[str, Callable[[pa.Table], float]] = {
            LOOP: lambda rows: run_loop(dicts[: rows.num_rows]),
            ALONE: run_alone,
            OURS: lambda rows: run_local(rows, None, {}),
            KEPT: kept,
        }
        seconds: dict[str, list[float]] = {name: [] for name in [*engines, *(peer.name for peer in peers)]}
        processor: dict[str, list[float]] = {name: [] for name in engines}
        for peer in peers:
            peer.start()
        # The first round warms up.
        for number in range(options.rounds + 1):
            for name, run in engines.items():
                began = processor_seconds()
                run(table.slice(0, 1))
                between = processor_seconds()
                seconds[name].append(run(table))
                processor[name].append(processor_seconds() - between - (between - began))
            for peer in peers:
                seconds[peer.name] += peer.run([number], rows, keys)
        for peer in peers:
            peer.stop()
    cold = statistics.median(first_result() for _ in range(options.rounds))
    sys.stdout.write(f"{'a new process to its first result':<36}{cold:>12.2f} s\n")
    report({name: of_rounds[1:] for name, of_rounds in seconds.items()}, rows)
    report_processor({name: of_rounds[1:] for name, of_rounds in processor.items()}, rows)


def processor_seconds() -> float:
    """Return the processor time of this process and of those that it has waited for."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


#: A program that ends with its first result.
_FIRST = """
import keyedstate as ks
from keyedstate.local import keyed

class Count(ks.KeyedProcessFunction):
    n = ks.ValueState("n", ks.types.INT64, default=0)

    def process(self, row, ctx):
        self.n.update(self.n.value() + 1)
        yield ctx.key, self.n.value()

next(iter(keyed([{"user": "ann"}], "user").process(Count(), "user string, n long")))
"""


def first_result() -> float:
    """Return the seconds from the start of a Python process to its end after the first result."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", _FIRST], check=True)
    return time.perf_counter() - began


def report(seconds: dict[str, list[float]], rows: int) -> None:
    """Print the rows per second of each engine, and how many times those of the others ours are."""
    for name, of_rounds in seconds.items():
        speed = rows / statistics.median(of_rounds)
        ratios = ", ".join(f"{ours} {_ratio(of_rounds, seconds[ours]):.2f} x" for ours in (OURS, KEPT))
        sys.stdout.write(f"{name:<36}{speed:>12,.0f} rows/s   {ratios}\n")


def report_processor(processor: dict[str, list[float]], rows: int) -> None:
    """Print the processor time of a row in each engine, and the speed of ours by it, on as many cores."""
    for name, of_rounds in processor.items():
        each = statistics.median(of_rounds) / rows * 1e6
        cores = 2 if name == KEPT else 1
        to_loop = cores * _ratio(processor[LOOP], of_rounds)
        sys.stdout.write(f"{name:<36}{each:>12.2f} us of processor time a row   {to_loop:.2f} x the loop\n")


def _ratio(theirs: list[float], ours: list[float]) -> float:
    """Return how many times their rows per second ours are."""
    return statistics.median(their / our for their, our in zip(theirs, ours, strict=True))


if __name__ == "__main__":
    main()
