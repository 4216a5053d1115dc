"""Process functions: what a user writes (Flink's ``KeyedProcessFunction``)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from keyedstate.state import KeyedStateBackend, StateDescriptor, StateHandle

H = TypeVar("H", bound=StateHandle)


class Context:
    """What a process function is told beside its row.

    Attributes
    ----------
    key : object
        The current key: the value of the key column, or a tuple where there are several. None is a key.
    epoch : int or None
        The micro-batch; None for a batch DataFrame.
    """

    __slots__ = ("_backend", "epoch", "key")

    def __init__(self, backend: KeyedStateBackend, epoch: int | None) -> None:
        self._backend = backend
        self.key: Any = None
        self.epoch = epoch

    def state(self, descriptor: StateDescriptor[H]) -> H:
        """Register a state and return its handle; for states that are not class attributes, in `open`."""
        return self._backend.get_state(descriptor)


class KeyedProcessFunction:
    """Reads the rows of one key after the other, keeps state per key, and yields output rows.

    States are declared as class attributes (`keyedstate.state.ValueState`, `keyedstate.state.MapState`) or
    registered in `open`.  One instance serves many keys, so anything that belongs to a key goes into
    state; anything else on ``self`` is gone after the epoch.
    """

    def open(self, ctx: Context) -> None:
        """Prepare; called once before the first row. Declared states are bound already."""

    def process(self, row: Any, ctx: Context) -> Iterable[Any] | None:
        """Handle one row.

        Parameters
        ----------
        row : tuple
            The row's values, also by column name (``row.origin``) and as a dict (``row.as_dict()``).
        ctx : Context

        Returns
        -------
        iterable of rows, or None
            Usually a generator. A row is a tuple, list or dict of the declared columns.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Clean up; called once after the last row and after an error."""
