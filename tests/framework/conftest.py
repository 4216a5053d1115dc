"""Distributions with backends, made in a temporary folder as an installer would leave them on the disk."""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from keyedstate.options import Configuration
from keyedstate.plugins import PluginRegistry

#: The hooks of a complete plugin.  Every call is noted in ``calls``; what is returned is looked at, not used.
_HOOKS = {
    "keyedstate_describe_backend": """
def keyedstate_describe_backend():
    calls.append("keyedstate_describe_backend")
    return BackendDescription(
        name={name!r}, version="9.9", hook_api={hook_api!r}, summary="A backend of the tests.",
        capabilities={{{capabilities}}}, state_kinds=({state_kinds}), options=({options}),
    )
""",
    "keyedstate_create_state_table": """
def keyedstate_create_state_table(meta, context):
    calls.append(("keyedstate_create_state_table", meta, context))
    return instance_of(StateTable)
""",
    "keyedstate_create_snapshot_strategy": """
def keyedstate_create_snapshot_strategy(context):
    calls.append(("keyedstate_create_snapshot_strategy", context))
    return instance_of(SnapshotStrategy)
""",
    "keyedstate_create_restore_operation": """
def keyedstate_create_restore_operation(handles, context):
    calls.append(("keyedstate_create_restore_operation", handles, context))
    return instance_of(RestoreOperation)
""",
}
_HEAD = """
from keyedstate.backend import (
    BackendDescription, Capability, Level, RestoreOperation, SnapshotStrategy, SpillManager, StateKind,
    StateTable,
)
from keyedstate.config import integer
from keyedstate.hooks import hookimpl

calls = []

def instance_of(abstract):
    return type(abstract.__name__, (abstract,), dict.fromkeys(abstract.__abstractmethods__))()
"""


def backend_source(
    name: str,
    *,
    hook_api: object = (1, 1),
    capabilities: str = "",
    state_kinds: str = "",
    options: str = "",
    replaced: dict[str, str] | None = None,
    extra: str = "",
) -> str:
    """Return the source of a plugin.

    Parameters
    ----------
    name, hook_api, capabilities, state_kinds, options
        Its description; the last three as the source inside the mapping's and the tuples' brackets.
    replaced
        Other source for some hooks, without ``@hookimpl``; an empty one leaves the hook out.
    extra
        Source that is added at the end.
    """
    parts = [_HEAD]
    for hook, text in _HOOKS.items():
        source = (replaced or {}).get(hook)
        if source is None:
            source = text.strip().format(
                name=name,
                hook_api=hook_api,
                capabilities=capabilities,
                state_kinds=state_kinds,
                options=options,
            )
        if source:
            parts.append(f"@hookimpl\n{source}\n")
    return "\n".join([*parts, extra])


class Distributions:
    """A folder on `sys.path` with real distributions in it.

    Attributes
    ----------
    folder : Path
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    source = staticmethod(backend_source)

    def add(self, distribution: str, version: str, backend: str, **source: Any) -> str:
        """Install a distribution with one backend, described as `backend_source` says."""
        return self.add_source(distribution, version, backend, backend_source(**{"name": backend, **source}))

    def add_source(self, distribution: str, version: str, backend: str, source: str) -> str:
        """Install a distribution whose backend is this source; return the name of its module."""
        module = f"{distribution}_plugin".replace("-", "_")
        (self.folder / f"{module}.py").write_text(source, encoding="utf-8")
        metadata = self.add_metadata(distribution, version)
        (metadata / "entry_points.txt").write_text(
            f"[keyedstate.backends]\n{backend} = {module}\n", encoding="utf-8"
        )
        importlib.invalidate_caches()
        return module

    def add_plugin(self, distribution: str, version: str, name: str, source: str) -> str:
        """Install a distribution with a plugin that is no backend; return the name of its module."""
        module = f"{distribution}_plugin".replace("-", "_")
        (self.folder / f"{module}.py").write_text(source, encoding="utf-8")
        metadata = self.add_metadata(distribution, version)
        text = f"[keyedstate.plugins]\n{name} = {module}\n"
        (metadata / "entry_points.txt").write_text(text, encoding="utf-8")
        importlib.invalidate_caches()
        return module

    def add_metadata(self, distribution: str, version: str) -> Path:
        """Install the metadata of a distribution and nothing else; return their folder."""
        metadata = self.folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n", encoding="utf-8"
        )
        return metadata

    def entry_points(self) -> list[EntryPoint]:
        """Return the entry points of this folder alone."""
        found = importlib.metadata.distributions(path=[str(self.folder)])
        return [entry for distribution in found for entry in distribution.entry_points]

    def registry(self, **options: object) -> PluginRegistry:
        """Return a registry that sees this folder alone; two underscores in an option's name are a dot."""
        explicit = {name.replace("__", "."): value for name, value in options.items()}
        return PluginRegistry(Configuration(explicit), installed=self.entry_points)


@pytest.fixture
def distributions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Distributions]:
    """An empty folder for distributions, on `sys.path` during the test."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    yield Distributions(folder)
    for name, module in list(sys.modules.items()):
        if Path(getattr(module, "__file__", None) or "/").parent == folder:
            del sys.modules[name]
