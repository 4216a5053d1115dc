"""One local Spark session for all tests under ``tests/spark``: starting a JVM costs more than most tests."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery


def _load(name: str) -> None:
    """Let the tests below this folder import a module of it."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None and spec.loader is not None
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])


_load("hosted")
_load("connect_server")
if importlib.util.find_spec("pyspark.sql.streaming.stateful_processor") is not None:
    _load("parity")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with two cores, four shuffle partitions, UTC, no UI, and its files in pytest's own folder."""
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.fail("No Java found: install Java 17 or newer, or set JAVA_HOME to it.")
    from pyspark.sql import SparkSession

    folder = tmp_path_factory.mktemp("spark")
    with pytest.MonkeyPatch.context() as environment:
        # The workers must be this interpreter, not whichever python3 comes first on the PATH.
        environment.setenv("PYSPARK_PYTHON", sys.executable)
        environment.setenv("PYSPARK_DRIVER_PYTHON", sys.executable)
        session = (
            SparkSession.builder.master("local[2]")
            .appName("keyedstate-tests")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.sql.shuffle.partitions", "4")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
            .config("spark.local.dir", str(folder / "local"))
            .getOrCreate()
        )
        session.sparkContext.setLogLevel("ERROR")
        yield session
        session.stop()


@pytest.fixture(autouse=True)
def functions_of_tests_travel_by_value(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let Spark's workers, which cannot import a test module, have its process functions."""
    import cloudpickle
    from pyspark import cloudpickle as cloudpickle_of_spark

    for each in (cloudpickle, cloudpickle_of_spark):
        each.register_pickle_by_value(request.module)
    yield
    for each in (cloudpickle, cloudpickle_of_spark):
        each.unregister_pickle_by_value(request.module)


@pytest.fixture(autouse=True)
def epochs_write_deltas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let small states have deltas too, so that everything here is tested with them."""
    monkeypatch.setenv("KEYEDSTATE_CHECKPOINT_DELTA_MIN_BYTES", "0")


@pytest.fixture(autouse=True)
def some_epochs_run_in_tasks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what is about restoring do so in each epoch; everything else runs in hosts, the default."""
    if request.module.__name__.rpartition(".")[2] in ("test_deltas", "test_local_copies"):
        monkeypatch.setenv("KEYEDSTATE_HOST", "embedded")


class Stream:
    """A streaming query over JSON files, one file an epoch, with its checkpoints in one folder.

    Each `run` is a new run of the same query: it resumes where the last one ended.

    Attributes
    ----------
    rows : dict of int to list
        What the query put out, by epoch; an epoch that ran again counts once.
    """

    def __init__(self, spark: SparkSession, folder: Path, schema: str) -> None:
        self.spark = spark
        self.input = folder / "input"
        self.state = folder / "state"
        self.spark_checkpoint = folder / "spark"
        self.rows: dict[int, list[tuple[Any, ...]]] = {}
        self._schema = schema
        self._files = 0
        self.input.mkdir()

    def add(self, rows: Iterable[dict[str, Any]]) -> None:
        """Add the input of one epoch."""
        path = self.input / f"{self._files:04}.json"
        hidden = path.with_name(f".{path.name}")
        hidden.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        # Spark reads files in the order of their times, and may list the folder at any moment.
        os.utime(hidden, (1_000_000_000 + self._files, 1_000_000_000 + self._files))
        hidden.rename(path)
        self._files += 1

    def frame(self, spark: SparkSession | None = None) -> DataFrame:
        """Return the input as a streaming DataFrame."""
        reader = (spark or self.spark).readStream.schema(self._schema)
        return reader.option("maxFilesPerTrigger", 1).json(str(self.input))

    def batch(self) -> DataFrame:
        """Return all input so far as a batch DataFrame."""
        return self.spark.read.schema(self._schema).json(str(self.input))

    def start(
        self,
        out: DataFrame,
        sink: Callable[[DataFrame, int], object] | None = None,
        checkpoint: Path | None = None,
        *,
        once: bool = False,
    ) -> StreamingQuery:
        """Start a run over the input that there is; `once` makes all of it one epoch."""

        def collect(batch: DataFrame, epoch: int) -> None:
            self.rows[epoch] = [tuple(row) for row in batch.collect()]

        return (
            out.writeStream.foreachBatch(sink or collect)
            .option("checkpointLocation", str(checkpoint or self.spark_checkpoint))
            .trigger(**({"once": True} if once else {"availableNow": True}))
            .start()
        )

    def run(
        self,
        out: DataFrame,
        sink: Callable[[DataFrame, int], object] | None = None,
        checkpoint: Path | None = None,
        *,
        once: bool = False,
    ) -> None:
        """Run the query until all input is used up."""
        try:
            self.start(out, sink, checkpoint, once=once).awaitTermination()
        finally:
            self.settle()

    def settle(self) -> None:
        """Wait until the driver has cleaned up what the epochs so far have left."""
        from keyedstate.spark.task.acknowledgements import acknowledgements_of

        assert acknowledgements_of(self.spark.sparkContext).drain(600.0)

    def failure(
        self,
        out: DataFrame,
        sink: Callable[[DataFrame, int], object] | None = None,
        checkpoint: Path | None = None,
    ) -> str:
        """Run the query and return the error that stops it, as the user sees it."""
        from pyspark.errors import StreamingQueryException

        with pytest.raises(StreamingQueryException) as caught:
            self.run(out, sink, checkpoint)
        return str(caught.value)

    def all_rows(self) -> list[tuple[Any, ...]]:
        """Return what the query put out in all epochs, in their order."""
        return [row for epoch in sorted(self.rows) for row in self.rows[epoch]]


@pytest.fixture(scope="session")
def new_stream(spark: SparkSession) -> Callable[..., Stream]:
    """What makes a stream in a folder, by default of rows with a string key ``k`` and a number ``v``."""
    return lambda folder, schema="k string, v long": Stream(spark, folder, schema)


@pytest.fixture
def stream(new_stream: Callable[..., Stream], tmp_path: Path) -> Stream:
    """A stream of rows with a string key ``k`` and a number ``v``."""
    return new_stream(tmp_path)


@pytest.fixture
def both(spark: SparkSession, new_stream: Callable[..., Stream], tmp_path: Path) -> Any:
    """What runs a processor of transformWithState on Spark and on keyedstate."""
    from parity import Both

    return Both(spark, new_stream, tmp_path)
