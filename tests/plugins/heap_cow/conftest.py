"""The copy-on-write map in both its forms: tests that ask for ``cowmap`` run once with each."""

from __future__ import annotations

import os
from types import ModuleType

import pytest

from keyedstate_heap_cow.compiled_form import map_module


@pytest.fixture(scope="session", params=["compiled", "uncompiled"])
def cowmap(request: pytest.FixtureRequest) -> ModuleType:
    module: ModuleType = map_module(compiled=request.param == "compiled")
    if request.param == "compiled" and not module.COMPILED:
        message = "the map is not compiled: install plugins/heap-cow where a C compiler is"
        if os.environ.get("KEYEDSTATE_REQUIRE_COMPILED") == "1":
            pytest.fail(message)
        pytest.skip(message)
    return module
