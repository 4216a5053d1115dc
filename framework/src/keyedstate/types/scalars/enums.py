"""Constants of Python enums, in the layout of Flink's ``EnumSerializer``: a 32-bit position."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from keyedstate.errors import UnknownEnumConstantError, UnsupportedTypeError
from keyedstate.memory.sorting.keys import NormalizedKeys
from keyedstate.memory.views import DataInputView, DataOutputView
from keyedstate.types.contract.arrow_columns import plain_numbers, require_types
from keyedstate.types.contract.normalized_keys import number_keys
from keyedstate.types.contract.registry import restorable
from keyedstate.types.contract.serializer import Compatibility, SerializerSnapshot, TypeSerializer
from keyedstate.types.scalars.scalar import ScalarSerializer


def class_name(cls: type) -> str:
    """Return the name by which snapshots know a class: ``package.module.Name``."""
    return f"{cls.__module__}.{cls.__qualname__}"


@restorable
class EnumSerializer(ScalarSerializer[Any]):
    """The constants of one enum; in columns their names.

    From a snapshot it has no class, and its values are the names.
    """

    type_name = "enum"
    normalized_key_bytes = 4

    def __init__(self, enum_class: type[enum.Enum] | None, name: str, constants: Sequence[str]) -> None:
        self.enum_class = enum_class
        #: Of the enum in snapshots.
        self.name = name
        #: The names of the constants; a constant is written as its position here.  Positions that a
        #: checkpoint has never change: new constants are appended (SER-08).
        self.constants = tuple(constants)
        self.python_type = str if enum_class is None else enum_class
        self.constraint = f"a constant of {name}" if enum_class else f"the name of a constant of {name}"
        self._values: tuple[Any, ...] = (
            self.constants if enum_class is None else tuple(enum_class[constant] for constant in constants)
        )
        # By name: the constants themselves need not have a hash.
        self._positions = {constant: position for position, constant in enumerate(self.constants)}
        if len(self._positions) != len(self.constants):
            raise ValueError(f"the constants of {name} are not distinct")

    def parts(self) -> tuple[object, ...]:
        return self.enum_class, self.name, self.constants

    def __repr__(self) -> str:
        return f"enum_of({self.name})" if self.enum_class else f"enum_of({self.name!r})"

    def snapshot_content(self) -> dict[str, Any]:
        return {"enum": self.name, "constants": list(self.constants)}

    @classmethod
    def restore(cls, document: Mapping[str, Any]) -> EnumSerializer:
        name, constants = document["enum"], document["constants"]
        if not isinstance(name, str) or not all(isinstance(constant, str) for constant in constants):
            raise TypeError("the names of an enum and its constants are strings")
        return cls(None, name, constants)

    @property
    def arrow_type(self) -> pa.DataType:
        return pa.string()

    def is_value(self, value: object) -> bool:
        return value.__class__ is self.python_type and self._name_of(value) in self._positions

    def _name_of(self, value: Any) -> str:
        name: str = value if self.enum_class is None else value._name_
        return name

    def way_out(self, value: object) -> str:
        if self.enum_class is not None and isinstance(value, (str, int)):
            cls = self.enum_class.__name__
            return f"Give the constant itself, {cls}[...] by its name or {cls}(...) by its value."
        return super().way_out(value)

    def serialize(self, value: Any, out: DataOutputView) -> None:
        if not self.is_value(value):
            raise self.mismatch(value)
        out.write_int(self._positions[self._name_of(value)])

    def deserialize(self, source: DataInputView) -> Any:
        position = source.read_int()
        if not 0 <= position < len(self._values):
            raise source.corrupt(f"the constant {position} of {self.name}, which has {len(self._values)}")
        return self._values[position]

    def reads(self, arrow_type: pa.DataType) -> bool:
        return bool(pa.types.is_string(arrow_type) or pa.types.is_large_string(arrow_type))

    def read_column(self, array: pa.Array) -> list[Any]:
        by_name: dict[str | None, Any] = dict(zip(self.constants, self._values, strict=True))
        by_name[None] = None
        try:
            return list(map(by_name.__getitem__, array.to_numpy(zero_copy_only=False).tolist()))
        except KeyError as error:
            raise UnknownEnumConstantError(self.name, error.args[0], self.constants) from None

    def write_column(self, values: Sequence[Any]) -> pa.Array:
        require_types(values, frozenset((self.python_type, type(None))))
        names = [None if value is None else self._name_of(value) for value in values]
        if not self._positions.keys() >= set(names) - {None}:
            raise ValueError("a combination of flags, or a name that is no constant")
        return pa.array(names, pa.string())

    def key_column(self, array: pa.Array) -> NormalizedKeys:
        positions = pc.index_in(array, pa.array(self.constants, array.type))
        if positions.null_count:
            stranger = array[positions.is_null().index(True).as_py()].as_py()
            raise UnknownEnumConstantError(self.name, stranger, self.constants)
        return number_keys(plain_numbers(positions))

    def resolve_compatibility(self, old: SerializerSnapshot) -> Compatibility:
        if old.type_name != self.type_name:
            return super().resolve_compatibility(old)
        if old.content["enum"] != self.name:
            return Compatibility.incompatible(
                f"{old} is another enum; if {self.name} is its new name, give the old one: "
                f"enum_of(..., name={old.content['enum']!r})"
            )
        written = tuple(old.content["constants"])
        removed = [constant for constant in written if constant not in self._positions]
        if removed:
            return Compatibility.incompatible(
                f"the constants {', '.join(removed)} of {self.name} were removed, and values may have them"
            )
        if written == self.constants:
            return Compatibility.AS_IS
        added = [constant for constant in self.constants if constant not in written]
        return Compatibility.reconfigured_with(
            EnumSerializer(self.enum_class, self.name, (*written, *added)),
            f"the constants of {self.name} keep their old positions, new ones follow",
        )

    def conversion_from(self, old: TypeSerializer[Any]) -> Callable[[Any], Any] | None:
        assert isinstance(old, EnumSerializer)
        if old.enum_class is self.enum_class:
            return None
        values = dict(zip(self.constants, self._values, strict=True))
        return lambda value: values[old._name_of(value)]


def enum_of(cls: Any, *, name: str | None = None) -> EnumSerializer:
    """Return the type of an enum's constants.

    Parameters
    ----------
    cls : type
        The enum.  The single constants of a ``Flag`` are values, their combinations are not.
    name : str, optional
        The name of the enum in snapshots, by default its module and name.  Give the old one of a class that
        has moved.

    Raises
    ------
    UnsupportedTypeError
        For anything but an enum, or one without constants.
    """
    if not (isinstance(cls, type) and issubclass(cls, enum.Enum)):
        raise UnsupportedTypeError(
            f"enum_of({cls!r})", "it is no subclass of enum.Enum", "Give the enum's class."
        )
    constants = [constant.name for constant in cls]
    if not constants:
        raise UnsupportedTypeError(f"enum_of({class_name(cls)})", "it has no constants", "Add some.")
    return EnumSerializer(cls, class_name(cls) if name is None else name, constants)
