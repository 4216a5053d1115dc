"""What a user may import is one list, which changes only on purpose."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import keyedstate

PUBLIC = Path(__file__).with_name("public_names.txt")


def listed() -> dict[str, list[str]]:
    """Return the names of `public_names.txt` by module: a line without indentation names a module."""
    names: dict[str, list[str]] = {}
    module = ""
    for line in PUBLIC.read_text(encoding="utf-8").splitlines():
        if line.startswith(" "):
            names[module] += line.split()
        elif line and not line.startswith("#"):
            module = line
            names[module] = []
    return names


@pytest.mark.parametrize("module", listed())
def test_a_public_module_exports_the_listed_names(module: str):
    exported = importlib.import_module(module).__all__
    assert sorted(exported, key=str.casefold) == listed()[module]


def test_every_name_of_the_facade_can_be_used():
    assert all(getattr(keyedstate, name) is not None for name in keyedstate.__all__)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = keyedstate.no_such_name


def test_the_facade_has_about_forty_names():
    assert len(keyedstate.__all__) <= 45


def test_importing_the_facade_imports_neither_pyarrow_nor_pyspark():
    code = "import sys, keyedstate; assert not {'pyarrow', 'pyspark'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_types_states_functions_and_savepoints_work_without_pyspark():
    code = (
        "import sys; sys.modules['pyspark'] = None\n"
        "import keyedstate as ks\n"
        "ks.KeyedProcessFunction, ks.ValueState('n', ks.types.INT64), ks.savepoints.Savepoint, ks.testing\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
