"""Joins on Spark: batches against Spark's own joins, streams over failures and restarts, refusals."""

from __future__ import annotations

import datetime as dt
from collections import Counter

import pytest
from pyspark.sql import functions as f

from keyedstate import connect, keyed
from keyedstate.errors import InvalidJoinError, UnboundedStateWarning
from keyedstate.joins import CoGroupFunction
from keyedstate.state import Ttl, TtlClock
from keyedstate.time import EventTime
from keyedstate.windows import Tumbling

ORDERS = "order long, who string, at timestamp"
PAYMENTS = "order_id long, who string, paid timestamp"
DAY = Ttl.of("1 hour", clock=TtlClock.EVENT_TIME)


def minute(number):
    return f"2026-07-01T{12 + number // 60:02}:{number % 60:02}:00Z"


def order(number, who, time):
    return {"order": number, "who": who, "at": minute(time)}


def payment(number, who, time):
    return {"order_id": number, "who": who, "paid": minute(time)}


@pytest.fixture
def streams(new_stream, tmp_path):
    made = []
    for name, schema in (("orders", ORDERS), ("payments", PAYMENTS)):
        (tmp_path / name).mkdir()
        made.append(new_stream(tmp_path / name, schema))
    return made


def joined(frames, how, uid=None, ttl=None, **config):
    sides = [
        keyed(frame, key, event_time=EventTime(time, 0))
        for frame, key, time in zip(frames, ("order", "order_id"), ("at", "paid"), strict=True)
    ]
    return connect(*sides, uid=uid, config=config).join(how, ttl=ttl)


def test_batches_are_joined_as_spark_joins_them(streams, backend_name):
    """Null keys match nothing; the columns are those of Spark's join."""
    streams[0].add(order(n % 7 or None, f"buyer {n}", n) for n in range(20))
    streams[1].add(payment(n % 11 or None, f"payer {n}", n) for n in range(3, 20))
    orders, payments = (stream.batch() for stream in streams)
    for how, theirs in (("full", "full_outer"), ("anti", "left_anti")):
        made = joined((orders, payments), how, backend=backend_name)
        expected = orders.join(payments.withColumnRenamed("order_id", "order"), "order", theirs)
        assert Counter(map(tuple, made.collect())) == Counter(map(tuple, expected.collect()))
    assert made.schema == orders.schema
    names = ["order", "left_who", "at", "right_who", "paid"]
    assert joined((orders, payments), "right").columns == names


def test_an_outer_join_of_streams_goes_on_after_a_failure_on_another_backend(streams):
    orders, payments = streams
    orders.add([order(1, "ann", 0), order(2, "bob", 1), order(None, "eve", 2)])
    payments.add([payment(1, "ann", 3), payment(9, "cid", 4)])
    orders.add([order(3, "dan", 100)])
    payments.add([payment(2, "bob", 30), payment(3, "dan", 101)])
    orders.add([order(4, "fay", 102)])
    payments.add([payment(4, "fay", 103), payment(1, "late", 1)])
    orders.add([order(5, "gus", 104)])
    payments.add([payment(5, "gus", 104)])

    def out(backend, **more):
        config = {"backend": backend, "checkpoint.dir": str(orders.state), **more}
        return joined([stream.frame() for stream in streams], "full", "orders", DAY, **config)

    def failing(batch, epoch):
        if epoch == 2:
            raise RuntimeError("the sink is down")
        orders.rows[epoch] = [tuple(row) for row in batch.collect()]

    assert "the sink is down" in orders.failure(out("heap-cow", parallelism=2), failing)
    orders.run(out("nested-map", parallelism=3, host="embedded"))
    found = {
        epoch: sorted(map(repr, (row[:2] + row[3:4] for row in rows))) for epoch, rows in orders.rows.items()
    }
    assert found[0] == ["(1, 'ann', 'ann')", "(None, 'eve', None)"]
    assert found[1] == ["(2, 'bob', 'bob')", "(3, 'dan', 'dan')"]
    assert found[2] == ["(4, 'fay', 'fay')", "(9, None, 'cid')"], "and a payment is late"
    assert found[3] == ["(5, 'gus', 'gus')"]


class Sizes(CoGroupFunction):
    def process(self, left, right, ctx):
        return [(ctx.key, ctx.window.start // 3_600_000 % 24, len(left), len(right))]


def test_the_rows_of_a_window_are_joined_as_spark_joins_them(streams, one_backend):
    streams[0].add(order(n % 5 or None, f"buyer {n}", 7 * n) for n in range(20))
    streams[1].add(payment(n % 4 or None, f"payer {n}", 11 * n) for n in range(12))
    frames = [stream.batch() for stream in streams]
    sides = [
        keyed(frame, key, event_time=EventTime(time, 0))
        for frame, key, time in zip(frames, ("order", "order_id"), ("at", "paid"), strict=True)
    ]
    windows = connect(*sides, config={"backend": one_backend}).window(Tumbling.of("1 hour"))
    made = windows.join("left")
    names = ["order", "window_start", "window_end", "left_who", "at", "right_who", "paid"]
    assert made.columns == names
    hours = [f.window(time, "1 hour").alias("hour") for time in ("at", "paid")]
    ours, theirs = (frame.select("*", hour) for frame, hour in zip(frames, hours, strict=True))
    pairs = ours.join(theirs.withColumnRenamed("order_id", "order"), ["order", "hour"], "left")
    expected = pairs.select("order", "hour.start", "hour.end", ours["who"], "at", theirs["who"], "paid")
    assert Counter(map(tuple, made.collect())) == Counter(map(tuple, expected.collect()))
    sizes = windows.cogroup(Sizes(), "order long, hour int, of_left int, of_right int").collect()
    assert sum(row.of_left for row in sizes) == 20 and sum(row.of_right for row in sizes) == 12
    assert len(sizes) == len({(row.order, row.hour) for row in sizes})


def test_a_row_meets_the_version_of_its_time_as_in_sql(streams, one_backend):
    """Over two epochs of a stream: versions come after the rows that need them."""
    orders, prices = streams
    orders.add([order(1, "ann", 10), order(1, "bob", 30), order(2, "cid", 5)])
    prices.add([payment(1, "cheap", 0), payment(1, "dear", 20)])
    orders.add([order(3, "dan", 100), order(None, "eve", 100)])
    prices.add([payment(1, "late", 15), payment(3, "new", 120)])
    sides = [
        keyed(stream.frame(), key, event_time=EventTime(time, 0))
        for stream, key, time in zip(streams, ("order", "order_id"), ("at", "paid"), strict=True)
    ]
    config = {"backend": one_backend, "checkpoint.dir": str(orders.state)}
    orders.add([order(3, "fay", 101)])
    prices.add([payment(9, "other", 121)])
    orders.run(connect(*sides, uid="prices", config=config).versioned_join("left"))
    found = {
        epoch: sorted(f"{who} {price}" for _, who, _, price, _ in rows) for epoch, rows in orders.rows.items()
    }
    assert found == {0: [], 1: ["ann cheap", "cid None", "eve None"], 2: ["bob dear"]}


def test_what_cannot_be_joined_is_refused_when_the_frame_is_built(spark, streams, one_backend):
    frames = [stream.frame() for stream in streams]
    with pytest.raises(InvalidJoinError, match="never comes in a stream"):
        joined(frames, "left", "orders")
    with pytest.warns(UnboundedStateWarning, match="keeps every row for ever"):
        joined(frames, "semi", "orders", **{"backend": one_backend, "checkpoint.dir": str(streams[0].state)})
    moment = dt.datetime(2026, 7, 1)
    rows = spark.createDataFrame([("a", 1, moment)], "k string, left_V long, ts timestamp")
    other = spark.createDataFrame([("a", 1, moment)], "k string, V long, ts timestamp")
    with pytest.raises(InvalidJoinError, match="the column 'left_v' cannot be used: two columns"):
        connect(keyed(rows.withColumn("v", rows["left_V"]), "k"), keyed(other, "k")).join()
    with pytest.raises(InvalidJoinError, match="it is in event time"):
        connect(keyed(rows, "k"), keyed(other, "k")).join(ttl=DAY)
