"""A disk that is full, read-only or fails at random: errors name a path, no epoch is lost or counts twice."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rocksdb_incremental import INCREMENTAL

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
LAYOUTS: dict[str, dict[str, Any]] = {
    "heap-cow": {"backend": "heap-cow", "options": {}},
    "rocksdb": {"backend": "rocksdb", "options": {"rocksdb.write-buffer-size": 100_000}},
    "rocksdb, native": {"backend": "rocksdb", "options": INCREMENTAL},
}
each_layout = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)


@pytest.fixture(scope="session")
def failing_disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that makes calls fail."""
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("no C compiler, or no LD_PRELOAD")
    library = tmp_path_factory.mktemp("disk") / "failing_disk.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(HERE / "failing_disk.c"), "-ldl"],
        check=True,
    )
    return library


def run(
    library: Path, folder: Path, mode: str, rate: int, seed: int, layout: dict[str, Any]
) -> dict[str, Any]:
    folder.mkdir()
    parameters = {"folder": str(folder), "mode": mode, "rate": rate, "seed": seed, **layout}
    ran = subprocess.run(
        [sys.executable, str(HERE / "failing_disk_job.py"), json.dumps(parameters)],
        # The job imports tests/support.
        env={**os.environ, "LD_PRELOAD": str(library), "PYTHONPATH": str(HERE.parents[1])},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    happened: dict[str, Any] = json.loads(ran.stdout)
    assert happened["failed"] > 0
    assert happened["others"] == []
    assert [error for error in happened["errors"] if str(folder) not in error or "\n" in error] == []
    assert (happened["right"], happened["epochs"]) == (True, 6)
    return happened


@each_layout
@pytest.mark.parametrize("mode", ["full", pytest.param("read-only", marks=pytest.mark.long)])
@pytest.mark.slow
def test_a_disk_that_takes_nothing_is_named_and_loses_nothing(
    failing_disk: Path, tmp_path: Path, layout: dict[str, Any], mode: str
) -> None:
    assert run(failing_disk, tmp_path / "disk", mode, 1, 1, layout)["errors"]


@pytest.mark.long
@each_layout
def test_a_disk_that_fails_at_random_is_named_and_loses_nothing(
    failing_disk: Path, tmp_path: Path, layout: dict[str, Any]
) -> None:
    for seed, rate in enumerate((20, 60, 200)):
        run(failing_disk, tmp_path / f"disk-{seed}", "random", rate, seed, layout)
