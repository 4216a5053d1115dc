"""A second, small DataFrame of which every task gets each row; broadcast and operator state over restarts."""

from __future__ import annotations

import datetime as dt
import json
import os
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from keyedstate import errors, keyed, types
from keyedstate.checkpoint.format.manifest import CheckpointMetadata
from keyedstate.checkpoint.protocol.operator_folder import OperatorFolder
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.errors import BroadcastFrameError, InvalidFunctionError
from keyedstate.runtime import BroadcastContext, Context, KeyedBroadcastProcessFunction, KeyedProcessFunction
from keyedstate.spark.task.broadcast import broadcast_side_of, unpacked
from keyedstate.state import BroadcastState, OperatorListState, UnionListState, ValueState

SCHEMA = "k string, n long, factor long, task long"
RULES = "name string, factor long"


class Factors(KeyedBroadcastProcessFunction):
    """Numbers the rows of a key and multiplies each number by the key's factor, a rule."""

    factors = BroadcastState("factors", types.STRING, types.INT64)
    applied = ValueState("applied", types.INT64, default=0)
    n = ValueState("n", types.INT64, default=0)

    def process_broadcast(self, row: Any, ctx: BroadcastContext) -> None:
        self.factors.put(row.name, row.factor)

    def process(self, row: Any, ctx: Context) -> Iterator[tuple[Any, ...]]:
        self.n.update(self.n.value() + 1)
        yield ctx.key, self.n.value(), self.factors.get(ctx.key), ctx.task


class Rules:
    """Rules in JSON files, one file an epoch."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self._files = 0
        folder.mkdir()

    def add(self, *rules: tuple[str, int]) -> None:
        path = self.folder / f"{self._files:04}.json"
        hidden = path.with_name(f".{path.name}")
        hidden.write_text("".join(json.dumps({"name": name, "factor": n}) + "\n" for name, n in rules))
        os.utime(hidden, (1_000_000_000 + self._files, 1_000_000_000 + self._files))
        hidden.rename(path)
        self._files += 1

    def stream(self) -> DataFrame:
        return self.spark.readStream.schema(RULES).option("maxFilesPerTrigger", 1).json(str(self.folder))

    def batch(self) -> DataFrame:
        return self.spark.read.schema(RULES).json(str(self.folder))


@pytest.fixture
def rules(spark: SparkSession, tmp_path: Path) -> Rules:
    return Rules(spark, tmp_path / "rules")


KEYS = [f"key {number}" for number in range(12)]


def rows(of_each: int = 2) -> list[dict[str, Any]]:
    return [{"k": key, "v": number} for number in range(of_each) for key in KEYS]


def factors(
    stream: Any,
    rules: DataFrame,
    backend: str,
    function: KeyedProcessFunction | None = None,
    source: DataFrame | None = None,
    schema: str = SCHEMA,
    **options: object,
) -> DataFrame:
    config = {"checkpoint.dir": str(stream.state), "parallelism": 3, "backend": backend, **options}
    frame = keyed(stream.frame() if source is None else source, "k", uid="factors", config=config)
    return frame.broadcast(rules).process(function or Factors(), schema)


def by_epoch(stream: Any) -> dict[int, dict[str, list[tuple[int, int | None]]]]:
    """Return for each epoch the (number, factor) of each key's rows."""
    found: dict[int, dict[str, list[tuple[int, int | None]]]] = {}
    for epoch, out in stream.rows.items():
        of_epoch = found[epoch] = defaultdict(list)
        for key, n, factor, _ in sorted(out):
            of_epoch[key].append((n, factor))
    return found


def checkpoint(stream: Any, epoch: int) -> CheckpointMetadata:
    metadata = OperatorFolder(CheckpointStorage.open(str(stream.state)), "factors").read_metadata(epoch)
    assert metadata is not None
    return metadata


def every(
    key_factors: dict[str, int], first: int, of_each: int = 2
) -> dict[str, list[tuple[int, int | None]]]:
    numbers = range(first, first + of_each)
    return {key: [(n, key_factors.get(key)) for n in numbers] for key in KEYS}


# -- rules of a batch DataFrame --------------------------------------------------------------------


def test_rules_of_a_batch_frame_reach_every_task_once_in_each_run(
    stream: Any, rules: Rules, backend_name: str
) -> None:
    rules.add(*((key, number) for number, key in enumerate(KEYS)))
    first = {key: number for number, key in enumerate(KEYS)}
    for _ in range(2):
        stream.add(rows())
    stream.run(factors(stream, rules.batch(), backend_name))
    assert by_epoch(stream) == {0: every(first, 1), 1: every(first, 3)}
    assert {row[3] for row in stream.rows[0]} == {0, 1, 2}
    parts = [part.operator_state for part in checkpoint(stream, 1).parts]
    assert [part.segment.entries for part in parts if part] == [{"factors": len(KEYS)}] * 3
    # Another run reads the frame again; what it does not say any more is still in the state.
    rules.add(("key 0", 100))
    stream.add(rows())
    stream.run(factors(stream, rules.batch().where("factor > 50"), backend_name))
    assert by_epoch(stream)[2] == every(first | {"key 0": 100}, 5)


@pytest.mark.long
def test_rules_of_a_batch_frame_are_processed_once_in_each_run(
    stream: Any, rules: Rules, one_backend: str
) -> None:
    class Counts(Factors):
        def process_broadcast(self, row: Any, ctx: BroadcastContext) -> Iterator[tuple[Any, ...]]:
            times = (self.factors.get(row.name) or 0) + 1
            self.factors.put(row.name, times)
            yield row.name, -1, times, ctx.task

    rules.add(("a rule", 0))
    for epoch in range(3):
        if epoch != 1:
            stream.add(rows())
        stream.add([])
        stream.run(factors(stream, rules.batch(), one_backend, Counts()))
    said = [row for epoch in sorted(stream.rows) for row in sorted(stream.rows[epoch]) if row[1] == -1]
    assert said == [("a rule", -1, times, task) for times in (1, 2, 3) for task in range(3)]


def test_on_a_batch_frame_both_sides_are_read_once(
    spark: SparkSession, rules: Rules, backend_name: str
) -> None:
    rules.add(("key 1", 10), ("key 2", 20))
    frame = spark.createDataFrame([(row["k"], row["v"]) for row in rows(3)], "k string, v long")
    config = {"backend": backend_name, "parallelism": 3}
    out = keyed(frame, "k", config=config).broadcast(rules.batch()).process(Factors(), SCHEMA)
    found = defaultdict(list)
    for key, n, factor, _ in sorted(out.collect()):
        found[key].append((n, factor))
    assert found == every({"key 1": 10, "key 2": 20}, 1, 3)
    assert [tuple(row) for row in out.where("k = 'key 1'").select("n", "factor").orderBy("n").collect()] == [
        (1, 10), (2, 10), (3, 10),
    ]  # fmt: skip


def test_inside_foreach_batch_the_rules_are_read_in_each_epoch(
    stream: Any, rules: Rules, one_backend: str
) -> None:
    for _ in range(3):
        stream.add(rows())

    def process(batch: DataFrame, epoch: int) -> None:
        rules.add(("key 0", epoch), (f"key {epoch + 1}", 7))
        # In the order of the rows: the greatest number of a name comes last.
        out = factors(stream, rules.batch().orderBy("factor"), one_backend, source=batch)
        stream.rows[epoch] = [tuple(row) for row in out.collect()]

    stream.run(stream.frame(), process)
    assert [by_epoch(stream)[epoch]["key 0"] for epoch in range(3)] == [
        [(1, 0), (2, 0)], [(3, 1), (4, 1)], [(5, 2), (6, 2)],
    ]  # fmt: skip
    assert by_epoch(stream)[2] == every({"key 0": 2, "key 1": 7, "key 2": 7, "key 3": 7}, 5)


def test_a_broadcast_frame_without_rows_leaves_the_state_empty(
    stream: Any, rules: Rules, one_backend: str
) -> None:
    rules.add()
    stream.add(rows())
    stream.run(factors(stream, rules.batch(), one_backend))
    assert by_epoch(stream) == {0: every({}, 1)}


def test_rules_of_every_type_and_name_arrive_as_they_are(spark: SparkSession, one_backend: str) -> None:
    class Shows(KeyedBroadcastProcessFunction):
        def process_broadcast(self, row: Any, ctx: BroadcastContext) -> Iterator[tuple[str]]:
            yield (repr(row.as_dict()),)

        def process(self, row: Any, ctx: Context) -> Iterator[tuple[str]]:
            yield (repr(row.as_dict()),)

    frame = spark.createDataFrame(
        [("x", dt.date(2020, 1, 1), dt.datetime(2020, 1, 1, 5), (1, None), ["x", None], None, b"\0", True)],
        "`the key.` string, `a.b` date, `s``t` timestamp, p struct<p:int,q:string>, l array<string>, "
        "nothing string, k binary, __keyedstate_broadcast boolean",
    )
    out = keyed(frame, "the key.", config={"backend": one_backend, "parallelism": 2})
    rule, row = [row.said for row in out.broadcast(frame).process(Shows(), "said string").collect()]
    assert rule == row
    assert all(f"{name!r}: " in row for name in frame.columns)


# -- rules of a streaming DataFrame ----------------------------------------------------------------


def test_streaming_rules_are_processed_before_the_rows_of_their_micro_batch(
    stream: Any, rules: Rules, backend_name: str
) -> None:
    """Every epoch changes the factor of every key; with any other order a row would see an old one."""
    expected = {}
    for epoch in range(4):
        now = {key: 100 * epoch + number for number, key in enumerate(KEYS)}
        rules.add(*now.items())
        stream.add(rows(20))
        expected[epoch] = every(now, 1 + 20 * epoch, 20)
    stream.run(factors(stream, rules.stream(), backend_name))
    assert by_epoch(stream) == expected


def test_epochs_may_have_rules_alone_or_rows_of_keys_alone(
    stream: Any, rules: Rules, one_backend: str
) -> None:
    plan = [(True, False), (False, True), (True, True), (False, False), (False, True)]
    expected, now, numbered = {}, {}, 1
    for epoch, (with_rules, with_rows) in enumerate(plan):
        if with_rules:
            now = dict.fromkeys(KEYS, epoch)
        rules.add(*(now.items() if with_rules else ()))
        stream.add(rows() if with_rows else [])
        expected[epoch] = every(now, numbered) if with_rows else {}
        numbered += 2 * with_rows
    stream.run(factors(stream, rules.stream(), one_backend))
    assert by_epoch(stream) == expected


def test_rules_of_one_source_partition_have_one_order_on_all_tasks(
    stream: Any, rules: Rules, one_backend: str
) -> None:
    """The exchange keeps no order; the last rule of a name must win, on every task."""

    class Remembers(KeyedBroadcastProcessFunction):
        order = BroadcastState("order", types.INT64, types.STRING)

        def process_broadcast(self, row: Any, ctx: BroadcastContext) -> None:
            self.order.put(len(list(self.order.keys())), f"{row.name} {row.factor}")

        def process(self, row: Any, ctx: Context) -> Iterator[tuple[Any, ...]]:
            yield ctx.task, ",".join(self.order.get(n) for n in range(len(list(self.order.keys()))))

    rules.add(*((name, number) for number in range(300) for name in "ab"))
    stream.add(rows())
    # Two source partitions, one for each name.
    spread = rules.stream().repartition(2, "name")
    out = factors(stream, spread, one_backend, Remembers(), schema="task long, said string")
    stream.run(out)
    assert {row[0] for row in stream.rows[0]} == {0, 1, 2}
    (said,) = {row[1] for row in stream.rows[0]}
    for name in "ab":
        numbers = [int(rule.split()[1]) for rule in said.split(",") if rule.startswith(name)]
        assert numbers == list(range(300))


def test_the_order_is_that_of_the_rows_in_whichever_order_an_exchange_gives_them(spark: SparkSession) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 7)
    side = broadcast_side_of(session.range(1), session.range(0, 100, 1, 3).selectExpr("id", "-id other"))
    assert side.rows is not None and len(side.rows) == 15
    pieces = list(side.rows)
    for _ in range(3):
        random.Random(1).shuffle(pieces)
        found = [row for batch in unpacked(pieces, side.columns) for row in batch.to_pylist()]
        assert found == [{"id": n, "other": -n} for n in range(100)]


@pytest.mark.long
def test_rows_that_do_not_fit_into_memory_still_come_after_the_rules(
    stream: Any, rules: Rules, one_backend: str
) -> None:
    """Two keys with some 40 MB of rows each, and a task keeps no more than 32 MiB in memory."""

    class Sums(Factors):
        def process(self, row: Any, ctx: Context) -> Iterator[tuple[Any, ...]]:
            self.n.update(self.n.value() + self.factors.get("all") * (len(row.k) == 500))
            if row.v == 0:
                yield ctx.task, self.n.value()

    stream.add([{"k": "x", "v": 0}])
    rules.add(("all", 7))
    numbers = stream.frame().select(f.explode(f.expr("sequence(160000, 0)")).alias("v"))
    wide = numbers.select(
        f.rpad((f.col("v") % 2).cast("string"), 500, "k").alias("k"), (f.col("v") > 1).cast("long").alias("v")
    )
    schema = "task long, n long"
    stream.run(factors(stream, rules.stream(), one_backend, Sums(), wide, schema, parallelism=2))
    assert sorted(row[1] for row in stream.rows[0]) == [7 * 80_000, 7 * 80_001]


def test_a_broadcast_frame_of_some_megabytes_travels_with_the_function(
    spark: SparkSession, one_backend: str
) -> None:
    many = spark.range(150_000).selectExpr("concat('key ', id) name", "id factor")
    frame = spark.createDataFrame([("key 149999", 1), ("key 0", 1)], "k string, v long")
    out = keyed(frame, "k", config={"backend": one_backend, "parallelism": 1}).broadcast(many)
    found = {row.k: row.factor for row in out.process(Factors(), SCHEMA).collect()}
    assert found == {"key 149999": 149_999, "key 0": 0}


def test_a_rule_changes_the_state_of_all_keys_of_every_task(
    stream: Any, rules: Rules, one_backend: str
) -> None:
    class Resets(Factors):
        def process_broadcast(self, row: Any, ctx: BroadcastContext) -> Iterator[tuple[Any, ...]]:
            keys = []

            def reset(key: Any, n: Any) -> None:
                keys.append(key)
                n.update(row.factor)

            ctx.apply_to_keyed_state(self.n, reset)
            yield from ((key, -1, len(keys), ctx.task) for key in keys)

    stream.add(rows())
    rules.add()
    stream.add(rows())
    rules.add(("reset", 1000))
    stream.run(factors(stream, rules.stream(), one_backend, Resets()))
    assert sorted(row[0] for row in stream.rows[1] if row[1] == -1) == sorted(KEYS)
    kept = by_epoch(stream)[1]
    assert kept == {key: [(-1, found[0][1]), (1001, None), (1002, None)] for key, found in kept.items()}


# -- exactly once ----------------------------------------------------------------------------------


class Keeps(Factors):
    """Keeps each number that it gives out in an operator list, and says how many numbers its task holds."""

    given = OperatorListState("given", types.INT64)
    everywhere = UnionListState("everywhere", types.STRING)

    def process(self, row: Any, ctx: Context) -> Iterator[tuple[Any, ...]]:
        for key, n, factor, task in super().process(row, ctx):
            self.given.add(n * 1000 + (factor or 0))
            if n == 1:
                self.everywhere.add(key)
            yield key, n, factor, task, sorted(self.given.get()), sorted(self.everywhere.get())


KEPT = f"{SCHEMA}, given array<long>, everywhere array<string>"


def test_an_uncommitted_epoch_runs_again_with_the_same_rows_and_state(
    stream: Any, rules: Rules, one_backend: str
) -> None:
    for epoch in range(2):
        rules.add(*((key, epoch) for key in KEYS))
        stream.add(rows())
    out = factors(stream, rules.stream(), one_backend, Keeps(), schema=KEPT)
    stream.run(out)
    before = sorted(row[:5] for row in stream.rows[1])
    # What a driver leaves that dies after the checkpoint and before Spark's commit.
    for name in ("1", ".1.crc"):
        (stream.spark_checkpoint / "commits" / name).unlink()
    stream.add(rows())
    stream.run(factors(stream, rules.stream(), one_backend, Keeps(), schema=KEPT))
    assert sorted(row[:5] for row in stream.rows[1]) == before
    last = {row[3]: row[4] for row in sorted(stream.rows[2], key=lambda row: len(row[4]))}
    assert sorted(n for given in last.values() for n in given) == sorted(
        number * 1000 + factor for _ in KEYS for number, factor in enumerate([0, 0, 1, 1, 1, 1], 1)
    )


@pytest.mark.long
def test_a_restart_at_another_parallelism_deals_out_operator_state(
    stream: Any, rules: Rules, one_backend: str
) -> None:
    """OP-05, CP-19: lists evenly, union lists and broadcast maps to every task, from one run to the next."""
    rules.add(*((key, 7) for key in KEYS))
    runs = [3, 3, 5, 2]
    words = 0
    for epoch, parallelism in enumerate(runs):
        stream.add(rows())
        stream.add(rows())
        options = {"parallelism": parallelism, "max-parallelism": 128}
        stream.run(factors(stream, rules.batch(), one_backend, Keeps(), schema=KEPT, **options))
        parts = [part.operator_state for part in checkpoint(stream, 2 * epoch + 1).parts]
        counts = [part.segment.entries for part in parts if part]
        assert len(counts) == parallelism
        assert [entries["factors"] for entries in counts] == [len(KEYS)] * parallelism
        assert sum(entries["given"] for entries in counts) == 4 * len(KEYS) * (epoch + 1)
        # Each task got the words of all at the restart, and within a run no task those of another.
        words = parallelism * words if epoch else len(KEYS)
        assert sum(entries["everywhere"] for entries in counts) == words
    assert {row[2] for row in stream.all_rows()} == {7}
    lengths = [max(len(row[4]) for row in stream.rows[6] if row[3] == task) for task in range(2)]
    assert sum(lengths) == 14 * len(KEYS), "each number is on one task, also in what functions see"


def test_a_flipped_bit_in_operator_state_stops_the_query_with_its_file(
    stream: Any, rules: Rules, one_backend: str
) -> None:
    rules.add(("key 0", 1))
    stream.add(rows())
    stream.run(factors(stream, rules.batch(), one_backend))
    files = list((stream.state / "factors" / "data").glob("*.operator.seg"))
    assert len(files) == 3
    for file in files:
        content = bytearray(file.read_bytes())
        content[len(content) // 3] ^= 0x10
        file.write_bytes(content)
    stream.add(rows())
    message = stream.failure(factors(stream, rules.batch(), one_backend))
    assert f"CorruptFileError: the file {stream.state}/factors/data/" in message
    assert ".operator.seg is damaged" in message
    assert list(stream.rows) == [0]


def test_operator_lists_work_without_a_broadcast_side(stream: Any, one_backend: str) -> None:
    class Seen(KeyedProcessFunction):
        seen = OperatorListState("seen", types.STRING)

        def process(self, row: Any, ctx: Context) -> Iterator[tuple[Any, ...]]:
            self.seen.add(row.k)
            yield ctx.task, len(self.seen.get())

    for _ in range(3):
        stream.add(rows())
    config = {"checkpoint.dir": str(stream.state), "parallelism": 2, "backend": one_backend}
    stream.run(keyed(stream.frame(), "k", uid="seen", config=config).process(Seen(), "task long, n long"))
    most = {task: max(row[1] for row in stream.all_rows() if row[0] == task) for task in (0, 1)}
    assert sum(most.values()) == 3 * len(rows())


# -- what is refused -------------------------------------------------------------------------------


def keyed_range(spark: SparkSession) -> Any:
    return keyed(spark.range(3), "id")


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (
            lambda spark: keyed_range(spark).broadcast(spark.range(1)).broadcast(spark.range(1)),
            "the second one",
        ),
        (
            lambda spark: keyed_range(spark).broadcast([("EUR", 100)]),
            "it is a list; make a DataFrame with createDataFrame()",
        ),
        (
            lambda spark: keyed_range(spark).broadcast(spark.range(1).select()).process(Factors(), SCHEMA),
            "it has no column",
        ),
        (
            lambda spark: (
                keyed_range(spark)
                .broadcast(spark.range(1).select(f.expr("interval '1' month").alias("i")))
                .process(Factors(), SCHEMA)
            ),
            "the column 'i' has the type interval month, which has no Arrow type; cast it",
        ),
        (
            lambda spark: (
                keyed_range(spark)
                .broadcast(spark.readStream.format("rate").load())
                .process(Factors(), SCHEMA)
            ),
            "it is streaming and the keyed one is not",
        ),
    ],
)
def test_a_broadcast_frame_that_cannot_be_used_is_refused(spark: SparkSession, build: Any, said: str) -> None:
    with pytest.raises(BroadcastFrameError) as caught:
        build(spark)
    assert said in str(caught.value)


def test_a_function_and_a_frame_with_different_sides_are_refused(spark: SparkSession) -> None:
    class OneSided(KeyedProcessFunction):
        def process(self, row: Any, ctx: Any) -> None:
            return None

    class Lone(OneSided):
        factors = Factors.factors

    class Pickled(OneSided):
        objects = OperatorListState("objects", types.pickled())

    frame = keyed_range(spark)
    with pytest.raises(
        InvalidFunctionError, match=r"Factors cannot be run.*give it rows with keyed\(\.\.\.\)\.broad"
    ):
        frame.process(Factors(), SCHEMA)
    with pytest.raises(InvalidFunctionError, match="OneSided cannot be run: it has no broadcast side"):
        frame.broadcast(spark.range(1)).process(OneSided(), SCHEMA)
    with pytest.raises(InvalidFunctionError, match="its broadcast state 'factors' could never be written"):
        frame.process(Lone(), SCHEMA)
    with pytest.raises(errors.GenericTypeForbiddenError, match="'objects'"):
        keyed(spark.range(3), "id", config={"types.generic": "forbid"}).process(Pickled(), SCHEMA)


def test_a_keyed_row_that_writes_broadcast_state_stops_the_query(
    stream: Any, rules: Rules, one_backend: str
) -> None:
    class Writes(Factors):
        def process(self, row: Any, ctx: Context) -> Iterable[tuple[Any, ...]]:
            self.factors.put("key 0", 1)
            return []

    rules.add(("key 0", 0))
    stream.add(rows())
    message = stream.failure(factors(stream, rules.batch(), one_backend, Writes()))
    assert "the broadcast state 'factors' can only be read here" in message
    assert "Change it in process_broadcast()" in message


def test_a_broadcast_join_keeps_its_table_over_restarts_and_finds_columns_by_spark_s_rules(
    rules: Rules, stream: Any, one_backend: str
) -> None:
    def joined() -> DataFrame:
        config = {"backend": one_backend, "checkpoint.dir": str(stream.state)}
        left = keyed(stream.frame().selectExpr("k", "v Number"), "number", uid="joined", config=config)
        return left.broadcast_join(rules.stream(), on={"K": "NAME"}, how="left")

    rules.add(("a", 1), ("b", 2))
    stream.add([{"k": "a", "v": 1}, {"k": "c", "v": 2}])
    rules.add(("a", 10))
    stream.add([{"k": "a", "v": 3}, {"k": "b", "v": 4}])
    out = joined()
    assert out.schema.simpleString() == "struct<Number:bigint,k:string,factor:bigint>"
    stream.run(out)
    rules.add(("c", 3))
    stream.add([{"k": "a", "v": 5}, {"k": "b", "v": 6}, {"k": "c", "v": 7}])
    stream.run(joined())
    assert sorted(stream.all_rows()) == [
        (1, "a", 1),
        (2, "c", None),
        (3, "a", 10),
        (4, "b", 2),
        (5, "a", 10),
        (6, "b", 2),
        (7, "c", 3),
    ]


def test_a_broadcast_join_of_batches_equals_spark_s_own(spark: SparkSession) -> None:
    left = spark.range(5000).selectExpr("id", "id % 11 a", "cast(id % 5 as string) b")
    right = (
        spark.range(20)
        .selectExpr("id % 10 a", "cast(id % 3 as string) b", "id * 2 id")
        .dropDuplicates(["a", "b"])
    )
    for how in ("inner", "left", "semi", "anti"):
        ours = keyed(left, "id").broadcast_join(right, on=["a", "b"], how=how)
        theirs = left.join(right.withColumnRenamed("id", "right_id"), ["a", "b"], how)
        wanted = ["id", "a", "b", *(["right_id"] if how in ("inner", "left") else [])]
        expected = sorted((tuple(row) for row in theirs.select(wanted).collect()), key=repr)
        assert sorted((tuple(row) for row in ours.collect()), key=repr) == expected, how
