"""Every make target works after `make setup` alone: what its recipe runs is installed and can be imported."""

from __future__ import annotations

import ast
import configparser
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.requirements import Requirement

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
TARGETS = re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)

#: Runs a script as an import does: with its folder on the path, and under another name than the main one.
_IMPORT_SCRIPT = (
    "import os, runpy, sys; sys.path.insert(0, os.path.dirname(sys.argv[1])); "
    "runpy.run_path(sys.argv[1], run_name='imported')"
)
_IMPORT_MODULE = "import runpy, sys; runpy.run_module(sys.argv[1], run_name='imported')"


def recipe(target: str) -> list[str]:
    """Return the lines that make would run for a target, without those that make the environment."""
    made = [word for stamp in (".environment", ".compiled") for word in ("-o", f".venv/{stamp}")]
    variables = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    ran = subprocess.run(
        ["make", "-n", *made, target], cwd=ROOT, env=variables, capture_output=True, text=True, check=True
    )
    return ran.stdout.replace("\\\n", " ").splitlines()


def commands() -> Iterator[tuple[str, str]]:
    """Yield every command of the environment that a target runs, and what precedes it on its line."""
    for target in TARGETS:
        for line in recipe(target):
            before, found, command = line.partition(".venv/bin/")
            if found and not before.startswith("rm "):
                yield command, before


def imports(code: str, argument: str, **variables: str) -> None:
    """Import a script or module in another process."""
    ran = subprocess.run(
        [sys.executable, "-c", code, argument],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr


COMMANDS = sorted(set(commands()))


def test_the_targets_of_the_makefile_are_found() -> None:
    assert {"demo", "test", "bench-join", "contract", "clean"} <= set(TARGETS)
    assert len(COMMANDS) > 20


@pytest.mark.parametrize("tool", sorted({command.split()[0] for command, _ in COMMANDS}))
def test_a_program_that_a_recipe_runs_is_installed(tool: str) -> None:
    assert (BIN / tool).is_file()


@pytest.mark.parametrize(
    "script",
    sorted(
        {words[1] for command, _ in COMMANDS if (words := command.split())[1:] and words[1].endswith(".py")}
    ),
)
@pytest.mark.slow
def test_a_script_that_a_recipe_runs_can_be_imported(script: str) -> None:
    imports(_IMPORT_SCRIPT, script)


@pytest.mark.parametrize(
    ("module", "path"),
    sorted(
        {
            (match[1], "".join(re.findall(r"PYTHONPATH=(\S+)", before)))
            for command, before in COMMANDS
            if (match := re.match(r"python -m (\S+)", command))
        }
    ),
)
@pytest.mark.slow
def test_a_module_that_a_recipe_runs_can_be_imported(module: str, path: str) -> None:
    if module in ("pip", "pytest"):
        assert find_spec(module) is not None
    else:
        imports(_IMPORT_MODULE, module, PYTHONPATH=path)


# -- environments of tox ---------------------------------------------------------------------------


def installed_by_tox(name: str) -> set[str]:
    """Return the packages that an environment of tox.ini names, with those of the framework and of Spark."""
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(ROOT / "tox.ini")
    section = parser[f"testenv:{name}"]
    lines = [line for line in section["deps"].splitlines() if line and not line.startswith("-")]
    if "framework[spark]" in section.get("commands_pre", ""):
        table = tomllib.loads((ROOT / "framework" / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        lines += [*table["dependencies"], *table["optional-dependencies"]["spark"]]
        lines += ["keyedstate", "py4j", "rocksdict"]
    return {Requirement(line).name for line in lines}


def names_in(node: ast.stmt) -> list[str]:
    """Return the modules that an import statement names, or may name."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module:
        return [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return []


def imported(files: list[Path]) -> set[str]:
    """Return the packages that scripts import when they start, and so do the modules in their folders."""
    found: set[str] = set()
    seen: set[Path] = set()
    while files:
        file = files.pop()
        if file in seen:
            continue
        seen.add(file)
        for name in (
            name for node in ast.parse(file.read_text(encoding="utf-8")).body for name in names_in(node)
        ):
            root = name.partition(".")[0]
            folders = (file.parent, file.parent.parent)
            files += [
                path for folder in folders if (path := folder / f"{name.replace('.', '/')}.py").is_file()
            ]
            if not any((folder / root).is_dir() or (folder / f"{root}.py").is_file() for folder in folders):
                found.add(root)
    return found - set(sys.stdlib_module_names)


@pytest.mark.parametrize(
    ("name", "scripts"),
    [
        ("bench", "bench_spark.py"),
        ("bench", "streaming/chart.py"),
        ("bench-peers", "streaming/peers/*.py"),
    ],
)
def test_an_environment_of_tox_has_what_its_scripts_import(name: str, scripts: str) -> None:
    files = sorted((ROOT / "tests" / "bench").glob(scripts))
    assert files
    assert imported(files) - installed_by_tox(name) == set()
