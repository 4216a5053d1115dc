"""The contract of serializers, and of their snapshots, which checkpoints have.

A serializer has three representations of a value: bytes in Flink's layouts (keys and ordered stores), Arrow
columns (segment files) and copies (heap backends).  Its snapshot is a small JSON document; on restore the new
serializer checks whether it can read what the old one wrote.  Counterparts of Flink's ``TypeSerializer`` and
``TypeSerializerSnapshot``.
"""

from __future__ import annotations

import copy
import enum
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

import pyarrow as pa

from keyedstate.errors import (
    InvalidSnapshotError,
    UnknownSerializerError,
    UnorderedTypeError,
    UnsupportedTypeError,
    ValueTypeError,
)
from keyedstate.memory.sorting.keys import NormalizedKeys
from keyedstate.memory.views import DataInputView, DataOutputView
from keyedstate.types.contract.normalized_keys import whole_number_keys
from keyedstate.types.contract.registry import check_document, registration_of

T = TypeVar("T")

#: What code that reads a snapshot's content may raise where the content is not of its form.
_MALFORMED = (KeyError, TypeError, ValueError, AttributeError, UnsupportedTypeError)


class Outcome(enum.Enum):
    """The four verdicts, the mildest first; of several nested ones the last one wins."""

    AS_IS = "as is"
    RECONFIGURED = "reconfigured"
    AFTER_MIGRATION = "after migration"
    INCOMPATIBLE = "incompatible"


@dataclass(frozen=True)
class Compatibility:
    """A verdict: compare it with ``==``, or read `outcome`.

    A reconfigured outcome, and no other, has the `serializer` to use instead of the new one (SER-02). The
    `reason` is for people: verdicts that differ only there are equal.
    """

    outcome: Outcome
    serializer: TypeSerializer[Any] | None = None
    reason: str = field(default="", compare=False)

    AS_IS: ClassVar[Compatibility]
    AFTER_MIGRATION: ClassVar[Compatibility]
    INCOMPATIBLE: ClassVar[Compatibility]

    def __post_init__(self) -> None:
        if (self.outcome is Outcome.RECONFIGURED) is not (self.serializer is not None):
            raise ValueError(
                f"the outcome {self.outcome.value!r} with the serializer {self.serializer!r}: a reconfigured "
                "outcome has a serializer and no other one has; use Compatibility.reconfigured_with."
            )

    @classmethod
    def reconfigured_with(cls, serializer: TypeSerializer[Any], reason: str = "") -> Compatibility:
        """Return the verdict that `serializer` replaces the new one."""
        return cls(Outcome.RECONFIGURED, serializer, reason)

    @classmethod
    def after_migration(cls, reason: str) -> Compatibility:
        """Return the verdict that old values must be read with the old serializer and rewritten."""
        return cls(Outcome.AFTER_MIGRATION, reason=reason)

    @classmethod
    def incompatible(cls, reason: str) -> Compatibility:
        """Return the verdict that old values cannot be used."""
        return cls(Outcome.INCOMPATIBLE, reason=reason)

    @property
    def is_as_is(self) -> bool:
        """Whether the new serializer reads old bytes as they are."""
        return self.outcome is Outcome.AS_IS

    @property
    def is_after_migration(self) -> bool:
        """Whether values must be rewritten first."""
        return self.outcome is Outcome.AFTER_MIGRATION

    @property
    def is_reconfigured(self) -> bool:
        """Whether `serializer` replaces the new serializer."""
        return self.outcome is Outcome.RECONFIGURED

    @property
    def is_incompatible(self) -> bool:
        """Whether the new serializer cannot use old values."""
        return self.outcome is Outcome.INCOMPATIBLE


Compatibility.AS_IS = Compatibility(Outcome.AS_IS)
Compatibility.AFTER_MIGRATION = Compatibility(Outcome.AFTER_MIGRATION)
Compatibility.INCOMPATIBLE = Compatibility(Outcome.INCOMPATIBLE)


class TypeSerializer(ABC, Generic[T]):
    """How the values of one type are written, read, copied, checked and described.

    A subclass sets the attributes, implements the abstract methods, and returns its constructor's arguments
    from `parts` and what its snapshot needs from `snapshot_content`.  It registers a factory for its
    `type_name`.

    Attributes
    ----------
    type_name : str
        Name of the type in snapshots; never changes once a checkpoint has it.
    snapshot_version : int
        Version of the snapshot's content, from 1.
    immutable : bool
        Whether a value can never change in place; `copy` then returns the same object.
    needs_canonical : bool
        Whether `canonical` can return anything but its argument; hot paths skip it otherwise.
    null_is_value : bool
        Whether a null slot of an Arrow column is a value of the type.  Inside lists, tuples, sets and keys
        other types refuse null slots.
    tells_null : bool
        Whether no value's bytes begin with a byte 1, which can then stand for None without a flag (Flink's
        ``NullableSerializer.wrapIfNullIsNotSupported``).
    fixed_code : str or None
        Where the bytes of every value are one big-endian number, its code of module ``struct``, so that many
        can be read and written at once.
    normalized_key_bytes : int or None
        The length of `normalized_keys`; None for a type without an order.
    normalized_key_decides : bool
        Whether two values with equal normalized keys are always equal.
    """

    type_name: str
    snapshot_version: int = 1
    immutable: bool
    needs_canonical: bool = False
    null_is_value: bool = False
    tells_null: bool = False
    fixed_code: str | None = None
    normalized_key_bytes: int | None = None
    normalized_key_decides: bool = True

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        # What an inherited one says of `is_value` is not true of another one.
        if "is_value" in vars(cls) and "condition" not in vars(cls):
            cls.condition = TypeSerializer.condition  # type: ignore[method-assign]
        if "is_value" in vars(cls) and "check_parts" not in vars(cls):
            cls.check_parts = TypeSerializer.check_parts  # type: ignore[method-assign]

    @property
    @abstractmethod
    def arrow_type(self) -> pa.DataType:
        """Type of the columns that `to_arrow` returns."""

    @abstractmethod
    def serialize(self, value: T, out: DataOutputView) -> None:
        """Append the bytes of `value`, at least one; composites rely on that to refuse absurd counts.

        Raises `ValueTypeError` for a value that cannot be written; what was appended before is undefined.
        """

    @abstractmethod
    def deserialize(self, source: DataInputView) -> T:
        """Read one value; raises `CorruptDataError` for bytes that `serialize` cannot have written."""

    @abstractmethod
    def to_arrow(self, values: Sequence[T | None]) -> pa.Array:
        """Return a column of `arrow_type`, with a null for every None.

        The caller has passed the values to `check`.  A wrong one that is found without a look at each is
        refused nevertheless; none is truncated or rounded.

        Raises `ValueTypeError` with the index in `row`; `ColumnSizeError` for more than 2**31 - 1 nested
        elements or bytes of text.
        """

    @abstractmethod
    def from_arrow(self, array: pa.Array | pa.ChunkedArray) -> list[T | None]:
        """Return the values of a column, with None for every null.

        The column may be sliced, chunked or dictionary-encoded.  Validate columns from untrusted bytes first
        (``Array.validate(full=True)``).

        Raises `ColumnTypeError` for a column of another type.
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
        """Return a Python expression for `is_value`, which is compiled into a function and costs no call.

        A class that overrides `is_value` alone gets this one, which calls it.

        `first` and `value` are expressions for the value; the first is evaluated before the other, and once.
        `given` has the objects of the names in the expression, to which new ones are added.
        """
        name = f"is_value{len(given)}"
        given[name] = self.is_value
        return f"{name}({first})"

    def check_parts(self) -> tuple[Any, ...]:
        """Return what `is_value` does, for the compiled check: a kind, and what the kind needs.

        These are ``"call"`` with a function, ``"class"`` with the exact class, ``"integer"`` with the least
        and the largest, ``"text"``, ``"instant"`` with a zone and a function for the instants of other
        zones, ``"nullable"`` with the parts of another type, and ``"tuple"`` with a
        class of tuples and the parts of each field. A class that overrides `is_value` alone gets the first.
        """
        return "call", self.is_value

    def are_values(self, values: Collection[object]) -> bool:
        """Return whether `is_value` is true of all values.

        For bulk calls; a type that its values' class decides overrides it with something faster.
        """
        return all(map(self.is_value, values))

    def copy(self, value: T) -> T:
        """Return a value that does not change when `value` does."""
        return value if self.immutable else copy.deepcopy(value)

    def canonical(self, value: T) -> T:
        """Return the one value of all those that are equal in Spark's ``GROUP BY``, for keys of hash maps.

        Every NaN becomes one object, and -0.0 becomes 0.0.
        """
        return value

    def duplicate(self) -> TypeSerializer[T]:
        """Return a serializer for another thread: itself where it has no state."""
        return self

    def to_bytes(self, value: T) -> bytes:
        """Return the bytes of one value."""
        out = DataOutputView()
        self.serialize(value, out)
        return out.to_bytes()

    def from_bytes(self, data: bytes | bytearray | memoryview) -> T:
        """Return the value of bytes that hold exactly one.

        Raises `CorruptDataError` also for bytes that are left over.
        """
        source = DataInputView(data)
        value = self.deserialize(source)
        if source.remaining:
            raise source.corrupt(f"{source.remaining} bytes follow the value of {self!r}")
        return value

    def to_bytes_many(self, values: Sequence[T]) -> list[bytes]:
        """Return the bytes of each of several values, which have passed `check`.

        For bulk calls; types that can make many at once faster override it.
        """
        out, serialize, made = DataOutputView(), self.serialize, []
        for value in values:
            out.clear()
            serialize(value, out)
            made.append(out.to_bytes())
        return made

    def from_bytes_many(self, data: Sequence[bytes]) -> list[T]:
        """Return the values of the bytes of several; the inverse of `to_bytes_many`."""
        return list(map(self.from_bytes, data))

    def normalized_keys(self, column: pa.Array | pa.ChunkedArray) -> NormalizedKeys:
        """Return keys of `normalized_key_bytes` each, whose unsigned order is that of a column's values.

        Numbers, times and booleans ascend; NaN comes last, and -0.0 equals 0.0, as in `canonical`.  Strings
        are in the order of their code points, bytes unsigned, constants of an enum in that of their
        positions, None first.  Tuples, rows and records are compared field by field.

        Raises `UnorderedTypeError` for a type without an order; `ColumnTypeError` and `ValueTypeError` for a
        column of another type, or with nulls where None is no value.
        """
        raise UnorderedTypeError(repr(self))

    def whole_keys(self, column: pa.Array | pa.ChunkedArray) -> pa.LargeBinaryArray:
        """Return keys of any length that always decide, in the same order; raises as `normalized_keys`."""
        return whole_number_keys(self.normalized_keys(column))

    def snapshot(self) -> SerializerSnapshot:
        """Return the description that goes into checkpoints."""
        return SerializerSnapshot(self.type_name, self.snapshot_version, self.snapshot_content())

    def snapshot_content(self) -> dict[str, Any]:
        """Return the snapshot's JSON values beside type and version; parts as the JSON of their snapshots."""
        return {}

    @classmethod
    def restore(cls, document: Mapping[str, Any]) -> TypeSerializer[Any]:
        """Return the serializer of a snapshot's JSON representation, without any class of the user.

        It may raise KeyError, TypeError, ValueError and AttributeError for malformed content.
        """
        return cls()

    def resolve_compatibility(self, old: SerializerSnapshot) -> Compatibility:
        """Return whether and how this serializer can use values that the serializer of `old` wrote.

        Call it on the serializer that the program declared: it has the user's classes, which its snapshot has
        not.  A reconfigured `Compatibility.serializer` has them, too.
        """
        if old == self.snapshot():
            return Compatibility.AS_IS
        return Compatibility.incompatible(f"{old} cannot be read as {self!r}")

    def conversion_from(self, old: TypeSerializer[Any]) -> Callable[[Any], T] | None:
        """Return the function that converts a value of `old` to this type; None where they are the same.

        A serializer from a snapshot has no classes: it reads records as named tuples, enum constants as their
        names and generic values as bytes, so that state can be kept, moved and inspected without the program
        that made it.  Convert each restored value once, also where the verdict is as is.

        `old` is one of `SerializerSnapshot.restore_serializer`, and compatible with this serializer.
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
    """The description of a serializer in a checkpoint.

    The JSON representation is ``{"type": name, "version": number, ...content}``.  In the content, an object
    with the key ``type`` is the snapshot of a part; so are the objects of a list.
    """

    type_name: str
    version: int
    #: JSON values only.
    content: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Return the JSON representation, which the caller may change."""
        return {"type": self.type_name, "version": self.version, **copy.deepcopy(dict(self.content))}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> SerializerSnapshot:
        """Read the JSON representation; all types and versions are checked, no classes are loaded.

        Raises `UnknownSerializerError` for a type that is not registered, or a version newer than the
        registered one; `InvalidSnapshotError` for a malformed document.
        """
        check_document(document, document)
        content = {name: value for name, value in document.items() if name not in ("type", "version")}
        return cls(document["type"], document["version"], copy.deepcopy(content))

    def restore_serializer(self) -> TypeSerializer[Any]:
        """Return a serializer that reads what the snapshot's serializer wrote.

        It loads no class of the user; see `TypeSerializer.conversion_from`. Raises `UnknownSerializerError`
        and `InvalidSnapshotError`, as `resolve_compatibility` does.
        """
        document = self.to_json()
        factory = registration_of(self.type_name, self.version).factory
        try:
            serializer: TypeSerializer[Any] = factory(document)
            return serializer
        except _MALFORMED as error:
            raise InvalidSnapshotError(document, f"{type(error).__name__}: {error}") from error

    def resolve_compatibility(self, old: SerializerSnapshot) -> Compatibility:
        """Return the verdict of this snapshot, the new one, on values of the serializer of `old`."""
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
        """Return the serializer's repr, or the JSON representation where the type is unknown."""
        try:
            return repr(self.restore_serializer())
        except (UnknownSerializerError, InvalidSnapshotError):
            return self._canonical_json()
