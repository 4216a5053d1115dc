"""What may be an element of a list: one rule for list state of keys and of tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from keyedstate.errors import StateValueError, ValueTypeError
from keyedstate.state.kinds.handles import listed
from keyedstate.types import NullableSerializer, TypeSerializer

T = TypeVar("T")


def element_type(declared: TypeSerializer[T]) -> TypeSerializer[T]:
    """Return the type of elements: None is refused whatever the declared type says (Flink's rule)."""
    return declared.inner_serializer if isinstance(declared, NullableSerializer) else declared


class ElementChecks(Generic[T]):
    """For handles of lists: refuses what is no list of elements, with the state's name and the place."""

    __slots__ = ()

    #: Slots of the handles: a class has but one base with slots of its own.
    _name: str
    _element: TypeSerializer[T]
    _is_element: Callable[[object], bool]

    def _checked(self, values: Any) -> list[T]:
        """Return the values as a new list, or refuse them."""
        # A string is an iterable of strings, and surely meant as one element.
        if values is None or isinstance(values, (str, bytes, Mapping)):
            raise StateValueError(
                self._name,
                f"a list is needed, got {values!r:.50}. Give a list; add() takes one element, and clear() "
                "removes all.",
            )
        new = listed(self._name, values, "elements")
        if not all(map(self._is_element, new)):
            raise self._refusal(new)
        return new

    def _refusal(self, values: list[Any]) -> StateValueError:
        for index, value in enumerate(values):
            where = f"[{index}]" if len(values) > 1 else ""
            if value is None:
                place = f" at {where}" if where else ""
                return StateValueError(self._name, f"None{place} is no element of a list. Leave it out.")
            try:
                self._element.check(value)
            except ValueTypeError as error:
                return StateValueError(self._name, str(error.within(where)))
        raise AssertionError(f"{self._element!r} refuses a value that its check accepts")
