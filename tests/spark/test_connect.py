"""Keyed operators through a client of Spark Connect: no driver of keyedstate runs, so tasks publish."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

pytest.importorskip("grpc", reason="a client of Spark Connect needs pyspark[connect]")
pytest.importorskip(
    "pyspark.sql.connect.tvf", reason="keyed operators run on Spark Connect from PySpark 4 on"
)

from connect_server import ConnectServer, JsonQuery
from pyspark.errors import PySparkException
from pyspark.sql import functions as f

from keyedstate import connect, epoch_metrics, keyed, metrics_of, types
from keyedstate.aggregates import count, sum_
from keyedstate.errors import (
    ClassicSparkRequiredError,
    InvalidParallelismError,
    KeyColumnError,
    PreflightError,
    QueryNotStoppedError,
)
from keyedstate.runtime import (
    Context,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
)
from keyedstate.savepoints import Savepoint
from keyedstate.spark.datasource.registration import register
from keyedstate.state import BroadcastState, ValueState
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
def session(server: ConnectServer) -> Iterator[Any]:
    session = server.session()
    yield session
    # While the server answers: the client would wait for it at the end of this process.
    session.stop()


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


class Query(JsonQuery):
    """A query that counts its rows."""

    def counts(
        self, session: Any, function: KeyedProcessFunction | None = None, **config: object
    ) -> DataFrame:
        rows = keyed(self.frame(session), "k", uid="counts", config={**self.config, **config})
        return rows.process(function or Count(), COUNTS)

    def rows(self, session: Any, columns: str = COUNTS, sink: str = "out") -> list[tuple[Any, ...]]:
        return super().rows(session, columns, sink)


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


@pytest.mark.long
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


@pytest.mark.long
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


@pytest.mark.long
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


@pytest.mark.long
def test_aggregates_by_an_expression(session: Any, query: Query) -> None:
    query.add_keys("0", "a", "A")
    query.add_keys("1", "b", "A")
    rows = keyed(query.frame(session), f.lower("k").alias("low"), uid="sums", config=query.config)
    query.run(rows.aggregate(n=count()))
    assert query.rows(session, "low string, n long") == [("a", 2), ("a", 3), ("b", 1)]


@pytest.mark.long
@pytest.mark.parametrize(
    "given",
    [
        pytest.param(True, id="by EventTime"),
        pytest.param(False, id="by withWatermark", marks=pytest.mark.long),
    ],
)
def test_windows_in_event_time(session: Any, query: Query, given: bool) -> None:
    for number, minute in enumerate(("00:10", "00:50", "02:00", "04:00")):
        query.add(str(number), [{"k": "a", "ts": f"2026-01-01T00:{minute}Z"}])
    rows, event_time = query.frame(session), EventTime("ts", delay=0) if given else None
    if not given:
        rows = rows.withWatermark("ts", "0 seconds")
    windows = keyed(rows, "k", uid="windows", config=query.config, event_time=event_time)
    out = windows.window(Tumbling.of("1 min")).aggregate(n=count())
    if given:
        # In the last micro-batch, as the windows that it follows.
        ends = out.withColumn("at", f.expr("window_end - INTERVAL 1 MILLISECOND"))
        follows = EventTime("at", follows="windows")
        again = keyed(ends, "k", uid="again", config=query.config, event_time=follows)
        out = again.window(Tumbling.of("1 min")).aggregate(n=sum_("n"))
    query.run(out)
    assert [n for *_, n in query.rows(session, "window_start timestamp, n long")] == [2]


class Both(KeyedCoProcessFunction):
    """Counts the rows of both inputs in one state."""

    n = ValueState("n", types.INT64, default=0)

    def process1(self, row: Any, ctx: Context) -> Iterator[tuple[Any, ...]]:
        self.n.update(self.n.value() + 1)
        yield ctx.key, self.n.value()

    process2 = process1


@pytest.mark.long
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


@pytest.mark.long
@pytest.mark.parametrize("host", ["resident", pytest.param("embedded", marks=pytest.mark.long)])
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


def processors() -> tuple[Any, Any]:
    """Return two processors of Spark: the second one gets the rows of the first one."""
    from pyspark.sql import Row
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    class Visits(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.count = handle.getValueState("count", "n long")

        def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
            self.count.update((initialState.n,))

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
            times = [row.ts for row in rows]
            (n,) = self.count.get() or (0,)
            self.count.update((n + len(times),))
            yield Row(k=key[0], n=n + len(times), at=max(times))

    class Largest(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.handle = handle
            self.largest = handle.getValueState("largest", "n long")

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
            n = max(row.n for row in rows)
            self.largest.update((n,))
            self.handle.registerTimer(timerValues.getCurrentWatermarkInMs() + 1_000)
            yield Row(k=key[0], n=n)

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
            yield Row(k=f"expired {key[0]}", n=self.largest.get()[0])

    return Visits(), Largest()


@pytest.mark.long
def test_processors_of_spark_run_in_a_chain_over_a_restart(session: Any, query: Query) -> None:
    drop_in = pytest.importorskip("keyedstate.spark.drop_in")
    pytest.importorskip("pyspark.sql.streaming.tws_tester", reason="transformWithState came with Spark 4.1")
    first, second = processors()
    initial = session.createDataFrame([("A", 10)], "k string, n long").groupBy("k")

    def built() -> DataFrame:
        rows = query.frame(session).withWatermark("ts", "0 seconds").groupBy(f.upper("k").alias("up"))
        made = rows.transformWithState(
            first, "k string, n long, at timestamp", "append", "eventTime", initial, eventTimeColumnName="at"
        )
        return made.groupBy("k").transformWithState(second, COUNTS, "append", "eventTime")

    with drop_in.enable():
        with pytest.raises(ClassicSparkRequiredError, match=r"Set spark\.keyedstate\.checkpoint\.dir"):
            built()
        session.conf.set("spark.keyedstate.checkpoint.dir", str(query.folder / "state"))
        session.conf.set("spark.keyedstate.parallelism", "2")
        try:
            query.add("0", [{"k": k, "ts": "2026-01-01T00:00:10Z"} for k in ("a", "b", "A")])
            query.run(built())
            query.add("1", [{"k": "b", "ts": "2026-01-01T00:00:20Z"}])
            query.run(built())
            rows = query.frame(session).groupBy("k")
            both = [rows.transformWithState(first, COUNTS, "append", "none") for _ in range(2)]
            with pytest.raises(PySparkException, match="two keyed operators of this query have the uid"):
                query.run(both[0].union(both[1]), checkpoint="both", sink="both")
        finally:
            session.conf.unset("spark.keyedstate.checkpoint.dir")
            session.conf.unset("spark.keyedstate.parallelism")
    found = query.rows(session)
    assert [row for row in found if not row[0].startswith("expired")] == [("A", 12), ("B", 1), ("B", 2)]
    assert ("expired A", 12) in found
    (folder,) = (
        path for path in (query.folder / "state").iterdir() if (path / "transform-with-state-1").exists()
    )
    assert (folder / "transform-with-state-0").exists()


class Limits(KeyedBroadcastProcessFunction):
    """Says which values are above the limit of their key; small ones go to a side output."""

    side_outputs: ClassVar[dict[str, Any]] = {"small": "k string, v long"}
    limits = BroadcastState("limits", types.STRING, types.INT64)

    def process_broadcast(self, row: Any, ctx: Context) -> None:
        self.limits.put(row.k, row.v)

    def process(self, row: Any, ctx: Context) -> Iterator[tuple[Any, ...]]:
        if row.v > (self.limits.get(row.k) or 0):
            yield ctx.key, row.v
        else:
            ctx.output("small", (ctx.key, row.v))


@pytest.mark.long
def test_broadcast_rows_side_outputs_and_an_interval_join(session: Any, query: Query) -> None:
    query.add("0", [{"k": "a", "v": v, "ts": "2026-01-01T00:00:10Z"} for v in (1, 7)])
    query.add("0", [{"k": "a", "v": 2, "ts": "2026-01-01T00:00:12Z"}], folder="second")
    rules = session.createDataFrame([("a", 5)], "k string, v long")
    rows = keyed(query.frame(session), "k", uid="limits", config=query.config)
    checked = rows.broadcast(rules).process(Limits(), "k string, v long")
    event_time = EventTime("ts", delay=0)
    sides = [keyed(query.frame(session, name), "k", event_time=event_time) for name in ("input", "second")]
    pairs = connect(*sides, uid="pairs", config=query.config).interval_join(0, "5 seconds").join()
    texts = [frame.select(f.to_json(f.struct("*")).alias("text")) for frame in (checked, pairs)]
    run = query.run(texts[0].union(texts[1]))
    assert [(metrics.uid, metrics.rows_in) for metrics in epoch_metrics(run)] == [("limits", 2), ("pairs", 3)]
    found = [json.loads(text) for (text,) in query.rows(session, "text string")]
    assert {"output": "main", "main": {"k": "a", "v": 7}} in found
    assert {"output": "small", "small": {"k": "a", "v": 1}} in found
    assert sorted((row["left_v"], row["right_v"]) for row in found if "left_v" in row) == [(1, 2), (7, 2)]


@pytest.mark.long
def test_a_query_starts_with_a_savepoint_that_a_batch_has_written(session: Any, query: Query) -> None:
    history = session.createDataFrame([("a",), ("a",), ("b",)], "k string")
    rows = keyed(history, "k", uid="counts", config={"parallelism": 2, "max-parallelism": 64})
    Savepoint.new().add(rows, Count()).write(query.folder / "history")
    query.add_keys("0", "a", "c")
    query.run(query.counts(session, **{"restore.savepoint": str(query.folder / "history")}))
    assert query.rows(session) == [("a", 3), ("c", 1)]


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


@pytest.mark.long
def test_a_keyed_result_in_foreach_batch_is_refused(session: Any, query: Query) -> None:
    query.add_keys("0", "a")

    def evaluate(batch: Any, epoch: int) -> None:
        batch.collect()

    said = failure_in_foreach_batch(query.counts(session), evaluate)
    assert "on Spark Connect with another sink than foreachBatch" in said


@pytest.mark.long
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


@pytest.mark.long
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
