"""``keyedstate contract``: what it prints, writes and returns, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from keyedstate.backend import Capability
from keyedstate.options import Configuration
from keyedstate.plugins import PluginRegistry
from keyedstate.testing.contract.parts import TablePart
from keyedstate.testing.contract.reports.baseline import measure
from keyedstate.testing.contract.reports.matrix import EVERY_BACKEND
from keyedstate.testing.contract.reports.outcomes import OUTCOMES_OPTION, Ending, Outcome, OutcomeReader
from keyedstate.testing.contract.reports.report import FORMAT, Report

pytestmark = pytest.mark.slow

#: A plugin that is nested-map in all but its name, and what a test changes of it.
SOURCE = """
import os
import signal
from dataclasses import replace

from keyedstate.backend import Capability, Level
from keyedstate.hooks import hookimpl
from keyedstate_nested_map import plugin, table
from keyedstate_nested_map.plugin import (
    keyedstate_create_restore_operation, keyedstate_create_snapshot_strategy, keyedstate_create_state_table,
)


@hookimpl
def keyedstate_describe_backend():
    own = plugin.keyedstate_describe_backend()
    claims = {{**own.capabilities, {claims}}}
    return replace(own, name="mine", version="9.9", capabilities=claims)


{extra}
"""


def run(
    folder: Path, *words: str, path: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run the command in a folder, with another one first on Python's path."""
    folder.mkdir(exist_ok=True)
    places = [str(path)] if path is not None else []
    places += [place for place in sys.path if place]
    return subprocess.run(
        [sys.executable, "-m", "keyedstate.cli", "contract", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places), **environment},
        capture_output=True,
        text=True,
    )


def line_of(output: str, name: str) -> list[str]:
    """Return the cells of one line of the printed matrix, after its name."""
    (line,) = (line for line in output.splitlines() if line.startswith(f"{name}  "))
    return line.rstrip().removeprefix(name).split(maxsplit=5)


@pytest.mark.slow
def test_a_backend_that_passes_is_reported_line_by_line(tmp_path, backend_name):
    ran = run(tmp_path / "work", backend_name, "--no-baseline", "-k", "snapshot or removed")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.startswith(backend_name)
    assert line_of(ran.stdout, EVERY_BACKEND)[1:] == ["0", "0", "0", "holds"]
    shown = {capability for capability in Capability if f"\n{capability.value}  " in ran.stdout}
    assert shown == set(Capability)
    assert "Everything that is claimed holds." in ran.stdout
    assert "entries/s" not in ran.stdout
    assert list((tmp_path / "work").iterdir()) == []


@pytest.mark.long
def test_an_installation_of_heap_cow_says_how_it_was_built(tmp_path):
    description = PluginRegistry(Configuration({"backend": "heap-cow"})).choose().description
    ran = run(tmp_path / "work", "heap-cow", "--no-baseline", "-k", "name_version")
    assert ran.stdout.startswith(f"heap-cow ({description.build}): python ")


@pytest.mark.long
def test_nothing_of_the_folder_it_runs_in_disturbs_the_tests(tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    (work / "conftest.py").write_text("raise RuntimeError('not mine')\n")
    (work / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
    ran = run(
        work,
        "nested-map",
        "--no-baseline",
        "-k",
        "name_version",
        PYTEST_ADDOPTS="--no-such-option",
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.long
def test_options_are_those_of_the_instances(tmp_path):
    ran = run(
        tmp_path / "work",
        "heap-cow",
        "--option",
        "heap-cow.compiled=never",
        "--no-baseline",
        "-k",
        "name_version",
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ", heap-cow.compiled=never: python " in ran.stdout


@pytest.mark.long
def test_a_module_of_the_folder_it_runs_in_needs_no_distribution(tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    (work / "my_module.py").write_text(SOURCE.format(claims="", extra=""))
    words = ["mine", "--option", "plugins.modules=my_module", "--no-baseline", "-k", "name_version"]
    ran = run(work, *words)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "my_module (module)" in ran.stdout


#: A backend whose tables say that they track changes, and see none.
BLIND = """
from keyedstate.backend import ChangeTracking
from keyedstate.tables import GatheredChanges


class Blind(table.NestedMapTable, ChangeTracking):
    def begin_epoch(self, epoch):
        return None

    def changes_since(self, epoch):
        return GatheredChanges({})

    def forget_changes(self, epoch):
        return None


@hookimpl
def keyedstate_create_state_table(meta, context):
    return Blind(meta, context.key_groups)
"""


@pytest.mark.long
def test_a_failed_part_is_named_with_its_failing_tests(tmp_path, distributions):
    distributions.add_source("lying-backend", "9.9", "mine", SOURCE.format(claims="", extra=BLIND))
    file, page = tmp_path / "report.json", tmp_path / "report.md"
    # Not `--no-baseline`: none is measured where a test fails.
    words = ["mine", "-k", "first_epoch or name_version", "--json", str(file), "--markdown", str(page)]
    ran = run(tmp_path / "work", *words, path=distributions.folder)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert line_of(ran.stdout, "change tracking") == ["0", "1", "0", "0", "fails"]
    assert "What fails: change tracking." in ran.stdout
    assert "lying-backend 9.9" in ran.stdout
    document = json.loads(file.read_text())
    assert document["passed"] is False
    assert document["baseline"] is None
    (failure,) = document["failures"]
    assert failure["test"] == "test_what_was_there_before_the_first_epoch_is_no_change"
    assert failure["capabilities"] == ["change tracking"]
    assert failure["error"]
    assert failure["error"] in ran.stdout
    assert f"`{failure['test']}` (change tracking)" in page.read_text()


#: A backend that keeps nothing.
FORGETFUL = """
class Forgetful(table.NestedMapTable):
    def put(self, key_group, key, namespace, value):
        return None


@hookimpl
def keyedstate_create_state_table(meta, context):
    return Forgetful(meta, context.key_groups)
"""


def test_a_failing_case_is_shown_with_values_and_source(tmp_path, distributions):
    distributions.add_source("forgetful", "9.9", "mine", SOURCE.format(claims="", extra=FORGETFUL))
    words = ["mine", "-k", "was_put_is_read or name_version"]
    ran = run(tmp_path / "work", *words, path=distributions.folder)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    failure = ran.stdout.partition("\nfailed: test_what_was_put_is_read")[2]
    # The values of an assertion are in the lines after the first.
    assert "assert 0 == 3" in failure and "where 0 = len(" in failure
    assert "passed    test_" not in ran.stdout and "tables.py:" not in failure
    verbose = run(tmp_path / "work", *words, "-v", path=distributions.folder).stdout
    assert "passed    test_the_description_has_name_version_and_summary\n" in verbose
    assert "failed    test_what_was_put_is_read" in verbose
    assert "tables.py:" in verbose and "where 0 = len(" in verbose


def test_outcomes_are_read_while_they_are_written(tmp_path):
    file = tmp_path / "outcomes.jsonl"
    reader = OutcomeReader(file)
    assert reader.read() == []
    begun = {"test": "test_a", "subjects": [], "ending": "failed", "message": "its process ended"}
    file.write_text('{"total": 2}\n' + json.dumps(begun) + "\n" + json.dumps(begun)[:20])
    assert reader.read() == []
    assert reader.total == 2
    assert reader.under_way == Outcome("test_a", (), Ending.FAILED, "its process ended")
    with file.open("a") as opened:
        opened.write(json.dumps({**begun, "ending": "passed", "message": ""})[20:] + "\n")
    assert reader.read() == [Outcome("test_a", (), Ending.PASSED, "")]
    assert reader.under_way is None


def test_a_backend_that_crashes_its_process_fails_the_running_test(tmp_path, distributions):
    extra = (
        "class Deadly(table.NestedMapTable):\n"
        "    def get(self, key_group, key, namespace):\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n\n\n"
        "@hookimpl\n"
        "def keyedstate_create_state_table(meta, context):\n"
        "    return Deadly(meta, context.key_groups)\n"
    )
    distributions.add_source("deadly-backend", "9.9", "mine", SOURCE.format(claims="", extra=extra))
    words = ["mine", "--no-baseline", "-k", "the_very_object or random"]
    ran = run(tmp_path / "work", *words, path=distributions.folder)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "ended by SIGKILL; the tests after it did not run" in ran.stdout


def test_an_unknown_backend_is_refused_with_the_names_that_are_close(tmp_path):
    ran = run(tmp_path / "work", "nested-mop")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("keyedstate: ")
    assert "nested-mop" in ran.stderr
    assert "'nested-map'" in ran.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--option", "heap-cow.compield=never"], "'heap-cow.compiled'"),
        (["--option", "heap-cow.compiled=perhaps"], "'heap-cow.compiled'"),
        (["--option", "heap-cow.compiled"], "no NAME=VALUE"),
        (["--json", "there/is/none.json"], "does not exist"),
        (["-k", "no_such_test", "--no-baseline"], "no test of the contract kit"),
    ],
)
@pytest.mark.slow
def test_what_it_cannot_do_is_refused_in_a_line(tmp_path, words, said):
    ran = run(tmp_path / "work", "heap-cow", *words, TERMINAL_WIDTH="200", COLUMNS="200")
    assert (ran.returncode, ran.stdout) == (2, ""), ran.stderr
    assert said in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("missing", ["pytest", "hypothesis"])
def test_without_its_extra_it_says_what_to_install(tmp_path, missing):
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    (blocked / "sitecustomize.py").write_text(f"import sys\nsys.modules[{missing!r}] = None\n")
    ran = run(tmp_path / "work", "nested-map", path=blocked)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == (
        f"keyedstate: the contract kit needs {missing}, which this Python lacks. "
        "Run `pip install 'keyedstate[test]'` for it.\n"
    )


def test_a_test_class_without_the_extra_gets_the_same_error(tmp_path):
    script = (
        "import sys; sys.modules['hypothesis'] = None\n"
        "from keyedstate.errors import KeyedStateError\n"
        "try:\n    from keyedstate.testing import BackendContract\n"
        "except (KeyedStateError, ImportError) as error:\n    print(error)\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "keyedstate[test]" in ran.stdout


@pytest.mark.long
def test_an_announced_test_that_fails_is_reported_and_fails_nothing(tmp_path):
    (tmp_path / "test_announced.py").write_text(
        "import pytest\n\n"
        "@pytest.mark.xfail(strict=False, reason='announced')\n"
        "def test_fails():\n    assert 1 == 2\n\n"
        "@pytest.mark.xfail(strict=False, reason='announced')\n"
        "def test_passes():\n    pass\n"
    )
    file = tmp_path / "outcomes.jsonl"
    plugin = ["-p", "keyedstate.testing.contract.reports.outcomes", f"{OUTCOMES_OPTION}={file}"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *plugin, "test_announced.py"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    reader = OutcomeReader(file)
    ended = reader.read()
    assert (reader.total, reader.under_way, reader.read()) == (2, None, [])
    assert [(outcome.test, outcome.ending) for outcome in ended] == [
        ("test_fails", Ending.ANNOUNCED),
        ("test_passes", Ending.PASSED),
    ]
    assert ended[0].message == "assert 1 == 2"


PAGE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "contract-kit.md"


def test_the_page_says_what_each_capability_is_tested_for():
    table = PAGE.read_text().partition("\n## What is tested\n")[2].partition("\n## ")[0]
    first_cells = [row.split("|")[1] for row in table.splitlines() if row.startswith("| ")]
    named = {name.strip() for cell in first_cells for name in cell.split(",")}
    assert {subject.value for subject in (*Capability, *TablePart)} | {EVERY_BACKEND} <= named


# -- the files -------------------------------------------------------------------------------------


def shape(document: Any) -> Any:
    """Return a document with the types of its values in their places; a list by its first element."""
    if isinstance(document, dict):
        return {key: shape(value) for key, value in document.items()}
    if isinstance(document, list):
        return [shape(document[0])] if document else []
    return type(document).__name__


def report(**changed: Any) -> Report:
    """Return a report over outcomes of every kind, with a baseline of little work."""
    outcomes = [
        Outcome("test_a", (), Ending.PASSED, ""),
        Outcome(
            "test_b[map]", (Capability.STATE_KINDS, Capability.RESCALING), Ending.FAILED, "assert `a` | b"
        ),
        Outcome("test_c", (Capability.ASYNC_SNAPSHOT,), Ending.SKIPPED, "not claimed"),
        Outcome("test_d", (Capability.RESCALING,), Ending.ANNOUNCED, "assert 1 == 2"),
    ]
    backend = PluginRegistry(Configuration({"backend": "nested-map"})).choose()
    fields: dict[str, Any] = {
        "backend": backend,
        "options": {},
        "select": None,
        "outcomes": outcomes,
        "baseline": measure("nested-map", {}, entries=200, rounds=2),
    }
    return Report(**{**fields, **changed})


def test_the_keys_of_the_document_are_those_that_scripts_rely_on():
    failure = {"test": "str", "capabilities": ["str"], "error": "str", "case": "str", "traceback": "str"}
    document = json.loads(json.dumps(report().document()))
    assert document["format"] == FORMAT == 1
    assert document.pop("build") is None
    assert document.pop("select") is None
    assert document["versions"].keys() == {"python", "keyedstate", "keyedstate-nested-map", "pyarrow"}
    assert document["matrix"][0].pop("claimed") is None
    assert shape(document) == {
        "format": "int",
        "backend": "str",
        "hook_api": ["int"],
        "options": {},
        "versions": dict.fromkeys(document["versions"], "str"),
        "passed": "bool",
        "matrix": [
            {
                "capability": "str",
                "passed": "int",
                "failed": "int",
                "skipped": "int",
                "announced": "int",
                "verdict": "str",
            }
        ],
        "failures": [failure],
        "announced": [failure],
        "baseline": {
            "entries": "int",
            "rounds": "int",
            "operations": [
                {
                    "operation": "str",
                    "entries_per_second": "int",
                    "floor": "str",
                    "floor_entries_per_second": "int",
                    "ratio": "float",
                }
            ],
        },
    }


def test_the_page_explains_every_key_of_the_document():
    section = PAGE.read_text().partition("\n## The JSON document\n")[2].partition("\n## ")[0]

    def keys(document: Any) -> set[str]:
        if isinstance(document, list):
            return {key for element in document for key in keys(element)}
        if isinstance(document, dict):
            return {*document, *(key for value in document.values() for key in keys(value))}
        return set()

    document = report().document()
    document["versions"] = {}
    assert {key for key in keys(document) if f"`{key}`" not in section} == set()


def test_a_test_of_several_capabilities_counts_for_each():
    document = report().document()
    lines = {line.pop("capability"): line for line in document["matrix"]}
    assert list(lines) == [EVERY_BACKEND, *(subject.value for subject in (*Capability, *TablePart))]
    assert lines["kinds of state"] == {
        "claimed": "full",
        "passed": 0,
        "failed": 1,
        "skipped": 0,
        "announced": 0,
        "verdict": "fails",
    }
    assert lines["rescaling"]["failed"] == lines["rescaling"]["announced"] == 1
    assert lines["asynchronous snapshots"]["verdict"] == "not claimed"
    assert lines["objects kept by reference"]["verdict"] == "not tested"
    assert [failure["test"] for failure in document["failures"]] == ["test_b[map]"]


def test_a_run_in_which_only_announced_tests_fail_has_passed():
    announced = [Outcome("test_d", (Capability.RESCALING,), Ending.ANNOUNCED, "assert 1 == 2")]
    document = report(outcomes=announced, baseline=None).document()
    assert document["passed"] is True
    assert document["failures"] == []


def test_the_baseline_measures_five_operations_against_their_floors():
    operations = report().document()["baseline"]["operations"]
    assert [operation["operation"] for operation in operations] == [
        "put",
        "get",
        "transform",
        "snapshot",
        "restore",
    ]
    assert all(operation["entries_per_second"] > 0 for operation in operations)
    for operation in operations:
        speeds = operation["entries_per_second"] / operation["floor_entries_per_second"]
        assert operation["ratio"] == pytest.approx(speeds, rel=0.1, abs=0.001)


def test_the_page_says_what_the_document_says():
    page = report().markdown()
    assert page.startswith("# The contract on nested-map\n\nnested-map: python ")
    assert "| kinds of state | full | 0 | 1 | 0 | 0 | fails |" in page
    assert "- `test_b[map]` (kinds of state, rescaling): `assert 'a' | b`" in page
    assert "## Announced, not mandatory yet\n\n- `test_d`" in page
    assert "| put | " in page
    widths = {line.count(" | ") for line in page.splitlines() if line.startswith("|")}
    assert widths == {6, 4}
