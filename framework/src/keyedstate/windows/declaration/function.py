"""What a user writes for windows: a function of the rows of a window, Flink's ``ProcessWindowFunction``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, TypeVar

from keyedstate.state import StateAccessor, StateDescriptor

H = TypeVar("H", bound=StateAccessor)


class WindowContext(ABC):
    """What a window's function is told beside its rows."""

    @property
    @abstractmethod
    def key(self) -> Any:
        """The current key: the value of the key column, or a tuple where there are several."""

    @property
    @abstractmethod
    def window(self) -> Any:
        """The window: a `keyedstate.types.TimeWindow` with `start` and `end` in milliseconds, or what the
        assigner makes."""

    @property
    @abstractmethod
    def current_watermark(self) -> int:
        """In milliseconds since 1970 UTC; -2**63 where none is known."""

    @property
    @abstractmethod
    def current_processing_time(self) -> int:
        """In milliseconds since 1970 UTC."""

    @abstractmethod
    def window_state(self, descriptor: StateDescriptor[H]) -> H:
        """Return state of the current key and window, which lasts from firing to firing.

        Remove it in `ProcessWindowFunction.clear`: nobody else does.

        Raises
        ------
        InvalidWindowError
            Where windows merge.
        InvalidWindowError
            For a name under which windows keep what is theirs, as ``window-contents``.
        """

    @abstractmethod
    def global_state(self, descriptor: StateDescriptor[H] | H) -> H:
        """Return state of the current key, which all of its windows share.

        Raises
        ------
        InvalidWindowError
            As `window_state`.
        """

    @abstractmethod
    def output(self, name: str, row: Any) -> None:
        """Put a row out to a side output.

        Raises
        ------
        InvalidWindowError
            For a side output that was not declared.
        """


class ProcessWindowFunction:
    """Reads the rows of one window when it fires, and yields output rows.

    States that are declared as class attributes belong to the key, as `WindowContext.global_state` does.  One
    object serves many keys and windows, so nothing of them belongs on ``self``.
    """

    def process(self, elements: Any, ctx: WindowContext) -> Iterable[Any] | None:
        """Handle the contents of a window; called at every firing, with all that the window holds then.

        Parameters
        ----------
        elements : list of tuple
            The rows; where they are reduced or aggregated, what has become of them.
        ctx : WindowContext

        Returns
        -------
        iterable of rows, or None
            Usually a generator. A row is a tuple, list or dict of the declared columns.
        """
        raise NotImplementedError

    def open(self) -> None:
        """Prepare; called once before the first row. Declared states are bound already."""

    def clear(self, ctx: WindowContext) -> None:
        """Remove per-window state; called when the window is gone for good."""

    def close(self) -> None:
        """Clean up; called once after the last row and after an error."""
