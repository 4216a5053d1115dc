"""Savepoints of real queries: forked, the query and its fork each reach the answer that it must."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from keyedstate import keyed, types
from keyedstate.checkpoint.protocol.operator_folder import OperatorFolder
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.cli.demo.flights import read_flights
from keyedstate.errors import (
    NoCommonEpochError,
    NotForkableError,
    SparkLocationError,
    StateFolderOwnedError,
    TargetExistsError,
    UnknownEpochError,
)
from keyedstate.runtime import Context, KeyedProcessFunction
from keyedstate.savepoints import Savepoint
from keyedstate.spark.task.acknowledgements import acknowledgements_of
from keyedstate.state import ListState, OperatorListState, ValueState


class Totals(KeyedProcessFunction):
    total = ValueState("total", types.INT64, default=0)
    seen = ListState("seen", types.INT64)
    rows = OperatorListState("rows", types.INT64)

    def process(self, row: Any, ctx: Context) -> Iterator[tuple[Any, ...]]:
        self.total.update(self.total.value() + row.v)
        self.seen.add(row.v)
        self.rows.add(row.v)
        yield ctx.key, self.total.value(), len(self.seen.get())


def totals(frame: DataFrame, state: Path, uid: str = "totals", **options: Any) -> DataFrame:
    config = {"checkpoint.dir": str(state), "parallelism": 2, **options}
    return keyed(frame, "k", uid=uid, config=config).process(Totals(), "k string, total long, seen long")


def rows_of(epoch: int) -> list[dict[str, Any]]:
    return [{"k": f"key {row}", "v": 10 * epoch + row} for row in range(epoch % 3, 40, 3)]


def answer(epochs: Iterable[int]) -> dict[str, tuple[int, int]]:
    rows = [row for epoch in epochs for row in rows_of(epoch)]
    sums, counts = Counter[str](), Counter(row["k"] for row in rows)
    for row in rows:
        sums[row["k"]] += row["v"]
    return {key: (sums[key], counts[key]) for key in counts}


def newest(rows: dict[int, list[tuple[Any, ...]]]) -> dict[str, tuple[int, int]]:
    return {row[0]: row[1:] for epoch in sorted(rows) for row in rows[epoch]}


class Forked:
    """The runs of a fork, over the same input as its parent."""

    def __init__(self, stream: Any, folder: Path) -> None:
        self.stream = stream
        self.state = folder / "state"
        self.location = folder / "spark"
        self.rows: dict[int, list[tuple[Any, ...]]] = {}

    def run(self, out: DataFrame) -> None:
        def collect(batch: DataFrame, epoch: int) -> None:
            self.rows[epoch] = [tuple(row) for row in batch.collect()]

        self.stream.run(out, collect, self.location)


@pytest.fixture
def fork(stream: Any, tmp_path: Path) -> Forked:
    (tmp_path / "fork").mkdir()
    return Forked(stream, tmp_path / "fork")


def add(stream: Any, *epochs: int) -> None:
    for epoch in epochs:
        stream.add(rows_of(epoch))


def test_a_fork_of_a_running_query_reads_every_file_once(stream: Any, fork: Forked, tmp_path: Path) -> None:
    add(stream, 0, 1, 2)
    stream.run(totals(stream.frame(), stream.state, backend="heap-cow"))
    done: list[tuple[int, int]] = []
    savepoint = Savepoint.create(
        tmp_path / "savepoint",
        stream.state,
        stream.spark_checkpoint,
        epoch=1,
        progress=lambda *now: done.append(now),
    )
    assert savepoint.spark is not None and savepoint.spark.epoch == 1
    assert savepoint.metadata("totals").epoch == 1
    assert done and done[-1][0] == done[-1][1] > 0 and done == sorted(done)
    assert all(not part.deltas for part in savepoint.metadata("totals").parts)
    forked = Savepoint.open(tmp_path / "savepoint").fork(fork.location, fork.state)
    assert (forked.epoch, forked.operators) == (1, ("totals",))
    # The file of the epoch 2 is new to the fork, whatever the query has made of it; another is new to both.
    add(stream, 3)
    fork.run(totals(stream.frame(), fork.state, backend="nested-map", parallelism=3))
    stream.run(totals(stream.frame(), stream.state, backend="heap-cow"))
    assert sorted(fork.rows) == [2, 3]
    assert newest({**{epoch: stream.rows[epoch] for epoch in range(2)}, **fork.rows}) == answer(range(4))
    assert newest(stream.rows) == answer(range(4))
    # And back, from a checkpoint of the other backend.
    Savepoint.create(tmp_path / "second", fork.state, fork.location)
    back = Forked(stream, tmp_path / "back")
    Savepoint.open(tmp_path / "second").fork(back.location, back.state)
    add(stream, 4)
    back.run(totals(stream.frame(), back.state, backend="heap-cow", parallelism=1))
    assert sorted(back.rows) == [4]
    final = answer(range(5))
    assert newest(back.rows) == {row["k"]: final[row["k"]] for row in rows_of(4)}


def test_a_fork_is_right_where_the_log_of_files_was_gathered_behind_its_epoch(
    spark: SparkSession, stream: Any, fork: Forked, tmp_path: Path
) -> None:
    spark.conf.set("spark.sql.streaming.fileSource.log.compactInterval", "2")
    try:
        add(stream, 0, 1, 2, 3)
        stream.run(totals(stream.frame(), stream.state))
        log = stream.spark_checkpoint / "sources" / "0"
        assert {"1.compact", "3.compact"} <= {path.name for path in log.iterdir()}
        # As Spark does it ten minutes later.
        for name in ("0", "1.compact", "2"):
            (log / name).unlink()
        savepoint = Savepoint.create(tmp_path / "savepoint", stream.state, stream.spark_checkpoint, epoch=2)
        assert "sources/0/2.compact" in savepoint.spark_files()
        savepoint.fork(fork.location, fork.state)
        add(stream, 4, 5)
        fork.run(totals(stream.frame(), fork.state))
    finally:
        spark.conf.unset("spark.sql.streaming.fileSource.log.compactInterval")
    assert sorted(fork.rows) == [3, 4, 5]
    assert newest({**{epoch: stream.rows[epoch] for epoch in range(3)}, **fork.rows}) == answer(range(6))


@pytest.mark.long
def test_flights_and_a_generated_source_reach_the_right_answer_in_query_and_fork(
    spark: SparkSession, tmp_path: Path
) -> None:
    flights = read_flights().slice(0, 9_000).select(["tailnum", "arr_delay"]).drop_null()
    landing = tmp_path / "landing"
    landing.mkdir()

    def land(number: int) -> None:
        pq.write_table(flights.slice(number * 3_000, 3_000), landing / f"{number}.parquet")

    def run(name: str, backend: str) -> dict[int, int]:
        """Run until all files are used up; returns the generated numbers by epoch."""
        folder = tmp_path / name
        generated: dict[int, int] = {}

        def sink(batch: DataFrame, epoch: int) -> None:
            rows = [tuple(row) for row in batch.collect()]
            results[name].update({row[0]: row[1:] for row in rows})
            generated[epoch] = sum(row[0] == "generated" for row in rows)

        files = spark.readStream.schema("tailnum string, arr_delay long")
        numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()
        rows = (
            files.option("maxFilesPerTrigger", 1)
            .parquet(str(landing))
            .selectExpr("tailnum k", "arr_delay v")
            .union(numbers.selectExpr("'generated' k", "value v"))
        )
        query = (
            totals(rows, folder / "state", backend=backend)
            .writeStream.foreachBatch(sink)
            .option("checkpointLocation", str(folder / "spark"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return generated

    results: dict[str, dict[str, Any]] = {"parent": {}, "fork": {}}
    for number in range(2):
        land(number)
    before = run("parent", "heap-cow")
    Savepoint.create(tmp_path / "savepoint", tmp_path / "parent/state", tmp_path / "parent/spark")
    Savepoint.open(tmp_path / "savepoint").fork(tmp_path / "fork/spark", tmp_path / "fork/state")
    results["fork"].update(results["parent"])
    land(2)
    after = {name: run(name, backend) for name, backend in (("parent", "heap-cow"), ("fork", "nested-map"))}
    assert min(after["fork"]) == max(before) + 1
    table = flights.group_by("tailnum").aggregate([("arr_delay", "sum"), ("arr_delay", "count")])
    expected = {
        key: (total, count)
        for key, total, count in zip(*(column.to_pylist() for column in table.columns), strict=True)
    }
    for name in ("parent", "fork"):
        # Numbers from 0, none left out and none twice.
        count = sum(before.values()) + sum(after[name].values())
        assert results[name].pop("generated") == (count * (count - 1) // 2, count)
        assert results[name] == expected


def test_operators_of_a_query_are_taken_after_the_same_micro_batch(
    spark: SparkSession, stream: Any, fork: Forked, tmp_path: Path
) -> None:
    def both(state: Path) -> DataFrame:
        first = totals(stream.frame(), state, "first").selectExpr("k", "total v")
        return totals(first, state, "second")

    add(stream, 0, 1)
    stream.run(both(stream.state))
    folders = [OperatorFolder(CheckpointStorage.open(stream.state), uid) for uid in ("first", "second")]
    # The driver died when Spark had committed the epoch 0 and one operator published the epoch 1.
    (stream.spark_checkpoint / "commits" / "1").unlink()
    (stream.spark_checkpoint / "commits" / ".1.crc").unlink()
    folders[1].delete_checkpoint(1)
    savepoint = Savepoint.create(tmp_path / "savepoint", stream.state, stream.spark_checkpoint)
    assert savepoint.operators == ("first", "second")
    assert savepoint.spark is not None and savepoint.spark.epoch == 0
    assert {savepoint.metadata(uid).epoch for uid in savepoint.operators} == {0}
    assert Savepoint.create(tmp_path / "without", stream.state).metadata("first").epoch == 0
    Savepoint.open(tmp_path / "savepoint").fork(fork.location, fork.state)
    fork.run(both(fork.state))
    assert sorted(fork.rows) == [1]
    assert sorted(fork.rows[1]) == sorted(stream.rows[1])
    with pytest.raises(NotForkableError, match=r"restore\.savepoint"):
        Savepoint.open(tmp_path / "without").fork(tmp_path / "a", tmp_path / "b")


def test_an_epoch_that_is_not_retained_or_not_committed_is_refused(stream: Any, tmp_path: Path) -> None:
    add(stream, 0, 1, 2)
    stream.run(totals(stream.frame(), stream.state))
    assert acknowledgements_of(stream.spark.sparkContext).drain(60)
    for epoch in (0, 9):
        with pytest.raises(UnknownEpochError, match=f"no checkpoint of epoch {epoch}"):
            Savepoint.create(tmp_path / "savepoint", stream.state, stream.spark_checkpoint, epoch=epoch)
        with pytest.raises(UnknownEpochError):
            Savepoint.create(tmp_path / "savepoint", stream.state, epoch=epoch)
    for commit in (stream.spark_checkpoint / "commits").iterdir():
        commit.unlink()
    with pytest.raises(NoCommonEpochError, match="Spark has committed none"):
        Savepoint.create(tmp_path / "savepoint", stream.state, stream.spark_checkpoint)
    assert not (tmp_path / "savepoint").exists()
    Savepoint.create(tmp_path / "savepoint", stream.state)
    assert list((stream.state / "totals" / "holds").iterdir()) == []


def test_a_micro_batch_that_did_not_evaluate_the_operator_counts_too(
    stream: Any, fork: Forked, tmp_path: Path
) -> None:
    skipped = {1, 3, 4}

    def sink(state: Path, rows: dict[int, Any]) -> Any:
        def some(batch: DataFrame, epoch: int) -> None:
            if epoch not in skipped:
                rows[epoch] = [tuple(row) for row in totals(batch, state).collect()]

        return some

    add(stream, 0, 1, 2, 3)
    stream.run(stream.frame(), sink(stream.state, stream.rows))
    savepoint = Savepoint.create(tmp_path / "savepoint", stream.state, stream.spark_checkpoint)
    assert savepoint.spark is not None and savepoint.spark.epoch == 3
    assert savepoint.metadata("totals").epoch == 2
    Savepoint.open(tmp_path / "savepoint").fork(fork.location, fork.state)
    add(stream, 4, 5)
    stream.run(stream.frame(), sink(fork.state, fork.rows), fork.location)
    assert sorted(fork.rows) == [5]
    expected = answer([0, 2, 5])
    assert newest(fork.rows) == {row["k"]: expected[row["k"]] for row in rows_of(5)}


def test_what_cannot_be_forked_is_refused_by_name(
    spark: SparkSession, stream: Any, fork: Forked, tmp_path: Path
) -> None:
    add(stream, 0)
    stream.run(totals(stream.frame().dropDuplicates(["v"]), stream.state))
    with pytest.raises(SparkLocationError, match="dropDuplicates"):
        Savepoint.create(tmp_path / "savepoint", stream.state, stream.spark_checkpoint)
    Savepoint.create(tmp_path / "savepoint", stream.state)
    other = tmp_path / "other"
    stream.run(totals(stream.frame(), other / "state"), None, other / "spark")
    with pytest.raises(StateFolderOwnedError, match="belongs to query"):
        Savepoint.create(tmp_path / "second", stream.state, other / "spark")
    Savepoint.create(tmp_path / "second", other / "state", other / "spark")
    for target in (fork.state / "totals", fork.location):
        target.mkdir(parents=True)
        (target / "mine").write_text("")
        with pytest.raises(TargetExistsError, match="mine"):
            Savepoint.open(tmp_path / "second").fork(fork.location, fork.state)
        assert [path.name for path in fork.location.parent.rglob("*") if path.is_file()] == ["mine"]
        (target / "mine").unlink()
    damaged = next((tmp_path / "second/totals/data").iterdir())
    data = bytearray(damaged.read_bytes())
    data[len(data) // 3] ^= 1
    damaged.write_bytes(data)
    with pytest.raises(Exception, match=damaged.name):
        Savepoint.open(tmp_path / "second").fork(fork.location, fork.state)
    assert [path for path in fork.location.parent.rglob("*") if path.is_file()] == []
