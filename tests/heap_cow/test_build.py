"""Building the distribution: compiled where that is possible, and never a failure where it is not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DISTRIBUTION = Path(__file__).parents[2] / "plugins" / "heap-cow"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A copy to build in, so that the installed package keeps its compiled form."""
    pytest.importorskip("setuptools")
    return Path(
        shutil.copytree(
            DISTRIBUTION,
            tmp_path / "source",
            ignore=shutil.ignore_patterns("*.so", "*.egg-info", "build", "__pycache__"),
        )
    )


def build(source: Path, **environment: str) -> tuple[str, set[str]]:
    """Build in place of an installer; return what was said and the names of the package's files."""
    run = subprocess.run(
        [sys.executable, "setup.py", "build", "--build-lib", "built"],
        cwd=source,
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    files = {path.name for path in (source / "built" / "keyedstate_heap_cow").iterdir()}
    return run.stderr, files


def test_without_a_compiler_the_plain_source_is_built_and_said_so(source: Path) -> None:
    pytest.importorskip("Cython")
    said, files = build(source, CC=str(source / "no-such-compiler"))
    assert "*** keyedstate-heap-cow: NOT COMPILED, installed as plain Python" in said
    assert "A C compiler and the headers of Python are needed" in said
    assert {"cowmap.py", "cowmap.pyi", "py.typed", "uncompiled.py"} <= files
    assert not any(name.startswith("cowmap.") and name.endswith((".so", ".pyd")) for name in files)


def test_compiling_can_be_switched_off(source: Path) -> None:
    said, files = build(source, KEYEDSTATE_HEAP_COW_PURE="1")
    assert "NOT COMPILED, installed as plain Python" in said
    assert "KEYEDSTATE_HEAP_COW_PURE is set" in said
    assert "cowmap.py" in files
    assert not any(name.endswith((".so", ".pyd")) for name in files)


def test_the_source_is_built_beside_its_compiled_form(source: Path) -> None:
    pytest.importorskip("Cython")
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    # -O0: what is asked here is whether it is there.
    said, files = build(source, CFLAGS="-O0")
    assert "*** keyedstate-heap-cow: compiled" in said
    assert "cowmap.py" in files
    assert any(name.startswith("cowmap.") and name.endswith(".so") for name in files)
