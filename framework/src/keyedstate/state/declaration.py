"""What the declarations of keyed and of operator state share: a class attribute that becomes a handle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from keyedstate.backend import TIMER_TABLES
from keyedstate.errors import InvalidDescriptorError, StateNotBoundError

H = TypeVar("H")
D = TypeVar("D", bound="Declaration[Any]")


class Declaration(Generic[H]):
    """A declared state; `H` is its handle.

    Attributes
    ----------
    name : str
        Unique within a process function; the state is found by it in a checkpoint.
    """

    def __init__(self, name: str) -> None:
        given: object = name
        if not isinstance(given, str) or not given:
            raise InvalidDescriptorError(name, "its name must be a non-empty string")
        if name.startswith(TIMER_TABLES):
            raise InvalidDescriptorError(
                name, f"names that begin with {TIMER_TABLES!r} are those of timers; choose another one"
            )
        self.name = name
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
        # Where nothing has bound it the declaration is what a trigger gives to its context.
        return self

    if not TYPE_CHECKING:

        def __getattr__(self, attribute: str) -> Any:
            if attribute.startswith("__"):  # asked for by pickle and copy, before there is a name
                raise AttributeError(attribute)
            raise StateNotBoundError(self.__dict__.get("name", "?"), attribute)

    def bind(self, instance: object, handle: H) -> None:
        """Make the attribute of one function instance the handle."""
        instance.__dict__[self._attribute] = handle


def declarations(function: object) -> list[Declaration[Any]]:
    """Return the declarations among the class attributes, those of base classes first, then the object's own.

    Raises
    ------
    InvalidDescriptorError
        Where two attributes declare states of one name, of whatever sorts.
    """
    found: dict[str, Declaration[Any]] = {}
    for owner in reversed(type(function).__mro__):
        for attribute, value in vars(owner).items():
            if isinstance(value, Declaration):
                found[attribute] = value
    for attribute, value in vars(function).items():
        if isinstance(value, Declaration):
            found[attribute] = value
    for attribute, value in found.items():
        # One that was assigned later, or has several owners, is bound by the attribute that it has here.
        value._attribute = attribute
    names: dict[str, str] = {}
    for attribute, declaration in found.items():
        other = names.setdefault(declaration.name, attribute)
        if other != attribute:
            raise InvalidDescriptorError(
                declaration.name, f"the attributes {other!r} and {attribute!r} both declare it; rename one"
            )
    return list(found.values())
