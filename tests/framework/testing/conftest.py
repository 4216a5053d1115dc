"""Harnesses over every backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from keyedstate.testing import Harness


@pytest.fixture
def harness(backend_name: str) -> Iterator[Callable[..., Harness]]:
    """Make harnesses over the backend, keyed by the column ``user``; closed when the test ends."""
    with ExitStack() as opened:

        def make(function: Any, **arguments: Any) -> Harness:
            made = Harness(function, **{"key": "user", "backend": backend_name, **arguments})
            return opened.enter_context(made)

        yield make
