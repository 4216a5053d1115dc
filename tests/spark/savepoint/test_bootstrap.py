"""Savepoints out of DataFrames: a function's state, states without a function, and edits of what there is."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet
import pytest

import keyedstate.types as t
from keyedstate import keyed
from keyedstate.checkpoint.reading.state_reader import reader_of, split_ttl
from keyedstate.checkpoint.savepoint.operator_snapshot import OperatorSnapshot
from keyedstate.cli.demo.flights import read_flights
from keyedstate.errors import (
    BootstrapError,
    KeyedStateError,
    MissingUidError,
    StateFrameError,
    TargetExistsError,
    UnknownOperatorError,
    UnknownStateError,
)
from keyedstate.runtime import KeyedBroadcastProcessFunction, KeyedProcessFunction
from keyedstate.savepoints import Savepoint
from keyedstate.spark.dataframe.state_columns import fitted, spark_type_of
from keyedstate.spark.savepoint.state_writing import with_times
from keyedstate.spark.schema import to_arrow
from keyedstate.state import (
    BroadcastState,
    ListState,
    MapState,
    OperatorListState,
    Ttl,
    UnionListState,
    ValueState,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


class Words(KeyedProcessFunction):
    count = ValueState("count", t.INT64, default=0)
    last = ValueState("last", t.STRING, ttl=Ttl.of("30 days"))
    seen = ListState("seen", t.INT64)
    tasks = OperatorListState("tasks", t.INT64)

    def open(self, ctx: Any) -> None:
        self.tasks.add(1)

    def process(self, row: Any, ctx: Any) -> Iterator[Any]:
        self.count.update(self.count.value() + 1)
        self.last.update(row.word)
        self.seen.add(row.n)
        yield "dropped", row


class Rules(KeyedBroadcastProcessFunction):
    rules = BroadcastState("rules", t.STRING, t.INT64)
    union = UnionListState("union", t.STRING)

    def open(self, ctx: Any) -> None:
        self.union.add("one")

    def process_broadcast(self, row: Any, ctx: Any) -> Iterator[Any]:
        self.rules.put(row.word, row.n)
        return iter(())

    def process(self, row: Any, ctx: Any) -> Iterator[Any]:
        return iter(())


class Longest(KeyedProcessFunction):
    longest = MapState("longest", t.STRING, t.INT64)

    def process(self, row: Any, ctx: Any) -> Iterator[Any]:
        self.longest.put(row.word, len(row.word))
        return iter(())


@pytest.fixture(scope="module")
def words(spark: SparkSession) -> DataFrame:
    rows = [("be" if n % 5 else None, n) if n % 2 else (f"w{n % 30}", n) for n in range(300)]
    return spark.createDataFrame(rows, "word string, n long")


def counts(words: DataFrame) -> dict[str | None, int]:
    return {row.word: row["count"] for row in words.groupBy("word").count().collect()}


@pytest.fixture(scope="module")
def bootstrapped(words: DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A savepoint of the words at the max parallelism 128."""
    path = tmp_path_factory.mktemp("bootstrap") / "savepoint"
    config = {"max-parallelism": 128, "parallelism": 3}
    Savepoint.new().add(keyed(words, "word", uid="words", config=config), Words()).write(path)
    return path


def stored(path: Path, state: str, uid: str | None = None) -> list[dict[str, Any]]:
    reader = reader_of(OperatorSnapshot.open(path, uid), state)
    batches = [batch for piece in reader.slices() for batch in reader.read(piece)]
    found: list[dict[str, Any]] = pa.Table.from_batches(batches, reader.schema).to_pylist()
    return found


def by_word(path: Path, state: str, uid: str | None = None) -> dict[Any, Any]:
    rows = stored(path, state, uid)
    assert len({row["word"] for row in rows}) == len(rows)
    return {row["word"]: row["value"] for row in rows}


def frame_of(spark: SparkSession, path: Path, state: str, uid: str | None = None) -> DataFrame:
    """Return a state as the data source gives it, without the processes that it takes."""
    reader = reader_of(OperatorSnapshot.open(path, uid), state)
    schema = spark_type_of(pa.struct(list(reader.schema)))
    target = to_arrow(schema)
    rows = [
        row
        for piece in reader.slices()
        for batch in reader.read(piece)
        for row in pa.RecordBatch.from_arrays(
            [fitted(column, field.type) for column, field in zip(batch.columns, target, strict=True)],
            schema=target,
        ).to_pylist()
    ]
    return spark.createDataFrame(
        [
            tuple(
                dict(v) if f.dataType.typeName() == "map" else v
                for f, v in zip(schema, row.values(), strict=True)
            )
            for row in rows
        ],
        schema,
    )


# -- from a function ---------------------------------------------------------------------------------


@pytest.mark.long
def test_a_function_over_history_becomes_a_savepoint(words: DataFrame, bootstrapped: Path) -> None:
    """SPA-01: words at the max parallelism 128, all keys are there."""
    savepoint = Savepoint.open(bootstrapped)
    savepoint.verify()
    metadata = savepoint.metadata("words")
    assert (metadata.parallelism, metadata.max_parallelism, metadata.key_columns) == (
        3, 128, (("word", "string"),),
    )  # fmt: skip
    expected = counts(words)
    assert None in expected and by_word(bootstrapped, "count") == expected
    assert {word: len(seen) for word, seen in by_word(bootstrapped, "seen").items()} == expected
    assert [row["value"] for row in stored(bootstrapped, "tasks")] == [1, 1, 1]
    assert sum(part.rows_in for part in metadata.parts) == 300
    # Each task's own files and no others.
    assert {f"data/{file.name}" for file in (bootstrapped / "words" / "data").iterdir()} == {
        path for part in metadata.parts for path in part.data_files
    }


def test_no_row_at_all_makes_a_savepoint_without_entries(words: DataFrame, tmp_path: Path) -> None:
    Savepoint.new().add(keyed(words.where("n < 0"), "word", uid="words"), Words()).write(tmp_path / "empty")
    assert stored(tmp_path / "empty", "count") == []
    assert len(stored(tmp_path / "empty", "tasks")) == 4


def test_what_cannot_be_bootstrapped_is_refused(
    spark: SparkSession, words: DataFrame, tmp_path: Path
) -> None:
    """SPA-07: a savepoint without operators is none."""
    with pytest.raises(BootstrapError, match=r"would have no operator; add one with add\(\)"):
        Savepoint.new().write(tmp_path / "none")
    with pytest.raises(MissingUidError):
        Savepoint.new().add(keyed(words, "word"), Words()).write(tmp_path / "none")
    endless = spark.readStream.format("rate").load()
    with pytest.raises(BootstrapError, match=r"'u': the DataFrame is a streaming one"):
        Savepoint.new().add(keyed(endless, "value", uid="u"), Words()).write(tmp_path / "none")
    one = Savepoint.new().add(keyed(words, "word", uid="words"), Words())
    with pytest.raises(BootstrapError, match=r"'words': there is an operator of that uid already"):
        one.add(keyed(words, "word", uid="words"), Words())
    assert not (tmp_path / "none").exists()
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine").touch()
    with pytest.raises(TargetExistsError):
        one.write(tmp_path / "taken")


def test_a_function_that_fails_leaves_no_savepoint(words: DataFrame, tmp_path: Path) -> None:
    class Fails(KeyedProcessFunction):
        def process(self, row: Any, ctx: Any) -> Iterator[Any]:
            raise ZeroDivisionError("the user's own")

    with pytest.raises(Exception, match="the user's own"):
        Savepoint.new().add(keyed(words, "word", uid="words"), Fails()).write(tmp_path / "failed")
    assert not (tmp_path / "failed").exists()


# -- from rows alone ---------------------------------------------------------------------------------


@pytest.mark.long
def test_rows_become_states_without_a_function(spark: SparkSession, tmp_path: Path) -> None:
    totals = spark.createDataFrame([("a", 1, 5), ("a", 2, 6), (None, 1, 7)], "k string, d int, value long")
    names = spark.createDataFrame([("a", 1, ["x", "y"])], "k string, d int, value array<string>")
    config = {"parallelism": 2, "max-parallelism": 16}
    savepoint = (
        Savepoint.new()
        .add_state(keyed(totals, "k", "d", uid="u", config=config), ValueState("total", t.INT64))
        .add_state(keyed(names, "k", "d", uid="u", config=config), ListState("names", t.STRING))
        .write(tmp_path / "savepoint")
    )
    savepoint.verify()
    rows = stored(tmp_path / "savepoint", "total")
    assert sorted((str(row["k"]), row["d"], row["value"]) for row in rows) == [
        ("None", 1, 7), ("a", 1, 5), ("a", 2, 6),
    ]  # fmt: skip
    assert [row["value"] for row in stored(tmp_path / "savepoint", "names")] == [["x", "y"]]


# -- edits -------------------------------------------------------------------------------------------


def test_an_operator_is_added_and_the_others_are_carried_over(
    words: DataFrame, bootstrapped: Path, tmp_path: Path
) -> None:
    """SPA-02: the new savepoint contains every file of the first, and needs no other."""
    both = keyed(words.where("word is not null"), "word", uid="longest", config={"parallelism": 2})
    savepoint = Savepoint.open(bootstrapped).edit().add(both, Longest()).write(tmp_path / "new")
    savepoint.verify()
    assert savepoint.operators == ("longest", "words")
    old = sorted(file.read_bytes() for file in (bootstrapped / "words" / "data").iterdir())
    assert sorted(file.read_bytes() for file in (tmp_path / "new" / "words" / "data").iterdir()) == old
    assert by_word(tmp_path / "new", "longest", "longest")["be"] == [("be", 2)]
    assert by_word(tmp_path / "new", "count", "words") == counts(words)


def test_operators_are_removed_renamed_and_swapped(
    words: DataFrame, bootstrapped: Path, tmp_path: Path
) -> None:
    """SPA-03, SPA-04: operators go and get other uids; there are no hashes beside uids here."""
    more = keyed(words.where("word = 'be'"), "word", uid="longest", config={"parallelism": 1})
    first = Savepoint.open(bootstrapped).edit().add(more, Longest())
    first.rename("words", "out of the way").rename("longest", "words").rename("out of the way", "longest")
    first.write(tmp_path / "swapped")
    assert by_word(tmp_path / "swapped", "count", "longest") == counts(words)
    assert by_word(tmp_path / "swapped", "longest", "words") == {"be": [("be", 2)]}
    assert Savepoint.open(tmp_path / "swapped").metadata("longest").uid == "longest"
    Savepoint.open(tmp_path / "swapped").edit().remove("words").rename("longest", "words").write(
        tmp_path / "again"
    )
    assert Savepoint.open(tmp_path / "again").operators == ("words",)
    assert by_word(tmp_path / "again", "count") == counts(words)
    change = Savepoint.open(tmp_path / "again").edit()
    with pytest.raises(UnknownOperatorError, match=r"'word'. Did you mean 'words'"):
        change.remove("word")
    with pytest.raises(BootstrapError, match="no operator"):
        change.remove("words").write(tmp_path / "none")


def test_a_state_is_replaced_and_all_else_stays(
    spark: SparkSession, words: DataFrame, bootstrapped: Path, tmp_path: Path
) -> None:
    """SPA-03, SPA-08: a state goes through a DataFrame and comes back in the canonical form."""
    count = frame_of(spark, bootstrapped, "count")
    doubled = count.where("word is null or word != 'w4'").withColumn("value", count.value * 2)
    last = frame_of(spark, bootstrapped, "last")
    savepoint = (
        Savepoint.open(bootstrapped)
        .edit()
        .replace_state("words", "count", doubled)
        .replace_state("words", "last", last.where("word is not null"))
        .write(tmp_path / "new")
    )
    savepoint.verify()
    expected = {word: 2 * count for word, count in counts(words).items() if word != "w4"}
    assert by_word(tmp_path / "new", "count") == expected
    assert by_word(tmp_path / "new", "seen") == by_word(bootstrapped, "seen")
    assert stored(tmp_path / "new", "tasks") == stored(bootstrapped, "tasks")
    before = {row["word"]: row for row in stored(bootstrapped, "last") if row["word"] is not None}
    # The times of the time to live too.
    assert {row["word"]: row for row in stored(tmp_path / "new", "last")} == before
    assert all(row["expires_at"] - row["written_at"] == dt.timedelta(days=30) for row in before.values())
    assert Savepoint.open(tmp_path / "new").metadata("words").parallelism == 3


def test_states_of_the_operator_are_replaced(spark: SparkSession, words: DataFrame, tmp_path: Path) -> None:
    """SPA-03: lists, union lists and broadcast maps are rewritten, and the keys' states stay."""
    side = words.where("n = 1")
    old, new = tmp_path / "old", tmp_path / "new"
    frame = keyed(words, "word", uid="u", config={"parallelism": 2}).broadcast(side)
    Savepoint.new().add(frame, Rules()).write(old)
    assert {row["key"]: row["value"] for row in stored(old, "rules")} == {"be": 1}
    rules = spark.createDataFrame([("a", 5), ("b", 6)], "key string, value long")
    union = spark.createDataFrame([(1, "x"), (0, "y"), (1, "z")], "task int, value string")
    savepoint = (
        Savepoint.open(old)
        .edit()
        .replace_state("u", "rules", rules)
        .replace_state("u", "union", union)
        .write(new)
    )
    savepoint.verify()
    assert {row["key"]: row["value"] for row in stored(new, "rules")} == {"a": 5, "b": 6}
    assert sorted((row["task"], row["value"]) for row in stored(new, "union")) == [
        (0, "y"), (1, "x"), (1, "z"),
    ]  # fmt: skip
    change = Savepoint.open(new).edit()
    change.replace_state("u", "union", union.drop("task")).write(tmp_path / "dealt")
    assert sorted(row["task"] for row in stored(tmp_path / "dealt", "union")) == [0, 0, 1]
    change.replace_state("u", "union", union.selectExpr("task + 1 as task", "value"))
    with pytest.raises(StateFrameError, match=r"there is no task 2; there are 2 from 0"):
        change.write(tmp_path / "stray")
    change.replace_state("u", "union", union).replace_state("u", "rules", rules.union(rules))
    with pytest.raises(StateFrameError, match=r"the key 'a' comes twice"):
        change.write(tmp_path / "twice")


def test_a_state_gets_another_type_by_its_new_declaration(
    spark: SparkSession, bootstrapped: Path, tmp_path: Path
) -> None:
    texts = frame_of(spark, bootstrapped, "count").selectExpr("word", "string(value) as value")
    new = ValueState("count", t.STRING, ttl=Ttl.of("1 day"))
    Savepoint.open(bootstrapped).edit().replace_state("words", new, texts).write(tmp_path / "new")
    meta = OperatorSnapshot.open(tmp_path / "new").state("count")
    assert meta.value_serializer == new.serializer
    row = next(row for row in stored(tmp_path / "new", "count") if row["word"] == "be")
    assert (row["value"], row["written_at"], row["expires_at"]) == ("120", None, None)


def test_rows_that_cannot_be_the_state_are_refused_by_name(
    spark: SparkSession, bootstrapped: Path, tmp_path: Path
) -> None:
    change = Savepoint.open(bootstrapped).edit()
    good = spark.createDataFrame([("a", 1)], "word string, value long")
    with pytest.raises(UnknownStateError, match=r"'cuont'. Did you mean 'count'"):
        change.replace_state("words", "cuont", good)
    with pytest.raises(UnknownOperatorError, match=r"'wrods'. Did you mean 'words'"):
        change.replace_state("wrods", "count", good)
    for frame, message in (
        (good.drop("word"), r"0 columns 'word', and needs one; it has the columns value"),
        (good.drop("value"), r"0 columns 'value'"),
        (
            good.selectExpr("word", "int(value) as value"),
            r"'value' has the type int, and the state has bigint",
        ),
        (good.selectExpr("1 as word", "value"), r"'word' has the type int, and the state has string"),
    ):
        with pytest.raises(StateFrameError, match=message):
            change.replace_state("words", "count", frame)
    twice = Savepoint.open(bootstrapped).edit().replace_state("words", "count", good.union(good))
    with pytest.raises(Exception, match=r"'count' of the operator 'words': the key 'a' comes twice"):
        twice.write(tmp_path / "twice")
    null = (
        Savepoint.open(bootstrapped)
        .edit()
        .replace_state("words", "count", good.selectExpr("word", "bigint(null) as value"))
    )
    with pytest.raises(Exception, match=r"the value of the key 'a' is null; leave the row out"):
        null.write(tmp_path / "null")
    assert not (tmp_path / "twice").exists() and not (tmp_path / "null").exists()


def test_what_is_no_savepoint_cannot_be_edited(tmp_path: Path) -> None:
    with pytest.raises(KeyedStateError, match="savepoint"):
        Savepoint.open(tmp_path).edit()


def test_times_that_were_taken_apart_come_together_again() -> None:
    nan = float("nan")
    columns: list[tuple[Any, list[Any]]] = [
        (t.TtlSerializer(t.INT64, "processing time"), [(5, 1), (2**63 - 1, 2)]),
        (
            t.TtlListSerializer(t.nullable(t.STRING), "processing time"),
            [t.TimedList.of(["a", None], [1, 2**63 - 1]), t.TimedList.of(["b"], [-7])],
        ),
        (
            t.TtlMapSerializer(t.FLOAT64, t.INT64, "processing time"),
            [
                t.TimedDict.of({nan: 1, 0.5: None}, {nan: 3, 0.5: 4}),
                t.TimedDict.of({1.0: 5}, {1.0: 2**63 - 1}),
            ],
        ),
        (
            t.TtlMapSerializer(t.UUID, t.INT64, "processing time"),
            [t.TimedDict.of({uuid.UUID(int=1): 1}, {uuid.UUID(int=1): 3})] * 2,
        ),
    ]
    for serializer, values in columns:
        stored = serializer.to_arrow(values)
        plain, written, _ = split_ttl(serializer, stored)
        of_spark = fitted(written, to_arrow(spark_type_of(pa.struct([("w", written.type)]))).field(0).type)
        assert with_times(serializer, plain, of_spark).equals(stored) or nan in values[0]
        assert repr(serializer.from_arrow(with_times(serializer, plain, of_spark))) == repr(values)
        unknown = serializer.from_arrow(with_times(serializer, plain, None))
        assert split_ttl(serializer, serializer.to_arrow(unknown))[0].equals(plain) or nan in values[0]
    with pytest.raises(ValueError, match="one time for each element"):
        with_times(
            columns[1][0], pa.array([["a", "b"]]), pa.array([[1]], pa.list_(pa.timestamp("us", "UTC")))
        )


@pytest.mark.long
def test_a_savepoint_of_a_backend_with_files_of_its_own_has_none_of_them(
    words: DataFrame, tmp_path: Path
) -> None:
    """It is read without that backend, and moved as a whole."""
    pytest.importorskip("rocksdict")
    path = tmp_path / "savepoint"
    config = {"parallelism": 2, "backend": "rocksdb", "rocksdb.incremental": True}
    Savepoint.new().add(keyed(words, "word", uid="words", config=config), Words()).write(path)
    metadata = OperatorSnapshot.open(path, "words").metadata
    assert [part.native for part in metadata.parts] == [None, None]
    assert by_word(path, "count") == counts(words)


def test_files_of_attempts_that_did_not_win_are_deleted(words: DataFrame, tmp_path: Path) -> None:
    """A task that ran twice has written two files; the job's result names one of them."""
    folder = tmp_path / "savepoint" / "words" / "data"

    class Zombie(KeyedProcessFunction):
        count = ValueState("count", t.INT64)

        def open(self, ctx: Any) -> None:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{uuid.uuid4().hex}.seg").write_bytes(b"half")

        def process(self, row: Any, ctx: Any) -> Iterator[Any]:
            self.count.update(1)
            return iter(())

    Savepoint.new().add(keyed(words, "word", uid="words", config={"parallelism": 2}), Zombie()).write(
        tmp_path / "savepoint"
    )
    savepoint = Savepoint.open(tmp_path / "savepoint")
    savepoint.verify()
    used = {path for part in savepoint.metadata("words").parts for path in part.data_files}
    assert {f"data/{file.name}" for file in folder.iterdir()} == used


# -- real data ---------------------------------------------------------------------------------------


class Delays(KeyedProcessFunction):
    flights = ValueState("flights", t.INT64, default=0)
    delay = ValueState("delay", t.INT64, default=0)

    def process(self, row: Any, ctx: Any) -> Iterator[Any]:
        self.flights.update(self.flights.value() + 1)
        self.delay.update(self.delay.value() + row.arr_delay)
        yield ctx.key, self.flights.value(), self.delay.value()


def expected_delays(flights: pa.Table) -> dict[str, tuple[int, int]]:
    sums = flights.group_by("tailnum").aggregate([("arr_delay", "count"), ("arr_delay", "sum")]).to_pylist()
    return {row["tailnum"]: (row["arr_delay_count"], row["arr_delay_sum"]) for row in sums}


def test_a_query_that_begins_with_its_history_ends_with_the_batch_answer(
    spark: SparkSession, tmp_path: Path
) -> None:
    """SPA-03: real flights, the first ones as history and the others as a stream, at another parallelism."""
    flights = read_flights().slice(0, 20_000).select(["tailnum", "arr_delay"]).drop_null()
    history, later = flights.slice(0, 15_000), flights.slice(15_000)
    pa.parquet.write_table(history, tmp_path / "history.parquet")
    (tmp_path / "later").mkdir()
    pa.parquet.write_table(later, tmp_path / "later" / "0.parquet")
    savepoint, config = tmp_path / "savepoint", {"parallelism": 3, "max-parallelism": 32}
    rows = spark.read.parquet(str(tmp_path / "history.parquet"))
    Savepoint.new().add(keyed(rows, "tailnum", uid="delays", config=config), Delays()).write(savepoint)
    assert delays_in(savepoint) == expected_delays(history)

    stream = spark.readStream.schema("tailnum string, arr_delay long").parquet(str(tmp_path / "later"))
    config = {
        "checkpoint.dir": str(tmp_path / "state"),
        "restore.savepoint": str(savepoint),
        "parallelism": 2,
    }
    out = keyed(stream, "tailnum", uid="delays", config=config).process(
        Delays(), "tailnum string, flights long, delay long"
    )
    out.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "spark")).trigger(
        availableNow=True
    ).start().awaitTermination()
    assert delays_in(tmp_path / "state") == expected_delays(flights)


def delays_in(path: Path) -> dict[str, tuple[int, int]]:
    found = [{row["tailnum"]: row["value"] for row in stored(path, name)} for name in ("flights", "delay")]
    return {plane: (number, found[1][plane]) for plane, number in found[0].items()}
