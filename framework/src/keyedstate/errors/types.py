"""Errors about values, their types and the snapshots of serializers."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable

from keyedstate.errors.kernel import KeyedStateError, did_you_mean
from keyedstate.errors.memory import CorruptDataError

__all__ = [
    "ColumnSizeError",
    "ColumnTypeError",
    "CorruptDataError",
    "DuplicateSerializerError",
    "GenericTypeForbiddenError",
    "InvalidSnapshotError",
    "UnknownEnumConstantError",
    "UnknownSerializerError",
    "UnreadableGenericValueError",
    "UnsupportedTypeError",
    "ValueTypeError",
]


def type_name_of(value: object) -> str:
    """Return the name by which a user knows the type of `value`: ``int``, ``numpy.float64``, ``None``."""
    if value is None:
        return "None"
    cls = type(value)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


class ValueTypeError(KeyedStateError):
    """A value that is not of its state's declared type.

    Attributes
    ----------
    expected : str
        The type at `path`, with its range where it has one.
    given : str
        Name of the type of the value found there.
    path : str
        Where in the value: ``[3]`` for a list or tuple, ``['a'].value`` and ``.key`` for a map,
        ``.element`` for a set; empty for the value itself.
    row : int or None
        Index in the column, where a whole column was converted.
    """

    def __init__(
        self, expected: str, given: str, shown: str, way_out: str, path: str = "", row: int | None = None
    ) -> None:
        self.expected = expected
        self.given = given
        self.shown = shown
        self.way_out = way_out
        self.path = path
        self.row = row
        where = f" at {path}" if path else ""
        if row is not None:
            where += f" (value {row} of the column)"
        got = given if given == shown else f"{given} {shown}"
        super().__init__(f"expected {expected}{where}, got {got}. {way_out}")

    @classmethod
    def of(cls, expected: str, value: object, way_out: str) -> ValueTypeError:
        """Return the error for `value` itself."""
        return cls(expected, type_name_of(value), reprlib.repr(value), way_out)

    def within(self, step: str, row: int | None = None) -> ValueTypeError:
        """Return the same error seen from the value that holds this one at `step`."""
        return ValueTypeError(self.expected, self.given, self.shown, self.way_out, step + self.path, row)


class ColumnTypeError(KeyedStateError):
    """An Arrow column of another type than the serializer reads."""

    def __init__(self, serializer: str, expected: str, given: str) -> None:
        self.serializer = serializer
        self.expected = expected
        self.given = given
        super().__init__(
            f"{serializer} reads Arrow columns of type {expected}, got {given}. Cast the column, or read it "
            "with the type that wrote it."
        )


class ColumnSizeError(KeyedStateError):
    """More elements or bytes than one Arrow array can address with 32-bit offsets."""

    def __init__(self, serializer: str, size: int | None = None) -> None:
        self.serializer = serializer
        self.size = size
        amount = "more than 2,147,483,647" if size is None else f"{size:,}"
        super().__init__(
            f"a column of {serializer} would hold {amount} nested elements or bytes, and an Arrow array "
            "holds at most 2,147,483,647. Convert fewer values at a time."
        )


class UnsupportedTypeError(KeyedStateError):
    """A type that has no serializer, or a combination of types that cannot be stored."""

    def __init__(self, given: str, reason: str, way_out: str) -> None:
        self.given = given
        self.reason = reason
        self.way_out = way_out
        super().__init__(f"{given} is not supported: {reason}. {way_out}")


class GenericTypeForbiddenError(KeyedStateError):
    """A state of a generic type where the option ``types.generic`` forbids it.

    Attributes
    ----------
    state : str
    path : str
        Where in the state's type: ``value.element``; empty for the type itself.
    """

    def __init__(self, state: str, serializer: str, path: str) -> None:
        self.state = state
        self.path = path
        where = f" (in its {path})" if path else ""
        super().__init__(
            f"the state {state!r} is declared as {serializer}, which pickles its values{where}, and that is "
            "forbidden by the option types.generic=forbid. Declare a dataclass or another type of "
            "keyedstate.types, or set types.generic=allow."
        )


class UnreadableGenericValueError(KeyedStateError):
    """A pickled value that cannot be unpickled."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"a generic value cannot be unpickled: {reason}. Make its class importable again under the "
            "module and name it had, or stop using the state: its values are kept as they are."
        )


class UnknownEnumConstantError(KeyedStateError):
    """A name in a column that no constant of the enum has.

    Attributes
    ----------
    enum : str
    constant : str
    """

    def __init__(self, enum: str, constant: str, known: Iterable[str]) -> None:
        self.enum = enum
        self.constant = constant
        super().__init__(
            f"{constant!r} is no constant of the enum {enum}.{did_you_mean(constant, known)} Give the enum "
            "its constant back, or read the column as STRING."
        )


class UnknownSerializerError(KeyedStateError):
    """A snapshot of a serializer whose type, or whose version, is not known here.

    Attributes
    ----------
    name : str
        The type's name in the snapshot.
    version : int
        The snapshot's version.
    newest : int or None
        The newest version read here; None where the type itself is unknown.
    """

    def __init__(
        self,
        name: str,
        version: int,
        newest: int | None = None,
        known: Iterable[str] = (),
        not_asked: Iterable[str] = (),
    ) -> None:
        self.name = name
        self.version = version
        self.newest = newest
        if newest is None:
            message = (
                f"unknown serializer type {name!r}.{did_you_mean(name, known)} Install the keyedstate "
                "version or the plugin that provides it, or register it with register_serializer_type."
                f"{''.join(f' Not asked: {refusal}.' for refusal in not_asked)}"
            )
        else:
            message = (
                f"the snapshot of serializer type {name!r} has version {version}; this installation reads "
                f"versions up to {newest}. Upgrade keyedstate, or the plugin that provides the type."
            )
        super().__init__(message)


class DuplicateSerializerError(KeyedStateError):
    """Two serializer types that want one name."""

    def __init__(self, name: str, registered: str, refused: str) -> None:
        self.name = name
        self.registered = registered
        self.refused = refused
        super().__init__(
            f"the serializer type {name!r} is registered by {registered}, and {refused} wants the name too. "
            "Give one of the two types another name, or uninstall the plugin that brings it."
        )


class InvalidSnapshotError(KeyedStateError):
    """A serializer snapshot that is not of the form that its type writes."""

    def __init__(self, snapshot: object, reason: str) -> None:
        self.snapshot = reprlib.repr(snapshot)
        self.reason = reason
        super().__init__(
            f"the serializer snapshot {self.snapshot} is malformed: {reason}. The metadata is damaged or was "
            "edited; restore from another checkpoint."
        )
