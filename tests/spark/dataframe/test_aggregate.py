"""Declared aggregates on Spark: against Spark's own ``groupBy``, over restarts, and what is refused."""

from __future__ import annotations

import pytest

from keyedstate import keyed
from keyedstate.aggregates import (
    count,
    count_distinct,
    first,
    last,
    max_,
    max_by,
    mean,
    min_,
    stddev,
    sum_,
    top_k,
)
from keyedstate.errors import InvalidAggregateError
from keyedstate.time import EventTime

ROWS = [{"k": f"key-{number % 7}", "v": number * 3 - 40} for number in range(60)] + [
    {"k": None, "v": 5},
    {"k": "only-nulls", "v": None},
]


def rounded(values):
    """Return values with floats to nine digits: their sums are not made in the same order."""
    return tuple(float(f"{value:.9g}") if isinstance(value, float) else value for value in values)


def aggregated(frame, folder, backend, **more):
    config = {"backend": backend, "checkpoint.dir": str(folder)}
    return keyed(frame, "k", uid="sums", config=config).aggregate(
        n=count(),
        total=sum_("v"),
        least=min_("V"),
        most=max_("v"),
        mean=mean("v"),
        spread=stddev("v"),
        **more,
    )


def test_a_stream_of_aggregates_equals_group_by_after_a_restart(spark, stream, one_backend):
    from pyspark.sql import functions as f

    stream.add(ROWS[:30])
    stream.run(aggregated(stream.frame(), stream.state, one_backend))
    assert len(stream.all_rows()) == 7, "one row for each key, however many rows it has"
    stream.add(ROWS[30:50])
    stream.add(ROWS[50:])
    # One that is added begins with the first micro-batch that knows it.
    stream.run(aggregated(stream.frame(), stream.state, one_backend, first=first("v")))
    by_key = {row[0]: row[1:-1] for row in stream.all_rows() if len(row) == 8}
    expected = (
        stream.batch()
        .groupBy("k")
        .agg(f.count(f.lit(1)), f.sum("v"), f.min("v"), f.max("v"), f.avg("v"), f.stddev("v"))
        .collect()
    )
    assert len(by_key) == len(expected) == 9
    for row in expected:
        assert rounded(by_key[row[0]]) == rounded(row[1:])
    assert {row[-1] for row in stream.rows[1] if row[0] == "key-2"} == {30 * 3 - 40}


def test_a_batch_frame_is_aggregated_with_the_types_of_spark(spark, one_backend):
    frame = spark.sql(
        "select 'a' as `the key`, cast(1.5 as decimal(10, 2)) as `a.b`, timestamp'2020-01-01' as t, 1 as x"
    )
    event_time = EventTime("t", delay=0, inputs="x")
    out = keyed(frame, "the key", config={"backend": one_backend}, event_time=event_time).aggregate(
        {"the total": sum_("a.b"), "time": max_("t")}, n=count("t")
    )
    assert out.schema.simpleString() == (
        "struct<the key:string,the total:decimal(20,2),time:timestamp,n:bigint>"
    )
    (row,) = out.collect()
    assert str(row["the total"]) == "1.50" and row["time"].year == 2020 and row["n"] == 1
    assert not out.schema["n"].nullable


def test_a_batch_frame_has_whole_rows_conditions_and_distinct_counts(spark, one_backend):
    frame = spark.sql(
        "select * from values ('a', 1, 'p', true), ('a', 3, 'q', false), ('a', 3, 'p', true), ('b', 2, null, "
        "null) as t (k, V, s, c)"
    )
    out = keyed(frame, "k", config={"backend": one_backend}).aggregate(
        row=max_by(by="v", ties="last"),
        text=max_by("S", by="v"),
        distinct=count_distinct("s", "v"),
        chosen=sum_("v", where="C"),
        last=last("s", by=["v", "s"]),
        top=top_k("v", 2),
    )
    assert out.schema["row"].dataType.simpleString() == "struct<k:string,V:int,s:string,c:boolean>"
    assert {row.k: tuple(row)[1:] for row in out.collect()} == {
        "a": (("a", 3, "p", True), "q", 3, 4, "q", [3, 3]),
        "b": (("b", 2, None, None), None, 0, None, None, [2]),
    }


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"n": sum_("w")}, r"no column 'w', but k, v"),
        ({"n": sum_("k")}, r"sum\(k\) needs numbers"),
        ({"K": count()}, r"'K' cannot be computed: a key column is named 'k' already"),
        ({"n": count(), "N": count()}, r"'N' cannot be computed: an aggregate is named 'n' already"),
        ({}, "it names no aggregate"),
        ({"n": 3}, "give one of keyedstate.aggregates"),
    ],
)
def test_a_wrong_aggregate_is_refused_before_anything_runs(spark, given, message):
    frame = spark.createDataFrame([("a", 1)], "k string, v long")
    with pytest.raises(InvalidAggregateError, match=message):
        keyed(frame, "k").aggregate(given)


def test_running_values_continue_after_a_restart(spark, stream, one_backend):
    def out(frame, **options):
        config = {"backend": one_backend, "checkpoint.dir": str(stream.state)}
        return keyed(frame, "k", config=config, **options).running(n=count(), most=max_("V"))

    stream.add([{"k": "a", "v": 3}, {"k": "b", "v": 1}])
    stream.run(out(stream.frame(), uid="running"))
    stream.add([{"k": "a", "v": 2}, {"k": None, "v": None}])
    stream.run(out(stream.frame(), uid="running"))
    expected = {("a", 3, 1, 3), ("b", 1, 1, 1), ("a", 2, 2, 3), (None, None, 1, None)}
    assert set(map(tuple, stream.all_rows())) == expected
    with pytest.raises(InvalidAggregateError, match="the rows have a column of that name"):
        out(spark.createDataFrame([("a", 1, 2)], "k string, v long, N long"))
