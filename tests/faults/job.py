"""The driver of a run, to be killed: flights through keyed state into an exactly-once sink.

``python -m faults.job RUN JOB``, where RUN is a folder that holds ``input`` and JOB a file that
`faults.harness.Harness.start` has written.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from threading import Thread

import pyarrow as pa
import pyarrow.parquet
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from faults import injection
from faults.flight_log import (
    CHANGING,
    DELAY_MS,
    FIRST_FLIGHTS,
    GAP_MS,
    INPUT_SCHEMA,
    OPERATORS,
    OUTPUT_SCHEMA,
    WINDOWED,
    FlightLog,
    Turns,
)
from faults.operators.table import TABLE
from faults.plans import INSIDE, NO_OUTPUT
from keyedstate import keyed
from keyedstate.aggregates import count, sum_
from keyedstate.time import EventTime
from keyedstate.windows import Session, Tumbling

_OUTPUT = pa.schema(
    [
        ("operator", pa.string()),
        ("id", pa.int64()),
        ("key", pa.string()),
        ("flights", pa.int64()),
        ("delay", pa.int64()),
    ]
)


def session(run: Path, settings: dict[str, str]) -> SparkSession:
    """Return the session that a job's settings describe."""
    builder = SparkSession.builder.appName(f"faults {run.name}")
    fixed = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        # Results leave a task while it is still at its rows.
        "spark.sql.execution.arrow.maxRecordsPerBatch": "200",
        "spark.sql.warehouse.dir": str(run / "warehouse"),
        "spark.local.dir": str(run / "local"),
        "spark.worker.dir": str(run / "work"),
        "spark.python.daemon.module": "faults.worker_daemon",
        "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
    }
    settings = {**fixed, **settings}
    if settings["spark.master"] == "two hosts":
        settings["spark.master"] = _cluster_of_two_hosts(run)
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _cluster_of_two_hosts(run: Path) -> str:
    """Start a master and two workers as `local-cluster` does, and give the workers different hosts."""
    SparkContext._ensure_initialized()
    jvm = SparkContext._jvm
    assert jvm is not None
    nothing, deploy = jvm.scala.Option.empty(), jvm.org.apache.spark.deploy
    conf = jvm.org.apache.spark.SparkConf().set("spark.master.rest.enabled", "false")
    conf.set("spark.ui.enabled", "false").set("spark.shuffle.service.enabled", "false")
    environment = deploy.master.Master.startRpcEnvAndEndpoint("127.0.0.1", 0, 0, conf)._1()
    url = f"spark://127.0.0.1:{environment.address().port()}"
    masters = SparkContext._gateway.new_array(jvm.java.lang.String, 1)
    masters[0] = url
    for number, host in enumerate(("127.0.0.1", "127.0.0.2"), 1):
        deploy.worker.Worker.startRpcEnvAndEndpoint(
            host, 0, 0, 1, 1024, masters, str(run / "work"), jvm.scala.Option.apply(number), conf, nothing
        )
    return url


_PATIENCE_S = 0.2


class EpochFiles:
    """A sink that is idempotent by epoch: one file for each, put into its place when it is whole.

    Parameters
    ----------
    run : Path
    evaluations : int
        How often it evaluates a micro-batch.
    inside : sequence of str
        Operators that it builds over the micro-batch, where the query has none.
    """

    def __init__(self, run: Path, evaluations: int = 1, inside: Sequence[str] = ()) -> None:
        self._folder = run / "output"
        self._state = run / "state"
        self._place = str(run / "state" / "sink")
        self._evaluations = evaluations
        self._inside = inside

    def __call__(self, batch: DataFrame, epoch: int) -> None:
        self._folder.mkdir(exist_ok=True)
        injection.reached("before the sink", self._place)
        if self._inside:
            batch = _results(batch, self._inside, self._state)
        for _ in range(self._evaluations):
            rows = batch.collect()
        injection.reached("before the sink commits", self._place)
        table = pa.Table.from_pylist([row.asDict() for row in rows], _OUTPUT)
        half = self._folder / f".{epoch}.{os.getpid()}"
        pyarrow.parquet.write_table(table, half)
        half.rename(self._folder / f"epoch-{epoch}.parquet")
        injection.reached("after the sink committed", self._place)


def _results(rows: DataFrame, uids: Sequence[str], state: Path) -> DataFrame:
    return reduce(DataFrame.union, [_result(rows, uid, str(state / uid / "rows")) for uid in uids])


def _result(rows: DataFrame, uid: str, place: str) -> DataFrame:
    if uid in TABLE:
        return TABLE[uid].query(rows).selectExpr(f"'{uid}' operator", "id", "key", "flights", "delay")
    if uid in CHANGING:
        return _changes(rows, uid)
    if uid not in WINDOWED:
        return keyed(rows, OPERATORS[uid], uid=uid).process(FlightLog(uid, place), OUTPUT_SCHEMA)
    flights = keyed(rows, OPERATORS[uid], uid=uid, event_time=EventTime("ts", f"{DELAY_MS[uid]} ms"))
    if uid == "turns":
        sessions = flights.window(Session.with_gap(f"{GAP_MS} ms"))
        return sessions.process(Turns(place), OUTPUT_SCHEMA)
    hours = flights.window(Tumbling.of("1 hour"))
    return hours.aggregate(flights=count(), delay=sum_("arr_delay")).selectExpr(
        f"'{uid}' operator", "unix_millis(window_start) id", "origin key", "flights", "delay"
    )


def _changes(rows: DataFrame, uid: str) -> DataFrame:
    sign = "if(kind in ('+I', '+U'), 1L, -1L)"
    if uid == "changes":
        totals = keyed(rows, OPERATORS[uid], uid=uid).aggregate(
            flights=count(), delay=sum_("arr_delay"), row_kind="kind"
        )
        return totals.selectExpr(f"'{uid}' operator", f"{sign} id", "origin key", "flights", "delay")
    first = keyed(rows, OPERATORS[uid], uid=uid).top_n(
        FIRST_FLIGHTS, by="id", descending=False, row_kind="kind"
    )
    # No flight has the number 0, which has no sign.
    return first.selectExpr(
        f"'{uid}' operator", f"{sign} * (id + 1) id", "tailnum key", "cast(rank as long) flights", "0L delay"
    )


def main(run: Path, file: Path) -> None:
    """Run the query until the input is used up, or until it is asked to stop."""
    job = json.loads(file.read_text())
    injection.install("driver")
    spark = session(run, job["settings"])
    spark.sparkContext.setLogLevel("ERROR")
    assert spark._jvm is not None
    jvm = spark._jvm.java.lang.ProcessHandle.current().pid()
    driver = {"python": os.getpid(), "jvm": jvm, "group": os.getpgrp()}
    (run / f".driver.{os.getpid()}").write_text(json.dumps(driver))
    (run / f".driver.{os.getpid()}").rename(run / "driver.json")
    rows = spark.readStream.schema(INPUT_SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(run / "input"))
    sink, operators = job["sink"], job["operators"]
    if sink == INSIDE:
        writer = rows.writeStream.foreachBatch(EpochFiles(run, inside=operators))
    else:
        writer = _results(rows, operators, run / "state").writeStream
        if sink == "file sink":
            writer = writer.format("parquet").option("path", str(run / "output"))
        elif sink == NO_OUTPUT:
            writer = writer.format("noop")
        else:
            writer = writer.foreachBatch(EpochFiles(run, 2 if sink == "evaluated twice" else 1))
    if "busy_until" in job:
        _occupy(spark.sparkContext, Path(job["busy_until"]))
    writer = writer.option("checkpointLocation", str(run / "spark"))
    if "until" not in job:
        writer = writer.trigger(availableNow=True)
    query = writer.start()
    begun(run, os.getpid()).touch()
    while not query.awaitTermination(_PATIENCE_S):
        if "until" in job and Path(job["until"]).exists():
            query.processAllAvailable()
            query.stop()
    spark.stop()


def _occupy(context: SparkContext, until: Path) -> None:
    """Leave no executor for the query until a file exists; the file `planned` says that the query waits."""
    cores, tracker = context.defaultParallelism, context.statusTracker()

    def wait(_: object) -> None:
        while not until.exists():
            time.sleep(0.05)

    def notice() -> None:
        while len(tracker.getActiveJobsIds()) < 2:
            time.sleep(0.05)
        planned(until).touch()

    work = context.parallelize(range(cores), cores)
    Thread(target=lambda: work.foreach(wait), daemon=True).start()
    while not tracker.getActiveJobsIds():
        time.sleep(0.05)
    Thread(target=notice, daemon=True).start()


def begun(run: Path, driver: int) -> Path:
    """Return the file that exists once the query of a driver, a process, has started."""
    return run / f"query-{driver}"


def planned(until: Path) -> Path:
    """Return the file that exists once a query without executors has planned a micro-batch."""
    return until.with_name(f"{until.name}.planned")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
