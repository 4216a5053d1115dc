"""The pytest plugin of this distribution: the fixture `keyedstate_harness`.

pytest loads it by entry point whenever it starts, so the harness is imported by the first test that uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from keyedstate.runtime import KeyedProcessFunction
    from keyedstate.testing.harness import Harness


@pytest.fixture
def keyedstate_harness() -> Iterator[Callable[..., Harness]]:
    """Make harnesses that are closed when the test ends: ``keyedstate_harness(function, key=..., ...)``.

    Takes what `keyedstate.testing.Harness` takes.
    """
    with ExitStack() as opened:

        def make(function: KeyedProcessFunction, **arguments: Any) -> Harness:
            from keyedstate.testing.harness import Harness

            return opened.enter_context(Harness(function, **arguments))

        yield make
