"""State declarations: a name, a kind and the types; as a class attribute or registered in ``open``.

Flink calls them ``StateDescriptor``.  A declaration holds no state.  As a class attribute of a process
function it becomes, on the opened instance, the handle of the same kind::

    class PageViews(KeyedProcessFunction):
        views = ValueState("views", types.INT64, default=0)

        def process(self, row, ctx):
            self.views.update(self.views.value() + 1)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar, overload

from keyedstate.backend import AnyStateTable, StateKind
from keyedstate.state.errors import StateError, StateNotBoundError
from keyedstate.state.handles import KeyContext, MapStateHandle, StateHandle, ValueStateHandle
from keyedstate.types import TypeSerializer, ValueTypeError, map_of
from keyedstate.types.maps import MapSerializer

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
H = TypeVar("H", bound=StateHandle)
D = TypeVar("D", bound="StateDescriptor[Any]")


class InvalidDescriptorError(StateError):
    """A declaration that no state can have."""

    def __init__(self, state: object, reason: str) -> None:
        self.state = str(state)
        self.reason = reason
        super().__init__(f"the declaration of the state {state!r} is invalid: {reason}.")


class StateDescriptor(ABC, Generic[H]):
    """A declared state.

    Attributes
    ----------
    name : str
        Unique within a process function; the state is found by it in a checkpoint.
    kind : StateKind
    serializer : TypeSerializer
        Of what is stored under one key and namespace.
    """

    kind: StateKind

    def __init__(self, name: str, serializer: TypeSerializer[Any]) -> None:
        if not name:
            raise InvalidDescriptorError(name, "its name must be a non-empty string")
        self.name = name
        self.serializer = serializer
        self._attribute = name

    def __set_name__(self, owner: type, attribute: str) -> None:
        self._attribute = attribute

    @overload
    def __get__(self: D, instance: None, owner: type) -> D: ...
    @overload
    def __get__(self, instance: object, owner: type) -> H: ...
    def __get__(self: Any, instance: object | None, owner: type) -> Any:
        # Opening a function puts the handle into the instance's own dict, which wins over this method:
        # a bound state costs no more than any other attribute.
        if instance is None:
            return self
        raise StateNotBoundError(self.name, self._attribute)

    def bind(self, instance: object, handle: H) -> None:
        """Make the attribute of one function instance the handle."""
        instance.__dict__[self._attribute] = handle

    @abstractmethod
    def create_handle(self, table: AnyStateTable, context: KeyContext) -> H:
        """Return the handle over a table of this state."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.serializer!r})"


class ValueState(StateDescriptor[ValueStateHandle[T]]):
    """One value per key.

    Parameters
    ----------
    name : str
    type : TypeSerializer
        For example ``types.INT64``.
    default : optional
        What `ValueStateHandle.value` returns, as a copy, where there is no value.
    """

    kind = StateKind.VALUE

    def __init__(self, name: str, type: TypeSerializer[T], default: T | None = None) -> None:
        _check_type(name, "type", type)
        super().__init__(name, type)
        if default is not None:
            try:
                type.check(default)
            except ValueTypeError as error:
                raise InvalidDescriptorError(name, f"its default does not have its type: {error}") from None
        self.default = default

    def create_handle(self, table: AnyStateTable, context: KeyContext) -> ValueStateHandle[T]:
        """Return the handle over a table of this state."""
        return ValueStateHandle(self.name, table, context, self.serializer, self.default)


class MapState(StateDescriptor[MapStateHandle[K, V]]):
    """A map per key.

    Parameters
    ----------
    name : str
    key_type, value_type : TypeSerializer
        For example ``types.STRING`` and ``types.INT64``.
    """

    kind = StateKind.MAP
    serializer: MapSerializer[K, V]

    def __init__(self, name: str, key_type: TypeSerializer[K], value_type: TypeSerializer[V]) -> None:
        _check_type(name, "key type", key_type)
        _check_type(name, "value type", value_type)
        super().__init__(name, map_of(key_type, value_type))

    def create_handle(self, table: AnyStateTable, context: KeyContext) -> MapStateHandle[K, V]:
        """Return the handle over a table of this state."""
        return MapStateHandle(self.name, table, context, self.serializer)


def declared_states(function: object) -> list[StateDescriptor[Any]]:
    """Return the states declared as class attributes, those of base classes first.

    Raises
    ------
    InvalidDescriptorError
        Where two attributes declare states of one name.
    """
    found: dict[str, StateDescriptor[Any]] = {}
    for owner in reversed(type(function).__mro__):
        for attribute, value in vars(owner).items():
            if isinstance(value, StateDescriptor):
                found[attribute] = value
    names: dict[str, str] = {}
    for attribute, descriptor in found.items():
        other = names.setdefault(descriptor.name, attribute)
        if other != attribute:
            raise InvalidDescriptorError(
                descriptor.name, f"the attributes {other!r} and {attribute!r} both declare it; rename one"
            )
    return list(found.values())


def _check_type(state: str, parameter: str, given: object) -> None:
    if not isinstance(given, TypeSerializer):
        raise InvalidDescriptorError(
            state, f"its {parameter} is {given!r}; give one of keyedstate.types, for example types.INT64"
        )
