"""Keyed operators through a client of Spark Connect: no driver of keyedstate runs, so tasks publish."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("grpc", reason="a client of Spark Connect needs pyspark[connect]")
pytest.importorskip(
    "pyspark.sql.connect.tvf", reason="keyed operators run on Spark Connect from PySpark 4 on"
)

from connect_server import ConnectServer
from pyspark.errors import PySparkException
from pyspark.sql import functions as f

from keyedstate import connect, epoch_metrics, keyed, metrics_of, types
from keyedstate.aggregates import count
from keyedstate.errors import (
    ClassicSparkRequiredError,
    InvalidParallelismError,
    KeyColumnError,
    PreflightError,
    QueryNotStoppedError,
)
from keyedstate.runtime import Context, KeyedCoProcessFunction, KeyedProcessFunction
from keyedstate.savepoints import Savepoint
from keyedstate.spark.datasource.registration import register
from keyedstate.state import ValueState
from keyedstate.time import EventTime
from keyedstate.windows import Tumbling

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COUNTS = "k string, n long"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    # A task may fail three times.
    server = ConnectServer(tmp_path_factory.mktemp("connect"), "local[2,4]")
    with pytest.MonkeyPatch.context() as environment:
        # What a builder of remote sessions sets: `pyspark.sql.functions` makes columns for them.
        environment.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
        server.start()
        yield server
        server.kill()


@pytest.fixture(scope="module")
def session(server: ConnectServer) -> Any:
    return server.session()


class Count(KeyedProcessFunction):
    n = ValueState("n", types.INT64, default=0)

    def process(self, row: Any, ctx: Context) -> Iterator[tuple[Any, ...]]:
        self.n.update(self.n.value() + 1)
        yield ctx.key, self.n.value()


class KilledOnce(Count):
    """Kills a process in the middle of an epoch, once: by default the one that it runs in."""

    def __init__(self, mark: Path, pid: int | None = None) -> None:
        self.mark = mark
        self.pid = pid

    def process(self, row: Any, ctx: Context) -> Iterator[tuple[Any, ...]]:
        if ctx.key == "kill" and not self.mark.exists():
            self.mark.touch()
            os.kill(self.pid or os.getpid(), signal.SIGKILL)
        yield from super().process(row, ctx)


class KillsExecutorOnce(Count):
    """Kills the executor of a task that runs in Spark's Python worker, once."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def process(self, row: Any, ctx: Context) -> Iterator[tuple[Any, ...]]:
        if ctx.key == "kill" and not self.mark.exists():
            self.mark.touch()
            # The worker's parent is Spark's daemon, a child of the executor.
            facts = Path(f"/proc/{os.getppid()}/stat").read_text(encoding="ascii")
            os.kill(int(facts.rpartition(")")[2].split()[1]), signal.SIGKILL)
        yield from super().process(row, ctx)


class Query:
    """A query over JSON files, one file an epoch, into JSON files."""

    def __init__(self, folder: Path, columns: str = "k string, v long, ts timestamp") -> None:
        self.folder = folder
        self.columns = columns
        self.config: dict[str, object] = {"checkpoint.dir": str(folder / "state"), "parallelism": 2}
        (folder / "input").mkdir(parents=True)

    def add(self, name: str, rows: Iterable[dict[str, Any]], folder: str = "input") -> None:
        hidden = self.folder / folder / f".{name}"
        hidden.parent.mkdir(exist_ok=True)
        hidden.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        # Spark reads files in the order of their times.
        time = 1_000_000_000 + len(list(hidden.parent.iterdir()))
        os.utime(hidden, (time, time))
        hidden.rename(hidden.with_name(f"{name}.json"))

    def add_keys(self, name: str, *keys: str) -> None:
        self.add(name, [{"k": key} for key in keys])

    def frame(self, session: Any, folder: str = "input") -> DataFrame:
        found: DataFrame = (
            session.readStream.schema(self.columns)
            .option("maxFilesPerTrigger", 1)
            .json(str(self.folder / folder))
        )
        return found

    def counts(
        self, session: Any, function: KeyedProcessFunction | None = None, **config: object
    ) -> DataFrame:
        rows = keyed(self.frame(session), "k", uid="counts", config={**self.config, **config})
        return rows.process(function or Count(), COUNTS)

    def start(self, out: DataFrame, checkpoint: str = "spark", sink: str = "out", **trigger: Any) -> Any:
        writer = out.writeStream.format("json").option("path", str(self.folder / sink))
        writer = writer.option("checkpointLocation", str(self.folder / checkpoint))
        return writer.trigger(**(trigger or {"availableNow": True})).start()

    def run(self, out: DataFrame, **options: str) -> Any:
        query = self.start(out, **options)
        query.awaitTermination()
        return query

    def rows(self, session: Any, columns: str = COUNTS, sink: str = "out") -> list[tuple[Any, ...]]:
        read = session.read.schema(columns).json(str(self.folder / sink))
        return sorted(tuple(row) for row in read.collect())


@pytest.fixture
def query(tmp_path: Path) -> Query:
    return Query(tmp_path)


@pytest.fixture(scope="module")
def counted(session: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Query, Any]:
    """A query after two runs with different parallelisms, and its last run."""
    import sys

    import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    query = Query(tmp_path_factory.mktemp("counted"))
    query.add_keys("0", "a", "b", "a")
    query.add_keys("1", "c")
    query.run(query.counts(session))
    query.add_keys("2", "a", "b", "c")
    # The number of key groups is that of the state, which the client does not read.
    return query, query.run(query.counts(session, parallelism=3))


def test_a_count_has_each_row_once_over_epochs_a_restart_and_rescaling(
    session: Any, counted: tuple[Query, Any]
) -> None:
    query, _ = counted
    assert query.rows(session) == [("a", 1), ("a", 2), ("a", 3), ("b", 1), ("b", 2), ("c", 1), ("c", 2)]
    kept = sorted(path.name for path in (query.folder / "state" / "counts").iterdir())
    assert [name for name in kept if name.startswith("chk-")] == ["chk-1", "chk-2"], "tasks clean up"
    assert list((query.folder / "state").iterdir()) == [query.folder / "state" / "counts"]


def test_metrics_are_read_from_the_checkpoints(counted: tuple[Query, Any]) -> None:
    _, run = counted
    assert [(found.epoch, found.rows_in, found.partitions) for found in epoch_metrics(run)] == [
        (1, 1, 2),
        (2, 3, 3),
    ]
    (found,) = metrics_of(run.lastProgress)
    assert (found.epoch, found.run_id) == (2, str(run.runId))


def test_the_data_source_reads_state(session: Any, counted: tuple[Query, Any]) -> None:
    query, _ = counted
    register(session)
    state = session.read.format("keyedstate").load(str(query.folder / "state"))
    assert sorted((row["k"], row["value"]) for row in state.collect()) == [("a", 3), ("b", 2), ("c", 2)]


def test_a_savepoint_is_created_and_continued_from(
    session: Any, counted: tuple[Query, Any], tmp_path: Path
) -> None:
    query, _ = counted
    savepoint = Savepoint.create(tmp_path / "savepoint", query.folder / "state", query.folder / "spark")
    assert savepoint.spark is not None and savepoint.spark.epoch == 2
    savepoint.fork(tmp_path / "spark", tmp_path / "state")
    query.add_keys("3", "a")
    again = query.counts(session, **{"checkpoint.dir": str(tmp_path / "state")})
    query.run(again, checkpoint=str(tmp_path / "spark"), sink="forked")
    assert query.rows(session, sink="forked/*.json") == [("a", 4)]


def test_a_parallelism_beyond_the_key_groups_of_the_state_is_refused(
    session: Any, counted: tuple[Query, Any]
) -> None:
    query, _ = counted
    with pytest.raises(InvalidParallelismError, match="1000"):
        query.counts(session, parallelism=1000)


def test_a_running_query_with_heartbeats_is_drained_into_a_savepoint(
    session: Any, query: Query, tmp_path: Path
) -> None:
    query.add("0", [{"k": "a", "ts": "2026-01-01T00:00:10Z"}] * 2)
    event_time = EventTime("ts", delay=0)
    rows = keyed(
        query.frame(session), "k", uid="w", config=query.config, heartbeat=200, event_time=event_time
    )
    out = rows.window(Tumbling.of("1 min")).aggregate(n=count())
    running = query.start(out, processingTime="100 milliseconds")
    while not epoch_metrics(running):
        assert not running.awaitTermination(0.1)
    with pytest.raises(ClassicSparkRequiredError, match="Give it as spark_checkpoint_location="):
        Savepoint.stop(running, tmp_path / "savepoint")
    other = tmp_path / "other"
    other.mkdir()
    (other / "metadata").write_text('{"id":"b0d0f9a8-7f3c-4a55-8fd5-e5d0b7d6a001"}', encoding="utf-8")
    with pytest.raises(QueryNotStoppedError, match="Give the one of this query"):
        Savepoint.stop(running, tmp_path / "savepoint", spark_checkpoint_location=other)
    stopped = Savepoint.stop(
        running, tmp_path / "savepoint", drain=True, spark_checkpoint_location=query.folder / "spark"
    )
    assert not running.isActive
    assert (stopped.failure, stopped.savepoint.drained, stopped.savepoint.operators) == (None, True, ("w",))
    # The rows of the last window come when the query is drained.
    assert query.rows(session, "n long") == [(2,)]


def test_aggregates_by_an_expression(session: Any, query: Query) -> None:
    query.add_keys("0", "a", "A")
    query.add_keys("1", "b", "A")
    rows = keyed(query.frame(session), f.lower("k").alias("low"), uid="sums", config=query.config)
    query.run(rows.aggregate(n=count()))
    assert query.rows(session, "low string, n long") == [("a", 2), ("a", 3), ("b", 1)]


@pytest.mark.parametrize("given", [True, False], ids=["by EventTime", "by withWatermark"])
def test_windows_in_event_time(session: Any, query: Query, given: bool) -> None:
    for number, minute in enumerate(("00:10", "00:50", "02:00", "04:00")):
        query.add(str(number), [{"k": "a", "ts": f"2026-01-01T00:{minute}Z"}])
    rows, event_time = query.frame(session), EventTime("ts", delay=0) if given else None
    if not given:
        rows = rows.withWatermark("ts", "0 seconds")
    windows = keyed(rows, "k", uid="windows", config=query.config, event_time=event_time)
    query.run(windows.window(Tumbling.of("1 min")).aggregate(n=count()))
    assert [n for *_, n in query.rows(session, "window_start timestamp, n long")] == [2]


class Both(KeyedCoProcessFunction):
    """Counts the rows of both inputs in one state."""

    n = ValueState("n", types.INT64, default=0)

    def process1(self, row: Any, ctx: Context) -> Iterator[tuple[Any, ...]]:
        self.n.update(self.n.value() + 1)
        yield ctx.key, self.n.value()

    process2 = process1


def test_two_inputs_share_the_state_of_a_key(session: Any, query: Query) -> None:
    query.add("0", [{"k": "a"}])
    query.add("0", [{"k": "a"}, {"k": "b"}], folder="second")
    frames = [keyed(query.frame(session, folder), "k") for folder in ("input", "second")]
    query.run(connect(*frames, uid="both", config=query.config).process(Both(), COUNTS))
    assert query.rows(session) == [("a", 1), ("a", 2), ("b", 1)]


def test_a_batch_needs_no_uid_and_keeps_no_state(session: Any, query: Query) -> None:
    rows = session.createDataFrame([("a",), ("a",)], "k string")
    assert sorted(map(tuple, keyed(rows, rows["k"]).process(Count(), COUNTS).collect())) == [
        ("a", 1),
        ("a", 2),
    ]


@pytest.mark.parametrize("host", ["resident", "embedded"])
def test_a_killed_process_of_a_task_changes_nothing(session: Any, query: Query, host: str) -> None:
    query.add_keys("0", "a", "kill")
    query.add_keys("1", "a", "kill")
    function = KilledOnce(query.folder / "killed")
    query.run(query.counts(session, function, host=host))
    assert (query.folder / "killed").exists()
    assert query.rows(session) == [("a", 1), ("a", 2), ("kill", 1), ("kill", 2)]


def test_keys_are_columns_or_expressions(session: Any) -> None:
    rows = session.createDataFrame([(1, "A")], "n long, k string").withColumn("s", f.struct("n"))
    for key, names in ((f.col("K"), ["k"]), (f.col("s.n").alias("inner"), ["inner"]), ("s.n", None)):
        if names is None:
            with pytest.raises(KeyColumnError, match="an expression is named 'n'"):
                keyed(rows, key)
        else:
            assert keyed(rows, key)._rows.key_columns == names
    with pytest.raises(KeyColumnError, match="no column 'kk'"):
        keyed(rows, "kk")


def test_the_drop_in_is_refused(session: Any) -> None:
    operators = pytest.importorskip("keyedstate.spark.drop_in.operators")
    grouped = session.createDataFrame([("a",)], "k string").groupBy("k")
    with pytest.raises(ClassicSparkRequiredError, match="finds the checkpoint location of its query"):
        operators.transform_with_state(grouped, object(), COUNTS, "update", "none")


def failure_in_foreach_batch(rows: DataFrame, function: Any) -> str:
    """Return the error of a query whose sink is a function.

    Spark gives the process of the function ten seconds to begin, too few on a busy machine.
    """
    for _ in range(5):
        try:
            running = rows.writeStream.foreachBatch(function).trigger(availableNow=True).start()
        except PySparkException as error:
            if "failed to connect back" not in str(error):
                raise
        else:
            with pytest.raises(PySparkException) as caught:
                running.awaitTermination()
            return str(caught.value)
    pytest.skip("Spark could not start the process of a foreachBatch function in ten seconds")


def test_a_keyed_result_in_foreach_batch_is_refused(session: Any, query: Query) -> None:
    query.add_keys("0", "a")

    def evaluate(batch: Any, epoch: int) -> None:
        batch.collect()

    said = failure_in_foreach_batch(query.counts(session), evaluate)
    assert "on Spark Connect with another sink than foreachBatch" in said


def test_an_operator_with_a_uid_in_foreach_batch_is_refused(session: Any, query: Query) -> None:
    query.add_keys("0", "a")
    state = str(query.folder / "inside")

    def build(batch: Any, epoch: int) -> None:
        keyed(batch, "k", uid="u", config={"checkpoint.dir": state}).process(Count(), COUNTS).collect()

    assert "Build it on the streaming DataFrame" in failure_in_foreach_batch(query.frame(session), build)


def test_workers_without_keyedstate_are_named(server: ConnectServer, query: Query) -> None:
    site = server.site / "sitecustomize.py"
    site.write_text(
        "import sys\n"
        "class Missing:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'keyedstate':\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}')\n"
        "sys.meta_path.insert(0, Missing())\n"
    )
    session = server.session()
    try:
        with pytest.raises(PreflightError, match="Install the same keyedstate and backend") as caught:
            query.counts(session)
    finally:
        site.unlink()
        session.stop()
    assert caught.value.check == "importing keyedstate"
    assert not (query.folder / "state").exists()


@pytest.mark.long
@pytest.mark.slow
def test_a_killed_executor_changes_nothing(
    server: ConnectServer, query: Query, tmp_path_factory: pytest.TempPathFactory
) -> None:
    cluster = ConnectServer(tmp_path_factory.mktemp("cluster"), "local-cluster[2,1,1024]")
    cluster.start()
    try:
        session = cluster.session()
        query.add_keys("0", "a", "b")
        query.add_keys("1", "a", "kill")
        query.add_keys("2", "b", "kill")
        query.run(query.counts(session, KillsExecutorOnce(query.folder / "killed"), host="embedded"))
        query.add_keys("3", "a", "b")
        # Hosts of two executors, which reach each other.
        query.run(query.counts(session))
        assert (query.folder / "killed").exists()
        counted = query.rows(session)
    finally:
        cluster.kill()
    expected = [("a", 1), ("a", 2), ("a", 3), ("b", 1), ("b", 2), ("b", 3), ("kill", 1), ("kill", 2)]
    assert counted == expected


def test_a_killed_server_repeats_the_epoch(server: ConnectServer, query: Query) -> None:
    query.add_keys("0", "a", "kill-not")
    query.add_keys("1", "a", "kill")
    before = server.session()
    query.start(query.counts(before, KilledOnce(query.folder / "killed", server.pid)))
    server.wait()
    server.kill()
    server.start()
    session = server.session()
    query.run(query.counts(session))
    assert query.rows(session) == [("a", 1), ("a", 2), ("kill", 1), ("kill-not", 1)]
