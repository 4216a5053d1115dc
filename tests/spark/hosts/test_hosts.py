"""Streaming queries whose epochs run in hosts, on a real Spark."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hosted import wait_until
from pyspark import SparkFiles, TaskContext
from pyspark.sql import DataFrame

from keyedstate import keyed, types
from keyedstate.checkpoint.format.manifest import StateOrigin
from keyedstate.checkpoint.protocol.operator_folder import OperatorFolder
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.runtime import Context, KeyedProcessFunction
from keyedstate.spark.hosts.processes import process_of
from keyedstate.state import ValueState

SCHEMA = "k string, n long"
JOB = Path(__file__).parents[1] / "jobs" / "host_job.py"


class Count(KeyedProcessFunction):
    n = ValueState("n", types.INT64, default=0)

    def process(self, row: Any, ctx: Context) -> Iterator[tuple[Any, ...]]:
        if row.v < 0:
            raise LookupError(f"no flight {row.v}")
        self.n.update(self.n.value() + 1)
        yield row.k, self.n.value()


def counts(
    stream: Any, function: KeyedProcessFunction | None = None, host: str = "resident", **options: Any
) -> Any:
    config = {"checkpoint.dir": str(stream.state), "parallelism": 2, "host": host, **options}
    return keyed(stream.frame(), "k", uid="counts", config=config).process(function or Count(), SCHEMA)


def rows(number: int = 40, v: int = 0) -> list[dict[str, Any]]:
    return [{"k": f"key {row % 7}", "v": v} for row in range(number)]


def origins(stream: Any) -> list[StateOrigin]:
    """Return where the tasks of the newest epoch had their state from."""
    folder = OperatorFolder(CheckpointStorage.open(str(stream.state)), "counts")
    metadata = folder.read_metadata(max(folder.checkpoints()))
    assert metadata is not None
    return [part.state_origin for part in metadata.parts]


def test_the_second_and_every_later_epoch_restores_nothing(stream: Any) -> None:
    seen = []
    for _ in range(4):
        stream.add(rows())

    def collect(batch: DataFrame, epoch: int) -> None:
        stream.rows[epoch] = [tuple(row) for row in batch.collect()]
        seen.append(set(origins(stream)))

    stream.run(counts(stream), collect)
    assert seen == [{StateOrigin.FILES}, *[{StateOrigin.HOST}] * 3]
    assert max(stream.all_rows()) == ("key 6", 20)
    # Where the mode changes, the state stays.
    stream.add(rows())
    stream.run(counts(stream, host="embedded"))
    assert max(stream.all_rows()) == ("key 6", 25)


def test_an_operator_that_foreach_batch_builds_again_finds_its_state(stream: Any) -> None:
    for _ in range(3):
        stream.add(rows())
    seen = []

    def count(batch: DataFrame, epoch: int) -> None:
        config = {"checkpoint.dir": str(stream.state), "parallelism": 2, "host": "resident"}
        out = keyed(batch, "k", uid="counts", config=config).process(Count(), SCHEMA)
        stream.rows[epoch] = [tuple(row) for row in out.collect()]
        seen.append(set(origins(stream)))

    stream.run(stream.frame(), count)
    assert max(stream.all_rows()) == ("key 6", 15)
    assert seen == [{StateOrigin.FILES}, {StateOrigin.HOST}, {StateOrigin.HOST}]


def test_an_error_of_the_function_reads_the_same_in_both_modes(stream: Any, tmp_path: Path) -> None:
    messages = []
    for host in ("resident", "embedded"):
        stream.state = tmp_path / host
        if not messages:
            stream.add([{"k": "key 6", "v": -5}])
        message = stream.failure(counts(stream, host=host), checkpoint=tmp_path / f"spark-{host}")
        # Its lines, and the last one of the user's traceback, without the places in between.
        assert "LookupError: no flight -5" in message
        assert 'in process\n    raise LookupError(f"no flight {row.v}")' in message
        messages += re.findall(r"UserFunctionError: [\s\S]*?keyedstate-facts: .*", message)
        assert "Raised in Count.process() for the key 'key 6' in epoch 0 of the operator" in message
    assert messages[0] == messages[1]


class Surroundings(KeyedProcessFunction):
    """Uses what Spark gives Python workers."""

    def __init__(self, broadcast: Any) -> None:
        self.broadcast = broadcast

    def process(self, row: Any, ctx: Context) -> Iterator[tuple[Any, ...]]:
        import module_of_a_zip  # type: ignore[import-not-found]

        context = TaskContext.get()
        assert context is not None
        assert context.partitionId() == ctx.task
        with open(SparkFiles.get("added.txt")) as file:
            yield (
                f"{module_of_a_zip.WORD} {file.read()} {self.broadcast.value}",
                int(context.getLocalProperty("streaming.sql.batchId")),
            )


def test_the_function_finds_what_spark_gives_to_workers(stream: Any, tmp_path: Path) -> None:
    """In both modes: modules of `addPyFile`, files of `addFile`, broadcast variables, the task's context."""
    context = stream.spark.sparkContext
    with zipfile.ZipFile(tmp_path / "modules.zip", "w") as archive:
        archive.writestr("module_of_a_zip.py", "WORD = 'zipped'\n")
    context.addPyFile(str(tmp_path / "modules.zip"))
    (tmp_path / "added.txt").write_text("added")
    context.addFile(str(tmp_path / "added.txt"))
    for host in ("resident", "embedded"):
        for _ in range(2 if host == "resident" else 1):
            stream.add(rows(3))
        stream.run(counts(stream, Surroundings(context.broadcast("broadcast")), host))
    assert set(stream.all_rows()) == {("zipped added broadcast", epoch) for epoch in range(3)}


class Adding(Count):
    """Counts in an accumulator, too."""

    def __init__(self, total: Any) -> None:
        self.total = total

    def process(self, row: Any, ctx: Context) -> Iterator[tuple[Any, ...]]:
        self.total.add(1)
        return super().process(row, ctx)


def test_a_function_with_an_accumulator_runs_where_spark_asks_for_it(stream: Any) -> None:
    total = stream.spark.sparkContext.accumulator(0)
    for _ in range(2):
        stream.add(rows())
    stream.run(counts(stream, Adding(total)))
    assert total.value == 80
    assert set(origins(stream)) == {StateOrigin.FILES}


@pytest.mark.long
@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_hosts_end_with_their_executor(tmp_path: Path, how: signal.Signals) -> None:
    """However it ends: the session is stopped first, and then the JVM of another one is killed."""
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "TMPDIR": str(tmp_path)}
    log = tmp_path / "log"
    with log.open("wb") as output:
        job = subprocess.Popen(
            [sys.executable, str(JOB), str(tmp_path)],
            stdout=output,
            stderr=output,
            env=environment,
            start_new_session=True,
        )
    try:
        for number in (1, 2):
            file = tmp_path / f"hosts-{number}"
            wait_until(lambda: file.exists() or job.poll() is not None)  # noqa: B023
            assert file.exists(), log.read_text()[-4000:]
            pids = list(map(int, file.read_text().split()))
            assert len(pids) == 2
            if number == 1:
                (tmp_path / "go-on").touch()
            else:
                assert any(map(process_of, pids))
                os.kill(int((tmp_path / "jvm").read_text()), how)
            wait_until(lambda: not any(map(process_of, pids)))  # noqa: B023
    finally:
        job.kill()
        job.wait()
    assert list(tmp_path.glob("keyedstate-*/**/*.sock")) == []
    assert "a host says: key 3" in log.read_text()
