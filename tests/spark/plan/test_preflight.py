"""The check of the executors before the first epoch, on real workers that are broken in one way each."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import DataFrame, SparkSession

from keyedstate import keyed, types
from keyedstate.errors import PreflightError
from keyedstate.runtime import Context, KeyedProcessFunction
from keyedstate.state import ValueState


class Count(KeyedProcessFunction):
    n = ValueState("n", types.INT64, default=0)

    def process(self, row: Any, ctx: Context) -> Iterator[tuple[Any, ...]]:
        self.n.update(self.n.value() + 1)
        yield ctx.key, self.n.value()


@pytest.fixture
def events(spark: SparkSession, tmp_path: Path) -> DataFrame:
    (tmp_path / "input").mkdir()
    return spark.readStream.schema("k string").json(str(tmp_path / "input"))


@pytest.fixture
def broken_workers(spark: SparkSession, tmp_path: Path) -> Iterator[Path]:
    """A sitecustomize.py of the workers alone, to be filled by the test."""
    folder = tmp_path / "site"
    folder.mkdir()
    environment = spark.sparkContext.environment
    before = environment.get("PYTHONPATH")
    # Workers with another environment are new processes, so the others stay as they are.
    environment["PYTHONPATH"] = str(folder)
    yield folder / "sitecustomize.py"
    if before is None:
        del environment["PYTHONPATH"]
    else:
        environment["PYTHONPATH"] = before


def hiding(module: str) -> str:
    """Return source text that makes the import of a module fail, as where it is not installed."""
    return (
        "import sys\n"
        "class Missing:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}:\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}')\n"
        "sys.meta_path.insert(0, Missing())\n"
    )


def build(events: DataFrame, state: Path, backend: str) -> DataFrame:
    config = {"checkpoint.dir": str(state), "backend": backend}
    return keyed(events, "k", uid="u", config=config).process(Count(), "k string, n long")


def test_healthy_executors_pass_and_nothing_is_left_behind(
    events: DataFrame, tmp_path: Path, backend_name: str
) -> None:
    build(events, tmp_path / "state", backend_name)
    assert list((tmp_path / "state").iterdir()) == []


def test_the_check_runs_once_per_configuration(
    spark: SparkSession, events: DataFrame, tmp_path: Path, one_backend: str
) -> None:
    def newest_job() -> int:
        # Spark lists a job a little later, and forgets old ones.
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(600_000)  # type: ignore[union-attr]
        return max(spark.sparkContext.statusTracker().getJobIdsForGroup())

    build(events, tmp_path / "state", one_backend)
    before = newest_job()
    build(events, tmp_path / "state", one_backend)
    assert newest_job() == before
    build(events, tmp_path / "other", one_backend)
    assert newest_job() > before


def test_an_executor_without_keyedstate_is_named(
    events: DataFrame, tmp_path: Path, one_backend: str, broken_workers: Path
) -> None:
    broken_workers.write_text(hiding("keyedstate"))
    with pytest.raises(PreflightError) as caught:
        build(events, tmp_path / "state", one_backend)
    assert caught.value.host == socket.gethostname()
    assert caught.value.check == "importing keyedstate"
    assert f"No module named 'keyedstate', in {sys.executable}" in str(caught.value)
    assert "Install the same keyedstate and backend" in str(caught.value)
    assert list((tmp_path / "state").iterdir()) == []


def test_an_executor_with_another_version_is_named(
    events: DataFrame, tmp_path: Path, one_backend: str, broken_workers: Path
) -> None:
    broken_workers.write_text("import keyedstate.version\nkeyedstate.version.__version__ = '0.0.7'\n")
    with pytest.raises(
        PreflightError, match=r"keyedstate 0\.0\.7 is installed here, and .* on the driver"
    ) as caught:
        build(events, tmp_path / "state", one_backend)
    assert caught.value.check == "comparing versions"


@pytest.mark.long
def test_an_executor_without_the_backend_is_named(
    events: DataFrame, tmp_path: Path, one_backend: str, broken_workers: Path
) -> None:
    broken_workers.write_text(
        "import keyedstate.plugins as p\np.installed_entry_points = lambda *groups: []\n"
    )
    with pytest.raises(PreflightError, match="UnknownBackendError: unknown state backend") as caught:
        build(events, tmp_path / "state", one_backend)
    assert caught.value.check == "comparing versions"


@pytest.mark.long
def test_an_executor_that_does_not_see_the_driver_s_folder_is_named(
    events: DataFrame, tmp_path: Path, one_backend: str, broken_workers: Path
) -> None:
    """A local path on a cluster: each machine has a folder of that name, and another one."""
    broken_workers.write_text(
        "from keyedstate.checkpoint.storage.filesystem import CheckpointStorage as s\n"
        "opened = s.open.__func__\n"
        f"s.open = classmethod(lambda cls, uri, config=None: opened(cls, str(uri).replace("
        f"{str(tmp_path / 'state')!r}, {str(tmp_path / 'elsewhere')!r}), config))\n"
    )
    with pytest.raises(PreflightError, match="cannot be read: the file does not exist") as caught:
        build(events, tmp_path / "state", one_backend)
    assert caught.value.check == "using the checkpoint folder"
    assert "a local path will do on one machine only" in str(caught.value)


def test_a_driver_that_does_not_see_files_of_executors_is_reported(
    events: DataFrame, tmp_path: Path, one_backend: str, broken_workers: Path
) -> None:
    broken_workers.write_text(
        "from keyedstate.checkpoint.storage.filesystem import CheckpointStorage as s\n"
        "written = s.write_atomic\n"
        f"lost = s.open({str(tmp_path / 'elsewhere')!r})\n"
        "s.write_atomic = lambda self, path, data: written(lost, path, data)\n"
    )
    with pytest.raises(PreflightError, match=r"does not see what was written there to .*state") as caught:
        build(events, tmp_path / "state", one_backend)
    assert caught.value.host == socket.gethostname()


def test_a_checkpoint_folder_that_cannot_be_written_is_said_of_the_driver(
    events: DataFrame, tmp_path: Path, one_backend: str
) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(PreflightError, match="StorageError: cannot write") as caught:
        build(events, tmp_path / "file" / "state", one_backend)
    assert caught.value.host.startswith("the driver")


@pytest.mark.long
def test_an_executor_without_pyarrow_is_named_with_its_interpreter(tmp_path: Path) -> None:
    """The first `python3` of the PATH, with another Spark: an interpreter belongs to a SparkContext."""
    venv.create(tmp_path / "bare", symlinks=True)
    python = tmp_path / "bare" / "bin" / "python3"
    job = tmp_path / "job.py"
    job.write_text(
        "import sys\n"
        "from pyspark.sql import SparkSession\n"
        "from keyedstate import types\n"
        "from keyedstate.runtime import KeyedProcessFunction\n"
        "from keyedstate import keyed\nfrom keyedstate.errors import PreflightError\n"
        "spark = SparkSession.builder.master('local[1]').config('spark.ui.enabled', 'false').getOrCreate()\n"
        "class Same(KeyedProcessFunction):\n"
        "    def process(self, row, ctx):\n"
        "        yield (ctx.key,)\n"
        f"events = spark.readStream.schema('k string').json({str(tmp_path)!r})\n"
        f"config = {{'checkpoint.dir': {str(tmp_path / 'state')!r}, 'backend': 'nested-map'}}\n"
        "try:\n"
        "    keyed(events, 'k', uid='u', config=config).process(Same(), 'k string')\n"
        "except PreflightError as error:\n"
        "    print(error)\n"
    )
    variables = {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"}
    variables["PATH"] = os.pathsep.join([str(python.parent), os.environ["PATH"]])
    ran = subprocess.run([sys.executable, str(job)], env=variables, capture_output=True, text=True)
    assert ", while running a Python function: " in ran.stdout, ran.stdout + ran.stderr
    # Spark 3.5 imports it first; since 3.12 a bare Python lacks it, too.
    missing = "distutils" if pyspark.__version__ < "4" and sys.version_info >= (3, 12) else "pyarrow"
    assert f"No module named '{missing}'" in ran.stdout
    assert f"in the Python of the executor: {python} (PYSPARK_PYTHON is not set)" in ran.stdout
    assert "Set PYSPARK_PYTHON, where the job is started" in ran.stdout


@pytest.mark.long
def test_workers_that_cannot_run_python_functions_are_reported(
    events: DataFrame, tmp_path: Path, one_backend: str, broken_workers: Path
) -> None:
    """Such as those without pandas, which PySpark needs for Arrow and does not install."""
    broken_workers.write_text(hiding("pyarrow"))
    with pytest.raises(PreflightError, match="pyarrow") as caught:
        build(events, tmp_path / "state", one_backend)
    assert caught.value.check == "running a Python function"
    assert f"the executor: {sys.executable} (PYSPARK_PYTHON is {sys.executable})" in str(caught.value)
