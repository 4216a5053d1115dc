"""The contract of serializers, and the snapshots by which they are known in checkpoints.

A serializer has three faces: bytes in Flink's layouts (keys and ordered stores), Arrow columns (segment
files) and copies (heap backends).  Its snapshot is a small JSON document; on restore the snapshot of the new
serializer is asked what it can do with values that the old one wrote.  Counterparts of Flink's
``TypeSerializer`` and ``TypeSerializerSnapshot``.
"""

from __future__ import annotations

import copy
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pyarrow as pa

from keyedstate.errors import (
    DuplicateSerializerError,
    InvalidSnapshotError,
    UnknownSerializerError,
    UnsupportedTypeError,
    ValueTypeError,
)
from keyedstate.memory.views import DataInputView, DataOutputView
from keyedstate.types.compatibility import Compatibility

T = TypeVar("T")

SerializerFactory = Callable[[Mapping[str, Any]], "TypeSerializer[Any]"]

#: How deep types may be nested in a snapshot: far beyond any real type, far below Python's recursion limit.
_MAX_DEPTH = 50
#: What code that reads a snapshot's content may raise where the content is not of its form.
_MALFORMED = (KeyError, TypeError, ValueError, AttributeError, UnsupportedTypeError)


class TypeSerializer(ABC, Generic[T]):
    """How the values of one type are written, read, copied, checked and described.

    A subclass sets the attributes, implements the abstract methods, returns its constructor's arguments from
    `parts` and what its snapshot needs from `snapshot_content`, and registers a factory for its `type_name`.

    Attributes
    ----------
    type_name : str
        Name of the type in snapshots; never changes once a checkpoint carries it.
    snapshot_version : int
        Version of the snapshot's content, from 1.
    immutable : bool
        Whether a value can never change in place; `copy` then returns the same object.
    needs_canonical : bool
        Whether `canonical` can return anything but its argument, so that hot paths may skip it.
    null_is_value : bool
        Whether a null slot of an Arrow column is a value of the type.  Inside lists, tuples, sets and keys
        other types refuse null slots.
    tells_null : bool
        Whether no value's bytes begin with a byte 1, so that it can stand for None: `nullable` then adds no
        flag of its own (Flink's ``NullableSerializer.wrapIfNullIsNotSupported``).
    fixed_code : str or None
        The code of module ``struct`` for what every value's bytes are, with the highest byte first, so that
        many can be read and written at once; None where they are no single number.
    """

    type_name: str
    snapshot_version: int = 1
    immutable: bool
    needs_canonical: bool = False
    null_is_value: bool = False
    tells_null: bool = False
    fixed_code: str | None = None

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        if "is_value" in vars(cls) and "condition" not in vars(cls):
            cls.condition = TypeSerializer.condition  # type: ignore[method-assign]

    @property
    @abstractmethod
    def arrow_type(self) -> pa.DataType:
        """Type of the columns that `to_arrow` returns."""

    @abstractmethod
    def serialize(self, value: T, out: DataOutputView) -> None:
        """Append the bytes of `value`, at least one; composites rely on that to refuse absurd counts.

        Raises
        ------
        ValueTypeError
            For a value that cannot be written; what was appended before is undefined.
        """

    @abstractmethod
    def deserialize(self, source: DataInputView) -> T:
        """Read one value.

        Raises
        ------
        CorruptDataError
            For bytes that `serialize` cannot have written.
        """

    @abstractmethod
    def to_arrow(self, values: Sequence[T | None]) -> pa.Array:
        """Return a column of `arrow_type`, with a null for every None.

        Values are expected to have passed `check`; what is found without looking at each of them is
        refused nevertheless, and nothing is truncated or rounded that `check` would refuse.

        Raises
        ------
        ValueTypeError
            With the index in `row`.
        ColumnSizeError
            For more than 2**31 - 1 nested elements or bytes of text.
        """

    @abstractmethod
    def from_arrow(self, array: pa.Array | pa.ChunkedArray) -> list[T | None]:
        """Return the values of a column, with None for every null.

        The column may be sliced, chunked or dictionary-encoded, and is expected to be valid: validate
        columns that come from untrusted bytes first (``Array.validate(full=True)``).

        Raises
        ------
        ColumnTypeError
            For a column of another type.
        """

    @abstractmethod
    def check(self, value: object) -> None:
        """Raise `ValueTypeError` unless `value` is of the type, exactly.

        A subclass of the Python type is refused: it would come back from a checkpoint as the plain type.
        """

    def is_value(self, value: object) -> bool:
        """Return whether `check` would accept `value`."""
        try:
            self.check(value)
        except ValueTypeError:
            return False
        return True

    def condition(self, first: str, value: str, given: dict[str, Any]) -> str:
        """Return a Python expression that says what `is_value` does, to be compiled into a function.

        Within that function it costs no call.  A class that overrides `is_value` alone has this one, which
        calls it.

        Parameters
        ----------
        first, value : str
            Expressions for the value: the first one is to be evaluated before the other, and once.
        given : dict
            What names in the expression mean; new ones are added.
        """
        name = f"is_value{len(given)}"
        given[name] = self.is_value
        return f"{name}({first})"

    def are_values(self, values: Collection[object]) -> bool:
        """Return whether `is_value` is true of all values.

        For bulk calls: types whose values can be told by their class override it with something faster.
        """
        return all(map(self.is_value, values))

    def copy(self, value: T) -> T:
        """Return a value that does not change when `value` does."""
        return value if self.immutable else copy.deepcopy(value)

    def canonical(self, value: T) -> T:
        """Return the value that stands for all those which Spark's ``GROUP BY`` holds equal to it.

        For keys of hash maps: every NaN becomes one object, and -0.0 becomes 0.0.
        """
        return value

    def duplicate(self) -> TypeSerializer[T]:
        """Return a serializer for another thread: itself where stateless, else with all parts duplicated."""
        return self

    def to_bytes(self, value: T) -> bytes:
        """Return the bytes of one value."""
        out = DataOutputView()
        self.serialize(value, out)
        return out.to_bytes()

    def from_bytes(self, data: bytes | bytearray | memoryview) -> T:
        """Return the value of bytes that hold exactly one.

        Raises
        ------
        CorruptDataError
            Also for bytes that are left over.
        """
        source = DataInputView(data)
        value = self.deserialize(source)
        if source.remaining:
            raise source.corrupt(f"{source.remaining} bytes follow the value of {self!r}")
        return value

    def to_bytes_many(self, values: Sequence[T]) -> list[bytes]:
        """Return what `to_bytes` returns for each of several values, which have passed `check`.

        For bulk calls: types whose bytes can be made faster at once override it.
        """
        out, serialize, made = DataOutputView(), self.serialize, []
        for value in values:
            out.clear()
            serialize(value, out)
            made.append(out.to_bytes())
        return made

    def from_bytes_many(self, data: Sequence[bytes]) -> list[T]:
        """Return what `from_bytes` returns for the bytes of each of several values."""
        return list(map(self.from_bytes, data))

    def snapshot(self) -> SerializerSnapshot:
        """Return the description that goes into checkpoints."""
        return SerializerSnapshot(self.type_name, self.snapshot_version, self.snapshot_content())

    def snapshot_content(self) -> dict[str, Any]:
        """Return what the snapshot holds beside type and version: JSON values; parts as their JSON faces."""
        return {}

    def resolve_compatibility(self, old: SerializerSnapshot) -> Compatibility:
        """Return what this serializer can do with values that the serializer of `old` wrote.

        Ask the serializer that the program declared: it knows the user's classes, which its snapshot does
        not.  Where the verdict is reconfigured, `Compatibility.serializer` knows them too.
        """
        if old == self.snapshot():
            return Compatibility.AS_IS
        return Compatibility.incompatible(f"{old} cannot be read as {self!r}")

    def conversion_from(self, old: TypeSerializer[Any]) -> Callable[[Any], T] | None:
        """Return what turns a value that `old` reads into a value of this type; None where nothing has to.

        A serializer out of a snapshot knows no classes: it reads records as named tuples, enum constants as
        their names and generic values as bytes, so that state can be kept, moved and inspected without the
        program that made it.  Whoever goes on with restored values converts each of them once, also where
        the verdict is as is.

        Parameters
        ----------
        old : TypeSerializer
            As `SerializerSnapshot.restore_serializer` returns it, and not incompatible with this one.
        """
        return None

    def parts(self) -> tuple[object, ...]:
        """Return the constructor's arguments; equality, hash and repr follow from them."""
        return ()

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return type(self) is type(other) and self.parts() == other.parts()

    def __hash__(self) -> int:
        return hash((type(self), self.parts()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.parts()))})"


@dataclass(frozen=True, eq=False)
class SerializerSnapshot:
    """A serializer as a checkpoint knows it.

    The JSON face is ``{"type": name, "version": number, ...content}``.  In the content, an object with the
    key ``type`` is the snapshot of a part; so are the objects of a list.

    Attributes
    ----------
    type_name : str
    version : int
    content : mapping
        JSON values only.
    """

    type_name: str
    version: int
    content: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Return the JSON face, the caller's own."""
        return {"type": self.type_name, "version": self.version, **copy.deepcopy(dict(self.content))}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> SerializerSnapshot:
        """Read the JSON face; types and versions of all parts are checked, classes are not loaded.

        Raises
        ------
        UnknownSerializerError
            For a type that is not registered, or a version newer than the registered one.
        InvalidSnapshotError
            For a document that is not of the form.
        """
        _check_document(document, document, 0)
        content = {name: value for name, value in document.items() if name not in ("type", "version")}
        return cls(document["type"], document["version"], copy.deepcopy(content))

    def restore_serializer(self) -> TypeSerializer[Any]:
        """Return a serializer that reads what the snapshot's serializer wrote.

        No class of the user is loaded; see `TypeSerializer.conversion_from`.

        Raises
        ------
        UnknownSerializerError, InvalidSnapshotError
            As `from_json`.
        """
        document = self.to_json()
        factory = _registration_of(self.type_name, self.version).factory
        try:
            return factory(document)
        except _MALFORMED as error:
            raise InvalidSnapshotError(document, f"{type(error).__name__}: {error}") from error

    def resolve_compatibility(self, old: SerializerSnapshot) -> Compatibility:
        """Ask this snapshot, the new one, about values that the serializer of `old` wrote.

        Raises
        ------
        UnknownSerializerError, InvalidSnapshotError
            As `from_json`, for either snapshot.
        """
        serializer = self.restore_serializer()
        try:
            return serializer.resolve_compatibility(old)
        except _MALFORMED as error:
            raise InvalidSnapshotError(old.to_json(), f"{type(error).__name__}: {error}") from error

    def _canonical_json(self) -> str:
        return json.dumps(self.to_json(), sort_keys=True)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SerializerSnapshot):
            return NotImplemented
        return self._canonical_json() == other._canonical_json()

    def __hash__(self) -> int:
        return hash(self._canonical_json())

    def __str__(self) -> str:
        """Return the serializer's repr, or the JSON face where the type is not known here."""
        try:
            return repr(self.restore_serializer())
        except (UnknownSerializerError, InvalidSnapshotError):
            return self._canonical_json()


@dataclass(frozen=True)
class _Registration:
    factory: SerializerFactory
    newest_version: int | None


_registrations: dict[str, _Registration] = {}
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
        Takes the JSON face of a snapshot and returns a serializer.  It may raise any of KeyError, TypeError,
        ValueError and AttributeError for malformed content.
    newest_version : int, optional
        The newest snapshot version that the factory reads; without it the factory judges the version itself.

    Raises
    ------
    DuplicateSerializerError
        Where the name belongs to another factory.  Registering the same one again changes nothing.
    """
    known = _registrations.get(name)
    if known is not None and _identity(known.factory) != _identity(factory):
        raise DuplicateSerializerError(name, _identity(known.factory), _identity(factory))
    _registrations[name] = _Registration(factory, newest_version)


def find_unknown_types_with(finder: Callable[[], Iterable[str]]) -> None:
    """Have a function called for a type that is not known here, before it is refused.

    It may register types, and returns who could not be asked for more, and why.
    """
    global _finder
    _finder = finder


def _identity(factory: SerializerFactory) -> str:
    # A plugin's module may be executed anew, which makes equal factories of distinct identity.
    return f"{getattr(factory, '__module__', '?')}.{getattr(factory, '__qualname__', repr(factory))}"


def _registration_of(name: str, version: int) -> _Registration:
    not_asked = () if name in _registrations else _finder()
    registration = _registrations.get(name)
    if registration is None:
        raise UnknownSerializerError(name, version, known=_registrations, not_asked=not_asked)
    if registration.newest_version is not None and version > registration.newest_version:
        raise UnknownSerializerError(name, version, registration.newest_version)
    return registration


def _check_document(document: object, whole: object, depth: int) -> None:
    if not isinstance(document, Mapping):
        raise InvalidSnapshotError(whole, f"an object was expected, found {type(document).__name__}")
    if depth > _MAX_DEPTH:
        raise InvalidSnapshotError(whole, f"types are nested more than {_MAX_DEPTH} deep")
    name, version = document.get("type"), document.get("version")
    if not isinstance(name, str):
        raise InvalidSnapshotError(whole, "the key 'type' with a name is missing")
    if type(version) is not int or version < 1:
        raise InvalidSnapshotError(whole, f"the version of {name!r} is {version!r}; versions count from 1")
    _registration_of(name, version)
    for part in _nested_documents(document):
        _check_document(part, whole, depth + 1)


def _nested_documents(document: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for value in document.values():
        for candidate in value if isinstance(value, list) else (value,):
            if isinstance(candidate, Mapping) and "type" in candidate:
                yield candidate
