"""Windows on Spark: against Spark SQL's own windows, over restarts, with side outputs, and refusals."""

from __future__ import annotations

import datetime as dt

import pytest

from keyedstate import epoch_metrics, keyed, split, types, window_all
from keyedstate.aggregates import count, count_distinct, max_, max_by, sum_
from keyedstate.errors import (
    EventTimeError,
    GenericTypeForbiddenError,
    InvalidAggregateError,
    InvalidDurationError,
    InvalidWindowError,
    OutputSchemaError,
    QueryNotStoppedError,
    SideOutputError,
)
from keyedstate.savepoints import Savepoint
from keyedstate.state import AggregateFunction
from keyedstate.time import EventTime
from keyedstate.windows import Count, CountTrigger, Global, Session, Sliding, Tumbling
from keyedstate.windows.declaration.function import ProcessWindowFunction

UTC = dt.timezone.utc
SCHEMA = "k string, v long, ts timestamp"


def at(second):
    return dt.datetime(2024, 3, 1, tzinfo=UTC) + dt.timedelta(seconds=second)


def naive(second):
    """What `collect` makes of an instant in a session whose zone, and whose machine's, is UTC."""
    return at(second).replace(tzinfo=None)


def line(key, second, value=1):
    return {"k": key, "v": value, "ts": None if second is None else at(second).isoformat()}


@pytest.fixture
def stream(new_stream, tmp_path):
    return new_stream(tmp_path, SCHEMA)


ROWS = [line(f"key-{number % 5}", number * 53 % 1500, number) for number in range(120)]


@pytest.fixture
def frame(spark):
    rows = [(row["k"], row["v"], dt.datetime.fromisoformat(row["ts"])) for row in ROWS]
    return spark.createDataFrame(rows, SCHEMA)


def by_spark(frame, window):
    from pyspark.sql import functions as f

    made = frame.groupBy("k", window.alias("w")).agg(f.count("*"), f.sum("v"), f.max("v"))
    return sorted(tuple(row) for row in made.select("k", "w.start", "w.end", *made.columns[2:]).collect())


def session(gap):
    from pyspark.sql import functions as f

    return f.session_window("ts", gap)


class Largest(AggregateFunction):
    def create_accumulator(self):
        return -1

    def add(self, row, accumulator):
        return max(row.v, accumulator)

    def get_result(self, accumulator):
        return accumulator

    merge = staticmethod(max)


@pytest.mark.parametrize("kind", ["tumbling", "sliding", "session"])
def test_windows_of_a_batch_are_those_of_spark_sql(frame, one_backend, kind):
    from pyspark.sql import functions as f

    assigner, window = {
        "tumbling": (
            Tumbling.of("1 min", offset="10 s"),
            f.window("ts", "60 seconds", startTime="10 seconds"),
        ),
        "sliding": (Sliding.of("1 min", "20 s"), f.window("ts", "60 seconds", "20 seconds")),
        "session": (Session.with_gap("30 s"), session("30 seconds")),
    }[kind]
    rows = keyed(frame, "k", config={"backend": one_backend}, event_time=EventTime("ts", 0))
    windows = rows.window(assigner)
    out = windows.aggregate(n=count(), total=sum_("v"), most=max_("v"))
    assert out.columns == ["k", "window_start", "window_end", "n", "total", "most"]
    assert sorted(map(tuple, out.collect())) == by_spark(frame, window)


def test_sessions_with_fixed_and_dynamic_gaps_are_those_of_spark_sql(frame, one_backend):
    from pyspark.sql import functions as f

    rows = keyed(frame, "k", config={"backend": one_backend}, event_time=EventTime("ts", 0))
    # Spark 3.5 wants gaps whose type it knows before it knows the columns.
    third = f.col("v") % 3
    gaps = f.when(third == 0, "10500 milliseconds").when(third == 1, "19500 milliseconds")
    gaps = gaps.otherwise("28500 milliseconds")
    for assigner, gap in (
        (Session.with_gap("30 s"), "30 seconds"),
        (Session.with_dynamic_gap(lambda row: 10_500 + 9000 * (row.v % 3)), gaps),
    ):
        windows = rows.window(assigner)
        out = windows.aggregate_with(Largest(), types.INT64, "most long")
        expected = [(k, start, end, most) for k, start, end, _, _, most in by_spark(frame, session(gap))]
        assert sorted(map(tuple, out.collect())) == expected


def test_windows_without_an_end_are_groups_of_rows(frame, one_backend):
    """Global ones at the end of the input, those of a count, and those that a trigger fires on the way."""
    from pyspark.sql import functions as f

    config = {"backend": one_backend}
    rows = keyed(frame.withColumn("v", f.lit(3)), "k", config=config, event_time=EventTime("ts", 0))
    aggregates = {"n": count(), "total": sum_("v")}
    groups = frame.groupBy("k").agg(f.count("*"), f.sum(f.lit(3)))
    all_rows = sorted(map(tuple, groups.collect()))
    whole = rows.window(Global.at_end_of_stream()).aggregate(aggregates)
    assert sorted(map(tuple, whole.collect())) == all_rows
    for window, fired in (
        (rows.window(Count.of(7)), lambda n: [7] * (n // 7)),
        (rows.window(Count.of(7, 5)), lambda n: [min(7, row) for row in range(5, n + 1, 5)]),
        (rows.window(Global.of()).trigger(CountTrigger.of(7)), lambda n: range(7, n + 1, 7)),
    ):
        expected = [(k, size, 3 * size) for k, n, _ in all_rows for size in fired(n)]
        assert sorted(map(tuple, window.aggregate(aggregates).collect())) == sorted(expected)


@pytest.mark.parametrize("by", ["rows", "columns"])
def test_a_stream_of_windows_continues_over_a_restart_and_fires_each_window_once(stream, one_backend, by):
    def windows():
        config = {"backend": one_backend, "checkpoint.dir": str(stream.state)}
        event_time = EventTime("ts", delay="10 s")
        made = keyed(stream.frame(), "k", uid="minutes", config=config, event_time=event_time)
        minutes = made.window(Tumbling.of("1 min"))
        if by == "columns":
            return minutes.aggregate(v=sum_("v"))
        return minutes.reduce(lambda a, b: a._replace(v=a.v + b.v)).drop("ts")

    stream.add([line("a", 5), line("a", 30, 2), line("b", 59)])
    stream.run(windows())
    assert stream.all_rows() == []
    stream.add([line("a", 61, 5)])
    # A row that is late, and not too late: the watermark is that of the epoch before.
    stream.add([line("b", 58, 7), line("a", 71)])
    stream.run(windows())
    stream.add([line("a", 300)])
    stream.add([line("c", 20)])
    stream.add([line("a", 301)])
    stream.run(windows())
    assert sorted(stream.all_rows()) == [
        ("a", naive(0), naive(60), 3),
        ("a", naive(60), naive(120), 6),
        ("b", naive(0), naive(60), 8),
    ]


def test_sessions_of_a_stream_wait_for_the_input_that_is_behind(stream, one_backend, tmp_path):
    """WM-03; late rows are in the metrics of their epoch, and without a heartbeat there is no drain."""

    def sessions():
        config = {"backend": one_backend, "checkpoint.dir": str(stream.state), "parallelism": 2}
        event_time = EventTime("ts", delay=0, inputs="k", idle="1 day")
        made = keyed(stream.frame(), "k", uid="sessions", config=config, event_time=event_time)
        windows = made.window(Session.with_gap("30 s"))
        return windows.aggregate(n=count(), total=sum_("v"))

    stream.add([line("a", 0), line("a", 20, 2), line("b", 10)])
    stream.add([line("a", 100)])
    stream.add([line("a", 45, 5), line("a", 101)])
    stream.run(sessions())
    assert stream.all_rows() == [], "b is at 10"
    stream.add([line("b", 90)])
    stream.add([line("a", 102), line("b", 1)])
    query = stream.start(sessions())
    query.awaitTermination()
    stream.settle()
    assert sorted(stream.all_rows()) == [
        ("a", naive(0), naive(75), 3, 8),
        ("b", naive(10), naive(40), 1, 1),
    ]
    assert [metrics.rows_dropped for metrics in epoch_metrics(query)[-2:]] == [{}, {"late": 1}]

    sink = sessions().writeStream.foreachBatch(lambda batch, epoch: batch.count())
    running = sink.option("checkpointLocation", str(stream.spark_checkpoint)).start()
    try:
        with pytest.raises(QueryNotStoppedError, match=r"2 event-time timers of the operator 'sessions'"):
            Savepoint.stop(running, tmp_path / "drained", drain=True)
        assert running.isActive
        assert not Savepoint.stop(running, tmp_path / "stopped").savepoint.drained
    finally:
        running.stop()
        stream.settle()


class Busy(ProcessWindowFunction):
    def process(self, elements, ctx):
        if len(elements) > 1:
            ctx.output("busy", (ctx.key,))
        yield ctx.key, ctx.window.start // 1000, sum(row.v for row in elements)


@pytest.mark.long
def test_outputs_are_split_in_foreach_batch_and_the_state_runs_once(stream, one_backend):
    config = {"backend": one_backend, "checkpoint.dir": str(stream.state)}
    out = (
        keyed(stream.frame(), "k", uid="split", config=config, event_time=EventTime("ts", 0))
        .window(Tumbling.of("1 min"), missing="side output")
        .side_output("busy", "k string")
        .side_output_late_data()
        .process(Busy(), "k string, start long, total long")
    )
    assert out.columns == ["output", "main", "missing", "busy", "late"]
    seen = {"main": [], "missing": [], "busy": [], "late": []}

    def sink(batch, epoch):
        with split(batch) as outputs:
            assert set(outputs) == set(seen) and len(outputs) == 4
            for name, rows in outputs.items():
                seen[name] += [tuple(row) for row in rows.collect()]

    start = int(at(0).timestamp())
    stream.add([line("a", 5, 10), line("a", 6, 20), line("b", None), line("b", 7, 1)])
    stream.add([line("a", 100)])
    stream.add([line("b", 8)])
    stream.add([line("a", 300)])
    stream.add([line("a", 301)])
    stream.start(out, sink).processAllAvailable()
    for query in stream.spark.streams.active:
        query.stop()
    assert sorted(seen["main"]) == [("a", start, 30), ("a", start + 60, 1), ("b", start, 1)]
    assert seen["missing"] == [("b", 1, None)]
    assert seen["busy"] == [("a",)]
    assert seen["late"] == [("b", 1, naive(8))]
    with pytest.raises(SideOutputError, match="foreachBatch"):
        split(out)


class Anything(AggregateFunction):
    def create_accumulator(self):
        return 0

    add = get_result = None


def test_what_cannot_be_is_refused_when_the_frame_is_built(frame):
    with pytest.raises(InvalidWindowError, match="by their event time, and they have none"):
        keyed(frame, "k").window(Tumbling.of("1 min"))
    with pytest.raises(EventTimeError, match="no delay is given"):
        keyed(frame, "k", event_time=EventTime("ts"))
    with pytest.raises(EventTimeError):
        keyed(frame, "k", event_time=EventTime("when", 0))
    with pytest.raises(InvalidDurationError):
        EventTime("ts", delay="soon")
    windows = keyed(frame, "k", event_time=EventTime("ts", 0)).window(Tumbling.of("1 min"))
    with pytest.raises(InvalidAggregateError, match="no column 'w'"):
        windows.aggregate(total=sum_("w"))
    with pytest.raises(OutputSchemaError, match="NoneType"):
        windows.process(Busy())
    renamed = frame.withColumnRenamed("v", "window_start")
    with pytest.raises(OutputSchemaError, match="two columns are named 'window_start'"):
        keyed(renamed, "k", event_time=EventTime("ts", 0)).window(Tumbling.of("1 min")).reduce(max)
    with pytest.raises(GenericTypeForbiddenError, match="window-contents"):
        keyed(frame, "k", config={"types.generic": "forbid"}).window(Count.of(2)).aggregate_with(
            Anything(), types.pickled(), "n long"
        )
    with pytest.raises(SideOutputError, match="no side outputs"):
        split(frame)
    assert keyed(frame, "k").window(Count.of(2)).aggregate(n=count()).columns == ["k", "n"]


def test_windows_of_all_rows_are_those_of_one_key(spark, stream, frame, one_backend):
    from pyspark.sql import functions as f

    def totals(rows, **options):
        config = {"backend": one_backend, "checkpoint.dir": str(stream.state)}
        time = EventTime("TS", delay=0)
        windows = window_all(rows, Tumbling.of("5 minutes"), config=config, event_time=time, **options)
        return windows.aggregate(
            n=count(), total=sum_("v"), keys=count_distinct("k"), best=max_by("k", by="v")
        )

    window = f.window("ts", "5 minutes")
    wanted = (f.count("*"), f.sum("v"), f.countDistinct("k"), f.max_by("k", "v"))
    found = frame.groupBy(window).agg(*wanted).collect()
    expected = sorted((*row[0], *row[1:]) for row in found)
    assert totals(frame).columns == ["window_start", "window_end", "n", "total", "keys", "best"]
    assert sorted(map(tuple, totals(frame.repartition(3)).collect())) == expected
    in_order = sorted(ROWS, key=lambda row: row["ts"])
    stream.add(in_order[:70])
    stream.run(totals(stream.frame(), uid="all"))
    stream.add([*in_order[70:], line("later", 10_000)])
    stream.add([line("later", 10_001)])
    stream.run(totals(stream.frame(), uid="all"))
    assert sorted(map(tuple, stream.all_rows())) == expected


def test_windows_of_all_rows_refuse_what_they_cannot_do(frame):
    time = EventTime("ts", delay=0)
    with pytest.raises(InvalidWindowError, match="keyed"):
        window_all(frame, Session.with_gap("1 hour"), event_time=time)
    with pytest.raises(InvalidWindowError, match="missing='side output'"):
        window_all(frame, Tumbling.of("1 hour"), event_time=time, missing="side output")
    with pytest.raises(InvalidWindowError, match="event_time=EventTime"):
        window_all(frame, Tumbling.of("1 hour"))
    windows = window_all(frame, Tumbling.of("1 hour"), event_time=time)
    with pytest.raises(InvalidAggregateError, match="window_end"):
        windows.aggregate(window_end=count())
    with pytest.raises(InvalidAggregateError, match="no column 'w'"):
        windows.aggregate(n=count("w"))
