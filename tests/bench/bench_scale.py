"""Time, memory and bytes of a micro-batch over the number of keys: keyedstate, and both of Spark's stores.

    python tests/bench/bench_scale.py [--keys N ...] [--lanes NAME ...] [--rounds N] [--limit SECONDS]
        [--csv FILE]

Count and sum per string key.  Each measurement has processes of its own.  It creates the keys, a million in a
micro-batch; runs five micro-batches of 100,000 rows with keys at random; restarts the query in new processes,
which read the state; and, where the engine can, restarts it with six partitions instead of four.  A lane that
fails or takes longer than the limit does not get more keys.

`docs/images/scale.csv` has the numbers; ``scripts/draw_curve.py`` draws the picture.
"""

from __future__ import annotations

import argparse
import csv
import multiprocessing
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from streaming.lanes import HDFS, ROCKSDB, Lane, aggregated, open_session, per_record, spark_group_by
from streaming.processor import mark, resident_bytes

ROWS = 100_000
MEASURED = 5
#: New keys of a micro-batch.
FILLED = 1_000_000
PARTITIONS_AFTER = 6
#: Spark's HDFS-backed store keeps all state in the heap of the JVM.
MEMORY = "9g"


@dataclass
class Engine:
    """A lane; ``build`` takes further options where it can be rescaled."""

    build: Callable[..., Any]
    settings: dict[str, str]
    rescales: bool


ENGINES = {
    "aggregate, heap-cow": Engine(partial(aggregated, "heap-cow"), {}, True),
    "aggregate, rocksdb": Engine(partial(aggregated, "rocksdb"), {}, True),
    "per record, heap-cow": Engine(partial(per_record, "heap-cow"), {}, True),
    "per record, rocksdb": Engine(partial(per_record, "rocksdb"), {}, True),
    "Spark groupBy, HDFS store": Engine(lambda: spark_group_by, HDFS, False),
    "Spark groupBy, RocksDB": Engine(lambda: spark_group_by, ROCKSDB, False),
}


@dataclass
class Measured:
    """What a lane needs with a number of keys.

    Attributes
    ----------
    batch_seconds : float
        The median micro-batch of 100,000 rows.
    fill_seconds : float
        The last micro-batch of new keys, of which there are a million or as many as there are at all.
    memory_bytes : int
        By how much the memory of all processes has grown with the state.
    stored_bytes, written_bytes : int
        In the checkpoint, at the end; and in new files, per micro-batch of 100,000 rows.
    restart_seconds, rescale_seconds : float or None
        From the start of the query to the end of its first micro-batch.
    """

    lane: str
    keys: int
    batch_seconds: float = 0.0
    fill_seconds: float = 0.0
    memory_bytes: int = 0
    stored_bytes: int = 0
    written_bytes: int = 0
    restart_seconds: float = 0.0
    rescale_seconds: float | None = None


class Batches:
    """Files of micro-batches; each is written once for all lanes."""

    def __init__(self, folder: Path, keys: int) -> None:
        self._folder = folder / f"keys-{keys}"
        self._folder.mkdir(exist_ok=True)
        self._keys = keys

    def fill(self) -> list[Path]:
        return [
            self._file(f"fill-{first:09}", partial(np.arange, first, min(first + FILLED, self._keys)))
            for first in range(0, self._keys, FILLED)
        ]

    def drawn(self, number: int) -> Path:
        generator = np.random.default_rng([number, self._keys])
        return self._file(f"drawn-{number:03}", partial(generator.integers, 0, self._keys, ROWS))

    def _file(self, name: str, numbers: Callable[[], Any]) -> Path:
        path = self._folder / f"{name}.parquet"
        if not path.exists():
            of = pa.array(numbers())
            padded = pc.utf8_lpad(of.cast(pa.string()), width=9, padding="0")
            keys = pc.binary_join_element_wise("customer", padded, "-")
            table = pa.table({"k": keys, "c": pc.bit_wise_and(of, 63)})
            pq.write_table(table, path, row_group_size=-(-table.num_rows // 2), use_dictionary=False)
        return path


def files(folder: Path) -> dict[Path, int]:
    """Return the sizes of the files of the query and its state."""
    found = {}
    for kind in ("query", "state"):
        for path in (folder / kind).rglob("*"):
            # A store may remove one meanwhile.
            try:
                found[path] = path.stat().st_size if path.is_file() else 0
            except FileNotFoundError:
                continue
    return found


@contextmanager
def running(name: str, folder: Path, **options: object) -> Any:
    """Run the query of a lane in a session of its own; what it takes to start the session does not count."""
    mark()
    here = str(Path(__file__).parent)
    os.environ["PYTHONPATH"] = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
    session = open_session(folder, MEMORY)
    try:
        # What a session does for the first time is no part of a restart.
        session.range(10).repartition(2).mapInArrow(lambda rows: rows, "id long").count()
        engine = ENGINES[name]
        lane = Lane(name, engine.build(**options), engine.settings)
        yield session, lane
        assert lane.query is not None
        lane.query.stop()
    finally:
        session.stop()


def settled_memory(session: Any) -> int:
    for _ in range(2):
        session._jvm.java.lang.System.gc()
        time.sleep(0.5)
    return resident_bytes()


def filled(name: str, keys: int, folder: Path, shared: Path) -> Measured:
    """Create the keys and measure the micro-batches over them."""
    batches = Batches(shared, keys)
    made = Measured(name, keys)
    with running(name, folder) as (session, lane):
        lane.start(session, folder)
        lane.run([batches.drawn(0)])
        before = settled_memory(session)
        made.fill_seconds = lane.run(batches.fill())[-1]
        lane.run([batches.drawn(1)])
        # Asked for before the measurement: a full collection leaves a heap that must grow again.
        made.memory_bytes = settled_memory(session) - before
        lane.run([batches.drawn(2)])
        there = files(folder)
        made.batch_seconds = statistics.median(lane.run([batches.drawn(3 + n) for n in range(MEASURED)]))
        after = files(folder)
        made.written_bytes = sum(size for path, size in after.items() if path not in there) // MEASURED
        made.stored_bytes = sum(after.values())
    return made


def restarted(name: str, keys: int, folder: Path, shared: Path, number: int, **options: object) -> float:
    """Start the query again and return the seconds until its first micro-batch is done."""
    with running(name, folder, **options) as (session, lane):
        batch = Batches(shared, keys).drawn(3 + MEASURED + number)
        start = time.perf_counter()
        lane.start(session, folder)
        lane.run([batch])
        return time.perf_counter() - start


def in_new_process(limit: float, function: Callable[..., Any], *given: Any, **options: Any) -> Any:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply_async(function, given, options).get(limit)


def measured(name: str, keys: int, work: Path, limit: float) -> Measured:
    with tempfile.TemporaryDirectory(dir=work) as made:
        folder = Path(made)
        result: Measured = in_new_process(limit, filled, name, keys, folder, work)
        result.restart_seconds = in_new_process(limit, restarted, name, keys, folder, work, 0)
        if ENGINES[name].rescales:
            result.rescale_seconds = in_new_process(
                limit, restarted, name, keys, folder, work, 1, parallelism=PARTITIONS_AFTER
            )
    return result


def median_of(rounds: list[Measured]) -> Measured:
    made = Measured(rounds[0].lane, rounds[0].keys)
    for field in fields(Measured)[2:]:
        values = [getattr(one, field.name) for one in rounds]
        if None not in values:
            setattr(made, field.name, statistics.median(values))
        else:
            setattr(made, field.name, None)
    return made


def table(results: list[Measured]) -> str:
    lines = [
        "| Keys | | micro-batch | last new keys | memory | stored | written | restart | rescaled |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for one in results:
        sizes = (one.memory_bytes, one.stored_bytes, one.written_bytes)
        megabytes = " | ".join(f"{size / 1e6:,.1f} MB" for size in sizes)
        rescaled = f"{one.rescale_seconds:.1f} s" if one.rescale_seconds else "cannot"
        lines.append(
            f"| {one.keys:,} | {one.lane} | {one.batch_seconds:.2f} s | {one.fill_seconds:.1f} s "
            f"| {megabytes} | {one.restart_seconds:.1f} s | {rescaled} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--keys", type=int, nargs="+", default=[10_000, 100_000, 1_000_000, 10_000_000])
    parser.add_argument("--lanes", nargs="+", choices=ENGINES, default=list(ENGINES), metavar="NAME")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--limit", type=float, default=1800, help="seconds of a lane's process")
    parser.add_argument("--csv", type=Path)
    arguments = parser.parse_args()
    results: list[Measured] = []
    given_up: set[str] = set()
    with tempfile.TemporaryDirectory(prefix="keyedstate-scale-") as folder:
        for keys in sorted(arguments.keys):
            found: dict[str, list[Measured]] = {}
            for number in range(arguments.rounds):
                for name in random.Random(number).sample(arguments.lanes, len(arguments.lanes)):
                    if name in given_up:
                        continue
                    try:
                        one = measured(name, keys, Path(folder), arguments.limit)
                    except Exception as error:
                        given_up.add(name)
                        print(f"{name} with {keys:,} keys: {type(error).__name__}: {error}"[:500], flush=True)
                        continue
                    found.setdefault(name, []).append(one)
                    print(one, flush=True)
            results += [median_of(found[name]) for name in arguments.lanes if name in found]
            if arguments.csv is not None and results:
                with arguments.csv.open("w", newline="", encoding="ascii") as file:
                    writer = csv.DictWriter(
                        file, [field.name for field in fields(Measured)], lineterminator="\n"
                    )
                    writer.writeheader()
                    writer.writerows(asdict(one) for one in results)
    print(f"\n{table(results)}")


if __name__ == "__main__":
    main()
