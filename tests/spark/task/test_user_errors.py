"""Errors of users' functions, as the driver gets them: their own line first and once, and a typed error."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from keyedstate import keyed, types
from keyedstate.aggregates import aggregate_with
from keyedstate.errors import UserFunctionError, user_function_error
from keyedstate.runtime import Context, KeyedBatch, KeyedProcessFunction, VectorizedProcessFunction
from keyedstate.state import AggregateFunction, ReducingState
from keyedstate.windows import Count
from keyedstate.windows.declaration.function import ProcessWindowFunction

SCHEMA = "k string, v long"
#: Spark 3.5 shows the frame in which the error leaves the task.
HIDES_FRAMES = not pyspark.__version__.startswith("3.")
JOB = Path(__file__).parents[1] / "jobs" / "failing_job.py"


class Unpicklable(Exception):
    def __init__(self) -> None:
        super().__init__("holds a lock", lambda: None)


def nested() -> None:
    try:
        {}["inner"]
    except KeyError as error:
        raise ValueError("outer") from error


def unpicklable() -> None:
    raise Unpicklable


def huge() -> None:
    raise ValueError("begin" + "x" * 3_000_000 + "end")


def exits() -> None:
    sys.exit(3)


def unlucky(a: int, b: int) -> int:
    raise ArithmeticError("unlucky")


class Acts(KeyedProcessFunction):
    total = ReducingState("total", unlucky, types.INT64)

    def __init__(self, action: Callable[[], Any] | None = None) -> None:
        self.action = action

    def process(self, row: Any, ctx: Context) -> Iterator[Any]:
        if self.action is not None:
            self.action()
        self.total.add(row.v)
        self.total.add(row.v)
        yield row.k, row.v


class Mistyped(KeyedProcessFunction):
    def process(self, row: Any, ctx: Context) -> Iterator[Any]:
        yield (row.k,)


class Opens(KeyedProcessFunction):
    def open(self, ctx: Context) -> None:
        nested()

    def process(self, row: Any, ctx: Context) -> None:
        """Never called."""


class Fires(KeyedProcessFunction):
    def process(self, row: Any, ctx: Context) -> None:
        ctx.timer_service.register_processing_time_timer(0)

    def on_timer(self, time: int, ctx: Any) -> None:
        nested()


class Batches(VectorizedProcessFunction):
    def process_batch(self, batch: KeyedBatch, ctx: Context) -> Iterator[pa.RecordBatch]:
        nested()
        yield batch.rows


class Ends(VectorizedProcessFunction):
    def process_batch(self, batch: KeyedBatch, ctx: Context) -> None:
        pass

    def end_epoch(self, ctx: Context) -> None:
        nested()


class FailsInWindow(ProcessWindowFunction):
    def process(self, elements: Any, ctx: Any) -> Any:
        return nested()


class MergesBadly(AggregateFunction[int, int, int]):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: int, accumulator: int) -> int:
        nested()
        return value

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, a: int, b: int) -> int:
        return a


def first_and_once(text: str, line: str) -> None:
    """Check that a text has the user's own line before frames of the framework and traces of Java."""
    assert text.count(line) == 1
    before, _, after = text.partition(line)
    assert "\tat " not in before
    assert framework_frames(before) == ([] if HIDES_FRAMES else ["spark/task/task.py"])
    assert "/keyedstate/runtime/operator.py" not in after
    assert "test_user_errors.py" in after


def framework_frames(text: str) -> list[str]:
    """Return the files of the framework whose frames a text has."""
    return re.findall(r"/keyedstate/(\S+)\", line", text)


def rows(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([("a", 1)], SCHEMA)


def typed(error: BaseException | None) -> UserFunctionError:
    found = user_function_error(error)
    assert found is not None
    return found


FUNCTIONS: dict[str, tuple[Callable[[DataFrame], DataFrame], dict[str, Any]]] = {
    "per record": (
        lambda df: keyed(df, "k").process(Acts(nested), SCHEMA),
        {"function": "Acts", "step": "process", "key": "a"},
    ),
    "open": (lambda df: keyed(df, "k").process(Opens(), SCHEMA), {"step": "open", "key": None}),
    "timer": (
        lambda df: keyed(df, "k").process(Fires(), SCHEMA),
        {"step": "on_timer", "key": "a", "time": 0},
    ),
    "vectorised": (
        lambda df: keyed(df, "k").process(Batches(), SCHEMA),
        {"step": "process_batch", "key": None},
    ),
    "end of epoch": (lambda df: keyed(df, "k").process(Ends(), SCHEMA), {"step": "end_epoch"}),
    "window": (
        lambda df: keyed(df, "k").window(Count.of(1)).process(FailsInWindow(), SCHEMA),
        {"key": "a"},
    ),
    "aggregate": (
        lambda df: keyed(df, "k").aggregate(
            a=aggregate_with(MergesBadly(), "v", accumulator=types.INT64, result=types.INT64)
        ),
        {"key": None},
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_batch_action_fails_with_the_user_s_line_first(
    spark: SparkSession, one_backend: str, name: str
) -> None:
    build, facts = FUNCTIONS[name]
    with pytest.raises(PySparkException) as caught:
        build(rows(spark)).collect()
    first_and_once(str(caught.value), "ValueError: outer\n")
    assert str(caught.value).count("Caused by KeyError: 'inner'\n") == 1
    error = typed(caught.value)
    assert (error.error, error.epoch, error.uid) == ("ValueError: outer", None, None)
    assert "in nested" in error.trace
    assert {fact: getattr(error, fact) for fact in facts} == facts


@pytest.mark.parametrize("host", ["resident", "embedded"])
@pytest.mark.parametrize("plan", ["streaming", "foreachBatch"])
def test_a_query_fails_with_the_user_s_line_first(
    stream: Any, one_backend: str, plan: str, host: str
) -> None:
    stream.add([{"k": "N1", "v": 7}])
    config = {"checkpoint.dir": str(stream.state), "parallelism": 2, "backend": one_backend, "host": host}

    def process(df: DataFrame) -> DataFrame:
        return keyed(df, "k", uid="op", config=config).process(Acts(nested), SCHEMA)

    if plan == "streaming":
        query = stream.start(process(stream.frame()))
    else:
        query = stream.start(stream.frame(), lambda batch, epoch: process(batch).collect())
    with pytest.raises(PySparkException) as caught:
        query.awaitTermination()
    for raised in (caught.value, query.exception()):
        first_and_once(str(raised), "ValueError: outer\n")
        error = typed(raised)
        assert (error.error, error.key, error.epoch, error.uid) == ("ValueError: outer", "N1", 0, "op")
        assert (error.function, error.step, error.state) == ("Acts", "process", None)


@pytest.mark.long
@pytest.mark.parametrize("host", ["resident", "embedded"])
@pytest.mark.parametrize(
    ("action", "said"),
    [
        (unpicklable, "Unpicklable: ('holds a lock'"),
        (huge, "ValueError: beginxxx"),
        (exits, "SystemExit: 3"),
        (None, "ArithmeticError: unlucky"),
    ],
)
def test_an_unusual_error_of_a_query_arrives_typed(
    stream: Any, one_backend: str, action: Callable[[], None] | None, said: str, host: str
) -> None:
    stream.add([{"k": "N1", "v": 7}])
    config = {"checkpoint.dir": str(stream.state), "parallelism": 1, "backend": one_backend, "host": host}
    query = stream.start(keyed(stream.frame(), "k", uid="op", config=config).process(Acts(action), SCHEMA))
    with pytest.raises(PySparkException):
        query.awaitTermination()
    text = str(query.exception())
    first_and_once(text, said)
    assert len(text) < 30_000
    error = typed(query.exception())
    assert said in error.error
    assert (error.key, error.epoch) == ("N1", 0)
    assert error.state == (None if action else "total")


def test_an_error_of_keyedstate_in_a_task_has_its_message_first(stream: Any, one_backend: str) -> None:
    stream.add([{"k": "N1", "v": 7}])
    config = {"checkpoint.dir": str(stream.state), "parallelism": 1, "backend": one_backend}
    # Through foreachBatch PySpark puts the frames of the worker before the error.
    out = keyed(stream.frame(), "k", uid="op", config=config).process(Mistyped(), "v long")
    location = str(stream.spark_checkpoint)
    query = out.writeStream.format("noop").option("checkpointLocation", location).start()
    with pytest.raises(PySparkException):
        query.awaitTermination()
    message = str(query.exception())
    before, _, after = message.partition("keyedstate.errors.function.OutputTypeError: ")
    assert after
    assert framework_frames(before) == ([] if HIDES_FRAMES else ["spark/task/task.py"])
    assert framework_frames(after)
    assert user_function_error(message) is None


@pytest.mark.long
@pytest.mark.parametrize("plan", ["streaming", pytest.param("foreach-batch", marks=pytest.mark.long)])
def test_explain_picks_the_cause_out_of_the_log_of_a_job(tmp_path: Path, plan: str) -> None:
    (tmp_path / "input").mkdir()
    (tmp_path / "input" / "0.json").write_text('{"k": "N1", "v": 7}\n')
    log = tmp_path / "log"
    with log.open("w") as out:
        job = subprocess.run(
            [sys.executable, str(JOB), str(tmp_path), plan],
            env={**os.environ, "PYSPARK_PYTHON": sys.executable},
            stdout=out,
            stderr=out,
        )
    assert job.returncode == 1
    explained = subprocess.run(
        [sys.executable, "-m", "keyedstate.cli", "explain", str(log), "--format", "json"],
        capture_output=True,
        text=True,
    )
    assert explained.returncode == 0, explained.stderr
    (cause,) = json.loads(explained.stdout)
    assert cause["times"] > 1
    assert cause["error"] == "LookupError: no flight 7"
    assert (cause["key"], cause["epoch"], cause["uid"]) == ("N1", 0, "flights")
