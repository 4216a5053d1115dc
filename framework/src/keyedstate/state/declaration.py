"""What the declarations of keyed and of operator state share: a class attribute that becomes an accessor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from keyedstate.backend import TIMER_TABLES
from keyedstate.errors import InvalidDescriptorError, StateNotBoundError

A = TypeVar("A")
D = TypeVar("D", bound="Declaration[Any]")


class Declaration(Generic[A]):
    """A declared state; `A` is its accessor."""

    def __init__(self, name: str) -> None:
        given: object = name
        if not isinstance(given, str) or not given:
            raise InvalidDescriptorError(name, "its name must be a non-empty string")
        if name.startswith(TIMER_TABLES):
            raise InvalidDescriptorError(
                name, f"names that begin with {TIMER_TABLES!r} are those of timers; choose another one"
            )
        #: Unique within a process function; a checkpoint finds the state by it.
        self.name = name
        self._attribute = name

    def __set_name__(self, owner: type, attribute: str) -> None:
        self._attribute = attribute

    @overload
    def __get__(self: D, instance: None, owner: type) -> D: ...
    @overload
    def __get__(self, instance: object, owner: type) -> A: ...
    def __get__(self: Any, instance: object | None, owner: type) -> Any:
        # Opening a function puts the accessor into the instance's own dict, which has priority over this
        # method: a bound state costs no more than any other attribute.  A trigger gives the unbound
        # declaration to its context.
        return self

    if not TYPE_CHECKING:

        def __getattr__(self, attribute: str) -> Any:
            if attribute.startswith("__"):  # pickle and copy look it up before there is a name
                raise AttributeError(attribute)
            raise StateNotBoundError(self.__dict__.get("name", "?"), attribute)

    def bind(self, instance: object, accessor: A) -> None:
        """Set the attribute of one function instance to the accessor."""
        instance.__dict__[self._attribute] = accessor


def declarations(function: object) -> list[Declaration[Any]]:
    """Return the declarations among the class attributes, those of base classes first, then the object's own.

    Raises `InvalidDescriptorError` where two attributes declare states of one name, keyed or not.
    """
    owners = [*map(vars, reversed(type(function).__mro__)), vars(function)]
    found = {
        attribute: value
        for owner in owners
        for attribute, value in owner.items()
        if isinstance(value, Declaration)
    }
    for attribute, value in found.items():
        # A declaration that was assigned later, or has several owners, is bound to this attribute.
        value._attribute = attribute
    names: dict[str, str] = {}
    for attribute, declaration in found.items():
        other = names.setdefault(declaration.name, attribute)
        if other != attribute:
            raise InvalidDescriptorError(
                declaration.name, f"the attributes {other!r} and {attribute!r} both declare it; rename one"
            )
    return list(found.values())
