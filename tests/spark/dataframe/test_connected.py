"""Two connected inputs on Spark: batch and stream, watermarks of both, restarts, killed tasks, refusals."""

from __future__ import annotations

import datetime as dt
import json
import os

import pytest
from pyspark.sql import functions as f

from keyedstate import connect, epoch_metrics, keyed, types
from keyedstate.durations import Duration
from keyedstate.errors import (
    ConnectedFramesError,
    EventTimeError,
    InvalidFunctionError,
    MissingUidError,
)
from keyedstate.runtime import KeyedCoProcessFunction, KeyedProcessFunction
from keyedstate.savepoints import Savepoint
from keyedstate.state import ListState, ValueState
from keyedstate.time import EventTime

UTC = dt.timezone.utc
ORDERS = "k string, v long, ts timestamp"
PAYMENTS = "at timestamp, amount double, `order.id` string"
OUTPUT = "k string, what string, v long"


def at(second):
    return dt.datetime(2024, 3, 1, tzinfo=UTC) + dt.timedelta(seconds=second)


def order(key, second, value=1):
    return {"k": key, "v": value, "ts": at(second).isoformat()}


def payment(key, second, amount=1.0):
    return {"at": at(second).isoformat(), "amount": amount, "order.id": key}


class Settled(KeyedCoProcessFunction):
    """Says which orders were paid, whichever row came first, and which were not within a minute."""

    value = ValueState("value", types.INT64)
    paid = ValueState("paid", types.FLOAT64)

    def process1(self, row, ctx):
        if self.paid.value() is None:
            self.value.update(row.v)
            ctx.timer_service.register_event_time_timer(ctx.timestamp + 60_000)
        else:
            yield ctx.key, f"paid {self.paid.value()}", row.v
            self.paid.clear()

    def process2(self, row, ctx):
        assert row._fields[:2] == ("at", "amount") and row[2] == ctx.key
        if self.value.value() is None:
            self.paid.update(row.amount)
        else:
            yield ctx.key, f"paid {row.amount}", self.value.value()
            self.value.clear()

    def on_timer(self, time, ctx):
        if self.value.value() is not None:
            yield ctx.key, "unpaid", self.value.value()
            self.value.clear()


@pytest.fixture
def streams(new_stream, tmp_path):
    made = []
    for name, schema in (("orders", ORDERS), ("payments", PAYMENTS)):
        (tmp_path / name).mkdir()
        made.append(new_stream(tmp_path / name, schema))
    return made


def settled(streams, backend, *, function=None, idle: Duration | None = None, parallelism=2, **settings):
    config = {"backend": backend, "parallelism": parallelism, "checkpoint.dir": str(streams[0].state)}
    rows = [stream.frame() for stream in streams]
    both = connect(
        keyed(rows[0], "k", event_time=EventTime("ts", 0, idle=idle)),
        keyed(rows[1], "order.id", event_time=EventTime("at", 0, idle=idle)),
        uid="settled",
        config={**config, **settings},
    )
    return both.process(function or Settled(), OUTPUT)


def test_two_batches_are_processed_with_one_state_of_each_key(spark, one_backend):
    orders = spark.createDataFrame([(f"o-{n}", n, at(n)) for n in range(60)], ORDERS)
    payments = spark.createDataFrame([(at(n), n / 2, f"o-{n}") for n in range(0, 90, 3)], PAYMENTS)
    both = connect(
        keyed(orders, "K", event_time=EventTime("ts", 0)),
        keyed(payments, "order.id", event_time=EventTime("at", "1 minute")),
        config={"backend": one_backend},
    )
    out = both.process(Settled(), OUTPUT)
    assert out.columns == ["k", "what", "v"]
    assert sorted(map(tuple, out.collect())) == sorted(
        (f"o-{n}", f"paid {n / 2}" if n % 3 == 0 else "unpaid", n) for n in range(60)
    )
    config = {"backend": one_backend, "parallelism": 1}
    for first, second, expected in ((orders, payments.limit(0), 60), (orders.limit(0), payments, 0)):
        both = connect(
            keyed(first, "k", event_time=EventTime("ts", 0)),
            keyed(second, "order.id", event_time=EventTime("at", 0)),
            config=config,
        )
        rows = both.process(Settled(), OUTPUT).collect()
        assert [row.what for row in rows] == ["unpaid"] * expected


def test_three_batches_share_the_state_of_a_key_and_are_joined(spark):
    frames = [
        keyed(spark.createDataFrame([("a", n), ("b", n + 10)], f"{key} string, n{n} int"), key)
        for n, key in enumerate(("k", "other", "k"))
    ]

    class Sum(KeyedCoProcessFunction):
        total = ValueState("total", types.INT64, default=0)

        def process1(self, row, ctx):
            return self._add(row.n0, ctx)

        def process2(self, row, ctx):
            return self._add(row.n1, ctx)

        def process3(self, row, ctx):
            return self._add(row.n2, ctx)

        def _add(self, n, ctx):
            self.total.update(self.total.value() + n)
            return [(ctx.key, self.total.value())]

    out = connect(*frames).process(Sum(), "k string, n long").groupBy("k").agg({"n": "max", "*": "count"})
    assert sorted(map(tuple, out.select("k", "max(n)", "count(1)").collect())) == [("a", 3, 3), ("b", 33, 3)]
    joined = connect(*frames).join()
    assert joined.columns == ["k", "n0", "n1", "n2"]
    assert sorted(map(tuple, joined.collect())) == [("a", 0, 1, 2), ("b", 10, 11, 12)]


@pytest.mark.long
def test_streams_of_two_sources_continue_over_restarts_with_the_slower_watermark(streams, one_backend):
    """WM-01, WM-03."""
    orders, payments = streams
    orders.add([order("a", 0), order("b", 10, 2), order("c", 20, 3)])
    payments.add([payment("x", 0)])
    orders.run(settled(streams, one_backend))
    # The orders' time advances far; the payments' does not.
    orders.add([order("d", 500, 4)])
    orders.run(settled(streams, "nested-map", host="embedded"))
    orders.add([order("e", 600, 5)])
    payments.add([payment("b", 30, 2.5)])
    orders.run(settled(streams, one_backend, parallelism=3))
    assert sorted(orders.all_rows()) == [("b", "paid 2.5", 2)]
    payments.add([payment("x", 70)])
    payments.add([payment("c", 75, 3.5)])
    orders.run(settled(streams, one_backend, parallelism=3))
    assert {epoch: sorted(rows) for epoch, rows in orders.rows.items() if rows} == {
        2: [("b", "paid 2.5", 2)],
        4: [("a", "unpaid", 1), ("c", "paid 3.5", 3)],
    }
    query_id = json.loads((orders.spark_checkpoint / "metadata").read_text())["id"]
    rows_by_input = [each.rows_by_input for each in epoch_metrics(query_id)]
    assert [(rows["1"], rows["2"]) for rows in rows_by_input] == [(3, 1), (1, 0), (1, 1), (0, 1), (0, 1)]


def test_an_idle_input_does_not_hold_timers_back(streams, one_backend):
    """WM-02, WM-03."""
    orders, _ = streams
    orders.add([order("a", 0)])
    orders.run(settled(streams, one_backend, idle="1 ms"))
    for number in range(1, 4):
        orders.add([order(f"b-{number}", 100 * number, 2)])
    # The time between two runs is none in which an input is idle: the first epoch of this run knows of none,
    # the second one judges by the first.
    orders.run(settled(streams, one_backend, idle="1 ms"))
    assert {epoch: sorted(rows) for epoch, rows in orders.rows.items() if rows} == {
        3: [("a", "unpaid", 1), ("b-1", "unpaid", 2)]
    }


@pytest.mark.long
def test_an_epoch_that_runs_again_and_a_killed_task_change_nothing(streams, one_backend, tmp_path):
    orders, payments = streams
    flag = tmp_path / "killed"

    class Fragile(Settled):
        def process2(self, row, ctx):
            if row.amount == 13.0 and not flag.exists():
                flag.touch()
                os._exit(1)
            return Settled.process2(self, row, ctx)

    def fragile():
        return settled(streams, one_backend, function=Fragile(), host="embedded")

    orders.add([order("a", 0), order("b", 0, 2)])
    payments.add([payment("a", 1, 1.5), payment("z", 1)])
    orders.run(fragile())
    orders.add([order("b2", 1)])
    payments.add([payment("b", 2, 13.0)])
    orders.failure(fragile())
    assert flag.exists()
    orders.run(fragile())
    assert sorted(orders.all_rows()) == [("a", "paid 1.5", 1), ("b", "paid 13.0", 2)]


class Both(KeyedCoProcessFunction):
    """Keeps what came of each input."""

    first = ListState("first", types.INT64)
    second = ListState("second", types.INT64)

    def process1(self, row, ctx):
        self.first.add(row.v)
        yield ctx.key, sum(self.first.get()), sum(self.second.get())

    def process2(self, row, ctx):
        self.second.add(row.v)
        yield ctx.key, sum(self.first.get()), sum(self.second.get())


@pytest.mark.long
def test_a_stream_may_be_connected_with_itself(new_stream, tmp_path, one_backend):
    stream = new_stream(tmp_path, "k string, v long, other string")
    stream.add([{"k": "a", "v": 1, "other": "b"}, {"k": "b", "v": 2, "other": "b"}])
    stream.add([{"k": "b", "v": 4, "other": "a"}, {"k": None, "v": 8, "other": None}])
    config = {"backend": one_backend, "checkpoint.dir": str(stream.state)}
    rows = stream.frame()
    # The heartbeat is one more source of the union.
    self_connected = connect(
        keyed(rows, "k"), keyed(rows, "other"), uid="self", config=config, heartbeat="1 hour"
    )
    stream.run(self_connected.process(Both(), "k string, one long, two long"))
    most = {}
    for key, one, two in stream.all_rows():
        most[key] = max(most.get(key, (0, 0)), (one, two))
    assert most == {"a": (1, 4), "b": (6, 3), None: (8, 8)}
    same = keyed(stream.batch(), "k")
    rows = connect(same, same, config={"backend": one_backend}).process(
        Both(), "k string, one long, two long"
    )
    assert max((row.one, row.two) for row in rows.collect() if row.k == "b") == (6, 6)


def test_state_of_two_batches_bootstraps_a_query(streams, one_backend, tmp_path):
    orders, payments = streams
    past = [
        orders.spark.createDataFrame([("a", 1, at(0)), ("b", 2, at(5))], ORDERS),
        orders.spark.createDataFrame([(at(2), 9.5, "a"), (at(300), 4.5, "c")], PAYMENTS),
    ]
    config = {"backend": one_backend, "parallelism": 2}
    both = connect(
        keyed(past[0], "k", event_time=EventTime("ts", 0)),
        keyed(past[1], "order.id", event_time=EventTime("at", 0)),
        uid="settled",
        config=config,
    )
    made = Savepoint.new().add(both, Settled()).write(tmp_path / "savepoint")
    assert made.operators == ("settled",)
    orders.add([order("c", 66, 3), order("d", 67)])
    orders.run(settled(streams, one_backend, **{"restore.savepoint": str(tmp_path / "savepoint")}))
    # What the savepoint knows of both inputs: the orders of the past are behind, and fire nothing.
    assert sorted(orders.all_rows()) == [("c", "paid 4.5", 3)]
    payments.add([payment("b", 301, 2.0)])
    orders.run(settled(streams, one_backend))
    assert sorted(orders.all_rows()) == [("b", "unpaid", 2), ("c", "paid 4.5", 3)]


class OneInput(KeyedProcessFunction):
    def process(self, row, ctx):
        yield from ()


def test_what_cannot_be_is_refused_when_the_frame_is_built(streams, spark, one_backend):
    a, b = (keyed(stream.frame(), key) for stream, key in zip(streams, ("k", "order.id"), strict=True))
    batch = keyed(spark.createDataFrame([("a", 1)], "k string, v long"), "k")
    numbers = spark.createDataFrame([(1, "a")], "k long, j string")
    with pytest.raises(ConnectedFramesError, match="the second one is DataFrame and no keyed"):
        connect(a, streams[1].frame())
    with pytest.raises(ConnectedFramesError, match="one is streaming and another one is not"):
        connect(a, batch)
    with pytest.raises(ConnectedFramesError, match=r"type string and 'k' of the second one bigint.*cast"):
        connect(batch, keyed(numbers, "k"))
    with pytest.raises(ConnectedFramesError, match="has 1 columns, that of the second one 2"):
        connect(batch, keyed(numbers, "j", "k"))
    with pytest.raises(
        ConnectedFramesError, match=r"the first one has a uid of its own; give it to connect\(\)"
    ):
        connect(keyed(numbers, "j", uid="x"), batch)
    with pytest.raises(ConnectedFramesError, match=r"the second one has options of its own"):
        connect(batch, keyed(numbers, "j", config={}))
    with pytest.raises(ConnectedFramesError, match=r"a broadcast DataFrame of its own; leave it out"):
        connect(batch, keyed(numbers, "j").broadcast(numbers))
    with pytest.raises(MissingUidError, match=r"connect\(a, b, uid="):
        connect(a, b).process(Settled(), OUTPUT)
    frames = [stream.frame() for stream in streams]
    timed = keyed(frames[0], "k", event_time=EventTime("ts", 0))
    with pytest.raises(EventTimeError, match="the second of the connected inputs has none"):
        connect(timed, b)
    with pytest.raises(EventTimeError, match="the first of the connected inputs has none"):
        connect(b, timed)
    with pytest.raises(EventTimeError, match="several DataFrames are connected; leave inputs= out"):
        connect(keyed(frames[0], "k", event_time=EventTime("ts", 0, inputs="k")), timed)
    for event_time, message in (
        (EventTime("ts", 0), "'ts': the DataFrame has 0 columns"),
        (EventTime("at"), "no delay is given"),
        ("at", r"it is 'at'; give EventTime\('ts', delay="),
    ):
        with pytest.raises(EventTimeError, match=message):
            keyed(frames[1], "order.id", event_time=event_time)
    both = connect(a, b, uid="settled")
    with pytest.raises(InvalidFunctionError, match="has one input and there are 2"):
        both.process(OneInput(), OUTPUT)
    with pytest.raises(InvalidFunctionError, match=r"connect\(keyed\(...\), keyed\(...\)\)"):
        batch.process(Settled(), OUTPUT)
    odd = spark.range(1).select(f.col("id").cast("string").alias("k"), f.expr("interval 1 month").alias("i"))
    with pytest.raises(ConnectedFramesError, match=r"in the second one, the column 'i' has the type"):
        connect(batch, keyed(odd, "k")).process(Settled(), OUTPUT)
