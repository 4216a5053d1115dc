"""Chains of operators of which each has its own tasks: results, guarantees, rescaling, failures."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.framework.local.functions import (
    COUNTS,
    Channels,
    Count,
    Matched,
    Rated,
    Split,
    events,
    minute,
    plain,
)

from keyedstate.aggregates import count
from keyedstate.checkpoint import AttemptManifest, CheckpointStorage, OperatorFolder
from keyedstate.errors import CheckpointTimeoutError, SubtaskFailedError
from keyedstate.local import ResultStream, connect, keyed
from keyedstate.runtime import (
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
)
from keyedstate.state import ValueState
from keyedstate.time import EventTime
from keyedstate.types import INT64, PickledSerializer
from keyedstate.windows import Tumbling

MODES = ("exactly-once", "at-least-once", "unaligned")


@pytest.fixture
def config(tmp_path: Path) -> dict[str, object]:
    return {"checkpoint.dir": str(tmp_path / "checkpoints"), "checkpoint.interval": 0}


def tasks(number: int, config: dict[str, object] | None = None) -> dict[str, object]:
    return {**(config or {}), "parallelism": number}


# -- results ------------------------------------------------------------------------------------------------


class Stamped(Count):
    """Counts the rows of each key, and keeps their event time."""

    def process(self, row, ctx):
        for user, n in super().process(row, ctx):
            yield user, n, row.ts


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_chain_has_the_results_that_it_has_in_one_process(seed: int, tmp_path: Path):
    """No row is late or lost, whatever the number of tasks is: watermarks follow the slowest task."""
    rng = random.Random(seed)
    # Of several channels one may be ahead of the others, and the first operator does not wait for these.
    count_of_channels = rng.choice((1, 1, 3))
    late = EventTime("ts", delay="0 s" if count_of_channels == 1 else "200 minutes")
    channels = [
        [
            events([f"u{rng.randrange(9)}" for _ in range(20)], range(start, start + 20))
            for start in range(0, 200, 20)
        ]
        for _ in range(count_of_channels)
    ]
    key = rng.choice(["user", "n"])
    keys = [key, rng.choice(["windowed", key])]
    parallelism = [rng.randrange(1, 4) for _ in range(2)] + [rng.randrange(2, 4)]
    mode = MODES[seed % len(MODES)]

    def run(parallelism: list[int]) -> list[tuple[Any, ...]]:
        folder = tmp_path / "-".join(map(str, parallelism))
        base = {"checkpoint.dir": str(folder), "checkpoint.interval": 50, "checkpoint.mode": mode}
        first, second, third = (tasks(number, base) for number in parallelism)
        by_user = keyed(
            Channels(*channels), "user", uid="a", config=first, event_time=EventTime("ts", delay="0 s")
        )
        stamped = by_user.process(Stamped(), "user string, n long, ts timestamp")
        by_key = keyed(stamped, keys[0], uid="b", config=second, event_time=late)
        windows = by_key.window(Tumbling.of("20 minutes")).aggregate(windowed=count())
        ended = EventTime("window_end", delay="0 s")
        by_count = keyed(windows, keys[1], uid="c", config=third, event_time=ended)
        return plain(by_count.window(Tumbling.of("1 hour")).aggregate(windows=count()).drain())

    assert run(parallelism) == run([1, 1, 1])


@pytest.mark.parametrize("parallelism", [(2, 1), (1, 2)])
def test_one_operator_with_several_tasks_is_enough_for_a_chain_in_processes(parallelism):
    users = [chr(ord("a") + number % 7) for number in range(200)]
    first, second = map(tasks, parallelism)
    counts = keyed(events(users), "user", config=first).process(Count(), COUNTS)
    by_count = keyed(counts, "n", config=second).aggregate(users=count())
    expected = Counter(n for total in Counter(users).values() for n in range(1, total + 1))
    assert plain(by_count) == sorted(expected.items())


def test_rows_of_another_operator_meet_those_of_a_source_and_broadcast_ones():
    payments = [{"order": f"o{n}", "amount": float(n), "currency": "eur"} for n in range(30)]
    rates = [{"currency": "eur", "rate": 2.0}]
    rated = keyed(payments, "order", config=tasks(2)).broadcast(rates)
    amounts = rated.process(Rated(), "order string, amount double")

    class InCents(Matched):
        def process2(self, row, ctx):
            yield from super().process2(row._replace(amount=int(row.amount * 100)), ctx)

    orders = [{"order": f"o{n}", "item": f"item {n}"} for n in range(30)]
    both = connect(keyed(orders, "order"), keyed(amounts, "order"), config=tasks(2))
    matched = both.process(InCents(), "order string, item string, cents long")
    assert plain(matched) == sorted((f"o{n}", f"item {n}", 200 * n) for n in range(30))


class Passed(KeyedBroadcastProcessFunction):
    """Answers each row of the broadcast side with itself."""

    def process_broadcast(self, row, ctx):
        yield row.currency, row.amount

    def process(self, row, ctx):
        yield ctx.key, row.amount


@pytest.mark.parametrize("parallelism", [1, 2])
def test_an_operator_has_its_broadcast_rows_before_rows_of_another_one(parallelism):
    """Also before those with which the other one answers its own broadcast rows."""
    config, columns = tasks(parallelism), "currency string, amount double"
    first = keyed([{"currency": "usd", "amount": 1.0}], "currency", config=config)
    passed = first.broadcast([{"currency": "eur", "amount": 3.0}]).process(Passed(), columns)
    second = keyed(passed, "currency", config=config).broadcast([{"currency": "eur", "rate": 2.0}])
    # Each task of the first operator has all rows of its broadcast side.
    assert plain(second.process(Rated(), columns)) == [("eur", 6.0)] * parallelism + [("usd", 0.0)]


def test_side_outputs_are_rows_of_the_next_operator():
    class OddOnes(KeyedProcessFunction):
        def process(self, row, ctx):
            if row.odd is not None:
                yield ctx.key, row.odd[1]

    rows = keyed(events("abcd"), "user", config=tasks(2)).process(Split(), "user string, v long")
    odd = keyed(rows, "output", config=tasks(2)).process(OddOnes(), "output string, v long")
    assert plain(odd) == [("odd", 1), ("odd", 3)]


class Latest(KeyedCoProcessFunction):
    """Yields the time of each row that time has reached."""

    def process1(self, row, ctx):
        ctx.timer_service.register_event_time_timer(ctx.timestamp)
        yield from ()

    process2 = process1

    def on_timer(self, time, ctx):
        yield ctx.key, time // 60_000 - int(minute(0).timestamp() // 60)


@pytest.mark.parametrize("parallelism", [1, 2])
def test_an_operator_that_has_ended_does_not_hold_back_time(parallelism, config):
    """The rows of the source go further than those of the operator, and time is that of both at the end."""
    first = keyed(events("ab", [0, 10]), "user", uid="a", config=tasks(parallelism, config))
    stamped = first.process(Stamped(), "user string, n long, ts timestamp")
    by_minute = EventTime("ts", delay="0 s")
    both = connect(
        keyed(stamped, "user", event_time=by_minute),
        keyed(events("cd", [20, 60]), "user", event_time=by_minute),
        uid="b",
        config=tasks(parallelism, config),
    )
    assert plain(both.process(Latest(), "user string, minute long")) == [("a", 0), ("b", 10), ("c", 20)]


class Wide(KeyedProcessFunction):
    """Yields many rows for each, those of one key after those of another."""

    def process(self, row, ctx):
        for _ in range(300):
            yield ctx.key, row.ts


def test_rows_of_one_batch_are_not_late_because_they_come_in_several(config):
    """As in one process, the watermark moves behind all rows with which a task answers a batch."""
    users = [f"u{number % 40}" for number in range(200)]
    batches = Channels([events(users), events(users[:40], range(400, 440))])
    by_minute = EventTime("ts", delay="0 s")
    first = keyed(batches, "user", uid="a", config=tasks(2, config), event_time=by_minute)
    wide = first.process(Wide(), "user string, ts timestamp")
    windows = keyed(wide, "user", uid="b", config=tasks(1, config), event_time=by_minute).window(
        Tumbling.of("10 minutes")
    )
    found = windows.aggregate(n=count()).drain().to_table().to_pydict()
    assert sum(found["n"]) == 300 * 240


class Slow(KeyedProcessFunction):
    """Takes long for a row."""

    def process(self, row, ctx):
        time.sleep(0.005)
        yield ctx.key, len(row.text)


class Large(KeyedProcessFunction):
    """Yields a large row for each."""

    def process(self, row, ctx):
        yield ctx.key, "x" * 100_000


class Counted(Channels):
    """Counts how many batches are read."""

    def __init__(self, batches: int) -> None:
        super().__init__([events("abcdefghij")] * batches)
        self.read = 0

    def channels(self):
        (channel,) = super().channels()
        read = channel.read

        def counted():
            self.read += 1
            return read()

        channel.read = counted
        return [channel]


def test_a_source_is_not_read_while_a_later_operator_has_no_room():
    """The rows wait in its channels, and the first operator with them."""
    source = Counted(300)
    large = keyed(source, "user", config=tasks(2)).process(Large(), "user string, text string")
    slow = keyed(large, "user", config=tasks(2)).process(Slow(), COUNTS).batches()
    found = sum(next(slow).num_rows for _ in range(8))
    assert 0 < found < 300
    assert source.read < 150
    slow.close()


def test_the_mode_is_explained_where_another_operator_has_several_tasks(config):
    counts = keyed(events("a"), "user", uid="a", config=tasks(2, config)).process(Count(), COUNTS)
    text = keyed(counts, "n", uid="b", config=config).aggregate(users=count()).explain()
    assert text.count("mode: exactly-once") == 2


# -- checkpoints --------------------------------------------------------------------------------------------


def _numbered(source: Any, config: dict[str, object], parallelism: tuple[int, int]) -> ResultStream:
    """Count the rows of each user, and then the users that have had so many."""
    first, second = (tasks(number, config) for number in parallelism)
    counts = keyed(source, "user", uid="first", config=first).process(Count(), COUNTS)
    return keyed(counts, "n", uid="second", config=second).process(Count(), "n long, users long")


def _users_by_count(users: list[str]) -> Counter[tuple[int, int]]:
    """Return the rows that `_numbered` yields."""
    having = Counter(n for total in Counter(users).values() for n in range(1, total + 1))
    return Counter((n, number) for n, total in having.items() for number in range(1, total + 1))


@pytest.mark.slow
def test_each_operator_may_have_another_number_of_tasks_in_each_run(config):
    """CP-19."""
    batches: list[pa.Table] = []
    users: list[str] = []
    for parallelism in ((2, 3), (1, 1), (3, 1), (1, 2)):
        added = [f"u{number * parallelism[0] % 17}" for number in range(60)]
        batches.append(events(added))
        before = _users_by_count(users)
        users += added
        found = plain(_numbered(Channels(batches), config, parallelism))
        assert Counter(found) == _users_by_count(users) - before


class Unequal(Stamped):
    """Takes longer for some keys, so that one task is behind the others."""

    def process(self, row, ctx):
        if ctx.key == "u0":
            time.sleep(0.02)
        yield from super().process(row, ctx)


@pytest.mark.slow
def test_time_continues_in_an_operator_over_another_one_with_any_number_of_tasks(config):
    """No row of a task that is behind the others is late in a later run."""
    by_minute = EventTime("ts", delay="0 s")
    batches: list[pa.Table] = []
    found: Counter[Any] = Counter()
    for run, parallelism in enumerate([(2, 2), (1, 1), (3, 1), (2, 1)]):
        begin = 100 * run
        users = [f"u{number % 9}" for number in range(10)]
        batches += [events(users, range(minute_, minute_ + 10)) for minute_ in range(begin, begin + 100, 10)]
        first, second = (tasks(number, config) for number in parallelism)
        by_user = keyed(Channels(batches), "user", uid="a", config=first, event_time=by_minute)
        stamped = by_user.process(Unequal(), "user string, n long, ts timestamp")
        windows = keyed(stamped, "user", uid="b", config=second, event_time=by_minute).window(
            Tumbling.of("5 minutes")
        )
        rows = windows.aggregate(rows=count())
        for window in rows.drain() if run == 3 else rows:
            found[window.user] += window.rows
    assert found == Counter(user for batch in batches for user in batch["user"].to_pylist())


class KillsItself(Count):
    """Counts, and kills its process once when a key has had so many rows."""

    def __init__(self, killed: Path) -> None:
        self._killed = killed

    def process(self, row, ctx):
        for key, n in super().process(row, ctx):
            if n == 40 and not self._killed.exists():
                self._killed.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield key, n


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("killed", ["first", "second"])
def test_rows_count_once_in_all_operators_after_a_task_of_one_was_killed(
    tmp_path, config, caplog, mode, killed
):
    """BAR-01, BAR-02, BAR-03; with at-least-once none is lost."""
    config |= {"checkpoint.mode": mode, "checkpoint.interval": 20}
    users = [f"u{number % 50}" for number in range(2500)]
    rows = events(users)
    batches = Channels([rows.slice(start, 10) for start in range(0, 2500, 10)])
    functions: dict[str, Count] = {
        "first": Count(),
        "second": Count(),
        killed: KillsItself(tmp_path / "killed"),
    }
    counts = keyed(batches, "user", uid="first", config=tasks(2, config)).process(functions["first"], COUNTS)
    by_count = keyed(counts, "n", uid="second", config=tasks(2, config))
    by_count.process(functions["second"], "n long, users long").write_parquet(tmp_path / "out")
    assert f"of {killed!r} failed: its process was killed by signal 9. The run continues" in caplog.text
    found = Counter(tuple(row.values()) for row in pq.read_table(tmp_path / "out").to_pylist())
    expected = _users_by_count(users)
    if mode == "at-least-once":
        assert not expected - found
    else:
        assert found == expected


class Slower(Count):
    """Counts, and takes long for it while a file exists."""

    def __init__(self, slow: Path) -> None:
        self._slow = slow

    def process(self, row, ctx):
        if self._slow.exists():
            time.sleep(0.01)
        yield from super().process(row, ctx)


class Paced(Channels):
    """A channel that needs a moment for each batch, so that there are several checkpoints."""

    def channels(self):
        (channel,) = super().channels()
        read = channel.read

        def paced():
            time.sleep(0.002)
            return read()

        channel.read = paced
        return [channel]


class Failed(Exception):
    """The program has failed."""


@pytest.mark.slow
@pytest.mark.parametrize("tasks_later", [1, 3])
def test_rows_between_two_operators_are_part_of_an_unaligned_checkpoint(tmp_path, config, tasks_later):
    """BAR-03: the checkpoint does not wait until the second operator has processed them."""
    config |= {"checkpoint.mode": "unaligned", "checkpoint.interval": 20}
    users = [f"u{number % 50}" for number in range(1000)]
    rows = events(users)
    batches = Paced([rows.slice(start, 5) for start in range(0, 1000, 5)])
    slow = tmp_path / "slow"
    slow.touch()
    found: dict[int, Counter[tuple[int, int]]] = {}

    def run(number: int) -> None:
        by_user = keyed(batches, "user", uid="first", config=tasks(2, config))
        by_count = keyed(by_user.process(Count(), COUNTS), "n", uid="second", config=tasks(number, config))
        by_count.process(Slower(slow), "n long, users long").for_each(note)

    def note(table: pa.Table, epoch: int) -> None:
        found[epoch] = Counter(zip(*table.to_pydict().values(), strict=True))
        if epoch == 2 and slow.exists():
            slow.unlink()
            raise Failed

    with pytest.raises(Failed):
        run(2)
    parts = _parts_of_checkpoint(config, "second", 1)
    assert any(part.operator_state is not None for part in parts), "rows were in flight"
    run(tasks_later)
    assert sum(found.values(), Counter()) == _users_by_count(users)


def _parts_of_checkpoint(config: dict[str, object], uid: str, epoch: int) -> Sequence[AttemptManifest]:
    metadata = OperatorFolder(CheckpointStorage.open(config["checkpoint.dir"]), uid).read_metadata(epoch)
    assert metadata is not None
    return metadata.parts


class Held:
    """A value of a state that is not written before a file exists."""

    #: Set when the value is in the state: then the next who pickles it writes a checkpoint.
    marks: ClassVar[Path | None] = None

    def __reduce__(self):
        if self.marks is not None:
            (self.marks / "writing").touch()
            _wait_for(self.marks / "written")
        return Held, ()


class WritesLong(KeyedProcessFunction):
    """Writes the state of one task only after the other one has processed rows since it began to."""

    held = ValueState("held", PickledSerializer())
    n = ValueState("n", INT64, default=0)

    def __init__(self, marks: Path) -> None:
        self._marks = marks

    def process(self, row, ctx):
        if ctx.key == "x":
            self.held.update(Held())
            Held.marks = self._marks
        else:
            if not self.n.value():
                _wait_for(self._marks / "writing")
            self.n.update(self.n.value() + 1)
            if self.n.value() == 250:
                (self._marks / "written").touch()
        yield ctx.key, row.ts


def _wait_for(mark: Path) -> None:
    until = time.monotonic() + 30
    while not mark.exists() and time.monotonic() < until:
        time.sleep(0.01)


@pytest.mark.slow
def test_many_watermarks_behind_a_barrier_do_not_stop_a_checkpoint(tmp_path, config):
    """The channel of the task that still writes is full of them, and is read again in the next epoch."""
    config |= {"checkpoint.interval": "2 s", "checkpoint.timeout": "20 s"}
    channels = [[events("k", [3 * n + channel]) for n in range(200)] for channel in range(3)]
    channels[0].insert(0, events("x", [10_000]))
    rows = keyed(Channels(*channels), "user", uid="first", config=tasks(2, config))
    passed = rows.process(WritesLong(tmp_path), "user string, ts timestamp")
    late = EventTime("ts", delay="20000 minutes")
    counted = keyed(passed, "user", uid="second", config=tasks(2, config), event_time=late)
    assert plain(counted.process(Count(), COUNTS)) == [("k", n + 1) for n in range(600)] + [("x", 1)]


class Gone(Count):
    """Kills its process at each row."""

    def process(self, row, ctx):
        os.kill(os.getpid(), signal.SIGKILL)
        yield ctx.key, 0


def test_a_chain_over_rows_that_can_be_read_once_does_not_start_again(config):
    rows = ({"user": user} for user in "ab")
    counts = keyed(rows, "user", uid="a", config=config).process(Count(), COUNTS)
    gone = keyed(counts, "user", uid="b", config=tasks(2, config)).process(Gone(), COUNTS)
    with pytest.raises(SubtaskFailedError, match="was killed by signal 9") as raised:
        gone.to_table()
    assert raised.value.operator == "b"


# -- the timeout --------------------------------------------------------------------------------------------


class Stuck(Count):
    """Counts, and is stuck at a row while a file exists."""

    def __init__(self, stuck: Path) -> None:
        self._stuck = stuck

    def process(self, row, ctx):
        while ctx.key == 7 and self._stuck.exists():
            time.sleep(0.01)
        yield from super().process(row, ctx)


def test_a_checkpoint_that_a_stuck_task_does_not_finish_in_time_ends_the_run(tmp_path, config):
    """CP-11: nothing of it is visible, and the next run continues from the checkpoint before."""
    users = [f"u{number % 3}" for number in range(90)]

    def rows() -> Iterator[pa.Table]:
        for start in range(0, 90, 3):
            yield events(users[start : start + 3])

    config["checkpoint.timeout"] = "3 s"
    stuck = tmp_path / "stuck"
    stuck.touch()

    def run() -> None:
        counts = keyed(Channels(list(rows())), "user", uid="a", config=tasks(2, config)).process(
            Count(), COUNTS
        )
        by_count = keyed(counts, "n", uid="b", config=tasks(2, config))
        by_count.process(Stuck(stuck), "n long, users long").write_parquet(tmp_path / "out")

    with pytest.raises(CheckpointTimeoutError, match=r"'b', these have not finished .*unaligned") as raised:
        run()
    assert (raised.value.parallelism, raised.value.timeout_ms) == (2, 3000)
    assert len(raised.value.subtasks) == 1
    assert raised.value.epoch >= 1
    assert not {row["n"] for row in pq.read_table(tmp_path / "out").to_pylist()} & {7}
    stuck.unlink()
    run()
    found = Counter(tuple(row.values()) for row in pq.read_table(tmp_path / "out").to_pylist())
    assert found == _users_by_count(users)
