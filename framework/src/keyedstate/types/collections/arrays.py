"""One-dimensional NumPy arrays, in the layouts of Flink's primitive array serializers.

A 32-bit count, then the elements as their own types write them (``LongPrimitiveArraySerializer`` and others).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from keyedstate.errors import CorruptDataError, UnsupportedTypeError, ValueTypeError
from keyedstate.memory.views import DataInputView, DataOutputView
from keyedstate.types.contract.arrow_columns import offsets_of
from keyedstate.types.contract.composite import ContainerSerializer, slots_of
from keyedstate.types.contract.registry import restorable
from keyedstate.types.contract.serializer import TypeSerializer
from keyedstate.types.scalars.numbers import BOOLEAN, FLOAT32, FLOAT64, INT8, INT16, INT32, INT64

Array: TypeAlias = np.ndarray[Any, Any]

#: The types of elements, by what Java calls primitive; bytes are `BYTES`.
ELEMENT_DTYPES: dict[TypeSerializer[Any], np.dtype[Any]] = {
    element: np.dtype(element.arrow_type.to_pandas_dtype())
    for element in (BOOLEAN, INT8, INT16, INT32, INT64, FLOAT32, FLOAT64)
}


@restorable
class ArraySerializer(ContainerSerializer[Array]):
    """``numpy.ndarray`` of one dimension and exactly one dtype; an Arrow list column.

    What is read owns its memory and can be changed in place.
    """

    type_name = "array"
    inner_names = ("element",)
    python_type = np.ndarray
    immutable = False

    def __init__(self, element: TypeSerializer[Any]) -> None:
        if element not in ELEMENT_DTYPES:
            raise UnsupportedTypeError(
                f"an array of {element!r}",
                "its elements are no numbers of a fixed width",
                f"Use list_of({element!r}).",
            )
        self.inners = (element,)
        self.element_serializer = element
        self.dtype = ELEMENT_DTYPES[element]
        self._big_endian = self.dtype.newbyteorder(">")

    @property
    def arrow_type(self) -> pa.DataType:
        return pa.list_(self.element_serializer.arrow_type)

    def _fits(self, value: object) -> bool:
        return value.__class__ is np.ndarray and value.ndim == 1 and value.dtype == self.dtype

    def mismatch(self, value: object) -> ValueTypeError:
        if not isinstance(value, np.ndarray):
            return super().mismatch(value)
        if value.__class__ is not np.ndarray:
            way_out = "Convert it with numpy.asarray(): a subclass would come back as a plain array."
        elif value.ndim != 1:
            way_out = f"It has {value.ndim} dimensions: store it with .ravel(), and its shape as well."
        else:
            way_out = f"Its dtype is {value.dtype.str!r}: convert it with .astype({self.dtype.name!r})."
        return ValueTypeError.of(f"{self!r} (an array of {self.dtype.name})", value, way_out)

    def check(self, value: object) -> None:
        if not self._fits(value):
            raise self.mismatch(value)

    def serialize(self, value: Array, out: DataOutputView) -> None:
        if not self._fits(value):
            raise self.mismatch(value)
        out.write_int(len(value))
        if self.dtype.kind == "f":
            # Java writes every NaN as its one NaN.
            value = np.where(np.isnan(value), self.dtype.type(np.nan), value)
        out.write(value.astype(self._big_endian).tobytes())

    def deserialize(self, source: DataInputView) -> Array:
        count = source.read_count()
        data = source.read(count * self.dtype.itemsize)
        if self.dtype.kind == "b" and data.translate(None, b"\0\1"):
            raise source.corrupt("a boolean is 0 or 1, and an array of them holds something else")
        elements: Array = np.frombuffer(data, self._big_endian).astype(self.dtype)
        return elements

    def reads(self, arrow_type: pa.DataType) -> bool:
        return bool(
            (pa.types.is_list(arrow_type) or pa.types.is_large_list(arrow_type))
            and arrow_type.value_type == self.element_serializer.arrow_type
        )

    def read_dense(self, array: pa.Array) -> list[Array]:
        child, bounds = slots_of(array)
        if child.null_count:
            raise CorruptDataError(f"nulls in the column of the elements of {self!r}", 0)
        elements = child.to_numpy(zero_copy_only=False)
        return [elements[start:end].copy() for start, end in pairwise(bounds)]

    def write_dense(self, values: Sequence[Array]) -> pa.Array:
        if not all(map(self._fits, values)):
            raise TypeError("an array that pyarrow would convert silently")
        offsets = offsets_of(map(len, values), len(values), self)
        elements = np.concatenate(values) if values else np.empty(0, self.dtype)
        return pa.ListArray.from_arrays(offsets, pa.array(elements, self.element_serializer.arrow_type))

    def copy(self, value: Array) -> Array:
        duplicate: Array = value.copy()
        return duplicate

    def conversion_from(self, old: TypeSerializer[Any]) -> Callable[[Any], Array] | None:
        if old == self:
            return None
        dtype = self.dtype
        return lambda value: value.astype(dtype)


def array_of(element: TypeSerializer[Any]) -> ArraySerializer:
    """Return the type of one-dimensional NumPy arrays.

    The elements are BOOLEAN, INT8, INT16, INT32, INT64, FLOAT32 or FLOAT64; others raise
    `UnsupportedTypeError`.
    """
    return ArraySerializer(element)
