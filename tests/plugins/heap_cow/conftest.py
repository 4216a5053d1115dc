"""The copy-on-write map in both its forms: tests that ask for ``cowmap`` run once with each."""

from __future__ import annotations

import importlib.util
import os
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

from keyedstate_heap_cow import cowmap as installed

SOURCE = Path(installed.__file__).with_name("cowmap.py")


def load_uncompiled() -> ModuleType:
    """Run the source as plain Python, beside the compiled module where there is one."""
    loader = SourceFileLoader("keyedstate_heap_cow.cowmap_uncompiled", str(SOURCE))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


@pytest.fixture(scope="session", params=["compiled", "uncompiled"])
def cowmap(request: pytest.FixtureRequest) -> ModuleType:
    if request.param == "uncompiled":
        return load_uncompiled()
    if not installed.COMPILED:
        message = f"{installed.__file__} is not compiled: install plugins/heap-cow where a C compiler is"
        if os.environ.get("KEYEDSTATE_REQUIRE_COMPILED") == "1":
            pytest.fail(message)
        pytest.skip(message)
    return installed
