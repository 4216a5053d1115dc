"""The command, in this process and in one of its own, with an environment that the test says in full."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typer.testing import CliRunner

from keyedstate.cli.app import app

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def variables(environment: dict[str, str | None]) -> dict[str, str | None]:
    """Return what to change in the environment: nothing of ours but what the test says; None removes one."""
    unset = {key: None for key in os.environ if key.startswith("KEYEDSTATE_")}
    # A backend that this repository has without a compiler, and workers that run this Python.
    ours = {"KEYEDSTATE_BACKEND": "nested-map", "PYSPARK_PYTHON": sys.executable}
    spark = {"SPARK_HOME": None, "SPARK_CONF_DIR": None}
    return {**unset, **ours, **spark, "COLUMNS": None, **environment}


@pytest.fixture
def run(distributions: Any) -> Run:
    """Return a function that runs ``keyedstate`` over the installed plugins and those of `distributions`.

    It runs in a process of its own; keyword arguments are environment variables.
    """

    def run(*arguments: str, **environment: str | None) -> subprocess.CompletedProcess[str]:
        path = [str(distributions.folder), *filter(None, [os.environ.get("PYTHONPATH")])]
        changed = {**os.environ, "PYTHONPATH": os.pathsep.join(path), **variables(environment)}
        return subprocess.run(
            [sys.executable, "-m", "keyedstate.cli", *arguments],
            env={key: value for key, value in changed.items() if value is not None},
            capture_output=True,
            text=True,
        )

    return run


@pytest.fixture
def invoke(distributions: Any) -> Run:
    """Return the same in this process: sooner done, but an error passes through as it is."""

    def invoke(*arguments: str, **environment: str | None) -> subprocess.CompletedProcess[str]:
        result = CliRunner().invoke(app, arguments, env=variables(environment))
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return subprocess.CompletedProcess(arguments, result.exit_code, result.stdout, result.stderr)

    return invoke


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"cli_{name}", Path(__file__).parent / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def stored() -> ModuleType:
    """The module `stored`, whose `Query` writes checkpoints."""
    return _load("stored")


@pytest.fixture
def query(stored: ModuleType, tmp_path: Path) -> Any:
    """An operator with two checkpoints: a whole one of epoch 0, and one of epoch 1 with deltas."""
    query = stored.Query(tmp_path / "state", operator_state=True)
    query.fill()
    query.epoch(0)
    query.state["flights"]["N3"] = 33
    query.state["flights"]["new"] = 1
    del query.state["seen"]["N5"]
    query.epoch(1, delta=True)
    return query
