"""What a window keeps of its rows: all of them, or what a function makes of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from keyedstate.errors import InvalidWindowError, forgotten_call
from keyedstate.state import AggregateFunction, AggregatingState, ListState, ReducingState, StateDescriptor
from keyedstate.types import TypeSerializer
from keyedstate.windows.declaration.checks import function as check_function

#: The name of the state with the contents of windows (Flink's ``WindowOperatorBuilder.WINDOW_STATE_NAME``).
CONTENTS = "window-contents"


class WindowContents(ABC):
    """How the rows of a window are kept, and what its function is given.

    Attributes
    ----------
    can_merge : bool
        Whether the contents of two windows can become those of one.
    """

    can_merge: bool = True

    @abstractmethod
    def descriptor(self, element_type: TypeSerializer[Any]) -> StateDescriptor[Any]:
        """Return the state that rows of a type are added to; it can merge namespaces."""

    @abstractmethod
    def of_rows(self, rows: list[Any]) -> Any:
        """Return what the function is given of some rows, at least one, that were kept for an evictor."""

    def shown(self, state: Any) -> Any:
        """Return what the function is given of the window that the state's handle is at; None for nothing."""
        return state.get()


class AllRows(WindowContents):
    """Every row; the function is given a list in the order in which they came."""

    def descriptor(self, element_type: TypeSerializer[Any]) -> StateDescriptor[Any]:
        return ListState(CONTENTS, element_type)

    def of_rows(self, rows: list[Any]) -> list[Any]:
        return rows

    def shown(self, state: Any) -> list[Any] | None:
        return state.get() or None


class ReducedRows(WindowContents):
    """The rows reduced to one by a function of two (Flink's ``ReduceFunction``).

    Raises
    ------
    InvalidWindowError
        For what is no function.
    """

    def __init__(self, reduce: Callable[[Any, Any], Any]) -> None:
        check_function("reduce()", "its function", reduce)
        self._reduce = reduce

    def descriptor(self, element_type: TypeSerializer[Any]) -> StateDescriptor[Any]:
        return ReducingState(CONTENTS, self._reduce, element_type)

    def of_rows(self, rows: list[Any]) -> Any:
        reduced = rows[0]
        for row in rows[1:]:
            reduced = self._reduce(reduced, row)
        return reduced


class AggregatedRows(WindowContents):
    """The rows in an accumulator; the function is given its result.

    Raises
    ------
    InvalidWindowError, InvalidDescriptorError
        For what is no aggregate function, or no type.
    """

    def __init__(
        self, function: AggregateFunction[Any, Any, Any], accumulator_type: TypeSerializer[Any]
    ) -> None:
        if not isinstance(function, AggregateFunction):
            raise InvalidWindowError(
                "aggregate()",
                f"its function is {function!r}{forgotten_call(function)}",
                "Give an AggregateFunction.",
            )
        self._function = function
        self._descriptor = AggregatingState(CONTENTS, function, accumulator_type)
        self.can_merge = type(function).merge is not AggregateFunction.merge

    def descriptor(self, element_type: TypeSerializer[Any]) -> StateDescriptor[Any]:
        return self._descriptor

    def of_rows(self, rows: list[Any]) -> Any:
        return self._function.get_result(self._function.add_all(rows, self._function.create_accumulator()))
