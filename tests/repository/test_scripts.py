"""The scripts behind make: what they accept, what they pass over, and what they say."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


def run(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a shell script with variables set on top of this environment."""
    return subprocess.run(
        ["bash", str(SCRIPTS / script)], env={**os.environ, **environment}, capture_output=True, text=True
    )


def program(path: Path, body: str) -> Path:
    """Write an executable shell script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def java(home: Path, version: str, modules: str = "all") -> Path:
    """Make a Java home whose only talent is to tell its version."""
    refuse = 'for word; do [ "$word" = --add-modules ] && exit 1; done\n' if modules == "none" else ""
    program(home / "bin" / "java", f"{refuse}echo 'openjdk version \"{version}\" 2026-01-01' >&2")
    return home


@pytest.mark.parametrize("version", ["17.0.15", "17", "21-ea", "25.0.1"])
def test_java_home_is_taken_when_it_is_new_enough(tmp_path: Path, version: str) -> None:
    home = java(tmp_path / "jdk", version)
    assert run("find-java.sh", JAVA_HOME=str(home)).stdout.strip() == str(home)


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.2", "16"])
def test_java_home_is_passed_over_when_it_is_too_old(tmp_path: Path, version: str) -> None:
    home = java(tmp_path / "jdk", version)
    found = java(tmp_path / "other", "17.0.1")
    result = run("find-java.sh", JAVA_HOME=str(home), PATH=f"{found}/bin:{os.environ['PATH']}")
    assert result.stdout.strip() == str(found)


def test_java_is_passed_over_without_the_module_that_spark_names(tmp_path: Path) -> None:
    home = java(tmp_path / "jdk", "17.0.1", modules="none")
    found = java(tmp_path / "other", "17.0.1")
    result = run("find-java.sh", JAVA_HOME=str(home), PATH=f"{found}/bin:{os.environ['PATH']}")
    assert result.stdout.strip() == str(found)


def test_a_python_on_the_path_that_does_not_run_is_passed_over(tmp_path: Path) -> None:
    shim = program(tmp_path / "python3.11", "echo 'pyenv: python3.11: command not found' >&2; exit 127")
    real = Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}"
    result = run("find-python.sh", PATH=f"{tmp_path}:{real.parent}:{os.environ['PATH']}", PYTHON="")
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() not in ("", str(shim))


def test_a_python_that_was_asked_for_and_does_not_run_is_an_error(tmp_path: Path) -> None:
    result = run("find-python.sh", PYTHON=str(program(tmp_path / "python", "exit 127")))
    assert result.returncode == 1
    assert str(tmp_path / "python") in result.stderr
    assert "leave PYTHON out" in result.stderr


def test_a_virtual_environment_is_no_python_to_make_one_from() -> None:
    if sys.prefix == sys.base_prefix:
        pytest.skip("these tests run outside a virtual environment")
    assert run("find-python.sh", PYTHON=sys.executable).returncode == 1


@pytest.fixture
def check_docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The documentation check, looking at an empty repository."""
    spec = importlib.util.spec_from_file_location("check_docs", SCRIPTS / "check_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "check_docs", module)
    spec.loader.exec_module(module)
    (tmp_path / "Makefile").write_text("demo: setup\n", encoding="utf-8")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    return module


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("See [this](missing.md).", "README.md:1: link to missing.md"),
        ("# Here\n\nSee [this](#there).", "README.md:3: link to #there"),
        ("Run `make coffee`.", "README.md:1: make coffee"),
        ("```console\n$ make coffee\n```", "README.md:2: make coffee"),
        ("```python\nx = 1\ndef f(:\n```", "README.md:3: Python example"),
        ("```python\nx = 1\n", "README.md:1: this block is never closed"),
    ],
)
def test_a_fault_in_the_documentation_is_named_with_file_and_line(
    check_docs: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, fault: str
) -> None:
    (tmp_path / "README.md").write_text(text, encoding="utf-8")
    assert check_docs.main() == 1
    assert fault in capsys.readouterr().out


def test_documentation_without_faults_passes(check_docs: ModuleType, tmp_path: Path) -> None:
    text = "# A `b` c\n\n[a](#a-b-c) [b](docs/c.md#d) [e](https://e.org), `make demo`, `[x](y)`\n"
    (tmp_path / "README.md").write_text(text, encoding="utf-8")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "c.md").write_text("# D\n\n```python\nx = [1](2)\n```\n", encoding="utf-8")
    assert check_docs.main() == 0
