"""The commands about stored state on a file system that a plugin opens, with options from a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from keyedstate.errors import UnknownSchemeError

PLUGIN = """
import pyarrow.fs as pafs
from keyedstate.hooks import hookimpl

@hookimpl
def keyedstate_checkpoint_storage(uri, options):
    if not uri.startswith("attic://"):
        return None
    return pafs.SubTreeFileSystem(options["root"], pafs.LocalFileSystem()), uri[len("attic://"):]
"""


@pytest.fixture
def attic(query: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """The state of `query` in a folder of the scheme ``attic``; returns the file of options that opens it."""
    (tmp_path / "plugin").mkdir()
    (tmp_path / "plugin/attic_storage.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(str(tmp_path / "plugin"))
    file = tmp_path / "keyedstate.toml"
    file.write_text(
        f"[keyedstate]\nplugins.modules = ['attic_storage']\nstorage.options = 'root={tmp_path}'\n"
    )
    return str(file)


def test_every_command_goes_where_the_plugin_leads(invoke, attic, query, tmp_path):
    def ran(*arguments: str) -> Any:
        done = invoke(*arguments, "--config", attic, "--format", "json")
        assert done.returncode == 0, arguments
        return json.loads(done.stdout)

    state, savepoint = "attic://state", "attic://kept/savepoint"
    (operator,) = ran("checkpoint", "list", state)["operators"]
    assert operator["location"] == "attic://state/aircraft"
    assert ran("checkpoint", "show", f"{state}/aircraft/chk-0")["epoch"] == 0
    assert ran("checkpoint", "verify", state)["ok"] is True
    assert ran("checkpoint", "diff", f"{state}/aircraft", str(tmp_path / "state"))["equal"] is True
    files = ran("checkpoint", "export", state, "attic://out", "--as", "jsonl")["files"]
    assert sorted(path.stem for path in (tmp_path / "out").iterdir()) == sorted(
        file["state"] for file in files
    )
    assert ran("savepoint", "create", state, savepoint)["operators"] == ["aircraft"]
    ran("savepoint", "convert", savepoint, str(tmp_path / "local"))
    assert ran("checkpoint", "diff", savepoint, str(tmp_path / "local"))["equal"] is True
    assert ran("savepoint", "delete", savepoint, "--yes")["left"] == []
    assert not (tmp_path / "kept/savepoint").exists()
    assert query.folder.leases() == []


def test_options_may_come_from_the_environment(invoke, attic, tmp_path):
    plugin = {"KEYEDSTATE_PLUGINS_MODULES": "attic_storage", "KEYEDSTATE_STORAGE_OPTIONS": f"root={tmp_path}"}
    assert invoke("checkpoint", "list", "attic://state", **plugin).returncode == 0
    with pytest.raises(UnknownSchemeError, match="attic"):
        invoke("checkpoint", "list", "attic://state")
