"""Functions and rows that the tests of the local runner share."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any, ClassVar

import pyarrow as pa

from keyedstate.runtime import KeyedBroadcastProcessFunction, KeyedCoProcessFunction, KeyedProcessFunction
from keyedstate.state import BroadcastState, ListState, ValueState
from keyedstate.types import FLOAT64, INT64, STRING

COUNTS = "user string, n long"
MODES = ("exactly-once", "at-least-once", "unaligned")


class Count(KeyedProcessFunction):
    """Counts the rows of each key."""

    n = ValueState("n", INT64, default=0)

    def process(self, row, ctx):
        count = self.n.value() + 1
        self.n.update(count)
        yield ctx.key, count


class Silence(KeyedProcessFunction):
    """Reports a key that has had no row for a minute of event time."""

    last = ValueState("last", INT64)

    def process(self, row, ctx):
        last = self.last.value()
        if last is not None:
            ctx.timer_service.delete_event_time_timer(last + 60_000)
        self.last.update(ctx.timestamp)
        ctx.timer_service.register_event_time_timer(ctx.timestamp + 60_000)

    def on_timer(self, time, ctx):
        yield ctx.key, time


class Rated(KeyedBroadcastProcessFunction):
    """Multiplies an amount by the rate of its currency."""

    rates = BroadcastState("rates", STRING, FLOAT64)

    def process_broadcast(self, row, ctx):
        self.rates.put(row.currency, row.rate)

    def process(self, row, ctx):
        yield ctx.key, row.amount * (self.rates.get(row.currency) or 0.0)


class Matched(KeyedCoProcessFunction):
    """Yields the payments of an order together, whichever comes first."""

    order = ValueState("order", STRING)
    early = ListState("early", INT64)

    def process1(self, row, ctx):
        self.order.update(row.item)
        for amount in self.early.get():
            yield ctx.key, row.item, amount
        self.early.clear()

    def process2(self, row, ctx):
        item = self.order.value()
        if item is None:
            self.early.add(row.amount)
        else:
            yield ctx.key, item, row.amount


class Split(KeyedProcessFunction):
    """Puts odd numbers out to a side output."""

    side_outputs: ClassVar = {"odd": "user string, v long", "as it came": None}

    def process(self, row, ctx):
        if row.v % 2:
            ctx.output("odd", (ctx.key, row.v))
            ctx.output("as it came", tuple(row))
        else:
            yield ctx.key, row.v


class Channels:
    """A source with a channel for each list of batches."""

    def __init__(self, *channels: Sequence[pa.Table]) -> None:
        self._channels = channels
        self.schema = channels[0][0].schema

    def channels(self):
        return [_Channel(str(number), batches) for number, batches in enumerate(self._channels)]


class _Channel:
    def __init__(self, name: str, batches: Sequence[pa.Table]) -> None:
        self.name = name
        self._batches = batches
        self._next = 0

    def read(self):
        if self._next == len(self._batches):
            return None
        self._next += 1
        return self._batches[self._next - 1].combine_chunks().to_batches()[0]

    def offset(self):
        return self._next

    def seek(self, offset):
        self._next = offset


def minute(number: int) -> dt.datetime:
    """Return an instant so many minutes after a fixed one."""
    return dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc) + dt.timedelta(minutes=number)


def events(users: Sequence[str], minutes: Sequence[int] | None = None) -> pa.Table:
    """Return a table of rows of users, one a minute unless the minutes are given."""
    times = range(len(users)) if minutes is None else minutes
    return pa.table(
        {
            "user": pa.array(users, pa.string()),
            "v": pa.array(range(len(users)), pa.int64()),
            "ts": pa.array([minute(number) for number in times], pa.timestamp("us", "UTC")),
        }
    )


def plain(rows: Any) -> list[tuple[Any, ...]]:
    """Return rows as plain tuples, sorted: rows of different keys come in any order."""
    return sorted(tuple(row) for row in rows)


class Stamped(Count):
    """Counts the rows of each key, and keeps their event time."""

    def process(self, row, ctx):
        for user, n in super().process(row, ctx):
            yield user, n, row.ts


def tasks(number: int, config: dict[str, object] | None = None) -> dict[str, object]:
    return {**(config or {}), "parallelism": number}
