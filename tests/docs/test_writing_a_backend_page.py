"""The page about writing a backend: its code is a backend over a plain ordered store."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from keyedstate import types
from keyedstate.backend import BackendContext, StateKind, StateMeta
from keyedstate.keygroups import KeyGroupRange
from keyedstate.options import Configuration
from keyedstate.plugins import PluginRegistry

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "writing-a-backend.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
STORE = """
from keyedstate.ordered import OrderedStore, RowCopy, RowSpace


class MySpace(RowSpace, RowCopy):
    def __init__(self, rows=()):
        self.rows = dict(rows)

    def get(self, key):
        return self.rows.get(key)

    def get_many(self, keys):
        return list(map(self.rows.get, keys))

    def scan(self, start, end):
        rows = sorted(self.rows.items())
        return iter([row for row in rows if row[0] >= start and (not end or row[0] < end)])

    def write(self, rows):
        self.rows = {key: value for key, value in {**self.rows, **rows}.items() if value is not None}

    def copy(self):
        return MySpace(self.rows)

    def release(self):
        pass


class MyStore(OrderedStore):
    def __init__(self, context):
        pass

    def open_space(self, state):
        return MySpace()

    def close(self):
        pass
"""


@pytest.fixture
def importable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in ("my_store", "my_backend_plugin"):
        sys.modules.pop(name, None)


def test_the_module_of_the_page_is_a_backend(importable: Path) -> None:
    (importable / "my_store.py").write_text(STORE)
    (importable / "my_backend_plugin.py").write_text(BLOCKS[0])
    settings = {"backend": "my-backend", "plugins.modules": "my_backend_plugin"}
    backend = PluginRegistry(Configuration(settings)).choose()
    context = BackendContext(KeyGroupRange(0, 3), 4, {}, importable / "local")
    meta = StateMeta("views", StateKind.LIST, types.STRING, types.VOID, types.list_of(types.INT64))
    table = backend.create_state_table(meta, context)
    table.put(1, "a", types.VOID_NAMESPACE, [1, 2])
    assert table.get(1, "a", types.VOID_NAMESPACE) == [1, 2]
    assert backend.create_snapshot_strategy(context) is not None
    assert backend.create_restore_operation([], context).restore() == {}


def test_every_other_block_of_the_page_runs() -> None:
    assert len(BLOCKS) == 3
    for block in BLOCKS[1:]:
        exec(compile(block, str(PAGE), "exec"), {"__name__": "page"})
