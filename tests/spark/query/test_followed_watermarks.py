"""A chain of operators on Spark: the watermark of the first reaches the others in the same micro-batch."""

from __future__ import annotations

import datetime as dt
import importlib.util
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

import keyedstate as ks
from keyedstate.aggregates import count, max_
from keyedstate.errors import EventTimeError
from keyedstate.windows import Tumbling

HOUR = "1 hour"
HAS_END = importlib.util.find_spec("pyspark.sql.streaming.datasource") is not None


def row(key: str, hour: int, minute: int = 10) -> dict[str, str]:
    return {"k": key, "t": f"1970-01-01T{hour:02}:{minute:02}:00Z"}


def at(hour: int) -> dt.datetime:
    return dt.datetime(1970, 1, 1, hour)


def hourly(rows: DataFrame, config: dict[str, Any], **given: Any) -> DataFrame:
    """Count the rows of each key and hour; `at` is the last millisecond of the hour."""
    time = ks.EventTime("t", delay=0)
    keyed = ks.keyed(rows, "k", uid="hourly", config=config, event_time=time, **given)
    hours = keyed.window(Tumbling.of(HOUR)).aggregate(n=count())
    return hours.withColumn("at", f.col("window_end") - f.expr("INTERVAL 1 MILLISECOND"))


def largest(hours: DataFrame, config: dict[str, Any], **given: Any) -> DataFrame:
    """Return the largest count of each hour, from an operator that follows the hourly one."""
    rows = hours.select(f.lit("all").alias("all"), "at", "n")
    time = ks.EventTime("at", follows="hourly")
    keyed = ks.keyed(rows, "all", uid="largest", config=config, event_time=time, **given)
    return keyed.window(Tumbling.of(HOUR)).aggregate(most=max_("n"))


def test_a_window_over_windows_fires_in_the_micro_batch_of_these_and_over_a_restart(
    new_stream: Any, tmp_path: Path, one_backend: str
) -> None:
    stream = new_stream(tmp_path, "k string, t timestamp")
    config = {"checkpoint.dir": str(stream.state), "parallelism": 1, "backend": one_backend}

    def chain(rows: DataFrame) -> DataFrame:
        return largest(hourly(rows, config), config).select("window_start", "most")

    stream.add([row("a", 0), row("a", 0), row("b", 0)])
    stream.add([row("a", 1), row("b", 1)])
    stream.add([row("a", 2)])
    stream.run(chain(stream.frame()))
    # The watermark of the micro-batch 2 is that of the rows of 1: both operators fire the first hour.
    assert stream.rows == {0: [], 1: [], 2: [(at(0), 2)]}
    stream.add([row("a", 3), row("c", 3), row("c", 3, 20), row("c", 3, 30)])
    stream.add([row("a", 9)])
    stream.run(chain(stream.frame()))
    assert stream.rows == {0: [], 1: [], 2: [(at(0), 2)], 3: [(at(1), 1)], 4: [(at(2), 1)]}
    batch = sorted(tuple(each) for each in chain(stream.batch()).collect())
    assert batch == [*stream.all_rows(), (at(3), 3), (at(9), 1)]


@pytest.mark.long
def test_a_join_of_two_windows_that_it_follows_fires_with_them(
    new_stream: Any, tmp_path: Path, one_backend: str
) -> None:
    class Winners(ks.KeyedCoProcessFunction):
        """Tells at the end of an hour which keys have its largest count."""

        counts = ks.ListState("counts", ks.types.STRING)
        most = ks.ValueState("most", ks.types.INT64)

        def process1(self, row: Any, ctx: ks.Context) -> None:
            self.counts.add(f"{row.n} {row.k}")
            ctx.timer_service.register_event_time_timer(ctx.timestamp)

        def process2(self, row: Any, ctx: ks.Context) -> None:
            self.most.update(row.most)

        def on_timer(self, time: int, ctx: Any) -> Any:
            found = [name.split() for name in self.counts.get()]
            yield ctx.key, sorted(key for n, key in found if int(n) == self.most.value())

    stream = new_stream(tmp_path, "k string, t timestamp")
    config = {"checkpoint.dir": str(stream.state), "parallelism": 1, "backend": one_backend}
    end = {"end": "fire"} if HAS_END else {}

    def joined(rows: DataFrame) -> DataFrame:
        hours = hourly(rows, config, **end)
        most = largest(hours, config, **end)
        most = most.withColumn("at", f.col("window_end") - f.expr("INTERVAL 1 MILLISECOND"))
        counts = ks.keyed(hours, "window_start", event_time=ks.EventTime("at", follows="hourly"))
        maxima = ks.keyed(most, "window_start", event_time=ks.EventTime("at", follows="largest"))
        both = ks.connect(counts, maxima, uid="winners", config=config, **end)
        return both.process(Winners(), "hour timestamp, winners array<string>")

    stream.add([row("a", 0), row("b", 0), row("c", 0), row("c", 0), row("a", 0)])
    stream.add([row("b", 1)])
    stream.add([row("a", 2)])
    stream.run(joined(stream.frame()))
    ended = stream.rows.pop(3, [])
    assert stream.rows == {0: [], 1: [], 2: [(at(0), ["a", "c"])]}
    assert sorted(ended) == ([(at(1), ["b"]), (at(2), ["a"])] if HAS_END else [])
    batch = sorted(tuple(each) for each in joined(stream.batch()).collect())
    assert batch == [(at(0), ["a", "c"]), (at(1), ["b"]), (at(2), ["a"])]


def test_what_cannot_be_followed_is_refused_with_its_uid(new_stream: Any, tmp_path: Path) -> None:
    stream = new_stream(tmp_path, "k string, t timestamp")
    config = {"checkpoint.dir": str(stream.state), "parallelism": 1}

    def follow(uid: str, rows: DataFrame, own: str = "own") -> DataFrame:
        time = ks.EventTime("t", follows=uid)
        return ks.keyed(rows, "k", uid=own, config=config, event_time=time).aggregate(n=count())

    with pytest.raises(EventTimeError, match="'t': it follows the operator 'nowhere', and no operator"):
        follow("nowhere", stream.frame())
    ks.keyed(stream.frame(), "k", uid="timeless", config=config).aggregate(n=count())
    with pytest.raises(EventTimeError, match="'timeless', which has no event time and so no watermark; give"):
        follow("timeless", stream.frame())
    hourly(stream.frame(), config)
    follow("hourly", stream.frame())
    with pytest.raises(
        EventTimeError, match="'own', and no operator of that uid with state was built before"
    ):
        follow("own", stream.frame())
    stream.add([row("a", 0)])
    assert "does not run before 'own' in the same query" in stream.failure(follow("hourly", stream.frame()))
    assert follow("nowhere", stream.batch()).count() == 1, "a batch has no micro-batches to follow"
