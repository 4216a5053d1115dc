"""How many bytes of rows Spark sends to Python at once: a limit of Spark that costs time for each row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

from keyedstate import keyed, types
from keyedstate.runtime import Context, KeyedProcessFunction
from keyedstate.spark.task.arrow_batches import (
    MAX_BYTES,
    UNLIMITED,
    MeasuredBatches,
    bytes_per_batch,
    size_of_setting,
)
from keyedstate.state import ValueState

pytestmark = pytest.mark.spark

SMALL, LARGE = "x", "x" * 5_000
DEFAULT = 64 << 20


class Echo(KeyedProcessFunction):
    """Counts the rows of a key, and puts out their text, repeated."""

    count = ValueState("count", types.INT64, default=0)

    def __init__(self, times: int = 1) -> None:
        self.times = times

    def process(self, row: Any, ctx: Context) -> Iterator[tuple[Any, ...]]:
        self.count.update(self.count.value() + 1)
        yield row.k, row.text * self.times


@pytest.fixture
def limits(
    spark: Any, new_stream: Any, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> Iterator[Callable[..., list[int]]]:
    """Run epochs, each with a row of a text, and return the limit of the query after each of them."""
    default = bytes_per_batch(spark)
    if default is None:
        pytest.skip("this version of Spark has no limit in bytes")
    stream = new_stream(tmp_path, "k string, text string")
    queries = spark._jsparkSession.sharedState().activeStreamingQueries()

    def limits(
        texts: list[str],
        operators: Sequence[int] = (1,),
        before: Callable[[DataFrame], DataFrame] = lambda rows: rows,
        sink: Callable[[DataFrame, int], object] | None = None,
    ) -> list[int]:
        out = before(stream.frame())
        for number, times in enumerate(operators):
            config = {"checkpoint.dir": stream.state.as_uri()}
            rows = keyed(out, "k", uid=f"echo-{number}", config=config)
            out = rows.process(Echo(times), "k string, text string")
        writer = out.writeStream.option("checkpointLocation", str(stream.spark_checkpoint))
        query = (writer.format("noop") if sink is None else writer.foreachBatch(sink)).start()
        try:
            conf = queries.get(spark._jvm.java.util.UUID.fromString(query.id)).sparkSessionForStream().conf()
            found = []
            for text in texts:
                stream.add([{"k": "a", "text": text}])
                query.processAllAvailable()
                found.append(size_of_setting(conf.get(MAX_BYTES)))
        finally:
            query.stop()
            stream.settle()
        return found

    with caplog.at_level("DEBUG", "keyedstate.spark.task.arrow_batches"):
        yield limits
    assert not caplog.records
    assert bytes_per_batch(spark) == default, "the session of the query alone has another limit"


def test_small_rows_come_without_a_limit_in_bytes_from_the_second_epoch_on(limits: Any) -> None:
    assert limits([SMALL] * 2) == [UNLIMITED] * 2
    assert limits([SMALL]) == [UNLIMITED], "a run that was started again"


def test_the_limit_is_back_for_good_after_large_rows(limits: Any) -> None:
    """One epoch is too late: the size of rows is known when they have come."""
    assert limits([SMALL, LARGE, SMALL]) == [UNLIMITED, DEFAULT, DEFAULT]


@pytest.mark.parametrize(("text", "operators"), [(SMALL, (5_000, 1)), (LARGE, (0, 1))])
def test_the_limit_stays_where_one_of_two_operators_has_large_rows(
    limits: Any, text: str, operators: Sequence[int]
) -> None:
    assert limits([text] * 2, operators) == [DEFAULT] * 2


def test_the_limit_stays_where_another_function_in_python_gets_rows(limits: Any) -> None:
    """keyedstate does not measure the rows that it receives."""

    def shortened(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            batch["text"] = batch["text"].str.slice(0, 1)
            yield batch

    assert limits([LARGE] * 2, before=lambda rows: rows.mapInPandas(shortened, rows.schema)) == [DEFAULT] * 2


def test_the_limit_stays_where_a_function_gets_the_result_of_each_epoch(limits: Any) -> None:
    """It may send other rows to Python, in the session of the query."""
    assert limits([SMALL] * 2, sink=lambda batch, epoch: batch.collect()) == [DEFAULT] * 2


def test_a_limit_that_the_job_has_set_stays(limits: Any, spark: Any) -> None:
    spark.conf.set(MAX_BYTES, "64m")
    try:
        assert limits([SMALL] * 2) == [DEFAULT] * 2
    finally:
        spark.conf.unset(MAX_BYTES)


def test_the_limit_stays_where_a_batch_may_have_any_number_of_rows(limits: Any, spark: Any) -> None:
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "0")
    try:
        assert limits([SMALL] * 2) == [DEFAULT] * 2
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


@pytest.mark.parametrize(
    ("given", "size"), [("64m", 64 << 20), ("67108864b", 64 << 20), (" 1KB ", 1024), ("5", 5)]
)
def test_sizes_of_settings_have_the_units_of_spark(given: str, size: int) -> None:
    assert size_of_setting(given) == size


def test_the_size_of_rows_is_that_of_what_was_read() -> None:
    whole = pa.record_batch({"n": pa.array(range(100), pa.int64())})
    empty = whole.slice(0, 0)
    measured = MeasuredBatches([empty, whole.slice(10, 4), empty, whole.slice(0, 1)])
    assert measured.row_bytes == 0
    assert sum(batch.num_rows for batch in measured) == 5
    assert measured.row_bytes == 8
