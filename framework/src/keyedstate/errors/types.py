"""Errors about values, their types and serializers, about keys and about key groups."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from keyedstate.errors.base import KeyedStateError, did_you_mean

if TYPE_CHECKING:
    import pyarrow as pa


def type_name_of(value: object) -> str:
    """Return the name by which a user knows the type of `value`: ``int``, ``numpy.float64``, ``None``."""
    if value is None:
        return "None"
    cls = type(value)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


class ValueTypeError(KeyedStateError):
    """A value that is not of its state's declared type."""

    expected: str  # The type at `path`, with its range where it has one
    given: str  # Name of the type of the value found there
    shown: str
    way_out: str
    #: Where in the value: ``[3]`` for a list or tuple, ``['a'].value`` and ``.key`` for a map, ``.element``
    #: for a set; empty for the value itself.
    path: str = ""
    row: int | None = None  # Index in the column, where a whole column was converted

    def _message(self) -> str:
        where = f" at {self.path}" if self.path else ""
        if self.row is not None:
            where += f" (value {self.row} of the column)"
        got = self.given if self.given == self.shown else f"{self.given} {self.shown}"
        return f"expected {self.expected}{where}, got {got}. {self.way_out}"

    @classmethod
    def of(cls, expected: str, value: object, way_out: str) -> ValueTypeError:
        """Return the error for `value` itself."""
        return cls(expected, type_name_of(value), reprlib.repr(value), way_out)

    def within(self, step: str, row: int | None = None) -> ValueTypeError:
        """Return the same error seen from the value that holds this one at `step`."""
        return ValueTypeError(self.expected, self.given, self.shown, self.way_out, step + self.path, row)


class ColumnTypeError(KeyedStateError):
    """An Arrow column of another type than the serializer reads."""

    serializer: str
    expected: str
    given: str
    message = (
        "{serializer} reads Arrow columns of type {expected}, got {given}. Cast the column, or read it with "
        "the type that wrote it."
    )


class ColumnSizeError(KeyedStateError):
    """More elements or bytes than one Arrow array can address with 32-bit offsets."""

    serializer: str
    size: int | None = None
    message = (
        "a column of {serializer} would hold {size:?{size:,}}{size:|more than 2,147,483,647} nested elements "
        "or bytes, and an Arrow array holds at most 2,147,483,647. Convert fewer values at a time."
    )


class UnsupportedTypeError(KeyedStateError):
    """A type that has no serializer, or a combination of types that cannot be stored."""

    given: str
    reason: str
    way_out: str
    message = "{given} is not supported: {reason}. {way_out}"


class UnorderedTypeError(KeyedStateError, TypeError):
    """A type whose values have no order where they are to be sorted."""

    serializer: str
    message = (
        "values of {serializer} have no order to sort by. Sort by numbers, strings, bytes, times, enums, or "
        "tuples, rows and records of these."
    )


class GenericTypeForbiddenError(KeyedStateError):
    """A state of a generic type where the option ``types.generic`` forbids it."""

    state: str
    serializer: str
    path: str  # Where in the state's type: ``value.element``; empty for the type itself
    message = (
        "the state {state!r} is declared as {serializer}, which pickles its values{path:? (in its {path})}, "
        "and that is forbidden by the option types.generic=forbid. Declare a dataclass or another type of "
        "keyedstate.types, or set types.generic=allow."
    )


class UnreadableGenericValueError(KeyedStateError):
    """A pickled value that cannot be unpickled."""

    reason: str
    message = (
        "a generic value cannot be unpickled: {reason}. Make its class importable again under the module and "
        "name it had, or stop using the state: its values are kept as they are."
    )


class UnknownEnumConstantError(KeyedStateError):
    """A name in a column that no constant of the enum has."""

    enum: str
    constant: str
    known: Sequence[str]
    message = (
        "{constant!r} is no constant of the enum {enum}.{constant:~known} Give the enum its constant back, "
        "or read the column as STRING."
    )


class UnknownSerializerError(KeyedStateError):
    """A snapshot of a serializer whose type, or whose version, is not known here."""

    name: str  # The type's name in the snapshot
    version: int  # The snapshot's version
    newest: int | None = None  # The newest version read here; None where the type itself is unknown
    known: Sequence[str] = ()
    not_asked: Sequence[str] = ()

    def _message(self) -> str:
        if self.newest is None:
            return (
                f"unknown serializer type {self.name!r}.{did_you_mean(self.name, self.known)} Install the "
                "keyedstate version or the plugin that provides it, or register it with "
                "register_serializer_type." + "".join(f" Not asked: {refusal}." for refusal in self.not_asked)
            )
        return (
            f"the snapshot of serializer type {self.name!r} has version {self.version}; this installation "
            f"reads versions up to {self.newest}. Upgrade keyedstate, or the plugin that provides the type."
        )


class DuplicateSerializerError(KeyedStateError):
    """Two serializer types that want one name."""

    name: str
    registered: str
    refused: str
    message = (
        "the serializer type {name!r} is registered by {registered}, and {refused} wants the name too. Give "
        "one of the two types another name, or uninstall the plugin that brings it."
    )


class InvalidSnapshotError(KeyedStateError):
    """A serializer snapshot that is not of the form that its type writes."""

    snapshot: object
    reason: str
    message = (
        "the serializer snapshot {snapshot} is malformed: {reason}. The metadata is damaged or was edited; "
        "restore from another checkpoint."
    )

    def __post_init__(self) -> None:
        self.snapshot = reprlib.repr(self.snapshot)
        super().__post_init__()


# -- memory ---------------------------------------------------------------------------------------


class CorruptDataError(KeyedStateError):
    """Bytes that no serializer of the expected type can have written."""

    reason: str  # What is wrong with them
    position: int  # Offset of the first byte that could not be believed, counted from the start of the view
    message = (
        "corrupt data at byte {position}: {reason}. The bytes are damaged or were written by another "
        "serializer; restore from an older checkpoint, or read them with the type that wrote them."
    )


# -- hashing --------------------------------------------------------------------------------------


class UnsupportedKeyTypeError(KeyedStateError, TypeError):
    """A key column of a type that Spark's ``hash`` or this implementation of it does not take."""

    arrow_type: pa.DataType  # The type that has no hash; for a nested column the part at fault

    message = (
        "a key of type {arrow_type} has no hash. Supported are bool, int8, int16, int32, int64, float, "
        "double, string, binary, date32, timestamp, time64, duration, decimal up to precision 38, null, and "
        "structs, lists and dictionaries of these; Spark refuses to hash maps. Cast the key column to one of "
        "these."
    )


class InvalidKeyValueError(KeyedStateError, ValueError):
    """A value that does not fit the type of its key column."""

    value: object  # The value
    arrow_type: pa.DataType  # The type of the key column
    reason: str

    message = (
        "{value:repr} is no value of a key column of type {arrow_type}: {reason}. Convert the value to the "
        "column's type first."
    )


class LossyKeyTimeError(KeyedStateError, ValueError):
    """A key column of times that are finer, or reach further, than Spark's unit."""

    arrow_type: pa.DataType  # The type of the key column, and the one that Spark keeps such values in
    spark_type: pa.DataType
    reason: str
    message = (
        "a key column of type {arrow_type} holds a value that Spark's {spark_type} cannot hold ({reason}). "
        "Round the column and cast it to {spark_type} first."
    )


# -- keygroups ------------------------------------------------------------------------------------


class KeyGroupError(KeyedStateError, ValueError):
    """Base class of errors about key groups, their ranges and parallelism."""


class InvalidKeyGroupRangeError(KeyGroupError):
    """Bounds that no range of key groups has."""

    start: int
    end: int
    message = (
        "[{start}, {end}] is no range of key groups: the start must be at least 0 and at most the end. Use "
        "KeyGroupRange.of(start, end) where a start behind the end is to mean the empty range."
    )


class KeyGroupOutOfRangeError(KeyGroupError):
    """A key group outside the range that an object covers."""

    key_group: int
    key_group_range: object
    message = (
        "key group {key_group} is outside {key_group_range}. Route the key by the parallelism and max "
        "parallelism that this range was computed with."
    )


class InvalidParallelismError(KeyGroupError):
    """A parallelism or a max parallelism that is out of bounds."""

    kind: str  # ``parallelism`` or ``max parallelism``
    value: int
    largest: str
    way_out: str
    message = "the {kind} {value} must be between 1 and {largest}. {way_out}"
