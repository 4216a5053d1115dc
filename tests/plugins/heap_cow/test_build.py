"""Building the distribution: compiled where that is possible, and never a failure where it is not."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

DISTRIBUTION = Path(__file__).parents[3] / "plugins" / "heap-cow"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A copy to build in, so that the installed package keeps its compiled form."""
    pytest.importorskip("setuptools")
    return Path(
        shutil.copytree(
            DISTRIBUTION,
            tmp_path / "source",
            ignore=shutil.ignore_patterns("*.so", "*.egg-info", "build", "__pycache__", "not_compiled.json"),
        )
    )


def build(source: Path, **environment: str) -> tuple[str, set[str]]:
    """Build in place of an installer; return what was said and the names of the package's files."""
    run = subprocess.run(
        [sys.executable, "setup.py", "build", "--build-lib", "built"],
        cwd=source,
        # What is asked here is whether it is there.
        env=os.environ | {"CFLAGS": "-O0"} | environment,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    files = {path.name for path in (source / "built" / "keyedstate_heap_cow").iterdir()}
    return run.stderr, files


def reasons_in(source: Path) -> dict[str, str]:
    """Return why modules were not compiled, by their names, as the built package has it."""
    file = source / "built" / "keyedstate_heap_cow" / "not_compiled.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def test_without_a_compiler_the_plain_source_is_built_and_said_so(source: Path) -> None:
    pytest.importorskip("Cython")
    said, files = build(source, CC=str(source / "no-such-compiler"))
    assert "*** keyedstate-heap-cow: NOT COMPILED, cowmap is installed as plain Python" in said
    assert "a C compiler and the headers of Python are needed" in said
    assert {"state_map", "cowmap.pyx", "py.typed"} <= files
    reasons = reasons_in(source)
    assert reasons.keys() == {"cowmap", "keyindex"}
    assert all("no-such-compiler" in reason for reason in reasons.values())
    assert not any(name.startswith("cowmap.") and name.endswith((".so", ".pyd")) for name in files)


def test_compiling_can_be_switched_off(source: Path) -> None:
    said, files = build(source, KEYEDSTATE_HEAP_COW_PURE="1")
    assert "NOT COMPILED, installed as plain Python" in said
    assert "KEYEDSTATE_HEAP_COW_PURE is set" in said
    assert "state_map" in files
    assert not any(name.endswith((".so", ".pyd")) for name in files)


@pytest.mark.long
def test_the_source_is_built_next_to_its_compiled_form(source: Path) -> None:
    pytest.importorskip("Cython")
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    said, files = build(source)
    assert "*** keyedstate-heap-cow: compiled cowmap" in said
    assert "state_map" in files
    assert any(name.startswith("cowmap.") and name.endswith(".so") for name in files)
    assert any(name.startswith("keyindex.") and name.endswith(".so") for name in files)
    assert reasons_in(source) == {}


def test_a_missing_source_leaves_the_other_extension_compiled(source: Path) -> None:
    pytest.importorskip("Cython")
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    (source / "src" / "keyedstate_heap_cow" / "keyindex.pyx").unlink()
    said, files = build(source)
    assert "*** keyedstate-heap-cow: compiled cowmap" in said
    assert "*** keyedstate-heap-cow: NOT COMPILED, keyindex" in said
    assert any(name.startswith("cowmap.") and name.endswith(".so") for name in files)
    reasons = reasons_in(source)
    assert reasons.keys() == {"keyindex"}
    assert "keyindex.pyx is missing" in reasons["keyindex"]


def test_an_extension_that_cannot_be_loaded_is_an_error(tmp_path: Path) -> None:
    """It must not silently run as plain Python, which is several times slower."""
    script = (
        "import sys, types\n"
        "class Broken:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'keyedstate_heap_cow.cowmap':\n"
        "            raise ImportError('cowmap.so: undefined symbol: PyFoo', name=name)\n"
        "sys.meta_path.insert(0, Broken())\n"
        "import keyedstate_heap_cow.compiled_form\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path)
    assert ran.returncode != 0
    assert "undefined symbol: PyFoo" in ran.stderr


@pytest.mark.parametrize("extension", ["cowmap", "keyindex"])
def test_an_extension_of_another_version_than_the_source_is_an_error(tmp_path: Path, extension: str) -> None:
    """What a source checkout has after an update without a new build."""
    script = (
        "import sys, types\n"
        f"stale = types.ModuleType('keyedstate_heap_cow.{extension}')\n"
        "stale.REVISION, stale.__file__ = 1, 'stale.so'\n"
        "sys.modules[stale.__name__] = stale\n"
        "import keyedstate_heap_cow.compiled_form\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path)
    assert ran.returncode != 0
    assert "stale.so was compiled from another version than the source next to it" in ran.stderr
