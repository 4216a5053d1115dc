"""Namespaces: that of state that has none (Flink's ``VoidNamespace``), and windows.

Windows are types of their own, so that any reader of a checkpoint knows them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from keyedstate.memory.sorting.keys import NormalizedKeys, concatenated
from keyedstate.memory.views import DataInputView, DataOutputView
from keyedstate.types.contract.arrow_columns import has_none, plain_numbers, put_nones, require_types
from keyedstate.types.contract.normalized_keys import number_keys
from keyedstate.types.scalars.scalar import ConstantSerializer, SingletonSerializer, register_singleton

if TYPE_CHECKING:
    from typing_extensions import Self


class _Constant:
    """A class with one instance, which copies and pickles are."""

    __slots__ = ()
    #: The name of the instance in `keyedstate.types`.
    _name: str
    _instance: Any = None

    def __new__(cls) -> Self:
        if cls._instance is None:
            cls._instance = super().__new__(cls)
        instance: Self = cls._instance
        return instance

    def __reduce__(self) -> str:
        return self._name

    def __repr__(self) -> str:
        return self._name


class VoidNamespace(_Constant):
    """The class of `VOID_NAMESPACE`."""

    __slots__ = ()
    _name = "VOID_NAMESPACE"


VOID_NAMESPACE: Final = VoidNamespace()


class VoidSerializer(ConstantSerializer[VoidNamespace]):
    """`VOID_NAMESPACE`, as ``VoidNamespaceSerializer`` writes it."""

    type_name = "void"
    python_type = VoidNamespace
    constraint = "VOID_NAMESPACE"
    constant = VOID_NAMESPACE


VOID = VoidSerializer()
register_singleton(VOID)


#: The bounds of time: Flink's ``Long.MIN_VALUE`` and ``Long.MAX_VALUE``.
_FIRST, _LAST = -(2**63), 2**63 - 1


class TimeWindow(NamedTuple):
    """The times from a start to an end, which is not included, in milliseconds (Flink's ``TimeWindow``)."""

    start: int
    end: int

    @property
    def max_timestamp(self) -> int:
        """The last millisecond of the window."""
        return self.end - 1

    def intersects(self, other: TimeWindow) -> bool:
        """Return whether both share a time, or one ends where the other begins."""
        return self.start <= other.end and self.end >= other.start

    def cover(self, other: TimeWindow) -> TimeWindow:
        """Return the smallest window that contains both."""
        return TimeWindow(min(self.start, other.start), max(self.end, other.end))

    @classmethod
    def starting(cls, start: int, size: int) -> TimeWindow:
        """Return a window of some size, cut off where 64-bit times end."""
        return cls(max(start, _FIRST), min(start + size, _LAST))


class GlobalWindow(_Constant):
    """The class of `GLOBAL_WINDOW`."""

    __slots__ = ()
    _name = "GLOBAL_WINDOW"
    #: Before the watermark of an input that has ended.
    max_timestamp = _LAST


GLOBAL_WINDOW: Final = GlobalWindow()

# Pickles of users name the public module, so that old ones can be read after a move of this one.
for _class in (VoidNamespace, TimeWindow, GlobalWindow):
    _class.__module__ = "keyedstate.types"

_FIELDS = [pa.field("start", pa.int64()), pa.field("end", pa.int64())]


class TimeWindowSerializer(SingletonSerializer[TimeWindow]):
    """Start and end as two big-endian numbers of 64 bits (Flink's ``TimeWindow.Serializer``)."""

    type_name = "time_window"
    python_type = TimeWindow
    constraint = "a TimeWindow of 64-bit milliseconds"

    arrow_type = pa.struct(_FIELDS)
    normalized_key_bytes = 16

    def key_column(self, array: pa.Array) -> NormalizedKeys:
        times = [number_keys(plain_numbers(part)) for part in array.flatten()]
        return concatenated(times, len(array))

    def is_value(self, value: object) -> bool:
        if value.__class__ is not TimeWindow:
            return False
        start, end = value
        return _is_time(start) and _is_time(end)

    def serialize(self, value: TimeWindow, out: DataOutputView) -> None:
        if not self.is_value(value):
            raise self.mismatch(value)
        out.write_long(value.start)
        out.write_long(value.end)

    def deserialize(self, source: DataInputView) -> TimeWindow:
        return TimeWindow(source.read_long(), source.read_long())

    def read_column(self, array: pa.Array) -> list[TimeWindow | None]:
        times = [part.fill_null(0).to_numpy(zero_copy_only=False).tolist() for part in array.flatten()]
        return put_nones(list(map(TimeWindow, *times)), array)

    def write_column(self, values: Sequence[TimeWindow | None]) -> pa.Array:
        require_types(values, frozenset((TimeWindow, type(None))))
        filled: Sequence[Any] = values
        mask = None
        if has_none(values):
            filled = [(0, 0) if value is None else value for value in values]
            mask = pa.array([value is None for value in values], pa.bool_())
        times = np.fromiter(chain.from_iterable(filled), np.int64, 2 * len(filled)).reshape(len(filled), 2)
        return pa.StructArray.from_arrays(
            [pa.array(times[:, 0]), pa.array(times[:, 1])], fields=_FIELDS, mask=mask
        )


class GlobalWindowSerializer(ConstantSerializer[GlobalWindow]):
    """`GLOBAL_WINDOW`, as Flink's ``GlobalWindow.Serializer`` writes it."""

    type_name = "global_window"
    python_type = GlobalWindow
    constraint = "GLOBAL_WINDOW"
    constant = GLOBAL_WINDOW


def _is_time(value: Any) -> bool:
    return value.__class__ is int and _FIRST <= value <= _LAST


TIME_WINDOW = TimeWindowSerializer()
GLOBAL_WINDOW_TYPE = GlobalWindowSerializer()
register_singleton(TIME_WINDOW)
register_singleton(GLOBAL_WINDOW_TYPE)
