"""Operator state: lists that belong to a task and not to a key (Flink's ``OperatorStateStore``).

The two kinds of lists differ after a restart with another parallelism.  The elements of an
`OperatorListState` are redistributed: each is on one task.  A `UnionListState` gives all elements to every
task, which picks its own.  Broadcast state is in `keyedstate.state.operator.broadcast`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from keyedstate.operator_state import OperatorStateKind, OperatorStateMeta
from keyedstate.state.declaration import Declaration, declarations
from keyedstate.state.kinds.checks import ElementChecks, check_type, element_type
from keyedstate.types import TypeSerializer

T = TypeVar("T")
A = TypeVar("A", bound="OperatorStateAccessor")


@dataclass
class BroadcastSide:
    """Whether rows of the broadcast side are processed now; shared by the handles of one operator."""

    current: bool = False


class OperatorStateAccessor:
    """What the accessors of operator states share.

    A value that is not of the declared type raises `StateValueError`, and the state stays as it was.
    """

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


class OperatorStateDescriptor(Declaration[A], ABC, Generic[A]):
    """A declared operator state: a class attribute of a process function, or registered in its ``open``."""

    def __init__(self, meta: OperatorStateMeta) -> None:
        super().__init__(meta.name)
        self.meta = meta

    @abstractmethod
    def create_accessor(self, meta: OperatorStateMeta, content: Any, side: BroadcastSide) -> A:
        """Return the accessor over a state's content, which it shares with the operator state backend.

        The meta has the serializers in use: those declared, or reconfigured ones.
        """


def declared_operator_states(function: object) -> list[OperatorStateDescriptor[Any]]:
    """Return the operator states that are class attributes, those of base classes first.

    Raises `InvalidDescriptorError` where two attributes declare states of one name.
    """
    return [state for state in declarations(function) if isinstance(state, OperatorStateDescriptor)]


class OperatorListStateAccessor(ElementChecks[T], OperatorStateAccessor, Generic[T]):
    """The elements of one list that are on this task.

    None is no element, also where the element type is nullable.  The list keeps the objects themselves:
    changing a mutable one in place changes the state, as in Flink.
    """

    __slots__ = ("_element", "_elements", "_is_element")

    def __init__(self, name: str, elements: list[T], serializer: TypeSerializer[T]) -> None:
        super().__init__(name)
        self._elements = elements
        self._element = element_type(serializer)
        self._is_element = self._element.is_value

    def get(self) -> list[T]:
        """Return the elements as a new list, which may be changed."""
        return self._elements.copy()

    def add(self, value: T) -> None:
        """Append one element."""
        if not self._is_element(value):
            raise self._refusal([value])
        self._elements.append(value)

    def add_all(self, values: Iterable[T]) -> None:
        """Append several elements, all of them or, on an error, none."""
        self._elements.extend(self._checked(values))

    def update(self, values: Iterable[T]) -> None:
        """Replace the list by other elements; without any it is the same as `clear`."""
        self._elements[:] = self._checked(values)

    def clear(self) -> None:
        """Remove all elements that are on this task."""
        self._elements.clear()


class _ListDescriptor(OperatorStateDescriptor[OperatorListStateAccessor[T]]):
    kind: OperatorStateKind

    def __init__(self, name: str, type: TypeSerializer[T]) -> None:
        check_type(name, "element type", type)
        super().__init__(OperatorStateMeta.of_list(name, self.kind, type))

    def create_accessor(
        self, meta: OperatorStateMeta, content: Any, side: BroadcastSide
    ) -> OperatorListStateAccessor[T]:
        return OperatorListStateAccessor(self.name, content, meta.value_serializer)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.meta.value_serializer!r})"


class OperatorListState(_ListDescriptor[T]):
    """A list of which each task has a part; a change of parallelism redistributes the elements evenly.

    Parameters
    ----------
    name : str
    type : TypeSerializer
        Of the elements, for example ``types.STRING``.
    """

    kind = OperatorStateKind.LIST


class UnionListState(_ListDescriptor[T]):
    """A list of which each task has a part; after every restart each task has the elements of all.

    A function that does not call `update` with the elements of its own task multiplies the elements by the
    number of tasks at every restart.

    Parameters
    ----------
    name : str
    type : TypeSerializer
        Of the elements, for example ``types.STRING``.
    """

    kind = OperatorStateKind.UNION_LIST
