"""The program of a campaign over runs without Spark: ``python -m faults.local.program <folder> <run>``.

It reads the plan from the folder and writes its rows below it. The rows of the source follow from the seed.
"""

from __future__ import annotations

import datetime as dt
import os
import random
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from faults.local.plans import ChannelPlan, Plan
from keyedstate.aggregates import count
from keyedstate.local import connect, keyed
from keyedstate.runtime import KeyedProcessFunction
from keyedstate.state import MapState, Ttl, ValueState
from keyedstate.time import EventTime
from keyedstate.types import INT64, STRING
from keyedstate.windows import Tumbling

BEGIN = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
WINDOW_SECONDS = 10
SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("channel", pa.string()),
        ("number", pa.int64()),
        ("ts", pa.timestamp("us", "UTC")),
        ("process_ms", pa.float64()),
    ]
)
COUNTED = "key string, channel string, number long, n long, ordered boolean"
CHAINED = f"{COUNTED}, of_channel long"


class Row(NamedTuple):
    """A row of the source; `number` is its position in the channel."""

    key: str
    channel: str
    number: int
    ts: dt.datetime
    process_ms: float


def rows_of(plan: Plan, place: int) -> Iterator[Row]:
    """Yield the rows of one channel."""
    rng = random.Random(f"{plan.seed}/{plan.number}/{place}")
    channel = plan.channels[place]
    for number in range(channel.rows):
        seconds = max(number // 4 - rng.randrange(channel.disorder + 1), 0)
        process_ms = channel.process_ms if rng.random() < 0.1 else 0.0
        key = f"k{min(rng.randrange(12), rng.randrange(12))}"
        yield Row(key, str(place), number, BEGIN + dt.timedelta(seconds=seconds), process_ms)


class Source:
    """The channels of a plan; a file shows that the first batch is read."""

    schema = SCHEMA

    def __init__(self, plan: Plan, began: Path) -> None:
        self._plan = plan
        self._began = began

    def channels(self) -> Sequence[Any]:
        """Return readers of all channels."""
        return [_Channel(self._plan, place, self._began) for place in range(len(self._plan.channels))]


class _Channel:
    def __init__(self, plan: Plan, place: int, began: Path) -> None:
        self.name = str(place)
        self._plan: ChannelPlan = plan.channels[place]
        self._rows = list(rows_of(plan, place))
        self._next = 0
        self._began = began

    def read(self) -> pa.RecordBatch | None:
        self._began.touch()
        some = self._rows[self._next : self._next + self._plan.batch]
        if not some:
            return None
        time.sleep(self._plan.read_ms / 1000.0)
        self._next += len(some)
        return pa.RecordBatch.from_pylist([row._asdict() for row in some], schema=SCHEMA)

    def offset(self) -> int:
        return self._next

    def seek(self, offset: int) -> None:
        self._next = offset


class Killing(KeyedProcessFunction):
    """Kills its task once, at a row of the first channel."""

    def __init__(self, kill_at: int | None, killed: Path) -> None:
        self._kill_at = kill_at
        self._killed = killed

    def kill_at(self, row: Any) -> None:
        """Kill the task if it is the row at which it dies."""
        if row.channel == "0" and row.number == self._kill_at and not self._killed.exists():
            self._killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)


class Counting(Killing):
    """Counts the rows of a key, and notes whether those of each channel come in order."""

    n = ValueState("n", INT64, default=0)
    last = MapState("last", STRING, INT64)

    def process(self, row: Any, ctx: Any) -> Iterator[tuple[Any, ...]]:
        self.kill_at(row)
        if row.process_ms:
            time.sleep(row.process_ms / 1000.0)
        last = self.last.get(row.channel)
        self.last.put(row.channel, row.number)
        self.n.update(self.n.value() + 1)
        yield ctx.key, row.channel, row.number, self.n.value(), last is None or last < row.number


class Following(Killing):
    """Counts rows that another operator yields by channel, and notes whether those of a key come in order."""

    n = ValueState("n", INT64, default=0)
    last = MapState("last", STRING, INT64)

    def process(self, row: Any, ctx: Any) -> Iterator[tuple[Any, ...]]:
        self.kill_at(row)
        last = self.last.get(row.key)
        self.last.put(row.key, row.n)
        self.n.update(self.n.value() + 1)
        ordered = row.ordered and (last is None or last < row.n)
        yield row.key, ctx.key, row.number, row.n, ordered, self.n.value()


def main(folder: Path, number: int) -> None:
    """Execute one run of the plan in a folder."""
    plan = Plan.from_json((folder / "plan.json").read_text())
    run = plan.runs[number]
    config = {
        "backend": run.backend,
        "checkpoint.dir": str(folder / "checkpoints"),
        "checkpoint.interval": run.interval_ms,
        "checkpoint.mode": run.mode,
        "checkpoint.alignment-timeout": run.alignment_timeout_ms,
        "max-parallelism": 16,
    }
    first, *second = ({**config, "parallelism": parallelism} for parallelism in run.parallelism)
    killed = folder / f"killed-{number}"
    kill_at = [run.at if (run.ending, run.killed) == ("kill task", place) else None for place in range(2)]
    source = Source(plan, folder / f"began-{number}")
    event_time = EventTime("ts", delay=f"{max(channel.disorder for channel in plan.channels)} s")
    rows = keyed(source, "key", uid=plan.operator, config=first, event_time=event_time)
    if plan.operator == "windows":
        result = rows.window(Tumbling.of(f"{WINDOW_SECONDS} s")).aggregate(n=count())
    elif plan.operator == "running":
        result = rows.running(n=count())
    elif plan.operator == "deduplicate":
        result = rows.deduplicate()
    elif plan.operator == "join":
        sides = (keyed(source, "channel", "number", event_time=event_time) for _ in range(2))
        result = connect(*sides, uid=plan.operator, config=first).join(ttl=Ttl.of("1 day"))
    else:
        result = rows.process(Counting(kill_at[0], killed), COUNTED)
    if plan.operator == "chain":
        by_channel = keyed(result, "channel", uid="following", config=second[0])
        result = by_channel.process(Following(kill_at[1], killed), CHAINED)
    if run.ending == "end":
        result = result.drain()
    result.write_parquet(folder / "out")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
