"""Deduplication and top-n on Spark: over a restart, and with the columns of a DataFrame."""

from __future__ import annotations

from keyedstate import keyed


def test_a_stream_keeps_the_last_row_of_each_key_after_a_restart(spark, stream, one_backend):
    def latest():
        config = {"backend": one_backend, "checkpoint.dir": str(stream.state)}
        return keyed(stream.frame(), "k", uid="latest", config=config).deduplicate(keep="last", by="v")

    stream.add([{"k": "a", "v": 3}, {"k": "a", "v": 1}, {"k": "b", "v": 1}, {"k": None, "v": 7}])
    stream.run(latest())
    stream.add([{"k": "a", "v": 2}, {"k": "b", "v": 2}, {"k": None, "v": None}])
    stream.run(latest())
    assert sorted(map(tuple, stream.all_rows()), key=str) == [("a", 3), ("b", 1), ("b", 2), (None, 7)]


def test_a_batch_frame_keeps_its_columns_and_may_have_a_computed_key(spark, one_backend):
    frame = spark.sql("select * from values ('a', 1, 2Y), ('A', 3, 4Y), ('b', 2, null) as t (k, `the v`, c)")
    key = frame.k.substr(1, 1).alias("first")
    out = keyed(frame, key, config={"backend": one_backend}).deduplicate(by="the v")
    assert out.schema.simpleString() == "struct<k:string,the v:int,c:tinyint,first:string>"
    assert sorted(row["the v"] for row in out.collect()) == [1, 2, 3]
    top = keyed(frame, "k", config={"backend": one_backend}).top_n(1, by="the v")
    assert top.schema.simpleString() == "struct<k:string,the v:int,c:tinyint,rank:int>"
    assert sorted(map(tuple, top.collect())) == [("A", 3, 4, 1), ("a", 1, 2, 1), ("b", 2, None, 1)]
