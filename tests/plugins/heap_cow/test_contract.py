"""heap-cow against the contract of every backend, as it was installed and uncompiled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from keyedstate.testing import BackendContract


class TestHeapCow(BackendContract):
    backend = "heap-cow"


class TestUncompiledHeapCow(BackendContract):
    backend = "heap-cow"
    options: ClassVar[Mapping[str, object]] = {"heap-cow.compiled": "never"}
