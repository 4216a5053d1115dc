"""What rows and records share: fields with names, an Arrow struct, and evolution field by field."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

import pyarrow as pa

from keyedstate.errors import ValueTypeError
from keyedstate.types.collections.nullable import NullableSerializer, nullable
from keyedstate.types.contract.composite import (
    ContainerSerializer,
    Conversion,
    FieldsSerializer,
    compose,
    read_inner,
    write_inner,
)
from keyedstate.types.contract.serializer import Compatibility, SerializerSnapshot, TypeSerializer
from keyedstate.types.contract.transposing import transposed

T = TypeVar("T")

#: Makes the value of a field that old values lack.
Default = Callable[[], Any]


def none_default() -> None:
    """Return None, the default of a field that may be None."""


class StructSerializer(FieldsSerializer[T], ContainerSerializer[T], Generic[T]):
    """Values with named fields, each of which may be None where its type is ``nullable(...)``.

    The binary layouts mark a None themselves; `bare_serializers` write the other values.
    """

    #: Returns the value with the given fields, in the order of `names`.  The subclass sets a plain function,
    #: since every value that is read calls it.
    make: Callable[[Sequence[Any]], T]

    def __init__(self, names: Sequence[str], fields: Sequence[TypeSerializer[Any]]) -> None:
        self._set_fields(names, fields)
        self.names = self.inner_names
        if len(self.names) != len(self.field_serializers) or len(set(self.names)) != len(self.names):
            raise ValueError("every field needs a name of its own")
        self.may_be_null = tuple(isinstance(field, NullableSerializer) for field in fields)
        #: The same without ``nullable``.
        self.bare_serializers = tuple(
            field.inner_serializer if isinstance(field, NullableSerializer) else field for field in fields
        )

    @abstractmethod
    def values_of(self, value: T) -> Sequence[Any]:
        """Return the values of the fields in the order of `names`.

        Raises `ValueTypeError` where a field is missing.
        """

    @abstractmethod
    def default_of(self, name: str) -> Default | None:
        """Return what makes a field that old values lack, or None where the field has no default."""

    def __reduce__(self) -> tuple[Any, ...]:
        # A class of named tuples, which subclasses derive from their parts, cannot be pickled.
        return type(self), self.parts()

    def snapshot_content(self) -> dict[str, Any]:
        return {"names": list(self.names), **super().snapshot_content()}

    # -- columns ------------------------------------------------------------------------------------

    def reads(self, arrow_type: pa.DataType) -> bool:
        return bool(
            pa.types.is_struct(arrow_type)
            and sorted(arrow_type.field(index).name for index in range(arrow_type.num_fields))
            == sorted(self.names)
        )

    def field_columns(self, array: pa.Array) -> list[pa.Array]:
        by_name = dict(zip((field.name for field in array.type), array.flatten(), strict=True))
        return [by_name[name] for name in self.names]

    def read_dense(self, array: pa.Array) -> list[T]:
        columns = [
            read_inner(field, array.field(name), f"field {name!r}")
            for name, field in zip(self.names, self.field_serializers, strict=True)
        ]
        if not columns:
            return [self.make(()) for _ in range(len(array))]
        return list(map(self.make, zip(*columns, strict=True)))

    def write_dense(self, values: Sequence[T]) -> pa.Array:
        if not self.names:
            return pa.array([{}] * len(values), self.arrow_type)
        columns = self.columns_of(values)
        arrays = [
            write_inner(field, column) for field, column in zip(self.field_serializers, columns, strict=True)
        ]
        return pa.StructArray.from_arrays(arrays, names=list(self.names))

    def columns_of(self, values: Sequence[T]) -> Iterable[Sequence[Any]]:
        """Return the values of each field, in the order of `names`; raises as `values_of`."""
        return transposed(list(map(self.values_of, values)), len(self.names))

    # -- values -------------------------------------------------------------------------------------

    def check(self, value: object) -> None:
        if value.__class__ is not self.python_type:
            raise self.mismatch(value)
        values = self.values_of(value)  # type: ignore[arg-type]
        for name, field, part in zip(self.names, self.field_serializers, values, strict=True):
            try:
                field.check(part)
            except ValueTypeError as error:
                raise error.within(f".{name}") from None

    def is_value(self, value: object) -> bool:
        if value.__class__ is not self.python_type:
            return False
        try:
            values = self.values_of(value)  # type: ignore[arg-type]
        except ValueTypeError:
            return False
        # Not with all(): a generator takes twice the time.
        for field, part in zip(self.field_serializers, values, strict=True):  # noqa: SIM110
            if not field.is_value(part):
                return False
        return True

    def copy(self, value: T) -> T:
        if self.immutable:
            return value
        values = self.values_of(value)
        return self.make(
            [field.copy(part) for field, part in zip(self.field_serializers, values, strict=True)]
        )

    def canonical(self, value: T) -> T:
        if not self.needs_canonical:
            return value
        values = self.values_of(value)
        return self.make(
            [field.canonical(part) for field, part in zip(self.field_serializers, values, strict=True)]
        )

    # -- evolution ----------------------------------------------------------------------------------

    def resolve_fields(self, old: SerializerSnapshot) -> Compatibility:
        """Return the verdict on the fields, which are matched by name: added, removed, of another type."""
        old_fields = dict(zip(old.content["names"], self.old_inners(old), strict=True))
        nested = []
        for name, declared, bare in zip(
            self.names, self.field_serializers, self.bare_serializers, strict=True
        ):
            if name in old_fields:
                verdict = _field_verdict(declared, bare, old_fields[name])
            elif self.default_of(name) is None:
                verdict = Compatibility.incompatible(
                    "it was added without a default that has its type, and old values lack it; give it one, "
                    "or declare it as one that may be None"
                )
            else:
                verdict = Compatibility.AS_IS
            nested.append((f"the field {name!r}", bare, verdict))
        outer = Compatibility.AS_IS
        if old_fields.keys() != set(self.names):
            outer = Compatibility.after_migration("fields were added or removed")
        return compose(nested, self._rebuild_bare, outer)

    def _rebuild_bare(self, bare: Sequence[TypeSerializer[Any]]) -> TypeSerializer[Any]:
        wrapped = [
            nullable(field) if may_be_null else field
            for field, may_be_null in zip(bare, self.may_be_null, strict=True)
        ]
        return self.rebuild(wrapped)

    def conversion_from(self, old: TypeSerializer[Any]) -> Callable[[Any], T] | None:
        assert isinstance(old, StructSerializer)
        picks: list[tuple[int, Conversion]] = []
        defaults: list[Default] = []
        for name, field in zip(self.names, self.field_serializers, strict=True):
            if name in old.names:
                index = old.names.index(name)
                picks.append((index, field.conversion_from(old.field_serializers[index])))
            else:
                default = self.default_of(name)
                assert default is not None  # or the verdict would have been incompatible
                picks.append((len(old.names) + len(defaults), None))
                defaults.append(default)
        if picks == [(index, None) for index in range(len(old.names))]:
            # Without the class a value is a named tuple: the fields in their order.
            return None if old.python_type is self.python_type else self.make

        def convert(value: Any) -> T:
            given = [*old.values_of(value), *(default() for default in defaults)]
            return self.make([given[index] if part is None else part(given[index]) for index, part in picks])

        return convert


def _field_verdict(
    declared: TypeSerializer[Any], bare: TypeSerializer[Any], old: SerializerSnapshot
) -> Compatibility:
    """Return the verdict on a field that existed before; a None needs no other layout."""
    if old.type_name == NullableSerializer.type_name:
        if declared is bare:
            return Compatibility.incompatible(f"it was {old}, and may not be None any more as {declared!r}")
        old = SerializerSnapshot.from_json(old.content["inner"])
    return bare.resolve_compatibility(old)
