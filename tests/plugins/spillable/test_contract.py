"""spillable against the contract of every backend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import pytest

from keyedstate.testing import BackendContract


class TestSpillable(BackendContract):
    backend = "spillable"


@pytest.mark.long
class TestRestlessSpillable(BackendContract):
    """Entries move before each access, and nothing of it is seen."""

    backend = "restless"
    options: ClassVar[Mapping[str, object]] = {"plugins.modules": "support.restless"}
