"""Values, lists and maps with the times from which their time to live counts (Flink's ``TtlSerializer``)."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, pairwise
from operator import add, itemgetter
from struct import Struct
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa

from keyedstate.errors import UnsupportedTypeError, ValueTypeError
from keyedstate.memory.views import DataInputView, DataOutputView
from keyedstate.types.collections.maps import MapSerializer, map_of
from keyedstate.types.collections.nullable import nullable
from keyedstate.types.collections.sequences import ListSerializer, list_of
from keyedstate.types.contract.arrow_columns import offsets_of
from keyedstate.types.contract.composite import (
    CompositeSerializer,
    ContainerSerializer,
    Conversion,
    converted,
    read_inner,
    restore_inner,
    slots_of,
    write_inner,
)
from keyedstate.types.contract.registry import restorable
from keyedstate.types.contract.serializer import TypeSerializer

T = TypeVar("T")
C = TypeVar("C", bound="TimedSerializer[Any]")
K = TypeVar("K")
V = TypeVar("V")

_STAMP, _VALUE = itemgetter(0), itemgetter(1)
_LONG = range(-(2**63), 2**63)
_STAMP_BYTES = Struct(">q").pack


class TimedSerializer(ContainerSerializer[T], Generic[T]):
    """What the serializers of values with timestamps share: the plain parts, and the name of their clock."""

    clock: str
    #: Of the value without timestamps.
    plain_type: TypeSerializer[Any]

    @classmethod
    def restore(cls, document: Mapping[str, Any]) -> TypeSerializer[Any]:
        return cls._of([restore_inner(document[name]) for name in cls.inner_names], str(document["clock"]))

    @classmethod
    def _of(cls: type[C], inners: Sequence[TypeSerializer[Any]], clock: str) -> C:
        make: Callable[..., C] = cls
        return make(*inners, clock)

    def rebuild(self: C, inners: Sequence[TypeSerializer[Any]]) -> C:
        return self._of(inners, self.clock)

    def parts(self) -> tuple[object, ...]:
        return *self.inners, self.clock

    def snapshot_content(self) -> dict[str, Any]:
        return {"clock": self.clock, **super().snapshot_content()}


@restorable
class TtlSerializer(TimedSerializer["tuple[int, T]"], Generic[T]):
    """Pairs of a timestamp in milliseconds and a value; as bytes a 64-bit long and then the value.

    The column is a struct of ``timestamp`` and ``value``, so that any Arrow tool shows the age of an entry.

    Raises `UnsupportedTypeError` where the value has timestamps already (SER-09).
    """

    type_name = "ttl"
    inner_names = ("value",)
    python_type = tuple

    def __init__(self, value: TypeSerializer[T], clock: str) -> None:
        if _is_timed(value):
            raise UnsupportedTypeError(
                f"a time to live of {value!r}",
                "the value has a time to live already",
                "Give the state one time to live.",
            )
        self.inners = (value,)
        self.value_serializer = self.plain_type = value
        self.clock = clock
        self.immutable = value.immutable
        self.needs_canonical = value.needs_canonical

    def __repr__(self) -> str:
        return f"{self.value_serializer!r} with a time to live in {self.clock}"

    @property
    def arrow_type(self) -> pa.DataType:
        return pa.struct(
            [("timestamp", pa.timestamp("ms", "UTC")), ("value", self.value_serializer.arrow_type)]
        )

    def serialize(self, value: tuple[int, T], out: DataOutputView) -> None:
        if not self._is_pair(value):
            raise self.mismatch(value)
        out.write_long(value[0])
        self.value_serializer.serialize(value[1], out)

    def deserialize(self, source: DataInputView) -> tuple[int, T]:
        return source.read_long(), self.value_serializer.deserialize(source)

    def to_bytes_many(self, values: Sequence[tuple[int, T]]) -> list[bytes]:
        stamps = map(_STAMP_BYTES, map(_STAMP, values))
        made = self.value_serializer.to_bytes_many(list(map(_VALUE, values)))
        return list(map(add, stamps, made))

    def from_bytes_many(self, data: Sequence[bytes]) -> list[tuple[int, T]]:
        if min(map(len, data), default=8) < 8:
            return super().from_bytes_many(data)
        stamps = np.frombuffer(b"".join([one[:8] for one in data]), ">i8").tolist()
        return list(
            zip(stamps, self.value_serializer.from_bytes_many([one[8:] for one in data]), strict=True)
        )

    def reads(self, arrow_type: pa.DataType) -> bool:
        return bool(
            pa.types.is_struct(arrow_type)
            and arrow_type.num_fields == 2
            and arrow_type.field(0).type == pa.timestamp("ms", "UTC")
        )

    def read_dense(self, array: pa.Array) -> list[tuple[int, T]]:
        stamps, values = self.read_parts(array)
        return list(zip(stamps.to_pylist(), values, strict=True))

    def read_parts(self, array: pa.Array) -> tuple[pa.Array, list[T]]:
        """Return the timestamps, as a column of integers, and the values of an array without null slots."""
        # Not field(): a sliced struct array hides its nulls and its offset there.
        stamps, values = array.flatten()
        return stamps.view(pa.int64()), read_inner(self.value_serializer, values, "value")

    def write_dense(self, values: Sequence[tuple[int, T]]) -> pa.Array:
        for value in values:
            if len(value) != 2:
                raise self.mismatch(value)
        stamps = pa.array(map(_STAMP, values), pa.int64(), size=len(values))
        return self.write_parts(stamps, list(map(_VALUE, values)))

    def write_parts(self, stamps: pa.Array, values: Sequence[T]) -> pa.Array:
        """Return the column of timestamps, a column of integers, and values."""
        column = write_inner(self.value_serializer, values)
        return pa.StructArray.from_arrays(
            [stamps.view(pa.timestamp("ms", "UTC")), column], names=["timestamp", "value"]
        )

    def _is_pair(self, value: object) -> bool:
        return (
            value.__class__ is tuple and len(value) == 2 and value[0].__class__ is int and value[0] in _LONG
        )

    def mismatch(self, value: object) -> ValueTypeError:
        if value.__class__ is tuple:
            return ValueTypeError.of(
                f"{self!r} (a timestamp in milliseconds and a value)", value, "Give both, the time first."
            )
        return super().mismatch(value)

    def check(self, value: object) -> None:
        if not self._is_pair(value):
            raise self.mismatch(value)
        self.value_serializer.check(value[1])  # type: ignore[index]

    def copy(self, value: tuple[int, T]) -> tuple[int, T]:
        return value if self.immutable else (value[0], self.value_serializer.copy(value[1]))

    def canonical(self, value: tuple[int, T]) -> tuple[int, T]:
        return (value[0], self.value_serializer.canonical(value[1])) if self.needs_canonical else value

    def convert(self, conversions: Sequence[Conversion], value: Any) -> tuple[int, T]:
        return value[0], converted(conversions[0], value[1])


class TimedList(list[T]):
    """A list with the timestamp of each element in `stamps`.

    They are no pairs, so that a read is a copy of the list and a timestamp takes 8 bytes.
    """

    __slots__ = ("stamps",)

    stamps: array[int]

    @classmethod
    def of(cls, elements: Iterable[T], stamps: Iterable[int]) -> TimedList[T]:
        """Return a list of elements with as many timestamps."""
        # No __init__ of our own: a list of one element is made for every new key.
        made = cls(elements)
        made.stamps = array("q", stamps)
        return made


class TimedDict(dict[K, V]):
    """A dict with the timestamp of each entry, by its key, in `stamps`; both have the same order.

    They are no pairs, so that to iterate over the map is to iterate over a dict.
    """

    __slots__ = ("stamps",)

    stamps: dict[K, int]

    @classmethod
    def of(cls, entries: Mapping[K, V] | Iterable[tuple[K, V]], stamps: dict[K, int]) -> TimedDict[K, V]:
        """Return a dict of entries with a timestamp for each."""
        # No __init__ of our own: a dict of one entry is made for every new key.
        made = cls(entries)
        made.stamps = stamps
        return made

    def __delitem__(self, key: K) -> None:
        super().__delitem__(key)
        del self.stamps[key]

    def pop(self, key: K, *default: Any) -> Any:
        """Remove an entry with its timestamp."""
        self.stamps.pop(key, None)
        return super().pop(key, *default)


class _TimedCollectionSerializer(TimedSerializer[T], Generic[T]):
    """A list or map whose parts have timestamps: written as the list or map of `TtlSerializer`'s pairs."""

    immutable = False
    #: The serializer of the pairs, and that of the list or map of them.
    _timed: TtlSerializer[Any]
    _pairs: ContainerSerializer[Any]

    @property
    def arrow_type(self) -> pa.DataType:
        return self._pairs.arrow_type

    def reads(self, arrow_type: pa.DataType) -> bool:
        return self._pairs.reads(arrow_type)


@restorable
class TtlListSerializer(_TimedCollectionSerializer[TimedList[T]], Generic[T]):
    """Lists whose elements have timestamps."""

    plain_type: ListSerializer[T]
    type_name = "ttl-list"
    inner_names = ("element",)
    python_type = TimedList

    def __init__(self, element: TypeSerializer[T], clock: str) -> None:
        self._timed = TtlSerializer(element, clock)
        self._pairs = list_of(self._timed)
        self.inners = (element,)
        self.element_serializer = element
        self.plain_type = list_of(element)
        self.clock = clock
        self.needs_canonical = element.needs_canonical

    def __repr__(self) -> str:
        return f"list_of({self._timed!r})"

    def serialize(self, value: TimedList[T], out: DataOutputView) -> None:
        if value.__class__ is not TimedList:
            raise self.mismatch(value)
        self._pairs.serialize(list(zip(value.stamps, value, strict=True)), out)

    def deserialize(self, source: DataInputView) -> TimedList[T]:
        pairs = self._pairs.deserialize(source)
        return TimedList.of(map(_VALUE, pairs), map(_STAMP, pairs))

    def read_dense(self, array: pa.Array) -> list[TimedList[T]]:
        child, bounds = slots_of(array)
        stamps, elements = self._timed.read_parts(child)
        numbers = stamps.to_numpy()
        return [
            TimedList.of(elements[start:end], numbers[start:end].tolist()) for start, end in pairwise(bounds)
        ]

    def write_dense(self, values: Sequence[TimedList[T]]) -> pa.Array:
        offsets = offsets_of(map(len, values), len(values), self)
        stamps = pa.array(chain.from_iterable(value.stamps for value in values), pa.int64())
        pairs = self._timed.write_parts(stamps, list(chain.from_iterable(values)))
        return pa.ListArray.from_arrays(offsets, pairs)

    def check(self, value: object) -> None:
        if not isinstance(value, TimedList) or len(value.stamps) != len(value):
            raise self.mismatch(value)
        self.plain_type.check(list(value))

    def copy(self, value: TimedList[T]) -> TimedList[T]:
        element = self.element_serializer
        return TimedList.of(value if element.immutable else map(element.copy, value), value.stamps)

    def canonical(self, value: TimedList[T]) -> TimedList[T]:
        if not self.needs_canonical:
            return value
        return TimedList.of(self.plain_type.canonical(value), value.stamps)

    def convert(self, conversions: Sequence[Conversion], value: Any) -> TimedList[T]:
        return TimedList.of(self.plain_type.convert(conversions, value), value.stamps)


@restorable
class TtlMapSerializer(_TimedCollectionSerializer[TimedDict[K, "V | None"]], Generic[K, V]):
    """Maps whose entries have timestamps.

    Values may be None: as bytes they are nullable, behind their timestamps.
    """

    plain_type: MapSerializer[K, V]
    type_name = "ttl-map"
    inner_names = ("key", "value")
    python_type = TimedDict

    def __init__(self, key: TypeSerializer[K], value: TypeSerializer[V], clock: str) -> None:
        values: TypeSerializer[Any] = value if value.null_is_value else nullable(value)
        self._timed = TtlSerializer(values, clock)
        self._pairs = map_of(key, self._timed)
        self.inners = (key, value)
        self.key_serializer = key
        self.value_serializer = value
        self.plain_type = map_of(key, value)
        self.clock = clock
        self.needs_canonical = self._pairs.needs_canonical

    def __repr__(self) -> str:
        return f"map_of({self.key_serializer!r}, {self._timed!r})"

    def serialize(self, value: TimedDict[K, V | None], out: DataOutputView) -> None:
        if value.__class__ is not TimedDict:
            raise self.mismatch(value)
        stamps = value.stamps
        self._pairs.serialize({key: (stamps[key], item) for key, item in value.items()}, out)

    def deserialize(self, source: DataInputView) -> TimedDict[K, V | None]:
        pairs = self._pairs.deserialize(source).items()
        return TimedDict.of(
            {key: pair[1] for key, pair in pairs if pair}, {key: pair[0] for key, pair in pairs if pair}
        )

    def read_dense(self, array: pa.Array) -> list[TimedDict[K, V | None]]:
        entries, bounds = slots_of(array)
        keys = read_inner(self.key_serializer, entries.field(0), "keys")
        stamps, values = self._timed.read_parts(entries.field(1))
        numbers = stamps.to_pylist()
        return [
            TimedDict.of(
                zip(keys[start:end], values[start:end], strict=True),
                dict(zip(keys[start:end], numbers[start:end], strict=True)),
            )
            for start, end in pairwise(bounds)
        ]

    def write_dense(self, values: Sequence[TimedDict[K, V | None]]) -> pa.Array:
        offsets = offsets_of(map(len, values), len(values), self)
        keys = write_inner(self.key_serializer, list(chain.from_iterable(values)))
        stamps = pa.array([value.stamps[key] for value in values for key in value], pa.int64())
        pairs = self._timed.write_parts(stamps, list(chain.from_iterable(map(dict.values, values))))
        return pa.MapArray.from_arrays(offsets, keys, pairs)

    def check(self, value: object) -> None:
        if not isinstance(value, TimedDict) or value.stamps.keys() != value.keys():
            raise self.mismatch(value)
        self.plain_type.check(dict(value))

    def copy(self, value: TimedDict[K, V | None]) -> TimedDict[K, V | None]:
        if self.value_serializer.immutable:
            return TimedDict.of(value, value.stamps.copy())
        return TimedDict.of(self.plain_type.copy(value), value.stamps.copy())

    def canonical(self, value: TimedDict[K, V | None]) -> TimedDict[K, V | None]:
        if not self.needs_canonical:
            return value
        return TimedDict.of(self.plain_type.canonical(value), self._canonical_stamps(value))

    def with_canonical_keys(self, value: TimedDict[K, V | None]) -> TimedDict[K, V | None]:
        """Return a map whose keys are in the form by which they are looked up."""
        return TimedDict.of(self.plain_type.with_canonical_keys(value), self._canonical_stamps(value))

    def _canonical_stamps(self, value: TimedDict[K, V | None]) -> dict[K, int]:
        key_of = self.key_serializer.canonical
        return {key_of(key): stamp for key, stamp in value.stamps.items()}

    def convert(self, conversions: Sequence[Conversion], value: Any) -> TimedDict[K, V | None]:
        stamps = {converted(conversions[0], key): stamp for key, stamp in value.stamps.items()}
        return TimedDict.of(self.plain_type.convert(conversions, value), stamps)


def plain_type(serializer: TypeSerializer[Any]) -> TypeSerializer[Any]:
    """Return the serializer of a value without the timestamps of a time to live, where it has any."""
    return serializer.plain_type if isinstance(serializer, TimedSerializer) else serializer


def _is_timed(serializer: TypeSerializer[Any]) -> bool:
    if isinstance(serializer, TimedSerializer):
        return True
    return isinstance(serializer, CompositeSerializer) and any(map(_is_timed, serializer.inners))
