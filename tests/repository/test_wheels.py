"""Wheels built from source distributions: what they hold and report, and that they run when installed."""

from __future__ import annotations

import email
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from email.message import Message
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

pytestmark = pytest.mark.slow

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = {
    path.parent.name: path.parent
    for path in sorted(ROOT.glob("*/pyproject.toml")) + sorted(ROOT.glob("*/*/pyproject.toml"))
}

each_distribution = pytest.mark.parametrize("name", FOLDERS)

#: Imports every module of a package, and prints which could not be imported and why.
IMPORT_ALL = """
import importlib, json, pkgutil, sys
failed = {}
for package in sys.argv[1:]:
    root = importlib.import_module(package)
    for module in pkgutil.walk_packages(root.__path__, package + "."):
        if not module.name.endswith(".__main__"):
            try:
                importlib.import_module(module.name)
            except Exception as error:
                failed[module.name] = repr(error)
print(json.dumps({"failed": failed, "files": [sys.modules[package].__file__ for package in sys.argv[1:]]}))
"""


def project(folder: Path) -> dict[str, Any]:
    """Return the [project] table of a distribution."""
    return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def environment(**changed: str) -> dict[str, str]:
    """Return this environment without what would lead Python or the command elsewhere."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "KEYEDSTATE_"))
    }
    return {**kept, **changed}


def source_distribution(folder: Path, work: Path) -> Path:
    """Build a source distribution, from a copy: what an earlier build left must not end up in it."""
    made = ("build", "*.egg-info", "*.so", "*.c", "__pycache__", "not_compiled.json")
    source = shutil.copytree(folder, work / "source", ignore=shutil.ignore_patterns(*made))
    script = f"import setuptools.build_meta as backend; backend.build_sdist({str(work)!r})"
    subprocess.run(
        [sys.executable, "-c", script], cwd=source, env=environment(), check=True, capture_output=True
    )
    (archive,) = work.glob("*.tar.gz")
    return archive


def wheel_of(archive: Path, work: Path, **changed: str) -> Path:
    """Build a wheel from a source distribution."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
    ]
    # How fast the compiled code is does not matter here.
    variables = environment(CFLAGS="-O0", **changed)
    subprocess.run([*command, "--wheel-dir", str(work), str(archive)], env=variables, check=True)
    (wheel,) = work.glob("*.whl")
    return wheel


class Environment:
    """A virtual environment with nothing but wheels; what they depend on is that of this Python."""

    def __init__(self, folder: Path, wheels: list[Path]) -> None:
        venv.create(folder, symlinks=True)
        self.folder = folder
        self.python = folder / "bin" / "python"
        install = [sys.executable, "-m", "pip", "--python", str(self.python), "install", "--quiet"]
        files = [str(wheel) for wheel in wheels]
        subprocess.run([*install, "--no-deps", "--no-index", *files], env=environment(), check=True)
        (packages,) = folder.glob("lib/python*/site-packages")
        # A folder named in a .pth file is searched last, and .pth files in it are not read: by those the
        # editable installations of this repository are importable.
        (packages / "dependencies.pth").write_text(sysconfig.get_path("platlib") + "\n", encoding="utf-8")

    def run(self, *command: str) -> str:
        """Run a program of the environment outside the repository; return what it printed."""
        variables = environment(PYSPARK_PYTHON=str(self.python))
        ran = subprocess.run(
            [str(self.folder / "bin" / command[0]), *command[1:]],
            cwd=self.folder,
            env=variables,
            capture_output=True,
            text=True,
        )
        assert ran.stdout, ran.stderr
        return ran.stdout

    def doctor(self) -> dict[str, dict[str, str]]:
        """Return the checks of ``keyedstate doctor`` by their names."""
        report = json.loads(self.run("keyedstate", "doctor", "--format", "json"))
        return {check["name"]: check for check in report["checks"]}


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The source distribution of every distribution, by the name of its folder."""
    return {
        name: source_distribution(folder, tmp_path_factory.mktemp(name)) for name, folder in FOLDERS.items()
    }


@pytest.fixture(scope="module")
def wheels(archives: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheel of every source distribution."""
    return {name: wheel_of(archive, tmp_path_factory.mktemp("wheel")) for name, archive in archives.items()}


def read(wheel: Path, name: str) -> str:
    """Return the text of a file of a wheel's ``.dist-info``."""
    with zipfile.ZipFile(wheel) as archive:
        (path,) = (path for path in archive.namelist() if path.endswith(f".dist-info/{name}"))
        return archive.read(path).decode()


def metadata(wheel: Path) -> Message:
    """Return the metadata of a wheel; its payload is the page that a package index shows."""
    return email.message_from_string(read(wheel, "METADATA"))


@pytest.mark.long
@each_distribution
def test_a_wheel_from_the_sdist_holds_all_sources(name: str, wheels: dict[str, Path]) -> None:
    folder = FOLDERS[name]
    table = project(folder)
    package = table["name"].replace("-", "_")
    with zipfile.ZipFile(wheels[name]) as archive:
        names = set(archive.namelist())
    # The framework has one more package, by which Spark finds its data source.
    packages = {path.parent.name for path in (folder / "src").glob("*/__init__.py")}
    assert package in packages
    assert {path.split("/")[0] for path in names} == {*packages, f"{package}-{table['version']}.dist-info"}
    sources = {
        str(path.relative_to(folder / "src"))
        for pattern in ("*.py", "*.pyi", "*.pyx", "*.pxi", "py.typed")
        for path in (folder / "src").rglob(pattern)
    }
    assert sources <= names, "a package without __init__.py is left out, and so is an unnamed kind of file"


@each_distribution
def test_a_wheel_has_the_entry_points_of_its_project(name: str, wheels: dict[str, Path]) -> None:
    table = project(FOLDERS[name])
    written = read(wheels[name], "entry_points.txt")
    for group, entries in {"console_scripts": table.get("scripts", {}), **table["entry-points"]}.items():
        for entry, value in entries.items():
            assert f"[{group}]" in written
            assert f"{entry} = {value}" in written


@each_distribution
def test_an_sdist_holds_readme_and_licence(name: str, archives: dict[str, Path]) -> None:
    with tarfile.open(archives[name]) as archive:
        files = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    assert {"README.md", "LICENSE", "pyproject.toml"} <= files


@each_distribution
def test_a_wheel_carries_the_licence(name: str, wheels: dict[str, Path]) -> None:
    assert read(wheels[name], "licenses/LICENSE") == (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert metadata(wheels[name])["License-Expression"] == "Apache-2.0"


@each_distribution
def test_the_page_of_a_package_says_how_to_install_it(name: str, wheels: dict[str, Path]) -> None:
    page = metadata(wheels[name])
    assert page["Description-Content-Type"] == "text/markdown"
    assert "$ pip install " in str(page.get_payload())


@each_distribution
def test_the_page_of_a_package_has_only_absolute_links(name: str, wheels: dict[str, Path]) -> None:
    """A package index shows the page without the repository around it."""
    page = str(metadata(wheels[name]).get_payload())
    links = re.findall(r"\]\(([^)\s]+)", page)
    assert [link for link in links if not re.match(r"https://|#", link)] == []


@each_distribution
def test_urls_of_a_project_are_absolute(name: str, wheels: dict[str, Path]) -> None:
    urls = [url.partition(", ")[2] for url in metadata(wheels[name]).get_all("Project-URL") or []]
    assert [url for url in urls if not url.startswith("https://")] == []


def test_the_page_of_the_framework_names_the_demo(wheels: dict[str, Path]) -> None:
    assert "$ keyedstate demo" in str(metadata(wheels["framework"]).get_payload())


def can_run(folder: Path) -> bool:
    """Return whether what a distribution depends on is installed here: a store of `contrib` need not be."""
    needed = map(Requirement, project(folder)["dependencies"])
    names = [one.name for one in needed if one.marker is None or one.marker.evaluate()]
    return all(name == "keyedstate" or list(distributions(name=name)) for name in names)


def test_installed_wheels_import_and_every_backend_is_usable(wheels: dict[str, Path], tmp_path: Path) -> None:
    folders = {name: folder for name, folder in FOLDERS.items() if can_run(folder)}
    installed = Environment(tmp_path / "fresh", [wheels[name] for name in folders])
    packages = [project(folder)["name"].replace("-", "_") for folder in folders.values()]
    found = json.loads(installed.run("python", "-c", IMPORT_ALL, *packages))
    assert found["failed"] == {}
    assert [file for file in found["files"] if not file.startswith(str(installed.folder))] == []
    plugins = json.loads(installed.run("keyedstate", "plugins", "list", "--format", "json"))
    declared = {
        backend
        for folder in folders.values()
        for backend in project(folder)["entry-points"].get("keyedstate.backends", {})
    }
    refusals = {plugin["name"]: plugin["refusal"] for plugin in plugins}
    assert {name: refusals[name] for name in declared} == dict.fromkeys(declared)


def has_compiler() -> bool:
    """Return whether an extension can be compiled for this Python here."""
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    return shutil.which(compiler) is not None and Path(sysconfig.get_path("include"), "Python.h").is_file()


def test_heap_cow_from_its_sdist_is_compiled(wheels: dict[str, Path], tmp_path: Path) -> None:
    if not has_compiler():
        pytest.skip("there is no C compiler")
    installed = Environment(tmp_path / "fresh", [wheels["framework"], wheels["heap-cow"]])
    check = installed.doctor()["backend heap-cow"]
    assert (check["status"], check["way_out"]) == ("ok", "")
    assert ", compiled" in check["detail"]


def test_the_framework_from_its_sdist_is_compiled(wheels: dict[str, Path], tmp_path: Path) -> None:
    if not has_compiler():
        pytest.skip("there is no C compiler")
    check = Environment(tmp_path / "fresh", [wheels["framework"]]).doctor()["keyedstate"]
    assert check["detail"].endswith("the per-record path is compiled")


@pytest.mark.long
def test_the_framework_is_installed_as_plain_python_without_a_compiler(
    archives: dict[str, Path], tmp_path: Path
) -> None:
    wheel = wheel_of(archives["framework"], tmp_path, CC="no-such-compiler")
    check = Environment(tmp_path / "fresh", [wheel]).doctor()["keyedstate"]
    assert check["detail"].endswith("the per-record path is plain Python")
    assert "pip install --force-reinstall" in check["way_out"]


def test_a_wheel_of_the_framework_that_is_not_compiled_is_for_all_platforms(
    archives: dict[str, Path], tmp_path: Path
) -> None:
    wheel = wheel_of(archives["framework"], tmp_path, KEYEDSTATE_PURE="1")
    assert wheel.name.endswith("-py3-none-any.whl")


@pytest.mark.long
def test_doctor_warns_of_a_wheel_that_was_not_compiled(
    archives: dict[str, Path], wheels: dict[str, Path], tmp_path: Path
) -> None:
    wheel = wheel_of(archives["heap-cow"], tmp_path, CC="no-such-compiler")
    installed = Environment(tmp_path / "fresh", [wheels["framework"], wheel])
    check = installed.doctor()["backend heap-cow"]
    assert check["status"] == "warning"
    assert ", plain Python" in check["detail"]
    assert "the map is not compiled" in check["way_out"]
    assert "the index of tables in columns is not compiled" in check["way_out"]
    assert check["way_out"].count("'no-such-compiler'") == 2
    assert "pip install --force-reinstall" in check["way_out"]
