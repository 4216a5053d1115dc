"""``keyedstate doctor``: finds what a job would stumble over, says the way out, and ends with a status."""

from __future__ import annotations

import json
import os
import shutil
import sys
import venv
from importlib.metadata import metadata, requires
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from keyedstate.cli import checks
from keyedstate.cli.checks import Check, Status, check_java, check_libraries, installed_version, parse_version


def diagnosed(ran: Any) -> dict[str, dict[str, str]]:
    """Return the checks of a JSON report by name."""
    return {check["name"]: check for check in json.loads(ran.stdout)["checks"]}


def java_that(tmp_path: Path, *, prints: str, status: int = 0, lacks_module: bool = False) -> Path:
    """Make a home whose bin/java behaves so, and return it."""
    home = tmp_path / "java"
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    refusal = 'case "$*" in *add-modules*) exit 1;; esac\n' if lacks_module else ""
    java.write_text(f"#!/bin/sh\n{refusal}cat >&2 <<'END'\n{prints}\nEND\nexit {status}\n")
    java.chmod(0o755)
    return home


# -- the whole report ------------------------------------------------------------------------------


@pytest.mark.skipif(
    installed_version("pyspark") is None or (shutil.which("java") is None and "JAVA_HOME" not in os.environ),
    reason="Spark or Java is not here",
)
def test_a_complete_installation_passes_with_status_0(invoke, tmp_path):
    ran = invoke("doctor", "--format", "json", KEYEDSTATE_CHECKPOINT_DIR=str(tmp_path))
    report = json.loads(ran.stdout)
    assert report["ok"] is True
    assert ran.returncode == 0
    essential = {"python", "java", "pyspark", "pandas", "pyarrow", "options", "backend nested-map", "storage"}
    assert essential <= diagnosed(ran).keys()
    assert {check["status"] for name, check in diagnosed(ran).items() if name in essential} <= {
        "ok",
        "warning",
    }


def test_the_report_for_people_names_every_check_and_ends_with_the_verdict(run, tmp_path):
    ran = run("doctor", PATH="", JAVA_HOME=None, KEYEDSTATE_CHECKPOINT_DIR=str(tmp_path))
    assert "python: 3." in ran.stdout
    assert "failed  java: JAVA_HOME is not set and there is no java on the PATH" in ran.stdout
    assert "        Install Java 17 or 21, or set JAVA_HOME" in ran.stdout
    assert ran.stdout.splitlines()[-1].endswith("checks failed: a job cannot run here.")
    assert ran.returncode == 1


def test_options_are_shown_with_their_source_and_without_credentials(invoke, tmp_path):
    file = tmp_path / "keyedstate.toml"
    file.write_text(
        "[keyedstate]\nparallelism = 4\ncheckpoint.dir = 's3://user:secret@bucket/a?endpoint=b'\n"
    )
    ran = invoke("doctor", "--format", "json", "--config", str(file), KEYEDSTATE_CHECKPOINT_RETAINED="5")
    options = {
        option["name"]: (option["value"], option["source"]) for option in json.loads(ran.stdout)["options"]
    }
    assert options["parallelism"] == (4, f"file {file}")
    assert options["checkpoint.retained"] == (5, "environment")
    assert options["checkpoint.compression"] == ("zstd", "default")
    assert options["checkpoint.dir"][0] == "s3://...@bucket/a"
    assert "secret" not in ran.stdout + ran.stderr


def test_the_options_are_listed_only_when_asked_for(invoke, tmp_path):
    words = {"KEYEDSTATE_CHECKPOINT_DIR": str(tmp_path)}
    assert "checkpoint.retained" not in invoke("doctor", **words).stdout
    assert "checkpoint.retained" in invoke("doctor", "--options", **words).stdout


# -- the Python of the workers ---------------------------------------------------------------------


@pytest.fixture
def bare_python(tmp_path: Path) -> Path:
    """An interpreter without any package, as the system's often is."""
    venv.create(tmp_path / "bare", symlinks=True)
    return tmp_path / "bare" / "bin" / "python3"


def workers(ran: Any) -> dict[str, str]:
    return diagnosed(ran)["python of the workers"]


def test_workers_that_run_the_driver_s_python_are_fine(invoke):
    check = workers(invoke("doctor", "--format", "json"))
    assert check["status"] == "ok"
    assert check["detail"].endswith(f"at {sys.executable} (from PYSPARK_PYTHON)")


def test_a_worker_python_without_packages_is_refused_by_name(run, bare_python):
    # No site-packages of this Python and no plugins of the test.
    ran = run("doctor", "--format", "json", PYSPARK_PYTHON=str(bare_python), PYTHONPATH=None)
    check = workers(ran)
    assert check["status"] == "failed"
    assert f"{bare_python} (from PYSPARK_PYTHON): it lacks pandas, pyarrow, keyedstate" in check["detail"]
    assert f"Set PYSPARK_PYTHON={sys.executable}" in check["way_out"]
    assert ran.returncode == 1


def test_without_a_setting_the_first_python3_of_the_path_is_asked(invoke, bare_python):
    path = os.pathsep.join([str(bare_python.parent), os.environ["PATH"]])
    check = workers(invoke("doctor", "--format", "json", PYSPARK_PYTHON=None, PATH=path))
    assert check["status"] == "failed"
    assert (
        f"{bare_python} (the first on the PATH, since PYSPARK_PYTHON is not set): it lacks" in check["detail"]
    )


def test_the_property_of_spark_defaults_wins_over_the_variable(invoke, bare_python, tmp_path):
    file = tmp_path / "spark-defaults.conf"
    file.write_text(f"# spark.pyspark.python no\nspark.master local\n spark.pyspark.python  {bare_python}\n")
    check = workers(invoke("doctor", "--format", "json", SPARK_CONF_DIR=str(tmp_path)))
    assert f"(spark.pyspark.python in {file}): it lacks" in check["detail"]


def test_a_worker_python_of_another_version_is_refused(invoke, tmp_path):
    python = tmp_path / "python"
    answer = {
        "python": [3, 6, 1],
        "path": str(python),
        "versions": {"pandas": "3.0.0", "keyedstate": "0.0.7"},
    }
    python.write_text(f"#!/bin/sh\necho '{json.dumps(answer)}'\n")
    python.chmod(0o755)
    check = workers(invoke("doctor", "--format", "json", PYSPARK_PYTHON=str(python)))
    assert check["status"] == "failed"
    assert f"PySpark needs the driver's {sys.version_info[0]}.{sys.version_info[1]} there" in check["detail"]
    assert "its pandas 3.0.0 is not supported" in check["detail"]
    assert "it has keyedstate 0.0.7, and the driver" in check["detail"]


@pytest.mark.parametrize(
    ("python", "status", "problem"),
    [
        ("/no/such/python", "failed", "there is no /no/such/python (from PYSPARK_PYTHON)"),
        ("/bin/false", "failed", "/bin/false (from PYSPARK_PYTHON) does not run"),
        ("./unpacked/bin/python", "warning", "is relative to a folder of the executor"),
    ],
)
@pytest.mark.slow
def test_a_worker_python_that_cannot_be_asked_is_named(invoke, python, status, problem):
    check = workers(invoke("doctor", "--format", "json", PYSPARK_PYTHON=python))
    assert (check["status"], problem in check["detail"]) == (status, True)


# -- Java ------------------------------------------------------------------------------------------


def test_without_java_the_way_out_is_named(run):
    ran = run("doctor", "--format", "json", PATH="", JAVA_HOME=None)
    java = diagnosed(ran)["java"]
    assert java["status"] == "failed"
    assert "no java on the PATH" in java["detail"]
    assert "Install Java 17" in java["way_out"]
    assert ran.returncode == 1


def test_a_java_home_without_java_is_not_mended_by_the_path(invoke, tmp_path):
    """Spark takes JAVA_HOME and looks no further."""
    java = diagnosed(invoke("doctor", "--format", "json", JAVA_HOME=str(tmp_path)))["java"]
    assert java["status"] == "failed"
    assert f"{tmp_path}/bin/java (from JAVA_HOME) does not run: No such file" in java["detail"]


@pytest.mark.parametrize(
    ("prints", "pyspark", "problem"),
    [
        ('java version "1.8.0_392"', "3.5.1", "1.8.0_392"),
        ('openjdk version "11.0.2" 2019-01-15', "3.5.1", "Spark needs 17 or newer"),
        ('openjdk version "23.0.1" 2024-10-15', "3.5.1", "PySpark 3.5.1 does not start on Java 23 or newer"),
        ('openjdk version "25" 2025-09-16', "4.0.1", "PySpark 4.0.1 does not start on Java 23 or newer"),
        ("no java here", "4.3.0", "does not tell its version: no java here"),
        ("", "4.3.0", "does not tell its version: it prints nothing"),
    ],
)
def test_a_java_that_will_not_do_is_refused_with_the_reason(monkeypatch, tmp_path, prints, pyspark, problem):
    monkeypatch.setenv("JAVA_HOME", str(java_that(tmp_path, prints=prints)))
    java = check_java(pyspark)
    assert java.status is Status.FAILED
    assert problem in java.detail
    assert java.way_out


@pytest.mark.parametrize(
    ("prints", "pyspark"),
    [
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "17.0.15" 2025-04-15', "3.5.1"),
        ('openjdk version "21" 2023-09-19', "4.0.0"),
        ('openjdk version "25" 2025-09-16', "4.3.0"),
        ('openjdk version "24-ea" 2025-03-18', None),
    ],
)
def test_a_java_that_will_do_is_accepted(monkeypatch, tmp_path, prints, pyspark):
    monkeypatch.setenv("JAVA_HOME", str(java_that(tmp_path, prints=prints)))
    assert check_java(pyspark).status is Status.OK


def test_a_java_without_the_vector_module_is_refused_for_spark_4_only(monkeypatch, tmp_path):
    home = java_that(tmp_path, prints='openjdk version "17.0.1"', lacks_module=True)
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert check_java("3.5.1").status is Status.OK
    assert "lacks the module jdk.incubator.vector" in check_java("4.0.0").detail


def test_a_java_that_fails_is_refused(monkeypatch, tmp_path):
    home = java_that(tmp_path, prints='openjdk version "17.0.1"', status=1)
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert check_java("4.3.0").status is Status.FAILED


# -- libraries -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "version", "problem"),
    [
        ("pandas", "3.0.0", "3.0.0; PySpark refuses it, and pandas>=2.2,<3 is needed"),
        ("pandas", "1.5.3", "1.5.3, and pandas>=2.2,<3 is needed"),
        ("pyspark", "3.4.4", "3.4.4, and pyspark>=3.5,<5 is needed"),
        ("pyspark", "5.0.0.dev1", "5.0.0.dev1, and pyspark>=3.5,<5 is needed"),
        ("pyarrow", "17.0.0", "17.0.0, and pyarrow>=18 is needed"),
    ],
)
def test_a_library_of_a_wrong_version_is_refused_with_what_to_install(
    invoke, distributions, name, version, problem
):
    distributions.add_metadata(name, version)
    ran = invoke("doctor", "--format", "json")
    check = diagnosed(ran)[name]
    assert (check["status"], check["detail"]) == ("failed", problem)
    assert f"-m pip install '{name}" in check["way_out"]
    assert ran.returncode == 1


def test_a_library_that_is_missing_is_asked_for(monkeypatch):
    monkeypatch.setattr(checks, "SUPPORTED", {"keyedstate-nowhere": ((1, 2), (3,))})
    (check,) = check_libraries((3, 11))
    way_out = f"Install it with `{sys.executable} -m pip install 'keyedstate-nowhere>=1.2,<3'`."
    assert check == Check("keyedstate-nowhere", Status.FAILED, "not installed", way_out)


@pytest.mark.parametrize(
    ("pyspark", "python", "setuptools", "problem"),
    [
        ("4.3.0", (3, 10), True, "4.3.0 needs Python 3.11 or newer"),
        ("4.2.1", (3, 10), True, None),
        ("3.5.9", (3, 12), False, "3.5.9 imports distutils"),
        ("3.5.9", (3, 12), True, None),
        ("3.5.9", (3, 11), False, None),
        ("4.0.0", (3, 13), False, None),
    ],
)
def test_a_spark_that_does_not_go_with_this_python_is_refused(
    monkeypatch, distributions, pyspark, python, setuptools, problem
):
    distributions.add_metadata("pyspark", pyspark)
    # What the import system takes for "not there", and for "there".
    monkeypatch.setitem(sys.modules, "setuptools", sys.modules["packaging"] if setuptools else None)
    (check,) = [check for check in check_libraries(python) if check.name == "pyspark"]
    assert check.status is (Status.FAILED if problem else Status.OK)
    assert problem is None or (problem in check.detail and check.way_out != "")


def test_the_supported_versions_are_those_that_the_distribution_declares():
    declared = {
        requirement.name: requirement.specifier
        for requirement in map(Requirement, requires("keyedstate") or [])
    }
    for name, (oldest, limit) in checks.SUPPORTED.items():
        bounds = {f">={Version('.'.join(map(str, oldest)))}"}
        if limit is not None:
            bounds.add(f"<{Version('.'.join(map(str, limit)))}")
        declared_bounds = {f"{bound.operator}{Version(bound.version)}" for bound in declared[name]}
        assert {bound.removesuffix(".0") for bound in declared_bounds} == bounds, name


def test_the_newest_python_is_the_newest_that_the_distribution_declares():
    prefix = "Programming Language :: Python :: 3."
    minors = [
        int(line.removeprefix(prefix))
        for line in metadata("keyedstate").get_all("Classifier") or []
        if line.startswith(prefix)
    ]
    assert (3, max(minors)) == checks.NEWEST_PYTHON


def test_a_spark_that_was_unpacked_without_metadata_is_found(monkeypatch, tmp_path):
    package = tmp_path / "unpacked_spark"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('must not be imported')")
    (package / "version.py").write_text('__version__: str = "4.1.0"\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    assert installed_version("unpacked_spark") == "4.1.0"


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("4.3.0", (4, 3, 0)), ("25", (25,)), ("24-ea", (24,)), ("2.2rc1", (2, 2)), ("x", (0,))],
)
def test_the_numbers_of_a_version_are_read(text, numbers):
    assert parse_version(text) == numbers


# -- backends and options --------------------------------------------------------------------------


def test_a_broken_backend_that_is_not_chosen_is_a_warning(invoke, distributions):
    distributions.add_source("broken-dist", "1.0", "broken", "raise RuntimeError('boom')")
    broken = diagnosed(invoke("doctor", "--format", "json"))["backend broken"]
    assert broken["status"] == "warning"
    assert "RuntimeError: boom" in broken["detail"]


def test_a_broken_backend_that_was_chosen_fails(run, distributions):
    distributions.add_source("broken-dist", "1.0", "broken", "raise RuntimeError('boom')")
    ran = run("doctor", "--format", "json", KEYEDSTATE_BACKEND="broken")
    assert diagnosed(ran)["backend broken"]["status"] == "failed"
    assert ran.returncode == 1


def test_a_backend_that_is_not_installed_fails_with_what_there_is(invoke):
    ran = invoke("doctor", "--format", "json", KEYEDSTATE_BACKEND="nested-mop")
    check = diagnosed(ran)["backend nested-mop"]
    assert check["status"] == "failed"
    assert "Did you mean 'nested-map'?" in check["detail"]
    assert ran.returncode == 1


def test_how_a_backend_was_built_is_reported(invoke, distributions):
    describe = (
        "def keyedstate_describe_backend():\n    return BackendDescription(name='mine', version='1', "
        "hook_api=(1, 1), summary='', capabilities={}, build='compiled by hand')\n"
    )
    distributions.add("my-backend", "2.3", "mine", replaced={"keyedstate_describe_backend": describe})
    assert "compiled by hand" in diagnosed(invoke("doctor", "--format", "json"))["backend mine"]["detail"]


@pytest.mark.parametrize(
    ("environment", "problem"),
    [
        ({"KEYEDSTATE_BAKEND": "x"}, "unknown option 'KEYEDSTATE_BAKEND' in the environment. Did you mean"),
        ({"KEYEDSTATE_PARALLELISM": "many"}, "option 'KEYEDSTATE_PARALLELISM' has the value 'many'"),
        ({"KEYEDSTATE_PLUGINS_MODULES": "nowhere"}, "No module named 'nowhere'"),
    ],
)
def test_a_wrong_option_fails_and_the_other_checks_continue(invoke, environment, problem):
    ran = invoke("doctor", "--format", "json", **environment)
    checks_by_name = diagnosed(ran)
    assert checks_by_name["options"]["status"] == "failed"
    assert problem in checks_by_name["options"]["detail"]
    assert checks_by_name["backend nested-map"]["status"] == "ok"
    assert ran.returncode == 1


# -- storage ---------------------------------------------------------------------------------------


def test_without_a_checkpoint_folder_the_storage_is_not_looked_at(invoke):
    storage = diagnosed(invoke("doctor", "--format", "json"))["storage"]
    assert storage["status"] == "skipped"
    assert "--conf spark.keyedstate.checkpoint.dir=" in storage["way_out"]


def test_the_probe_of_the_storage_leaves_nothing_behind(invoke, tmp_path):
    folder = tmp_path / "kept"
    folder.mkdir()
    (folder / "chk-1").write_text("mine")
    for place in (folder, tmp_path / "new" / "folder", tmp_path / "a folder with spaces"):
        ran = invoke("doctor", "--format", "json", KEYEDSTATE_CHECKPOINT_DIR=str(place))
        assert diagnosed(ran)["storage"]["status"] == "ok"
    assert sorted(path.name for path in tmp_path.rglob("*") if "site-packages" not in path.parts) == [
        "chk-1",
        "kept",
    ]


def test_a_folder_that_cannot_be_written_fails(run, tmp_path):
    (tmp_path / "file").write_text("")
    ran = run("doctor", "--format", "json", KEYEDSTATE_CHECKPOINT_DIR=str(tmp_path / "file" / "checkpoints"))
    storage = diagnosed(ran)["storage"]
    assert storage["status"] == "failed"
    assert f"cannot write {tmp_path}/file/checkpoints/" in storage["detail"]
    assert "Check that the storage exists" in storage["detail"]
    assert ran.returncode == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_fails(invoke, tmp_path):
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o500)
    ran = invoke("doctor", "--format", "json", KEYEDSTATE_CHECKPOINT_DIR=str(folder))
    assert diagnosed(ran)["storage"]["status"] == "failed"
    assert "Permission denied" in diagnosed(ran)["storage"]["detail"]


def test_an_unknown_storage_fails(invoke):
    ran = invoke("doctor", "--format", "json", KEYEDSTATE_CHECKPOINT_DIR="s4://bucket/folder")
    storage = diagnosed(ran)["storage"]
    assert storage["status"] == "failed"
    assert "no file system has the scheme 's4'" in storage["detail"]
