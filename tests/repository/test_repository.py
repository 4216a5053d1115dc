"""What must be true of the repository itself: layout, versions, packaging, and what no file may say."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
PLUGINS = sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml"))
DISTRIBUTIONS = [ROOT / "framework", *PLUGINS]

each_distribution = pytest.mark.parametrize("folder", DISTRIBUTIONS, ids=lambda folder: folder.name)
each_plugin = pytest.mark.parametrize("folder", PLUGINS, ids=lambda folder: folder.name)


def project(folder: Path) -> dict[str, Any]:
    """Return the [project] table of a distribution."""
    return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def pins(name: str) -> dict[str, list[Version]]:
    """Return every version that a constraints file, with the ones it includes, pins per package."""
    found: dict[str, list[Version]] = {}
    for line in (ROOT / "constraints" / name).read_text(encoding="utf-8").splitlines():
        if line.startswith("-c "):
            found |= pins(line.removeprefix("-c "))
        elif line and not line.startswith("#"):
            requirement = Requirement(line)
            (specifier,) = requirement.specifier
            assert specifier.operator == "==", line
            found.setdefault(requirement.name.lower(), []).append(Version(specifier.version))
    return found


def direct_requirements() -> list[Requirement]:
    """Return what the framework and its extras ask for, without the repository's own distributions."""
    framework = project(ROOT / "framework")
    lines = [
        *framework["dependencies"],
        *(line for extra in framework["optional-dependencies"].values() for line in extra),
    ]
    own = {project(folder)["name"] for folder in DISTRIBUTIONS}
    return [requirement for requirement in map(Requirement, lines) if requirement.name not in own]


@pytest.fixture(scope="module")
def tracked() -> list[Path]:
    """Every text file that git knows here."""
    if not (ROOT / ".git").exists():
        pytest.skip("an unpacked archive has no list of tracked files")
    listing = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True
    ).stdout
    paths = [ROOT / name for name in listing.split("\0") if name]
    return [path for path in paths if path.is_file() and b"\0" not in path.read_bytes()[:8192]]


@pytest.mark.parametrize("folder", ["framework", "plugins", "contrib", "tests", "docs"])
def test_the_folders_of_the_layout_hold_tracked_files(folder: str, tracked: list[Path]) -> None:
    assert any(path.is_relative_to(ROOT / folder) for path in tracked)


# In pieces, so that this file does not contain what it looks for.
@pytest.mark.parametrize(
    ("meaning", "pattern"),
    [
        (
            "the address of a package index",
            r"pypi\." + r"org|python" + r"hosted|--(?:extra-)?index" + r"-url|simple/\s*$",
        ),
        (
            "the address of another registry",
            r"registry\.npm" + r"js|deb\.deb" + r"ian|proxy\.gol" + r"ang|repo1?\.mav" + r"en",
        ),
        ("somebody's home folder", r"(?<![\w.])/(?:ho" + r"me|Us" + r"ers)/[\w.-]+|(?<![\w.])/ro" + r"ot/"),
    ],
    ids=["index", "registry", "home"],
)
def test_no_file_names_a_place_that_only_one_machine_has(
    meaning: str, pattern: str, tracked: list[Path]
) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in tracked
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(pattern, line)
    ]
    assert not found, f"{meaning} in:\n" + "\n".join(found)


@each_distribution
def test_the_changelog_names_the_version_of_every_distribution(folder: Path) -> None:
    table = project(folder)
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"`{table['name']}` {table['version']}" in changelog


@each_distribution
def test_what_is_installed_is_the_version_in_this_tree(folder: Path) -> None:
    table = project(folder)
    assert version(table["name"]) == table["version"], "run `make setup` again"


def test_the_framework_tells_its_version() -> None:
    import keyedstate

    assert keyedstate.__version__ == project(ROOT / "framework")["version"]


@each_distribution
def test_every_distribution_supports_the_same_pythons(folder: Path) -> None:
    assert project(folder)["requires-python"] == ">=3.10"


@each_plugin
def test_every_backend_has_an_extra_of_its_name_on_the_framework(folder: Path) -> None:
    table = project(folder)
    extras = project(ROOT / "framework")["optional-dependencies"]
    for backend in table["entry-points"]["keyedstate.backends"]:
        (line,) = extras[backend]
        requirement = Requirement(line)
        assert requirement.name == table["name"]
        assert requirement.specifier.contains(table["version"])


@each_plugin
def test_every_backend_accepts_the_framework_of_this_tree(folder: Path) -> None:
    requirements = [Requirement(line) for line in project(folder)["dependencies"]]
    (framework,) = [requirement for requirement in requirements if requirement.name == "keyedstate"]
    assert framework.specifier.contains(project(ROOT / "framework")["version"])


@each_plugin
def test_the_entry_points_of_every_backend_can_be_loaded(folder: Path) -> None:
    for backend, module in project(folder)["entry-points"]["keyedstate.backends"].items():
        (entry_point,) = entry_points(group="keyedstate.backends", name=backend)
        assert entry_point.value == module
        assert entry_point.load().__name__ == module


@pytest.mark.parametrize("constraints", ["spark35.txt", "spark4x.txt"])
def test_constraints_pin_every_direct_requirement_within_its_bounds(constraints: str) -> None:
    pinned = pins(constraints)
    for requirement in direct_requirements():
        versions = pinned.get(requirement.name.lower())
        assert versions, f"{requirement.name} has no pin in constraints/{constraints}"
        for pin in versions:
            assert requirement.specifier.contains(pin), f"{requirement} does not allow the pin {pin}"


def test_spark35_constraints_pin_the_oldest_versions_that_the_framework_allows() -> None:
    pinned = pins("spark35.txt")
    for line in project(ROOT / "framework")["dependencies"]:
        requirement = Requirement(line)
        (oldest,) = [Version(part.version) for part in requirement.specifier if part.operator == ">="]
        lowest = min(pinned[requirement.name.lower()])
        assert lowest.release[: len(oldest.release)] == oldest.release, (
            f"{requirement} is tested from {lowest} on only"
        )
