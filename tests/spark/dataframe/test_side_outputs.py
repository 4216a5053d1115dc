"""Side outputs of process functions on Spark: several DataFrames of one operator, each row once."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession

from keyedstate import connect, keyed, split, types
from keyedstate.checkpoint.reading.state_reader import reader_of
from keyedstate.checkpoint.savepoint.operator_snapshot import OperatorSnapshot
from keyedstate.errors import KeyColumnError, OutputSchemaError, SideOutputError, SideOutputNameError
from keyedstate.runtime import (
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    VectorizedProcessFunction,
)
from keyedstate.savepoints import Savepoint
from keyedstate.state import ValueState


class Sorted(KeyedProcessFunction):
    """Counts the rows of each key: even numbers aside, rows without a number as they came."""

    side_outputs = {"even": "k string, n long", "rejected": None}  # noqa: RUF012
    n = ValueState("n", types.INT64, default=0)

    def process(self, row: Any, ctx: Any) -> Any:
        if row.v is None:
            ctx.output("rejected", row)
            return
        self.n.update(self.n.value() + 1)
        if row.v % 2:
            yield row.k, self.n.value()
        else:
            ctx.output("even", (row.k, self.n.value()))


class TimedSorted(Sorted):
    """Puts the number of rows out when a timer fires, at the end of the epoch."""

    side_outputs = {**Sorted.side_outputs, "ticks": "k string, n long"}  # noqa: RUF012

    def process(self, row: Any, ctx: Any) -> Any:
        ctx.timer_service.register_processing_time_timer(0)
        return list(super().process(row, ctx))

    def on_timer(self, time: int, ctx: Any) -> None:
        ctx.output("ticks", (ctx.key, self.n.value()))


@pytest.mark.parametrize("host", ["resident", pytest.param("embedded", marks=pytest.mark.long)])
def test_each_row_of_each_output_counts_once_over_a_failure_and_restarts(
    stream: Any, one_backend: str, host: str
) -> None:
    config = {"checkpoint.dir": str(stream.state), "parallelism": 2, "backend": one_backend, "host": host}
    seen: dict[str, dict[int, list[Any]]] = {"main": {}, "even": {}, "rejected": {}, "ticks": {}}
    failing = [1]

    def sink(batch: DataFrame, epoch: int) -> None:
        with split(batch) as outputs:
            assert set(outputs) == set(seen)
            for name, rows in outputs.items():
                seen[name][epoch] = [tuple(row) for row in rows.collect()]
                if epoch in failing:
                    failing.remove(epoch)
                    raise RuntimeError("the sink is gone")

    def out() -> DataFrame:
        rows = keyed(stream.frame(), "k", uid="sorted", config=config)
        return rows.process(TimedSorted(), "k string, n long")

    assert out().columns == ["output", "main", "even", "rejected", "ticks"]
    numbers = [None if n % 5 == 0 else n for n in range(40)]
    for start in range(0, 40, 10):
        stream.add([{"k": f"k{n % 3}", "v": numbers[n]} for n in range(start, start + 10)])
    with pytest.raises(Exception, match="the sink is gone"):
        stream.run(out(), sink)
    stream.run(out(), sink)
    stream.add([{"k": "k0", "v": 41}, {"k": "k0", "v": 42}])
    stream.run(out(), sink)

    expected: dict[str, list[Any]] = {name: [] for name in seen}
    counts: dict[str, int] = {}
    for start in range(0, 50, 10):
        some = [(f"k{n % 3}", numbers[n]) for n in range(start, start + 10)] if start < 40 else []
        for k, v in some or [("k0", 41), ("k0", 42)]:
            if v is None:
                expected["rejected"].append((k, v))
                continue
            counts[k] = counts.get(k, 0) + 1
            expected["main" if v % 2 else "even"].append((k, counts[k]))
        keys = {k for k, _ in some or [("k0", 0)]}
        expected["ticks"] += [(k, counts.get(k, 0)) for k in keys]
    found = {name: [row for rows in epochs.values() for row in rows] for name, epochs in seen.items()}
    assert {name: sorted(rows, key=repr) for name, rows in found.items()} == {
        name: sorted(rows, key=repr) for name, rows in expected.items()
    }


class Both(KeyedCoProcessFunction):
    side_outputs = {"left": "k string"}  # noqa: RUF012

    def process1(self, row: Any, ctx: Any) -> None:
        ctx.output("left", [row.k])

    def process2(self, row: Any, ctx: Any) -> Any:
        yield (row.k,)


class Columns(VectorizedProcessFunction):
    side_outputs = {"large": "v long, k string"}  # noqa: RUF012

    def process_batch(self, batch: Any, ctx: Any) -> Any:
        large = pc.greater(batch.column("v"), 10)
        ctx.output("large", batch.rows.filter(large))
        yield pa.table({"k": batch.rows.filter(pc.invert(large)).column("k")})


class Rules(KeyedBroadcastProcessFunction):
    side_outputs = {"rules": "rule string"}  # noqa: RUF012

    def process(self, row: Any, ctx: Any) -> Any:
        yield (row.k,)

    def process_broadcast(self, row: Any, ctx: Any) -> None:
        ctx.output("rules", (row.rule,))


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([("a", 1), ("b", 11), ("a", 12)], "k string, v long")


def split_rows(out: DataFrame) -> dict[str, list[Any]]:
    with split(out) as outputs:
        return {name: sorted(map(tuple, frame.collect())) for name, frame in outputs.items()}


@pytest.mark.long
def test_functions_of_every_kind_have_side_outputs(spark: SparkSession, rows: DataFrame) -> None:
    two = connect(keyed(rows, "k"), keyed(rows, "k")).process(Both(), "k string")
    assert split_rows(two) == {"main": [("a",), ("a",), ("b",)], "left": [("a",), ("a",), ("b",)]}
    columns = keyed(rows, "k").process(Columns(), "k string")
    assert split_rows(columns) == {"main": [("a",)], "large": [(11, "b"), (12, "a")]}
    rules = spark.createDataFrame([("r",)], "rule string")
    out = keyed(rows, "k", config={"parallelism": 1}).broadcast(rules).process(Rules(), "k string")
    assert split_rows(out) == {"main": [("a",), ("a",), ("b",)], "rules": [("r",)]}


def test_a_bootstrap_drops_side_outputs(rows: DataFrame, tmp_path: Any) -> None:
    for name, function in (("rows", Sorted()), ("columns", Columns())):
        frame = keyed(rows, "k", uid="op", config={"parallelism": 2})
        Savepoint.new().add(frame, function).write(tmp_path / name)
    reader = reader_of(OperatorSnapshot.open(tmp_path / "rows", "op"), "n")
    stored = [row for piece in reader.slices() for batch in reader.read(piece) for row in batch.to_pylist()]
    assert sorted((row["k"], row["value"]) for row in stored) == [("a", 2), ("b", 1)]


def test_side_outputs_that_cannot_be_are_refused_on_the_driver(rows: DataFrame) -> None:
    function = Sorted()
    for sides, error, said in (
        ({"main": None}, SideOutputNameError, "columns of their own"),
        ({"even": "k strng"}, OutputSchemaError, "of the side output 'even'.*STRNG"),
        ({"even": 5}, OutputSchemaError, "of the side output 'even'.*it is a int"),
        ({"even": "k string", "EVEN": None}, OutputSchemaError, "two columns are named 'even'"),
    ):
        function.side_outputs = sides  # type: ignore[assignment]
        with pytest.raises(error, match=said):
            keyed(rows, "k").process(function, "k string, n long")
    unsaid = Both()
    unsaid.side_outputs = {"left": None}  # type: ignore[dict-item]
    with pytest.raises(OutputSchemaError, match="'left' of a function of several inputs"):
        connect(keyed(rows, "k"), keyed(rows, "k")).process(unsaid, "k string")


def test_what_is_no_dataframe_is_refused(rows: DataFrame) -> None:
    with pytest.raises(KeyColumnError, match=r"^the rows cannot be keyed: they are a list.*createDataFrame"):
        keyed(rows.collect(), "k")  # type: ignore[arg-type]
    with pytest.raises(SideOutputError, match=r"it is a list and no DataFrame\."):
        split(rows.collect())  # type: ignore[arg-type]


def test_an_undeclared_side_output_stops_the_query_with_its_name(stream: Any, one_backend: str) -> None:
    class Misspelt(Sorted):
        def process(self, row: Any, ctx: Any) -> None:
            ctx.output("evn", row)

    stream.add([{"k": "a", "v": 1}])
    config = {"checkpoint.dir": str(stream.state), "parallelism": 1, "backend": one_backend}
    out = keyed(stream.frame(), "k", uid="sorted", config=config).process(Misspelt(), "k string, n long")
    assert "the side output 'evn' was not declared; declared are: 'even', 'rejected'" in stream.failure(out)
