"""What a user writes for windows: a function of the rows of a window, Flink's ``ProcessWindowFunction``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from keyedstate.windows.declaration.contexts import WindowContext


class ProcessWindowFunction:
    """Reads the rows of one window when it fires, and yields output rows.

    States that are declared as class attributes belong to the key, as `WindowContext.global_state` does.  One
    object serves many keys and windows, so keep nothing of them on ``self``.
    """

    def process(self, elements: Any, ctx: WindowContext) -> Iterable[Any] | None:
        """Handle the contents of a window; called at every firing.

        They are a list of all rows of the window, tuples; where they are reduced or aggregated, the result of
        that. Usually a generator: it yields rows, each a tuple, list or dict of the declared columns.
        """
        raise NotImplementedError

    def open(self) -> None:
        """Prepare; called once before the first row. Declared states are bound already."""

    def clear(self, ctx: WindowContext) -> None:
        """Remove per-window state; called when the window is removed."""

    def close(self) -> None:
        """Clean up; called once after the last row and after an error."""
