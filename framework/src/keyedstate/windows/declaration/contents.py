"""What a window keeps of its rows: all of them, or what a function makes of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import reduce
from typing import Any

from keyedstate.errors import InvalidWindowError, forgotten_call
from keyedstate.state import AggregateFunction, AggregatingState, ListState, ReducingState, StateDescriptor
from keyedstate.types import TypeSerializer
from keyedstate.windows.declaration.checks import check_function

#: The name of the state with the contents of windows (Flink's ``WindowOperatorBuilder.WINDOW_STATE_NAME``).
CONTENTS = "window-contents"


class WindowContents(ABC):
    """How the rows of a window are kept, and what its function is called with."""

    #: Whether the contents of two windows can become those of one.
    can_merge: bool = True

    @abstractmethod
    def descriptor(self, element_type: TypeSerializer[Any]) -> StateDescriptor[Any]:
        """Return the state that rows of a type are added to; it can merge namespaces."""

    @abstractmethod
    def of_rows(self, rows: list[Any]) -> Any:
        """Return what the function is called with for the rows, at least one, that an evictor has left."""

    def read(self, state: Any) -> Any:
        """Return what the function is called with for the window of the state's accessor; None if empty."""
        return state.get()


class AllRows(WindowContents):
    """Every row; the function is called with a list in the order in which they came."""

    def descriptor(self, element_type: TypeSerializer[Any]) -> StateDescriptor[Any]:
        return ListState(CONTENTS, element_type)

    def of_rows(self, rows: list[Any]) -> list[Any]:
        return rows

    def read(self, state: Any) -> list[Any] | None:
        return state.get() or None


class ReducedRows(WindowContents):
    """The rows reduced to one by a function of two (Flink's ``ReduceFunction``).

    Raises `InvalidWindowError` for what is no function.
    """

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        check_function("reduce()", "its function", function)
        self._function = function

    def descriptor(self, element_type: TypeSerializer[Any]) -> StateDescriptor[Any]:
        return ReducingState(CONTENTS, self._function, element_type)

    def of_rows(self, rows: list[Any]) -> Any:
        return reduce(self._function, rows)


class AggregatedRows(WindowContents):
    """The rows in an accumulator; the function is called with its result.

    Raises `InvalidWindowError` and `InvalidDescriptorError` for what is no aggregate function, or no type.
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
