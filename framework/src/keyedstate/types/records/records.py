"""Records: the fields of a dataclass, in the layout of Flink's ``PojoSerializer``.

A header byte comes first: 1 for None, 2 for a record of the declared class, 4 for one of a subclass, whose
name and own bytes follow, 8 for the same with a tag of one byte instead of the name (SER-04).  The fields
follow in the order of their names, each behind a byte that is 1 for None: the order of declaration does not
matter.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property, partial
from operator import attrgetter
from typing import Any, Generic, TypeVar

from keyedstate.errors import UnsupportedTypeError, ValueTypeError
from keyedstate.memory.views import DataInputView, DataOutputView
from keyedstate.types.contract.composite import restore_inner
from keyedstate.types.contract.record_code import record_checker, record_copier, record_maker
from keyedstate.types.contract.serializer import Compatibility, SerializerSnapshot, TypeSerializer
from keyedstate.types.records.rows import record_row_type
from keyedstate.types.records.structs import Default, StructSerializer, none_default
from keyedstate.types.scalars.enums import class_name

T = TypeVar("T")

_NoDefault = type(dataclasses.MISSING)

NO_SUBCLASS = 2
SUBCLASS = 4
TAGGED_SUBCLASS = 8


class RecordSerializer(StructSerializer[T], Generic[T]):
    """Records of exactly one class."""

    type_name = "record"
    tells_null = True

    def __init__(
        self,
        name: str,
        names: Sequence[str],
        fields: Sequence[TypeSerializer[Any]],
        defaults: Collection[str],
    ) -> None:
        super().__init__(names, fields)
        #: Of the class in snapshots.
        self.name = name
        #: The fields that old values may lack: the class has a default for them.
        self.defaults = frozenset(defaults)
        #: The fields as the bytes have them: position in `names`, serializer, whether it may be None.
        self._layout = [
            (self.names.index(field), self.bare_serializers[index], self.may_be_null[index])
            for field in sorted(self.names)
            for index in (self.names.index(field),)
        ]

    @abstractmethod
    def rebuild(self, inners: Sequence[TypeSerializer[Any]]) -> RecordSerializer[T]: ...

    def snapshot_content(self) -> dict[str, Any]:
        return {"class": self.name, **super().snapshot_content(), "defaults": sorted(self.defaults)}

    def serialize(self, value: T, out: DataOutputView) -> None:
        if value.__class__ is not self.python_type:
            raise self.mismatch(value)
        values = self.values_of(value)
        out.write_byte(NO_SUBCLASS)
        for index, serializer, may_be_null in self._layout:
            part = values[index]
            if part is not None:
                out.write_boolean(False)
                serializer.serialize(part, out)
            elif may_be_null:
                out.write_boolean(True)
            else:
                serializer.check(None)

    def deserialize(self, source: DataInputView) -> T:
        header = source.read_unsigned_byte()
        if header != NO_SUBCLASS:
            raise source.corrupt(f"a record of {self.name} without subclasses has the header {header}")
        return self.deserialize_fields(source)

    def deserialize_fields(self, source: DataInputView) -> T:
        """Read a record behind its header, 2."""
        values: list[Any] = [None] * len(self.names)
        for index, serializer, may_be_null in self._layout:
            if not source.read_boolean():
                values[index] = serializer.deserialize(source)
            elif not may_be_null:
                raise source.corrupt(f"no value in the field {self.names[index]!r}, which is {serializer!r}")
        return self.make(values)

    def resolve_compatibility(self, old: SerializerSnapshot) -> Compatibility:
        other = refuse_other_class(self, old)
        if other is not None:
            return other
        tagged, named = subclasses_of(old)
        if tagged or named:
            return Compatibility.incompatible(
                f"the subclasses {', '.join(tagged + named)} of {self.name} are no longer declared, and "
                "values may be theirs"
            )
        return self.resolve_fields(old)


class DataclassSerializer(RecordSerializer[T], Generic[T]):
    """Records as instances of a dataclass.

    An instance is made without ``__init__`` and ``__post_init__``, as by unpickling: the fields are the
    state, and each is restored as it was.

    As keys, records are equal where their class's ``__eq__`` is true: from Python 3.13 on, one with a NaN
    equals no other, since the generated ``__eq__`` compares field by field.
    """

    def __init__(
        self, cls: type[T], name: str, names: Sequence[str], fields: Sequence[TypeSerializer[Any]]
    ) -> None:
        #: The dataclass.
        self.python_type = cls
        self._field_defaults = _defaults_of(cls, names, fields)
        super().__init__(name, names, fields, self._field_defaults.keys())
        params = cls.__dataclass_params__  # type: ignore[attr-defined]
        # Without an __eq__ a record is found by identity, which no restart keeps.
        self.immutable = self.immutable and params.frozen and params.eq and cls.__hash__ is not None
        #: What instances may have: the fields, and cached properties, which are computed again.
        self._allowed = frozenset(names).union(
            attribute
            for owner in cls.__mro__
            for attribute, value in vars(owner).items()
            if isinstance(value, cached_property)
        )
        self._get = attrgetter(*self.names) if self.names else None
        self._single = len(self.names) == 1
        self.make = record_maker(cls, self.names)
        self._copy = record_copier(
            cls, self.names, [None if field.immutable else field.copy for field in self.field_serializers]
        )
        self._is_surely_value = record_checker(
            cls, list(zip(self.names, self.field_serializers, strict=True))
        )

    def parts(self) -> tuple[object, ...]:
        return self.python_type, self.name, self.names, self.field_serializers

    def __repr__(self) -> str:
        return f"record_of({self.name})"

    def rebuild(self, inners: Sequence[TypeSerializer[Any]]) -> DataclassSerializer[T]:
        return DataclassSerializer(self.python_type, self.name, self.names, inners)

    def values_of(self, value: T) -> Sequence[Any]:
        if self._get is None:
            return ()
        try:
            values = self._get(value)
        except AttributeError as error:
            raise ValueTypeError.of(
                f"{self!r} with all its fields", value, f"Set the field first: {error}."
            ) from None
        return (values,) if self._single else values

    def columns_of(self, values: Sequence[T]) -> Iterable[Sequence[Any]]:
        try:
            return [list(map(attrgetter(name), values)) for name in self.names]
        except AttributeError:
            return super().columns_of(values)  # which names the value

    def copy(self, value: T) -> T:
        if self.immutable:
            return value
        try:
            duplicate: T = self._copy(value)
        except AttributeError:
            self.values_of(value)  # names the field that is missing
            raise
        return duplicate

    def default_of(self, name: str) -> Default | None:
        if name in self._field_defaults:
            return self._field_defaults[name]
        return none_default if self.may_be_null[self.names.index(name)] else None

    def is_value(self, value: object) -> bool:
        try:
            if self._is_surely_value(value):
                return True
        except (AttributeError, KeyError):
            pass  # slots, or a field that is missing
        return super().is_value(value) and self._stranger(value) is None

    def check(self, value: object) -> None:
        super().check(value)
        self._refuse_strangers(value)

    def serialize(self, value: T, out: DataOutputView) -> None:
        if value.__class__ is self.python_type:
            self._refuse_strangers(value)
        super().serialize(value, out)

    def _stranger(self, value: object) -> str | None:
        """Return the name of an attribute that is neither a field nor a cached property."""
        attributes: dict[str, Any] | None = getattr(value, "__dict__", None)
        if attributes and not attributes.keys() <= self._allowed:
            return min(attributes.keys() - self._allowed)
        return None

    def _refuse_strangers(self, value: object) -> None:
        stranger = self._stranger(value)
        if stranger is not None:
            raise ValueTypeError.of(
                f"{self!r} without other attributes than its fields",
                value,
                f"The attribute {stranger!r} would be gone after a restart: declare it as a field, or "
                "compute it in a property.",
            )

    def mismatch(self, value: object) -> ValueTypeError:
        if isinstance(value, self.python_type):
            sub = type(value).__name__
            way_out = (
                f"Declare the subclass: record_of({self.python_type.__name__}, subclasses=[{sub}]), or "
                f"tagged=[{sub}]."
            )
            return ValueTypeError.of(f"{self!r} (a {self.python_type.__name__})", value, way_out)
        return super().mismatch(value)


class RestoredRecordSerializer(RecordSerializer[tuple[Any, ...]]):
    """Records as named tuples: without the class, or where it has changed."""

    def __init__(
        self,
        name: str,
        names: Sequence[str],
        fields: Sequence[TypeSerializer[Any]],
        defaults: Collection[str],
    ) -> None:
        super().__init__(name, names, fields, defaults)
        self.python_type = record_row_type(self.names, name)
        self.make = partial(tuple.__new__, self.python_type)

    @classmethod
    def restore(cls, document: Mapping[str, Any]) -> RestoredRecordSerializer:
        name, names, defaults = document["class"], document["names"], document["defaults"]
        if document["type"] != cls.type_name or not all(
            isinstance(word, str) for word in (name, *names, *defaults)
        ):
            raise TypeError("a record has names that are strings")
        return cls(name, names, list(map(restore_inner, document["fields"])), defaults)

    def parts(self) -> tuple[object, ...]:
        return self.name, self.names, self.field_serializers, self.defaults

    def __repr__(self) -> str:
        return f"record_of({self.name!r})"

    def rebuild(self, inners: Sequence[TypeSerializer[Any]]) -> RestoredRecordSerializer:
        return RestoredRecordSerializer(self.name, self.names, inners, self.defaults)

    def values_of(self, value: tuple[Any, ...]) -> Sequence[Any]:
        return value

    def default_of(self, name: str) -> Default | None:
        if name in self.defaults:
            return self._unknown_default  # a verdict needs to know only that it exists
        return none_default if self.may_be_null[self.names.index(name)] else None

    def _unknown_default(self) -> Any:
        raise UnsupportedTypeError(
            f"a default of {self!r}", "only the class knows it", "Convert to the type that record_of gives."
        )


def refuse_other_class(serializer: RecordSerializer[Any], old: SerializerSnapshot) -> Compatibility | None:
    """Return the verdict where `old` is no record of the same class, else None."""
    if old.type_name != serializer.type_name:
        return Compatibility.incompatible(f"{old} cannot be read as {serializer!r}")
    if old.content["class"] != serializer.name:
        return Compatibility.incompatible(
            f"{old} is another class; if {serializer.name} is its new name, give the old one: "
            f"record_of(..., name={old.content['class']!r})"
        )
    return None


def subclasses_of(snapshot: SerializerSnapshot) -> tuple[list[str], list[str]]:
    """Return the names of the subclasses in the snapshot of a record: those with a tag, then the others."""
    content = snapshot.content
    tagged = [document["class"] for document in content.get("tagged", ())]
    return tagged, [document["class"] for document in content.get("subclasses", ())]


def dataclass_record(
    cls: type[T], fields: Mapping[str, TypeSerializer[Any]], name: str | None = None
) -> DataclassSerializer[T]:
    """Return the serializer of a dataclass's own instances, with a serializer for every field.

    The name is that of the class in snapshots, by default its module and name.

    Raises `UnsupportedTypeError` for a class whose instances cannot be made from their fields.
    """
    own = class_name(cls)
    if cls.__new__ is not object.__new__:
        raise UnsupportedTypeError(
            f"the dataclass {own}",
            "it has a __new__, or derives from a class that has one, such as dict",
            "Keep such a value in a field.",
        )
    return DataclassSerializer(cls, own if name is None else name, tuple(fields), tuple(fields.values()))


def _defaults_of(
    cls: type, names: Iterable[str], serializers: Iterable[TypeSerializer[Any]]
) -> dict[str, Default]:
    """Return what makes the default of each field whose default has the field's type."""
    fields = {field.name: field for field in dataclasses.fields(cls)}
    found: dict[str, Default] = {}
    for name, serializer in zip(names, serializers, strict=True):
        default = _default_of(fields[name])
        if default is None:
            continue
        try:
            value = default()
        except Exception as error:  # whatever the user's factory raises
            raise UnsupportedTypeError(
                f"the default of the field {name!r} of {class_name(cls)}",
                f"making it raised {type(error).__name__}: {error}",
                "Give the field a default that can be made at any time, or none.",
            ) from error
        # `count: int = None` has a default that is no value.
        if serializer.is_value(value):
            found[name] = default
    return found


def _default_of(field: dataclasses.Field[Any]) -> Default | None:
    # By type and not by identity: cloudpickle gives a class that it carries other marks of no default.
    factory: Any = field.default_factory
    if not isinstance(factory, _NoDefault):
        return factory  # type: ignore[no-any-return]
    return None if isinstance(field.default, _NoDefault) else _always(field.default)


def _always(value: Any) -> Default:
    return lambda: value
