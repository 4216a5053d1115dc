"""The serializers that snapshots can be read with, by the name of their type."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from keyedstate.errors import DuplicateSerializerError, InvalidSnapshotError, UnknownSerializerError

C = TypeVar("C")

#: Makes a `TypeSerializer`, whose module imports this one, from a snapshot's JSON representation.
SerializerFactory: TypeAlias = Callable[[Mapping[str, Any]], Any]

#: How deep types may be nested in a snapshot: far beyond any real type, far below Python's recursion limit.
_MAX_DEPTH = 50


@dataclass(frozen=True)
class Registration:
    """How one type of a snapshot is read; without a newest version the factory checks the version."""

    factory: SerializerFactory
    newest_version: int | None


_registrations: dict[str, Registration] = {}
_finder: Callable[[], Iterable[str]] = tuple


def register_serializer_type(
    name: str, factory: SerializerFactory, newest_version: int | None = None
) -> None:
    """Make serializers of a type restorable from their snapshots.

    Parameters
    ----------
    name : str
        The `TypeSerializer.type_name`.
    factory : callable
        Takes the JSON representation of a snapshot and returns a serializer.  It may raise KeyError,
        TypeError, ValueError and AttributeError for malformed content.
    newest_version : int, optional
        The newest snapshot version that the factory reads; without it the factory checks the version.

    Raises
    ------
    DuplicateSerializerError
        Where the name is that of another factory.  Registering the same one again changes nothing.
    """
    known = _registrations.get(name)
    if known is not None and _identity(known.factory) != _identity(factory):
        raise DuplicateSerializerError(name, _identity(known.factory), _identity(factory))
    _registrations[name] = Registration(factory, newest_version)


def restorable(cls: type[C]) -> type[C]:
    """Register a class of serializers with its `TypeSerializer.restore` as the factory; a decorator."""
    serializer: Any = cls
    register_serializer_type(serializer.type_name, serializer.restore, serializer.snapshot_version)
    return cls


def find_unknown_types_with(finder: Callable[[], Iterable[str]]) -> None:
    """Set the function that is called before an unknown type is refused.

    It may register types; it returns the plugins that could not be asked, and why.
    """
    global _finder
    _finder = finder


def _identity(factory: SerializerFactory) -> str:
    # A plugin's module may be executed again, which makes equal factories of distinct identity.
    owner = getattr(factory, "__self__", None)
    named = owner if isinstance(owner, type) else factory
    return f"{getattr(named, '__module__', '?')}.{getattr(named, '__qualname__', repr(named))}"


def registration_of(name: str, version: int) -> Registration:
    """Return how a type is read.

    Raises `UnknownSerializerError` for a type that is not registered, or a version newer than the registered
    one.
    """
    not_asked = () if name in _registrations else _finder()
    registration = _registrations.get(name)
    if registration is None:
        raise UnknownSerializerError(name, version, known=[*_registrations], not_asked=[*not_asked])
    if registration.newest_version is not None and version > registration.newest_version:
        raise UnknownSerializerError(name, version, registration.newest_version)
    return registration


def check_document(document: object, whole: object, depth: int = 0) -> None:
    """Check types and versions of a serialized snapshot and its parts; errors show the `whole` document."""
    if not isinstance(document, Mapping):
        raise InvalidSnapshotError(whole, f"an object was expected, found {type(document).__name__}")
    if depth > _MAX_DEPTH:
        raise InvalidSnapshotError(whole, f"types are nested more than {_MAX_DEPTH} deep")
    name, version = document.get("type"), document.get("version")
    if not isinstance(name, str):
        raise InvalidSnapshotError(whole, "the key 'type' with a name is missing")
    if type(version) is not int or version < 1:
        raise InvalidSnapshotError(whole, f"the version of {name!r} is {version!r}; versions count from 1")
    registration_of(name, version)
    for part in _nested_documents(document):
        check_document(part, whole, depth + 1)


def _nested_documents(document: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for value in document.values():
        for candidate in value if isinstance(value, list) else (value,):
            if isinstance(candidate, Mapping) and "type" in candidate:
                yield candidate
