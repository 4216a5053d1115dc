"""What is imported when: the harness needs neither PySpark nor pytest, and pytest's start no harness."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import keyedstate.testing

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FRAMEWORK = Path(__file__).resolve().parents[3] / "framework"

USE = """
import sys

from keyedstate import types
from keyedstate.runtime import KeyedProcessFunction
from keyedstate.state import ValueState
from keyedstate.testing import Harness, HarnessSnapshot
from keyedstate.errors import InputRowError


class Counts(KeyedProcessFunction):
    n = ValueState("n", types.INT64, default=0)

    def process(self, row, ctx):
        self.n.update(self.n.value() + 1)
        yield ctx.key, self.n.value()


arguments = {"key": "user", "schema": {"user": str}, "output": "user string, n long", "backend": sys.argv[1]}
with Harness(Counts(), **arguments, parallelism=2) as harness:
    harness.process_all([("ann",), ("bob",)])
    harness.rescale(3)
    assert harness.process(("ann",)) == [("ann", 2)]
print(*sorted({"pyspark", "py4j", "pytest", "_pytest"} & set(sys.modules)), "done")
"""


def run(*command: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # type: ignore[call-overload, no-any-return]
        [sys.executable, *command], capture_output=True, text=True, **options
    )


def test_the_harness_imports_neither_pyspark_nor_pytest(backend_name, tmp_path):
    result = run("-c", USE, backend_name, cwd=tmp_path)
    assert (result.stdout, result.stderr) == ("done\n", "")


def test_importing_the_package_imports_none_of_its_parts(tmp_path):
    script = (
        "import sys, keyedstate.testing\n"
        "print(*sorted(name for name in sys.modules if name.startswith(('keyedstate', 'pyarrow', 'numpy'))))"
    )
    result = run("-c", script, cwd=tmp_path)
    assert result.stdout.split() == ["keyedstate", "keyedstate.testing", "keyedstate.version"], result.stderr


def test_every_public_name_is_there_and_another_one_is_not():
    for name in keyedstate.testing.__all__:
        assert getattr(keyedstate.testing, name).__name__ == name
    assert set(keyedstate.testing.__all__) <= set(dir(keyedstate.testing))
    with pytest.raises(AttributeError, match="no attribute 'Harnes'"):
        keyedstate.testing.Harnes  # noqa: B018
    with pytest.raises(ImportError):
        from keyedstate.testing import Harnes  # type: ignore[attr-defined]  # noqa: F401


# -- pytest ----------------------------------------------------------------------------------------------

CONFTEST = """
import sys


def pytest_sessionstart(session):
    ours = ("keyedstate", "pyarrow", "pyspark")
    print("ours:", *sorted(name for name in sys.modules if name.startswith(ours)))
"""
TESTS = """
import pytest

from keyedstate import types
from keyedstate.runtime import KeyedProcessFunction
from keyedstate.state import ValueState
from keyedstate.errors import HarnessClosedError

harnesses = []


class Counts(KeyedProcessFunction):
    n = ValueState("n", types.INT64, default=0)

    def process(self, row, ctx):
        self.n.update(self.n.value() + 1)
        yield ctx.key, self.n.value()


def test_counts(keyedstate_harness):
    for parallelism in (1, 2):
        harness = keyedstate_harness(
            Counts(), key="user", schema="user string", output="user string, n long", parallelism=parallelism
        )
        assert harness.process(("ann",)) == [("ann", 1)]
        harnesses.append(harness)


def test_the_harnesses_of_the_test_before_are_closed():
    assert len(harnesses) == 2
    for harness in harnesses:
        with pytest.raises(HarnessClosedError):
            harness.process(("ann",))
"""


def test_starting_pytest_with_the_fixture_imports_no_harness(tmp_path, environment_with_pytest_plugin):
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_counts.py").write_text(TESTS)
    result = run(
        "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", cwd=folder, env=environment_with_pytest_plugin
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "2 passed" in result.stdout
    (line,) = (line for line in result.stdout.splitlines() if line.startswith("ours:"))
    assert line.split()[1:] == [
        "keyedstate",
        "keyedstate.testing",
        "keyedstate.testing.pytest_plugin",
        "keyedstate.version",
    ]


def test_the_entry_point_names_the_plugin():
    table = tomllib.loads((FRAMEWORK / "pyproject.toml").read_text(encoding="utf-8"))
    assert table["project"]["entry-points"]["pytest11"] == {"keyedstate": "keyedstate.testing.pytest_plugin"}
