"""Imports run one way: the rules of the layers inside the framework, of plugins, and of the kernel's size.

The rules are read off the source with `ast`, so an import inside a function or under ``TYPE_CHECKING`` counts
like any other.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import pytest
from packaging.requirements import Requirement

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
FRAMEWORK = ROOT / "framework" / "src"
PLUGIN_SOURCES = sorted(
    path.parent / "src" for place in ("plugins", "contrib") for path in ROOT.glob(f"{place}/*/pyproject.toml")
)

#: The rooms of the framework, from the ground up: a room may import those of earlier lines.
ORDER = (
    ("entry_points", "errors", "row_path", "version"),
    ("durations", "keygroups"),
    ("config", "memory", "metrics", "murmur3"),
    ("options", "types", "working_folder"),
    ("backend",),
    ("tables", "operator_state", "hooks"),
    ("ordered",),
    ("plugins",),
    # Side by side: files know the backend's contract and nothing of accessors or operators.
    ("state", "checkpoint"),
    ("time",),
    ("runtime",),
    # Windows compute declared aggregates; joins put the rows of two inputs into windows.
    ("aggregates",),
    ("windows",),
    ("joins", "ranking"),
    ("columns", "sinks"),
    ("epoch",),
    # Side by side: a user who leaves one for the other changes one line.
    ("spark", "local"),
    ("savepoints",),
    ("testing",),
    ("cli",),
)
#: Rooms that a later line does not know all the same.
MAY_NOT_IMPORT = {
    "checkpoint": {"ordered"},
    **{room: {"checkpoint"} for room in ("time", "runtime", "aggregates", "windows", "joins", "ranking")},
}
MAY_IMPORT: dict[str, set[str]] = {
    room: {below for line in ORDER[:level] for below in line} - MAY_NOT_IMPORT.get(room, set())
    for level, rooms in enumerate(ORDER)
    for room in rooms
}
#: The floors of rooms that have an order of their own: a floor may import earlier ones.
#: ``.`` are the room's own files, where they are a floor; else they are its front, above all floors.
FLOORS = {
    "types": ("contract", "scalars", "collections", "records", "inference"),
    "state": (".", "ttl", "kinds", "ttl_kinds", "registry", "operator"),
    "checkpoint": ("storage", "format", "protocol", "savepoint", "reading"),
    "spark": (
        ".",
        "hosts",
        "task",
        "query",
        "plan",
        "dataframe",
        "savepoint",
        "datasource",
        "drop_in",
        "conversion",
    ),
    "local": ("channels", "sources", "run", "parallel", "sinks", "streams"),
    "runtime": (".", "functions", "runners"),
    "windows": ("declaration", "row", "columnar"),
}
#: All of the framework that a plugin, ours or a stranger's, may know.
PLUGIN_MAY_IMPORT = {
    "hooks",
    "config",
    "entry_points",
    "metrics",
    "backend",
    "tables",
    "memory",
    "ordered",
    "working_folder",
    "types",
    "keygroups",
    "errors",
}

#: The kernel, and how many lines it may have in all.
KERNEL = ("hooks.py", "plugins.py", "config.py", "backend/**/*.py")
KERNEL_LINES = 2_100


#: A room, or a floor of one, has at most so many modules beside its ``__init__``.
FOLDER_MODULES = 12
FILE_LINES = 500


class Import(NamedTuple):
    """One imported module, absolute, and where."""

    module: str
    file: Path
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line} imports {self.module}"


@cache
def imports(source: Path) -> tuple[Import, ...]:
    """Return what the modules below a source folder import; names that are modules count as modules."""
    found = []
    for file in sorted(source.rglob("*.py")):
        package = file.relative_to(source).with_suffix("").parts[:-1]
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found += [Import(alias.name, file, node.lineno) for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
                module = ".".join(part for part in (base, node.module) if part)
                found += [Import(f"{module}.{alias.name}", file, node.lineno) for alias in node.names]
    return tuple(found)


def part(module: str) -> str | None:
    """Return the part of the framework that a module belongs to; None for other packages and the root."""
    names = module.split(".")
    if names[0] != "keyedstate" or len(names) == 1:
        return None
    return names[1]


def framework_faults(source: Path) -> list[str]:
    """Return the imports of the framework that break its order."""
    faults = []
    for found in imports(source):
        if found.file.relative_to(source).parts[0] != "keyedstate":
            # The one module by which Spark finds the data source.
            continue
        owner = found.file.relative_to(source / "keyedstate").with_suffix("").parts[0]
        target = part(found.module)
        if owner == "__init__":
            # The facade, which imports what it is asked for.
            continue
        allowed = MAY_IMPORT.get(owner, set()) | {owner}
        if target is not None and target not in allowed:
            faults.append(str(found))
    return faults


def floor_faults(source: Path, room: str, floors: tuple[str, ...]) -> list[str]:
    """Return the imports of one room that go from a floor to a later one, or to the room's own front."""

    def floor(name: str) -> str:
        return name if name in floors else "."

    faults = []
    for found in imports(source):
        names = found.file.relative_to(source).with_suffix("").parts
        front = names[2:] == ("__init__",)
        if names[:2] != ("keyedstate", room) or front or floor(names[2]) not in floors:
            continue
        target = found.module.split(".")
        lower = floors[: floors.index(floor(names[2])) + 1]
        if target[:2] == ["keyedstate", room] and floor(target[2]) not in lower:
            faults.append(str(found))
    return faults


def plugin_faults(
    source: Path, others: set[str], used: Mapping[str, Path] = MappingProxyType({})
) -> list[str]:
    """Return the imports of a plugin that reach into the framework's inside or into another plugin.

    Of plugins that it depends on (`used`, packages with their source folders) it may import what the package
    itself exports, and no module.
    """
    faults = []
    for found in imports(source):
        target, (package, *inside) = part(found.module), found.module.split(".")
        within = used[package].joinpath(package, *inside) if package in used else None
        if target is not None:
            fault = target not in PLUGIN_MAY_IMPORT
        elif within is not None:
            fault = len(inside) != 1 or within.is_dir() or any(within.parent.glob(f"{inside[0]}.*"))
        else:
            fault = package in others
        if fault:
            faults.append(str(found))
    return faults


def dependencies(source: Path) -> set[str]:
    """Return the folders of the plugins of this repository that the distribution of a source folder needs."""
    project = tomllib.loads((source.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = [Requirement(line).name for line in project["dependencies"]]
    return {name.removeprefix("keyedstate-") for name in names if name.startswith("keyedstate-")}


def packages(source: Path) -> set[str]:
    """Return the names of the packages and modules that a source folder provides."""
    return {path.stem for path in source.iterdir() if path.is_dir() or path.suffix == ".py"} - {"__pycache__"}


def test_the_framework_imports_in_one_direction_only():
    assert framework_faults(FRAMEWORK) == []


def test_every_part_of_the_framework_has_its_place_in_the_order():
    parts = {path.stem for path in (FRAMEWORK / "keyedstate").iterdir() if path.suffix in {"", ".py"}}
    assert parts - {"__init__", "__pycache__"} <= MAY_IMPORT.keys()


@pytest.mark.parametrize(("room", "floors"), FLOORS.items(), ids=FLOORS)
def test_a_floor_of_a_room_imports_earlier_floors_only(room: str, floors: tuple[str, ...]):
    folders = {path.name for path in (FRAMEWORK / "keyedstate" / room).iterdir() if path.is_dir()}
    assert folders - {"__pycache__"} == set(floors) - {"."}
    assert floor_faults(FRAMEWORK, room, floors) == []


def test_the_framework_imports_no_plugin():
    plugins = {name for source in PLUGIN_SOURCES for name in packages(source)}
    assert [str(found) for found in imports(FRAMEWORK) if found.module.split(".")[0] in plugins] == []


@pytest.mark.parametrize("source", PLUGIN_SOURCES, ids=lambda source: source.parent.name)
def test_a_plugin_knows_only_the_public_part_of_the_framework_and_no_other_plugin(source: Path):
    others = {name for other in PLUGIN_SOURCES if other != source for name in packages(other)}
    used = {
        name: other
        for other in PLUGIN_SOURCES
        if other.parent.name in dependencies(source)
        for name in packages(other)
    }
    assert plugin_faults(source, others, used) == []


def test_the_kernel_can_be_read_in_one_sitting():
    """The limit is not raised: what is neither contract nor machinery belongs into a room above."""
    files = [path for pattern in KERNEL for path in (FRAMEWORK / "keyedstate").glob(pattern)]
    assert {path.name for path in files} >= {"hooks.py", "plugins.py", "config.py", "table.py"}
    assert sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files) <= KERNEL_LINES


def module_graph(source: Path) -> dict[str, set[str]]:
    """Return by module the modules of the same source folder that it imports, in functions too.

    The roots are left out: the facade imports what it is asked for.
    """
    files = {path.relative_to(source).with_suffix("").parts: path for path in source.rglob("*.py")}
    modules = {
        path: ".".join(names[:-1] if names[-1] == "__init__" else names) for names, path in files.items()
    }
    known = {name for name in modules.values() if "." in name}
    graph: dict[str, set[str]] = {name: set() for name in known}
    for found in imports(source):
        owner, target = modules[found.file], found.module
        while target and target not in known:
            target = target.rpartition(".")[0]
        if owner in known and target and target != owner:
            graph[owner].add(target)
    return graph


def circle(graph: dict[str, set[str]]) -> tuple[str, ...]:
    """Return the modules of an import circle, in order; empty if no circle exists."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return tuple(error.args[1])
    return ()


@pytest.mark.parametrize("source", [FRAMEWORK, *PLUGIN_SOURCES], ids=lambda source: source.parent.name)
def test_no_modules_import_each_other_in_a_circle(source: Path):
    assert circle(module_graph(source)) == ()


@pytest.mark.parametrize("source", [FRAMEWORK, *PLUGIN_SOURCES], ids=lambda source: source.parent.name)
def test_a_folder_of_sources_has_about_a_dozen_modules(source: Path):
    counts = Counter(path.parent for path in source.rglob("*.py") if path.name != "__init__.py")
    assert {folder: count for folder, count in counts.items() if count > FOLDER_MODULES} == {}


@pytest.mark.parametrize("source", [FRAMEWORK, *PLUGIN_SOURCES], ids=lambda source: source.parent.name)
def test_a_source_file_has_one_subject_in_at_most_500_lines(source: Path):
    files = [path for suffix in ("py", "pyx", "pxi") for path in source.rglob(f"*.{suffix}")]
    assert [path for path in files if path.read_text(encoding="utf-8").count("\n") > FILE_LINES] == []


# -- the rules see what they are to see ------------------------------------------------------------


def _source(folder: Path, name: str, text: str) -> Path:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    "text",
    [
        "import keyedstate.runtime",
        "import keyedstate.runtime.runners.rows as rows",
        "from keyedstate import runtime",
        "from keyedstate.runtime import operator",
        "from ..runtime import operator",
        "def late():\n    from keyedstate.runtime.runners.rows import RowOperator",
        "if False:\n    import keyedstate.runtime",
    ],
)
def test_an_import_against_the_order_is_seen_in_every_form(tmp_path: Path, text: str):
    source = _source(tmp_path, "keyedstate/state/handles.py", text)
    (fault,) = framework_faults(source)
    assert "handles.py" in fault and "keyedstate.runtime" in fault


def test_an_import_of_a_lower_layer_the_root_or_a_neighbour_is_no_fault(tmp_path: Path):
    source = _source(
        tmp_path,
        "keyedstate/state/handles.py",
        "import json\nfrom . import descriptors\nfrom keyedstate import types, version\n"
        "from keyedstate.state.descriptors import ValueState\n"
        "from keyedstate.backend.table import StateTable\n",
    )
    assert framework_faults(source) == []


def test_an_import_of_a_later_floor_is_seen(tmp_path: Path):
    lines = ["from keyedstate.checkpoint.storage import retry", "from keyedstate.checkpoint import protocol"]
    source = _source(tmp_path, "keyedstate/checkpoint/format/manifest.py", "\n".join(lines))
    (fault,) = floor_faults(source, "checkpoint", FLOORS["checkpoint"])
    assert fault.endswith("keyedstate.checkpoint.protocol")


def test_a_circle_through_a_function_and_another_module_is_seen(tmp_path: Path):
    _source(tmp_path, "keyedstate/state/a.py", "from keyedstate.state import b\n")
    _source(tmp_path, "keyedstate/state/b.py", "from keyedstate.state.c import value\n")
    source = _source(
        tmp_path, "keyedstate/state/c.py", "def late():\n    from keyedstate.state.a import value\n"
    )
    assert set(circle(module_graph(source))) == {f"keyedstate.state.{name}" for name in "abc"}


def test_a_plugin_that_reaches_inside_or_into_another_plugin_is_seen(tmp_path: Path):
    lines = [
        "import other_plugin.table",
        "from keyedstate.state import ValueState",
        "from keyedstate.hooks import hookimpl",
    ]
    source = _source(tmp_path, "mine/plugin.py", "\n".join(lines))
    assert [fault.split(" imports ")[1] for fault in plugin_faults(source, {"other_plugin"})] == [
        "other_plugin.table",
        "keyedstate.state.ValueState",
    ]


def test_a_plugin_may_import_the_exports_of_a_dependency_and_no_module(tmp_path: Path):
    _source(tmp_path / "theirs", "other_plugin/table.py", "")
    lines = [
        "from other_plugin import Map",
        "from other_plugin import table",
        "from other_plugin.table import Table",
        "import other_plugin",
    ]
    source = _source(tmp_path / "ours", "mine/plugin.py", "\n".join(lines))
    faults = plugin_faults(source, {"other_plugin"}, {"other_plugin": tmp_path / "theirs"})
    assert [fault.split(" imports ")[1] for fault in faults] == [
        "other_plugin.table",
        "other_plugin.table.Table",
        "other_plugin",
    ]
