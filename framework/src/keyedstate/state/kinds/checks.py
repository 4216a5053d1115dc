"""What a state accepts: checks whose errors name the state, and the place of the value."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from keyedstate.errors import InvalidDescriptorError, StateValueError, ValueTypeError
from keyedstate.types import NullableSerializer, TypeSerializer

T = TypeVar("T")
K = TypeVar("K")


def check_type(state: str, parameter: str, given: object) -> None:
    """Refuse anything but a type where a declaration needs one."""
    if not isinstance(given, TypeSerializer):
        raise InvalidDescriptorError(
            state, f"its {parameter} is {given!r}; give one of keyedstate.types, for example types.INT64"
        )


def check_initial(state: str, role: str, type: TypeSerializer[Any], value: object) -> None:
    """Refuse a default or initial value that is not of the declared type."""
    try:
        type.check(value)
    except ValueTypeError as error:
        raise InvalidDescriptorError(state, f"its {role} does not have its type: {error}") from None


def check_value(state: str, serializer: TypeSerializer[Any], value: object, place: str = "") -> None:
    """Raise `StateValueError` with the state's name and the value's place unless it is of the type."""
    try:
        serializer.check(value)
    except ValueTypeError as error:
        raise StateValueError(state, str(error.within(place))) from None


def check_made(state: str, serializer: TypeSerializer[Any], made: object, function: object) -> None:
    """Raise `StateValueError` unless what a user's function returned can be stored."""
    name = getattr(function, "__qualname__", type(function).__qualname__)
    if made is None:
        raise StateValueError(state, f"{name} returned None. Return what is to be stored.")
    try:
        serializer.check(made)
    except ValueTypeError as error:
        raise StateValueError(state, f"{name} returned a wrong one. {error}") from None


def check_column_made(state: str, serializer: TypeSerializer[Any], made: list[Any], function: object) -> None:
    """Raise `StateValueError` unless all that a user's function returned for several keys can be stored."""
    if type(None) in set(map(type, made)) or not serializer.are_values(made):
        for one in made:
            check_made(state, serializer, one, function)


def listed(state: str, values: Any, name: str) -> list[Any]:
    """Return several values as a new list, or refuse what is no iterable."""
    try:
        iterator = iter(values)
    except TypeError:
        raise StateValueError(
            state, f"a list of {name} is needed, got {reprlib.repr(values)}. Give a list, also for one."
        ) from None
    return list(iterator)


def require_mapping(state: str, entries: object) -> None:
    """Refuse anything but a mapping of entries."""
    # The abstract class is slow to ask.
    if entries.__class__ is not dict and not isinstance(entries, Mapping):
        raise StateValueError(
            state,
            f"a dict of entries is needed, got {reprlib.repr(entries)}. Give a dict; put() takes one entry.",
        )


def element_type(declared: TypeSerializer[T]) -> TypeSerializer[T]:
    """Return the type of a list's elements: None is refused whatever the declared type is (Flink's rule)."""
    return declared.inner_serializer if isinstance(declared, NullableSerializer) else declared


class ElementChecks(Generic[T]):
    """The checks of accessors of lists, keyed or not."""

    __slots__ = ()

    #: Slots of the accessors: a class has but one base with slots of its own.
    name: str
    _element: TypeSerializer[T]
    _is_element: Callable[[object], bool]

    def _checked(self, values: Any) -> list[T]:
        """Return the values as a new list, or refuse them."""
        # A string is an iterable of strings, and surely meant as one element.
        if values is None or isinstance(values, (str, bytes, Mapping)):
            raise StateValueError(
                self.name,
                f"a list is needed, got {values!r:.50}. Give a list; add() takes one element, and clear() "
                "removes all.",
            )
        new = listed(self.name, values, "elements")
        if not all(map(self._is_element, new)):
            raise self._refusal(new)
        return new

    def _refusal(self, values: list[Any]) -> StateValueError:
        for index, value in enumerate(values):
            where = f"[{index}]" if len(values) > 1 else ""
            if value is None:
                place = f" at {where}" if where else ""
                return StateValueError(self.name, f"None{place} is no element of a list. Leave it out.")
            try:
                self._element.check(value)
            except ValueTypeError as error:
                return StateValueError(self.name, str(error.within(where)))
        raise AssertionError(f"{self._element!r} refuses a value that its check accepts")


class MapKeyChecks(Generic[K]):
    """The checks of accessors of maps, keyed or broadcast."""

    __slots__ = ()

    #: Slots of the accessors.  The last one makes one NaN of all, and zero of negative zero; it is None where
    #: the key type has no such values.
    name: str
    _key_type: TypeSerializer[K]
    _is_key: Callable[[object], bool]
    _canonical: Callable[[K], K] | None

    def _key(self, key: K) -> K:
        """Return a map key as it is stored, or refuse it."""
        self._check_key(key)
        return key if self._canonical is None else self._canonical(key)

    def _check_key(self, key: K) -> None:
        if not self._is_key(key):
            check_value(self.name, self._key_type, key, "the map key")
