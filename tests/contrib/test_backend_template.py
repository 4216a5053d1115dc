"""The template of a backend, installed as a stranger would install it."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.backends import backend_of

import keyedstate.backend
from keyedstate import types
from keyedstate.backend import StateKind, StateMeta
from keyedstate.keygroups import KeyGroupRange
from keyedstate.state import MapState, ValueState
from keyedstate.state.registry.chosen_backend import KeySpace
from keyedstate.state.registry.keyed_backend import KeyedStateBackend
from keyedstate.testing import open_instance

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
TEMPLATE = ROOT / "contrib" / "backend-template"
# A whole contract in a process of its own takes minutes where the machine has much else to do.


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the folder: building leaves files behind, and a stranger copies it too."""
    made = tmp_path_factory.mktemp("stranger") / "backend"
    shutil.copytree(TEMPLATE, made, ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__", ".*"))
    return made


@pytest.fixture(scope="module")
def installed(copy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that pip installed it into."""
    site = tmp_path_factory.mktemp("site-packages")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "--no-deps", "--no-build-isolation", "--no-index", "--target", str(site), str(copy)],
        check=True,
    )
    return site


@pytest.fixture
def environment(installed: Path) -> dict[str, str]:
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("KEYEDSTATE_")}
    return {**inherited, "PYTHONPATH": str(installed)}


@pytest.mark.long
def test_its_own_tests_hold_it_to_the_whole_contract(copy: Path, environment: dict[str, str]) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"],
        cwd=copy,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout
    assert " passed" in ran.stdout


def test_the_contract_kit_runs_on_it_like_on_any_other(
    installed: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    """Its tables drop what is expired."""
    command = [sys.executable, "-m", "keyedstate.cli", "contract", "template", "--no-baseline"]
    ran = subprocess.run(
        [*command, "-k", "drops or name_version", "--option", "template.visitor-step=1"],
        cwd=tmp_path,
        env={**environment, "PYTHONPATH": os.pathsep.join([str(installed), *filter(None, sys.path)])},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.startswith("template, template.visitor-step=1: python ")
    (line,) = (line.split() for line in ran.stdout.splitlines() if line.startswith("expiry clean-up "))
    assert int(line[2]) > 1
    assert line[3:] == ["0", "0", "0", "holds"]


def test_the_command_line_shows_it_like_any_other(environment: dict[str, str]) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "keyedstate.cli", "plugins", "show", "template", "--format", "json"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    plugin = json.loads(ran.stdout)
    assert plugin["usable"] is True
    assert plugin["distribution"] == "keyedstate-template"
    assert [option["name"] for option in plugin["options"]] == ["template.visitor-step"]


def test_states_of_a_job_live_in_it(installed: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(installed))
    backend = KeyedStateBackend.open(
        backend_of("template"),
        KeySpace(types.STRING, KeyGroupRange(0, 15), 16),
        local_base=tmp_path,
    )
    views = backend.get_state(ValueState("views", types.INT64, default=0))
    seen = backend.get_state(MapState("seen", types.STRING, types.INT64))
    for number in range(100):
        backend.set_current_key(f"user-{number % 10}")
        views.update(views.value() + 1)
        seen.put(f"page-{number}", number)
    for user in range(10):
        backend.set_current_key(f"user-{user}")
        assert views.value() == 10
        assert dict(seen.items()) == {f"page-{number}": number for number in range(user, 100, 10)}
    backend.close()


def test_a_snapshot_of_it_restores_in_another_backend(
    installed: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The canonical snapshot belongs to no backend."""
    monkeypatch.syspath_prepend(str(installed))
    meta = StateMeta("views", StateKind.VALUE, types.STRING, types.VOID, types.INT64)
    source = open_instance("template", tmp_path, key_groups=KeyGroupRange(0, 7), max_parallelism=8)
    groups, users = [number % 8 for number in range(80)], [f"user-{number}" for number in range(80)]
    source.table(meta).put_many(groups, users, types.VOID_NAMESPACE, range(80))
    handle = source.write(source.prepare(), tmp_path)
    target = open_instance(
        "nested-map", tmp_path, key_groups=KeyGroupRange(0, 7), max_parallelism=8, handles=[handle]
    )
    assert target.tables["views"].get_many(groups, users, types.VOID_NAMESPACE) == list(range(80))
    assert len(target.tables["views"]) == 80


def test_its_page_explains_every_file() -> None:
    page = (TEMPLATE / "README.md").read_text(encoding="utf-8")
    made = {"__pycache__", "build", ".pytest_cache"}
    files = [
        path.relative_to(TEMPLATE).as_posix()
        for path in TEMPLATE.rglob("*")
        if path.is_file() and not made & set(path.parts) and ".egg-info" not in str(path)
    ]
    assert len(files) >= 7
    assert [file for file in files if f"| `{file}` |" not in page] == []


def test_it_uses_names_that_the_contract_exports() -> None:
    used = {
        alias.name
        for file in TEMPLATE.rglob("src/**/*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module == "keyedstate.backend"
        for alias in node.names
    }
    assert used
    assert used <= set(keyedstate.backend.__all__)
