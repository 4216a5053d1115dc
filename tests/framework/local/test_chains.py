"""Chains of operators of which each has its own tasks: results."""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.framework.local.functions import (
    COUNTS,
    MODES,
    Channels,
    Count,
    Matched,
    Rated,
    Split,
    Stamped,
    events,
    minute,
    plain,
    tasks,
)

from keyedstate.aggregates import count
from keyedstate.local import connect, keyed
from keyedstate.runtime import (
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
)
from keyedstate.time import EventTime
from keyedstate.windows import Tumbling


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in (2, 3))])
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
@pytest.mark.slow
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
@pytest.mark.slow
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
@pytest.mark.slow
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
