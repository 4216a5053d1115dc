"""How many bytes of rows Spark sends to Python at once: a limit of Spark that costs time for each row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import DataFrame

from keyedstate import keyed, types
from keyedstate.runtime import Context, KeyedProcessFunction
from keyedstate.spark.query.arrow_batches import MAX_BYTES, UNLIMITED, bytes_per_batch, size_of_setting
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
def limits(spark: Any, new_stream: Any, tmp_path: Any) -> Any:
    """Run epochs, each with a row of a text, and return the limit that Spark had in each of them."""
    default = bytes_per_batch(spark)
    if default is None:
        pytest.skip("this version of Spark has no limit in bytes")
    stream = new_stream(tmp_path, "k string, text string")

    def limits(texts: list[str], *times: int) -> list[int]:
        found = {}
        for text in texts:
            stream.add([{"k": "a", "text": text}])
        out = stream.frame()
        for number, repeated in enumerate(times or (1,)):
            config = {"checkpoint.dir": stream.state.as_uri()}
            out = keyed(out, "k", uid=f"echo-{number}", config=config).process(
                Echo(repeated), "k string, text string"
            )

        def sink(batch: DataFrame, epoch: int) -> None:
            found[epoch] = size_of_setting(batch.sparkSession.conf.get(MAX_BYTES))
            stream.rows[epoch] = batch.collect()

        stream.run(out, sink)
        assert [len(stream.rows[epoch]) for epoch in sorted(found)] == [1] * len(texts)
        return [found[epoch] for epoch in sorted(found)]

    yield limits
    assert bytes_per_batch(spark) == default, "the session of the query alone has another limit"


def test_small_rows_come_without_a_limit_in_bytes_from_the_second_epoch_on(limits: Any) -> None:
    assert limits([SMALL] * 3) == [DEFAULT, UNLIMITED, UNLIMITED]


def test_the_limit_is_back_for_good_after_large_rows(limits: Any) -> None:
    """One epoch is too late: the size of rows is known when they have come."""
    assert limits([SMALL, SMALL, LARGE, SMALL, SMALL]) == [DEFAULT, UNLIMITED, UNLIMITED, DEFAULT, DEFAULT]


def test_the_limit_stays_where_one_of_two_operators_has_large_rows(limits: Any) -> None:
    assert limits([SMALL] * 3, 5_000, 1)[1:] == [DEFAULT] * 2


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
