"""Maps, in the layout of Flink's ``MapSerializer``: a 32-bit count, then key, null flag byte and value."""

from __future__ import annotations

import reprlib
from array import array as machine_array
from collections.abc import Collection, Sequence
from itertools import accumulate, chain, pairwise, repeat
from struct import Struct
from struct import error as StructError
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from keyedstate.errors import UnsupportedTypeError, ValueTypeError
from keyedstate.memory.views import DataInputView, DataOutputView
from keyedstate.types.contract.arrow_columns import has_none, offsets_of
from keyedstate.types.contract.composite import (
    FEW,
    NUMPY_CODES,
    ContainerSerializer,
    Conversion,
    are_plain_numbers,
    converted,
    read_inner,
    require_immutable,
    slots_of,
    write_inner,
)
from keyedstate.types.contract.registry import restorable
from keyedstate.types.contract.serializer import TypeSerializer
from keyedstate.types.scalars.namespaces import VoidSerializer

K = TypeVar("K")
V = TypeVar("V")

_COUNT = Struct(">i")
#: The columns of the entries of many maps.
_COLUMNS = ("key", "none", "value")


@restorable
class MapSerializer(ContainerSerializer["dict[K, V | None]"], Generic[K, V]):
    """Python dicts, whose order is kept; an Arrow map column.  Values may be None, keys may not."""

    type_name = "map"
    inner_names = ("key", "value")
    python_type = dict
    immutable = False

    def __init__(self, key: TypeSerializer[K], value: TypeSerializer[V]) -> None:
        require_immutable(key, "the key of a map")
        if key.null_is_value:
            raise UnsupportedTypeError(
                f"{key!r} as the key of a map", "Arrow maps have no null keys", "Use another key."
            )
        if isinstance(value, VoidSerializer):
            raise UnsupportedTypeError(
                "a map without values", "None would be one of them", f"Use set_of({key!r})."
            )
        self.inners = (key, value)
        self.key_serializer = key
        self.value_serializer = value
        self.needs_canonical = key.needs_canonical or value.needs_canonical
        codes = key.fixed_code, value.fixed_code
        #: The bytes of an entry whose value is not None, where they are always as many.
        self._entry: Struct | None = None
        if codes[0] and codes[1]:
            self._entry = Struct(f">{codes[0]}?{codes[1]}")
            columns = zip(_COLUMNS, (codes[0], "b", codes[1]), strict=True)
            self._entries = np.dtype([(name, ">" + NUMPY_CODES[code]) for name, code in columns])

    @property
    def arrow_type(self) -> pa.DataType:
        return pa.map_(self.key_serializer.arrow_type, self.value_serializer.arrow_type)

    def serialize(self, value: dict[K, V | None], out: DataOutputView) -> None:
        if value.__class__ is not dict:
            raise self.mismatch(value)
        out.write_int(len(value))
        serialize_key, serialize_value = self.key_serializer.serialize, self.value_serializer.serialize
        for key, item in value.items():
            serialize_key(key, out)
            if item is None:
                out.write_boolean(True)
            else:
                out.write_boolean(False)
                serialize_value(item, out)

    def deserialize(self, source: DataInputView) -> dict[K, V | None]:
        deserialize_key = self.key_serializer.deserialize
        deserialize_value = self.value_serializer.deserialize
        values = {}
        for _ in range(source.read_count()):
            key = deserialize_key(source)
            values[key] = None if source.read_boolean() else deserialize_value(source)
        return values

    def __reduce__(self) -> tuple[Any, ...]:
        return MapSerializer, self.inners

    def to_bytes(self, value: dict[K, V | None]) -> bytes:
        if (
            self._entry is not None
            and value.__class__ is dict
            and are_plain_numbers(self.key_serializer.fixed_code, value)
            and are_plain_numbers(self.value_serializer.fixed_code, value.values())
        ):
            entries = map(self._entry.pack, value, repeat(False), value.values())
            try:
                return b"".join((_COUNT.pack(len(value)), *entries))
            except StructError:  # a number that does not fit
                pass
        return super().to_bytes(value)

    def to_bytes_many(self, values: Sequence[dict[K, V | None]]) -> list[bytes]:
        if self._entry is None:
            return super().to_bytes_many(values)
        if {dict}.issuperset(map(type, values)):
            entries = self._entries_of(
                list(chain.from_iterable(values)), list(chain.from_iterable(map(dict.values, values)))
            )
            if entries is not None:
                data, sizes = entries.tobytes(), list(map(len, values))
                ends = accumulate((size * entries.itemsize for size in sizes), initial=0)
                return [
                    _COUNT.pack(size) + data[start:end]
                    for size, (start, end) in zip(sizes, pairwise(ends), strict=True)
                ]
        return list(map(self.to_bytes, values))

    def _entries_of(self, keys: list[Any], items: list[Any]) -> npt.NDArray[Any] | None:
        """Return the entries of all maps, or None where some are no numbers that fit."""
        made = np.zeros(len(keys), self._entries)
        for name, inner, column in zip(_COLUMNS[::2], self.inners, (keys, items), strict=True):
            code: Any = inner.fixed_code
            if not are_plain_numbers(code, column):
                return None
            try:
                # A machine array refuses numbers that do not fit.
                made[name] = machine_array(code, column)
            except OverflowError:
                return None
        return made

    def from_bytes(self, data: bytes | bytearray | memoryview) -> dict[K, V | None]:
        if self._entry is not None and (len(data) - _COUNT.size) % self._entry.size == 0:
            entries = self._entry.iter_unpack(memoryview(data)[_COUNT.size :])
            values = {key: item for key, is_none, item in entries if not is_none}
            if (
                _COUNT.unpack_from(data) == (len(values),)
                and len(data) == _COUNT.size + len(values) * self._entry.size
            ):
                return values
        return super().from_bytes(data)

    def reads(self, arrow_type: pa.DataType) -> bool:
        return bool(pa.types.is_map(arrow_type))

    def read_dense(self, array: pa.Array) -> list[dict[K, V | None]]:
        entries, bounds = slots_of(array)
        keys = read_inner(self.key_serializer, entries.field(0), "keys")
        values = self.value_serializer.from_arrow(entries.field(1))
        return [dict(zip(keys[start:end], values[start:end], strict=True)) for start, end in pairwise(bounds)]

    def write_dense(self, values: Sequence[dict[K, V | None]]) -> pa.Array:
        offsets = offsets_of(map(len, values), len(values), self)
        keys = write_inner(self.key_serializer, list(chain.from_iterable(values)))
        items = self.value_serializer.to_arrow(list(chain.from_iterable(map(dict.values, values))))
        return pa.MapArray.from_arrays(offsets, keys, items)

    def is_value(self, value: Any) -> bool:
        if value.__class__ is not dict:
            return False
        if len(value) < FEW:
            is_key, is_value = self.key_serializer.is_value, self.value_serializer.is_value
            for key, item in value.items():
                if not is_key(key) or (item is not None and not is_value(item)):
                    return False
            return True
        items = value.values()
        present: Collection[Any] = [item for item in items if item is not None] if has_none(items) else items
        return self.key_serializer.are_values(value) and self.value_serializer.are_values(present)

    def check(self, value: object) -> None:
        if value.__class__ is not dict:
            raise self.mismatch(value)
        check_key, check_value = self.key_serializer.check, self.value_serializer.check
        for key, item in value.items():
            try:
                check_key(key)
            except ValueTypeError as error:
                raise error.within(".key") from None
            if item is not None:
                try:
                    check_value(item)
                except ValueTypeError as error:
                    raise error.within(f"[{reprlib.repr(key)}].value") from None

    def convert(self, conversions: Sequence[Conversion], value: dict[Any, Any]) -> dict[K, V | None]:
        key_of, value_of = conversions
        return {
            converted(key_of, key): None if item is None else converted(value_of, item)
            for key, item in value.items()
        }

    def copy(self, value: dict[K, V | None]) -> dict[K, V | None]:
        if self.value_serializer.immutable:
            return value.copy()
        copy = self.value_serializer.copy
        return {key: None if item is None else copy(item) for key, item in value.items()}

    def with_canonical_keys(self, value: dict[K, V | None]) -> dict[K, V | None]:
        """Return a map whose keys are in the form by which they are looked up."""
        key_of = self.key_serializer.canonical
        return {key_of(key): item for key, item in value.items()}

    def canonical(self, value: dict[K, V | None]) -> dict[K, V | None]:
        if not self.needs_canonical:
            return value
        key_of, value_of = self.key_serializer.canonical, self.value_serializer.canonical
        return {key_of(key): None if item is None else value_of(item) for key, item in value.items()}


def map_of(key: TypeSerializer[K], value: TypeSerializer[V]) -> MapSerializer[K, V]:
    """Return the type of dicts; values may be None without being declared nullable.

    Raises `UnsupportedTypeError` for keys that can change in place, such as lists, and for nullable keys.
    """
    return MapSerializer(key, value)
