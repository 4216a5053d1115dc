"""The metrics of epochs: in a listener of Spark's, in the last progress, on request, and in Spark's log."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from keyedstate import EpochListener, epoch_metrics, keyed, metrics_of, types
from keyedstate.metrics import EpochMetrics
from keyedstate.runtime import Context, KeyedProcessFunction
from keyedstate.state import ListState, ValueState


class Remembering(KeyedProcessFunction):
    """Counts the rows of each key and keeps the values of one."""

    n = ValueState("n", types.INT64, default=0)
    of_a = ListState("of a", types.INT64)

    def process(self, row: Any, ctx: Context) -> Iterator[tuple[Any, ...]]:
        self.n.update(self.n.value() + 1)
        if ctx.key == "a":
            self.of_a.add(row.v)
        yield ctx.key, self.n.value()


class Recorder(EpochListener):
    def __init__(self) -> None:
        self.epochs: list[EpochMetrics] = []
        self.ended = False

    def onEpoch(self, metrics: EpochMetrics) -> None:
        self.epochs.append(metrics)

    def onQueryTerminated(self, event: Any) -> None:
        self.ended = True


#: A plugin whose reporter fails for the first epoch.
REPORTING = """
import json
from keyedstate.hooks import hookimpl

@hookimpl
def keyedstate_metric_reporter(options):
    def report(metrics):
        if metrics.epoch == 0:
            raise RuntimeError("not yet")
        with open(options["lines.file"], "a") as file:
            file.write(json.dumps(metrics.to_json()) + "\\n")

    return report if "lines.file" in options else None
"""


@pytest.fixture
def reporting(spark: SparkSession, tmp_path: Path) -> str:
    """The name of a module with that plugin, which the driver and the tasks can import."""
    name = f"reporting_{uuid.uuid4().hex}"
    (tmp_path / f"{name}.py").write_text(REPORTING, encoding="utf-8")
    spark.sparkContext.addPyFile(str(tmp_path / f"{name}.py"))
    return name


@pytest.fixture
def spark_log(spark: SparkSession, tmp_path: Path) -> Iterator[Path]:
    """A file with the lines of our logger in the log of the JVM."""
    jvm: Any = spark.sparkContext._jvm
    log4j = jvm.org.apache.logging.log4j
    layout = log4j.core.layout.PatternLayout.newBuilder().withPattern("%level %c %m%n").build()
    builder = log4j.core.appender.FileAppender.newBuilder().withFileName(str(tmp_path / "log"))
    appender = builder.setName("epochs").setLayout(layout).build()
    appender.start()
    log4j.core.config.Configurator.setLevel("keyedstate.EpochMetrics", log4j.Level.INFO)
    logger = log4j.LogManager.getLogger("keyedstate.EpochMetrics")
    logger.addAppender(appender)
    yield tmp_path / "log"
    logger.removeAppender(appender)
    appender.stop()
    log4j.core.config.Configurator.setLevel("keyedstate.EpochMetrics", log4j.Level.ERROR)


def test_listeners_progress_and_log_have_the_metrics_of_every_epoch(
    spark: SparkSession,
    stream: Any,
    one_backend: str,
    spark_log: Path,
    reporting: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    config: dict[str, object] = {
        "plugins.modules": reporting,
        "metrics.latency": True,
        "metrics.latency-interval": 1,
        "metrics.options": {"lines.file": str(tmp_path / "lines")},
        "checkpoint.dir": str(stream.state),
        "parallelism": 2,
        "backend": one_backend,
        "host": "resident",
    }
    for keys in ("abca", "aa", "d"):
        stream.add({"k": key, "v": number} for number, key in enumerate(keys))
    recorded = Recorder()
    spark.streams.addListener(recorded)
    try:
        out = keyed(stream.frame(), "k", uid="remember", config=config).process(
            Remembering(), "k string, n long"
        )
        query = stream.start(out)
        query.awaitTermination()
        stream.settle()
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(600_000)  # type: ignore[union-attr]
    finally:
        spark.streams.removeListener(recorded)

    assert [(m.uid, m.epoch, m.run_id) for m in recorded.epochs] == [
        ("remember", epoch, str(query.runId)) for epoch in range(3)
    ]
    rows = [(m.rows_in, m.rows_out, m.partitions) for m in recorded.epochs]
    assert rows == [
        (4, 4, 2),
        (2, 2, 2),
        (1, 1, 2),
    ]
    assert [m.states["n"].entries for m in recorded.epochs] == [3, 3, 4]
    assert [m.states["of a"].entries for m in recorded.epochs] == [1, 1, 1]
    assert all(of_state.bytes != 0 for m in recorded.epochs for of_state in m.states.values())
    assert [(m.restores, m.host_hits) for m in recorded.epochs] == [(2, 0), (0, 2), (0, 2)]
    for metrics in recorded.epochs:
        assert list(metrics.phases) == ["restore", "process", "snapshot", "write", "publish"]
        assert all(0.0 <= times.max <= times.sum for times in metrics.phases.values())
        assert metrics.phases["publish"].max > 0.0
        assert metrics.checkpoint_bytes >= metrics.written_bytes > 0
    # Of the epoch alone: no row of the last one has used the other state.
    accesses = [{state: set(of) for state, of in m.latencies.items()} for m in recorded.epochs]
    used, unused = {"n": {"value", "update"}, "of a": {"add"}}, {"n": {"value", "update"}}
    assert accesses == [used, used, unused]
    assert [m.latencies["n"]["update"].samples for m in recorded.epochs] == [4, 2, 1]

    # Without a listener, by the query or by its progress; and in Spark's log.
    assert epoch_metrics(query) == epoch_metrics(str(query.id), "remember") == tuple(recorded.epochs)
    assert epoch_metrics(query, "another") == epoch_metrics("another query") == ()
    assert query.lastProgress is not None
    assert metrics_of(query.lastProgress) == (recorded.epochs[-1],)
    lines = spark_log.read_text().splitlines()
    said = [f"INFO keyedstate.EpochMetrics epoch {m.epoch} of remember: " for m in recorded.epochs]
    assert [line.partition("{")[0] for line in lines] == said
    assert [json.loads(line[line.index("{") :]) for line in lines] == [m.to_json() for m in recorded.epochs]

    # And with the reporter of a plugin, whose error harms nobody.
    reported = [json.loads(line) for line in (tmp_path / "lines").read_text().splitlines()]
    assert reported == [m.to_json() for m in recorded.epochs[1:]]
    assert f"the plugin {reporting} (module) cannot report epoch 0 of 'remember'" in caplog.text


def test_a_micro_batch_that_is_evaluated_twice_is_reported_once(
    stream: Any, spark_log: Path, reporting: str, tmp_path: Path
) -> None:
    config: dict[str, object] = {
        "plugins.modules": reporting,
        "metrics.options": {"lines.file": str(tmp_path / "lines")},
        "checkpoint.dir": str(stream.state),
        "parallelism": 2,
    }
    for keys in ("ab", "a", "c"):
        stream.add({"k": key, "v": number} for number, key in enumerate(keys))

    def twice(batch: DataFrame, epoch: int) -> None:
        batch.collect()
        batch.collect()

    out = keyed(stream.frame(), "k", uid="remember", config=config).process(Remembering(), "k string, n long")
    stream.run(out, twice)
    reported = [json.loads(line) for line in (tmp_path / "lines").read_text().splitlines()]
    assert [(line["epoch"], line["rows_in"]) for line in reported] == [(1, 1), (2, 1)]
    logged = [line.partition("{")[0] for line in spark_log.read_text().splitlines()]
    assert logged == [f"INFO keyedstate.EpochMetrics epoch {epoch} of remember: " for epoch in range(3)]


def test_the_progress_of_a_query_without_keyed_operators_has_no_metrics(
    spark: SparkSession, stream: Any
) -> None:
    stream.add([{"k": "a", "v": 1}])
    query = stream.start(stream.frame())
    query.awaitTermination()
    assert query.lastProgress is not None and metrics_of(query.lastProgress) == ()
