"""Results with row kinds on Spark: operators chain in one query, and a sink updates a table of a database."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing

import pytest
from deltalake import DeltaTable

from keyedstate import connect, keyed
from keyedstate.aggregates import count, max_, mean
from keyedstate.errors import InvalidAggregateError, InvalidJoinError, RowKindError
from keyedstate.sinks import DeltaSink, UpsertSink


@pytest.mark.long
def test_a_table_has_the_result_of_chained_operators_after_each_run_and_a_repeated_epoch(
    new_stream, tmp_path
):
    stream = new_stream(tmp_path, "k string, auction long, v long")
    with closing(sqlite3.connect(tmp_path / "prices.db")) as database:
        database.execute("create table prices (k text, auctions integer, price real)")
    write = UpsertSink(lambda: sqlite3.connect(tmp_path / "prices.db"), "prices", ["k"], row_kind="kind")
    failures = iter([True])

    def sink(batch, epoch):
        write(batch, epoch)
        if epoch == 1 and next(failures, False):
            raise ValueError("after the rows were written")

    def means():
        config = {"checkpoint.dir": str(stream.state)}
        best = keyed(stream.frame(), "k", "auction", uid="best", config=config).aggregate(
            price=max_("v"), row_kind="kind"
        )
        assert best.columns == ["k", "auction", "price", "kind"]
        rows = keyed(best, "k", uid="means", config=config, row_kind="kind")
        return rows.aggregate(auctions=count(), price=mean("price"))

    def table():
        with closing(sqlite3.connect(tmp_path / "prices.db")) as database:
            return sorted(database.execute("select * from prices").fetchall())

    stream.add([{"k": "a", "auction": 1, "v": 10}, {"k": "a", "auction": 2, "v": 4}])
    stream.run(means(), sink)
    assert table() == [("a", 2, 7.0)]
    stream.add([{"k": "a", "auction": 2, "v": 6}, {"k": "a", "auction": 1, "v": 9}])
    stream.add([{"k": "b", "auction": 3, "v": 1}])
    with pytest.raises(Exception, match="after the rows were written"):
        stream.run(means(), sink)
    stream.run(means(), sink)
    assert table() == [("a", 2, 8.0), ("b", 1, 1.0)]


class FrameOfEarlierSpark:
    """A DataFrame without ``toArrow``, as PySpark 3.5 has it."""

    def __init__(self, frame):
        self.columns, self.mapInArrow = frame.columns, frame.mapInArrow


def test_a_delta_table_has_the_result_after_each_run_and_a_repeated_epoch(spark, stream, tmp_path):
    write = DeltaSink(str(tmp_path / "table"), ["k"], row_kind="kind")
    failures = iter([True])

    def sink(batch, epoch):
        write(FrameOfEarlierSpark(batch) if epoch % 2 else batch, epoch)
        if epoch == 1 and next(failures, False):
            raise ValueError("after the rows were written")

    def sums():
        config = {"checkpoint.dir": str(stream.state)}
        rows = keyed(stream.frame(), "k", uid="sums", config=config)
        return rows.aggregate(n=count(), latest=max_("v"), row_kind="kind")

    def content():
        return sorted(tuple(row.values()) for row in DeltaTable(write._table).to_pyarrow_table().to_pylist())

    stream.add([{"k": "a", "v": 1}, {"k": "b", "v": 2}])
    stream.run(sums(), sink)
    assert content() == [("a", 1, 1), ("b", 1, 2)]
    stream.add([{"k": "a", "v": 5}, {"k": "c", "v": 3}])
    stream.add([])
    with pytest.raises(Exception, match="after the rows were written"):
        stream.run(sums(), sink)
    stream.run(sums(), sink)
    assert content() == [("a", 2, 5), ("b", 1, 2), ("c", 1, 3)]


def test_a_batch_frame_has_row_kinds_and_a_wrong_column_of_them_is_refused(spark):
    frame = spark.createDataFrame(
        [("a", 1, "+I"), ("a", 2, "+I"), ("a", 1, "-D")], "k string, v int, kind string"
    )
    rows = keyed(frame, "k", row_kind="kind").aggregate(total=mean("v"), row_kind="change")
    assert rows.schema.simpleString() == "struct<k:string,total:double,change:string>"
    assert list(map(tuple, rows.collect())) == [("a", 2.0, "+I")]
    with pytest.raises(RowKindError, match="the rows have no such column"):
        keyed(frame, "k", row_kind="kinds")
    with pytest.raises(RowKindError, match="the column has the type int,"):
        keyed(frame, "k", row_kind="v")
    # Spark's names have no case.
    in_capitals = keyed(frame, "K", row_kind="KIND").aggregate(total=mean("V"))
    assert in_capitals.columns == ["k", "total", "kind"]
    with pytest.raises(InvalidAggregateError, match="a key column is named 'k' already"):
        keyed(frame, "k", row_kind="kind").aggregate(total=mean("v"), row_kind="K")
    with pytest.raises(RowKindError, match="takes no row back"):
        keyed(frame, "k", row_kind="kind").top_n(1, by="v")


def test_a_batch_join_takes_rows_back(spark):
    changing = spark.createDataFrame(
        [("a", 1, "+I"), ("b", 2, "+I"), ("a", 1, "-D")], "k string, v int, kind string"
    ).coalesce(1)
    names = spark.createDataFrame([("a", "Ann"), ("b", "Bob")], "id string, name string")
    joined = connect(keyed(names, "id"), keyed(changing, "k", row_kind="KIND")).join("left")
    assert joined.schema.simpleString() == "struct<id:string,name:string,v:int,kind:string>"
    assert not joined.schema["kind"].nullable
    net = Counter()
    for *row, kind in joined.collect():
        net[tuple(row)] += 1 if kind == "+I" else -1
    assert +net == Counter({("a", "Ann", None): 1, ("b", "Bob", 2): 1})
    assert min(net.values()) == 0
    with pytest.raises(RowKindError, match="takes no row back"):
        connect(keyed(names, "id"), keyed(names, "id"), keyed(changing, "k", row_kind="kind")).join()
    with pytest.raises(InvalidJoinError, match="'ID' cannot be used: two columns"):
        connect(keyed(names, "id"), keyed(changing, "k")).join(row_kind="ID")
