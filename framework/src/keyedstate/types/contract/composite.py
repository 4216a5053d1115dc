"""What lists, sets, maps, tuples and nullables share: parts, with their snapshots, columns and verdicts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Generic, TypeAlias, TypeVar

import pyarrow as pa

from keyedstate.errors import CorruptDataError, UnsupportedTypeError, ValueTypeError
from keyedstate.memory.sorting.keys import NormalizedKeys, concatenated
from keyedstate.types.contract.arrow_columns import (
    ColumnarSerializer,
    drop_none,
    require_types,
    spread,
    spread_column,
)
from keyedstate.types.contract.normalized_keys import added_length, joined
from keyedstate.types.contract.serializer import Compatibility, Outcome, SerializerSnapshot, TypeSerializer

T = TypeVar("T")
C = TypeVar("C", bound="CompositeSerializer[Any]")

#: From this number of parts on it pays to check them as a column (`TypeSerializer.are_values`).
FEW = 10
#: What `TypeSerializer.conversion_from` returns.
Conversion: TypeAlias = "Callable[[Any], Any] | None"
_SEVERITY = {outcome: rank for rank, outcome in enumerate(Outcome)}


def compose(
    nested: Sequence[tuple[str, TypeSerializer[Any], Compatibility]],
    rebuild: Callable[[list[TypeSerializer[Any]]], TypeSerializer[Any]],
    outer: Compatibility = Compatibility.AS_IS,
) -> Compatibility:
    """Return the worst of the verdicts on a composite and its parts (SER-01).

    `nested` has the name, the new serializer and the verdict of each part, in the order in which `rebuild`
    takes the serializers. `rebuild` makes the composite from its parts, reconfigured or new, for a
    reconfigured outcome. `outer` is the verdict on the composite itself, parts aside; never reconfigured.
    """
    if outer.is_reconfigured:
        raise ValueError("a composite is reconfigured through its parts; give the verdict on the part")
    verdicts = [("", outer), *((name, verdict) for name, _, verdict in nested)]
    name, worst = max(verdicts, key=lambda verdict: _SEVERITY[verdict[1].outcome])
    reason = f"{name}: {worst.reason}" if name and worst.reason else worst.reason
    if not worst.is_reconfigured:
        return Compatibility(worst.outcome, reason=reason)
    parts = [new if verdict.serializer is None else verdict.serializer for _, new, verdict in nested]
    return Compatibility.reconfigured_with(rebuild(parts), reason)


class CompositeSerializer(ColumnarSerializer[T], Generic[T]):
    """A serializer made of others."""

    #: The parts, in a fixed order.
    inners: tuple[TypeSerializer[Any], ...]
    #: The role of each part, as snapshots and verdicts name it.
    inner_names: tuple[str, ...]

    @classmethod
    def restore(cls, document: Mapping[str, Any]) -> TypeSerializer[Any]:
        make: Callable[..., TypeSerializer[Any]] = cls
        return make(*(restore_inner(document[name]) for name in cls.inner_names))

    def rebuild(self: C, inners: Sequence[TypeSerializer[Any]]) -> C:
        """Return the same composite of other parts."""
        make: Callable[..., C] = type(self)
        return make(*inners)

    def __repr__(self) -> str:
        return f"{self.type_name}_of({', '.join(map(repr, self.inners))})"

    def parts(self) -> tuple[object, ...]:
        return self.inners

    def duplicate(self) -> TypeSerializer[T]:
        duplicates = [inner.duplicate() for inner in self.inners]
        if all(mine is other for mine, other in zip(self.inners, duplicates, strict=True)):
            return self
        return self.rebuild(duplicates)

    def snapshot_content(self) -> dict[str, Any]:
        return {
            name: inner.snapshot().to_json()
            for name, inner in zip(self.inner_names, self.inners, strict=True)
        }

    def old_inners(self, old: SerializerSnapshot) -> list[SerializerSnapshot]:
        """Return the snapshots of the parts of `old`, which is of this type."""
        return [SerializerSnapshot.from_json(old.content[name]) for name in self.inner_names]

    def resolve_compatibility(self, old: SerializerSnapshot) -> Compatibility:
        if old.type_name != self.type_name:
            return Compatibility.incompatible(f"{old} cannot be read as {self!r}")
        old_inners = self.old_inners(old)
        if len(old_inners) != len(self.inners):
            return Compatibility.incompatible(
                f"{old} has {len(old_inners)} parts, {self!r} has {len(self.inners)}"
            )
        nested = [
            (name, inner, inner.resolve_compatibility(old_inner))
            for name, inner, old_inner in zip(self.inner_names, self.inners, old_inners, strict=True)
        ]
        return compose(nested, self.rebuild)

    def conversion_from(self, old: TypeSerializer[Any]) -> Callable[[Any], T] | None:
        assert isinstance(old, CompositeSerializer)
        conversions = [
            inner.conversion_from(old_inner) for inner, old_inner in zip(self.inners, old.inners, strict=True)
        ]
        return partial(self.convert, conversions) if any(conversions) else None

    def convert(self, conversions: Sequence[Conversion], value: Any) -> T:
        """Return a value of the converted parts of `value`."""
        raise NotImplementedError(f"{type(self).__name__}.convert, which values of {self!r} need")


#: What NumPy calls the numbers of `TypeSerializer.fixed_code`.
NUMPY_CODES: Final = {"b": "i1", "h": "i2", "i": "i4", "q": "i8", "d": "f8"}


def are_plain_numbers(code: str | None, values: Collection[Any]) -> bool:
    """Return whether module ``struct`` writes values as the serializer with this `fixed_code` does."""
    if code == "d":
        # Every NaN has the same bytes.
        return {float}.issuperset(map(type, values)) and not any(value != value for value in values)
    return {int}.issuperset(map(type, values))


def converted(conversion: Conversion, value: Any) -> Any:
    """Return a value, converted where there is a conversion."""
    return value if conversion is None else conversion(value)


class FieldsSerializer(CompositeSerializer[T], Generic[T]):
    """A composite whose columns are structs of its parts; the first part that differs decides its order."""

    field_serializers: tuple[TypeSerializer[Any], ...]

    def _set_fields(self, names: Iterable[str], fields: Sequence[TypeSerializer[Any]]) -> None:
        self.inner_names = tuple(names)
        self.inners = self.field_serializers = tuple(fields)
        self.immutable = all(field.immutable for field in fields)
        self.needs_canonical = any(field.needs_canonical for field in fields)

    def snapshot_content(self) -> dict[str, Any]:
        return {"fields": [field.snapshot().to_json() for field in self.inners]}

    def old_inners(self, old: SerializerSnapshot) -> list[SerializerSnapshot]:
        return [SerializerSnapshot.from_json(field) for field in old.content["fields"]]

    @property
    def arrow_type(self) -> pa.DataType:
        parts = zip(self.inner_names, self.inners, strict=True)
        return pa.struct([(name, inner.arrow_type) for name, inner in parts])

    @abstractmethod
    def field_columns(self, array: pa.Array) -> list[pa.Array]:
        """Return the columns of the parts, in the order of `inners`, of an array without null slots."""

    @property
    def normalized_key_bytes(self) -> int | None:  # type: ignore[override] # read alone
        """The length of all parts' keys."""
        return added_length([inner.normalized_key_bytes for inner in self.inners])

    @property
    def normalized_key_decides(self) -> bool:  # type: ignore[override] # read alone
        """Whether the keys of all parts decide."""
        return all(inner.normalized_key_decides for inner in self.inners)

    def key_column(self, array: pa.Array) -> NormalizedKeys:
        columns = zip(self.inners, self.field_columns(array), strict=True)
        return concatenated([inner.normalized_keys(column) for inner, column in columns], len(array))

    def whole_key_column(self, array: pa.Array) -> pa.LargeBinaryArray:
        columns = zip(self.inners, self.field_columns(array), strict=True)
        return joined([inner.whole_keys(column) for inner, column in columns], len(array))


class ContainerSerializer(CompositeSerializer[T], Generic[T]):
    """A composite whose values are Python containers of exactly one class.

    A subclass reads and writes columns without nulls; this class adds the nulls.
    """

    python_type: type

    @abstractmethod
    def read_dense(self, array: pa.Array) -> list[T]:
        """Return the values of an array that has no null slots."""

    @abstractmethod
    def write_dense(self, values: Sequence[T]) -> pa.Array:
        """Return the column of containers of the right class."""

    def read_column(self, array: pa.Array) -> list[T | None]:
        if array.null_count:
            return spread(self.read_dense(array.drop_null()), array)
        return self.read_dense(array)  # type: ignore[return-value]

    def write_column(self, values: Sequence[T | None]) -> pa.Array:
        dense = drop_none(values)
        require_types(dense, frozenset((self.python_type,)))
        return spread_column(self.write_dense(dense), values)

    def mismatch(self, value: object) -> ValueTypeError:
        """Return the error for a value of another class."""
        name = self.python_type.__name__
        if value is None:
            way_out = f"Declare the type as nullable({self!r}) if None is a value."
        elif isinstance(value, self.python_type):
            way_out = f"Convert it with {name}(): a subclass would come back as {name} after a restart."
        else:
            way_out = "Convert the value, or declare the state with the type that it has."
        return ValueTypeError.of(f"{self!r} (a {name})", value, way_out)


def write_inner(inner: TypeSerializer[Any], values: Sequence[Any]) -> pa.Array:
    """Return the column of a part, and refuse None unless the part is nullable."""
    column = inner.to_arrow(values)
    if column.null_count and not inner.null_is_value:
        inner.check(None)
    return column


def read_inner(inner: TypeSerializer[Any], column: pa.Array, name: str) -> list[Any]:
    """Return the values of a part, and refuse nulls in its column unless the part is nullable."""
    if column.null_count and not inner.null_is_value:
        raise CorruptDataError(f"nulls in the column of the {name}, which is {inner!r}", 0)
    return inner.from_arrow(column)


def slots_of(array: pa.Array) -> tuple[pa.Array, list[int]]:
    """Return the child values of a list or map array without nulls, and the bounds of its slots in them."""
    if len(array) == 0:
        return array.values.slice(0, 0), [0]
    offsets = array.offsets.to_numpy()
    first, last = int(offsets[0]), int(offsets[-1])
    return array.values.slice(first, last - first), (offsets - first).tolist()


def require_immutable(inner: TypeSerializer[Any], role: str) -> None:
    """Refuse parts that have no hash, or could change inside a hash table."""
    if not inner.immutable:
        raise UnsupportedTypeError(
            f"{inner!r} as {role}", "its values can change in place and have no hash", "Use a tuple_of(...)."
        )


def restore_inner(document: Mapping[str, Any]) -> TypeSerializer[Any]:
    """Return the serializer of a part from the JSON representation of its snapshot."""
    return SerializerSnapshot.from_json(document).restore_serializer()
