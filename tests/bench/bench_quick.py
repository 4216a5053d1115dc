"""The central lanes in a few minutes, each against its floor, with bounds that fail the run.

    python tests/bench/bench_quick.py [--lanes NAME ...] [--rounds N] [--bounds FILE]

Everything runs in this process, without Spark and on heap-cow.  A round runs each lane and its floor in
turn.  The ratio of a lane is the median over the rounds of its processor time by that of the floor, so other
work of the machine changes it little.  The bounds are in bounds.toml.  A lane above its bound ends the run
with an error, after all lanes.
"""

from __future__ import annotations

import argparse
import gc
import heapq
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from bench_aggregate import OUTPUT, Floor, Job, PerRecord, Rows, aggregation
from bench_window import STEP_MS, InOperator, batch, by_columns
from measuring import GROUPS, VOID, Keys, filled, open_backend

from keyedstate import types
from keyedstate.checkpoint.format.segment import SegmentHandle, SegmentWriter
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.state import ValueState
from keyedstate.time import Timer, TimerServices
from keyedstate.windows import Tumbling, windowed
from keyedstate_heap_cow.compiled_form import build_problem

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

BACKEND = "heap-cow"
ROWS, KEYS = 200_000, 40_000
BOUNDS = Path(__file__).with_name("bounds.toml")


class Lane(Protocol):
    """Something that is measured with its floor."""

    def run(self, number: int) -> float:
        """Return the processor seconds of a round."""

    def floor(self, number: int) -> float:
        """Return those of a program without keyed state that does the same."""


def seconds(work: Callable[[], object]) -> float:
    gc.collect()
    began = time.process_time()
    work()
    return time.process_time() - began


class Aggregate:
    """``.aggregate(n=count(), total=sum_("c"))``; the floor is pyarrow's ``group_by`` and a dict."""

    def __init__(self, folder: Path, opened: ExitStack) -> None:
        self._rows = Rows(ROWS, KEYS, 2)
        self._job = Job(BACKEND, aggregation, folder)
        self._floor = Floor()

    def run(self, number: int) -> float:
        return self._job.run(self._rows.epochs[number % 2])

    def floor(self, number: int) -> float:
        return self._floor.run(self._rows.epochs[number % 2])


class PerRecordCount:
    """A process function that counts and sums, a row out for each row; the floor is a loop over a dict."""

    def __init__(self, folder: Path, opened: ExitStack) -> None:
        self._rows = Rows(ROWS, KEYS, 2)
        self._job = Job(BACKEND, PerRecord, folder)
        self._state: dict[str, tuple[int, int]] = {}

    def run(self, number: int) -> float:
        return self._job.run(self._rows.epochs[number % 2])

    def floor(self, number: int) -> float:
        return seconds(lambda: self._loop(itertools.chain(*self._rows.epochs[number % 2])))

    def _loop(self, batches: Any) -> None:
        state = self._state
        for rows in batches:
            out = []
            for key, c in zip(rows.column("k").to_pylist(), rows.column("c").to_pylist(), strict=True):
                n, total = state.get(key, (0, 0))
                state[key] = n + 1, total + c
                out.append((key, n + 1, total + c))
            keys, ns, totals = zip(*out, strict=True)
            pa.record_batch([pa.array(keys), pa.array(ns), pa.array(totals)], schema=OUTPUT)


class Windows:
    """Tumbling windows by columns; the floor is pyarrow's ``group_by`` by key and minute, and a dict."""

    def __init__(self, folder: Path, opened: ExitStack) -> None:
        self._operator = InOperator(by_columns(windowed(Tumbling.of("1 min"))), opened)
        self._open: dict[tuple[str, int], tuple[int, int]] = {}

    def run(self, number: int) -> float:
        # A minute, so that the windows of the minute before end in each round.
        return sum(self._operator.run(range(3 * number, 3 * number + 3), ROWS // 3, KEYS // 3))

    def floor(self, number: int) -> float:
        batches = [batch(each, ROWS // 3, KEYS // 3) for each in range(3 * number, 3 * number + 3)]
        return seconds(lambda: [self._add(place, rows) for place, rows in enumerate(batches, 3 * number)])

    def _add(self, number: int, rows: pa.Table) -> None:
        minute = pc.divide(rows.column("ts").cast(pa.int64()), 60_000_000)
        grouped = rows.append_column("minute", minute).group_by(["k", "minute"], use_threads=False)
        made = grouped.aggregate([("c", "count"), ("c", "sum")])
        state = self._open
        columns = (made.column(name).to_pylist() for name in ("k", "minute", "c_count", "c_sum"))
        for key, start, n, total in zip(*columns, strict=True):
            before = state.get((key, start))
            state[key, start] = (n, total) if before is None else (before[0] + n, before[1] + total)
        if number % 3 == 0:
            ended = [window for window in state if window[1] < number * STEP_MS // 60_000]
            values = [(*window, *state.pop(window)) for window in ended]
            pa.table([pa.array([row[place] for row in values]) for place in range(4)], list("ksnt"))


class Snapshot:
    """A full snapshot, written and restored; the floor writes its columns with pyarrow and builds a dict."""

    def __init__(self, folder: Path, opened: ExitStack) -> None:
        self._folder = folder
        folder.mkdir()
        self._storage = CheckpointStorage.open(folder)
        self._keys = Keys(ROWS)
        self._backend = open_backend(BACKEND)
        self._backend.get_state(ValueState("state", types.INT64))
        filled(self._backend._tables["state"], self._keys)

    def run(self, number: int) -> float:
        return seconds(lambda: self._write_and_restore(number))

    def _write_and_restore(self, number: int) -> None:
        writer = SegmentWriter(self._storage, f"{number}.seg", self._backend.key_groups)
        self._backend.snapshot(number + 1).run(writer)
        restored = open_backend(BACKEND, handles=[SegmentHandle.open(self._storage, writer.finish())])
        assert restored.num_entries() == ROWS
        restored.close()

    def floor(self, number: int) -> float:
        return seconds(self._columns)

    def _columns(self) -> None:
        path = str(self._folder / "floor.arrow")
        table = pa.table({"key": self._keys.keys, "value": list(range(ROWS))})
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with pa.OSFile(path, "wb") as file, pa.ipc.new_stream(file, table.schema, options=options) as stream:
            stream.write_table(table, ROWS // GROUPS)
        with pa.OSFile(path, "rb") as file:
            read = pa.ipc.open_stream(file).read_all()
        assert len(dict(zip(*read.to_pydict().values(), strict=True))) == ROWS


class Timers:
    """A timer for each key, with a time of its own, registered and fired; the floor is a heap of tuples."""

    def __init__(self, folder: Path, opened: ExitStack) -> None:
        self._keys = Keys(ROWS // 4)
        self._times = [place * 7919 % 1_000_003 for place in range(len(self._keys.keys))]
        self._fired = 0

    def run(self, number: int) -> float:
        backend = open_backend(BACKEND)
        timers = TimerServices(backend).service("bench", self)
        self._fired = 0

        def work() -> None:
            for group, key, time_ms in zip(self._keys.groups, self._keys.keys, self._times, strict=True):
                backend.set_current_key(key, group)
                timers.register_event_time_timer(VOID, time_ms)
            backend.write_back()
            timers.advance_watermark(2_000_000)

        spent = seconds(work)
        assert self._fired == len(self._times)
        backend.close()
        return spent

    def on_event_time(self, timer: Timer) -> None:
        self._fired += 1

    def on_processing_time(self, timer: Timer) -> None:
        raise AssertionError("none is registered")

    def floor(self, number: int) -> float:
        def work() -> None:
            heap: list[tuple[int, str]] = []
            known = set()
            for key, time_ms in zip(self._keys.keys, self._times, strict=True):
                if (time_ms, key) not in known:
                    known.add((time_ms, key))
                    heapq.heappush(heap, (time_ms, key))
            while heap:
                known.remove(heapq.heappop(heap))

        return seconds(work)


LANES: dict[str, Callable[[Path, ExitStack], Lane]] = {
    "aggregate": Aggregate,
    "per-record": PerRecordCount,
    "windows": Windows,
    "snapshot": Snapshot,
    "timers": Timers,
}


def measured(names: list[str], rounds: int) -> dict[str, list[float]]:
    """Return the ratios of each lane, one of each round; a first round does not count."""
    ratios: dict[str, list[float]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as opened:
        lanes = {name: LANES[name](Path(folder) / name, opened) for name in names}
        for number in range(rounds + 1):
            for name, lane in lanes.items():
                ratio = lane.run(number) / lane.floor(number)
                if number:
                    ratios[name].append(ratio)
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--lanes", nargs="+", choices=LANES, default=list(LANES))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--bounds", type=Path, default=BOUNDS)
    arguments = parser.parse_args()
    if build_problem():
        raise SystemExit(f"The bounds are those of the compiled heap-cow. {build_problem()}")
    bounds = tomllib.loads(arguments.bounds.read_text(encoding="utf-8"))
    slower = []
    for name, ratios in measured(arguments.lanes, arguments.rounds).items():
        ratio, bound = statistics.median(ratios), bounds[name]
        print(
            f"{name:12} {ratio:5.2f} of its floor, from {min(ratios):.2f} to {max(ratios):.2f}; bound {bound}"
        )
        if ratio > bound:
            slower.append(f"The lane {name} takes {ratio:.2f} of its floor, and its bound is {bound}.")
    if slower:
        raise SystemExit("\n".join(slower))


if __name__ == "__main__":
    main()
