"""Single NumPy numbers, in the big-endian layouts of Java's numbers of the same width."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from keyedstate.errors import UnsupportedTypeError
from keyedstate.memory.views import DataInputView, DataOutputView
from keyedstate.types.contract.arrow_columns import plain_numbers, put_nones
from keyedstate.types.contract.registry import restorable
from keyedstate.types.contract.serializer import Compatibility, SerializerSnapshot, TypeSerializer
from keyedstate.types.scalars.scalar import ClassSerializer

_NAMES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64",
)  # fmt: skip


@restorable
class NumpyScalarSerializer(ClassSerializer[Any]):
    """NumPy's own numbers, such as ``numpy.float32(0.5)``.

    As keys of maps every NaN is one, and -0.0 is 0.0.
    """

    type_name = "numpy"

    def __init__(self, dtype: str) -> None:
        self.dtype = np.dtype(dtype)
        self.python_type = self.dtype.type
        self.normalized_key_bytes = self.dtype.itemsize
        self.constraint = f"a numpy.{self.dtype.type.__name__}"
        self.needs_canonical = self.dtype.kind == "f"
        self._big_endian = self.dtype.newbyteorder(">")
        #: The only NaN in keys: dicts find a NaN by identity.
        self._nan = self.python_type("nan") if self.needs_canonical else None

    def parts(self) -> tuple[object, ...]:
        return (self.dtype.name,)

    def __repr__(self) -> str:
        return f"numpy_scalar({self.dtype.name!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self.parts()

    def snapshot_content(self) -> dict[str, Any]:
        return {"dtype": self.dtype.name}

    @classmethod
    def restore(cls, document: Mapping[str, Any]) -> NumpyScalarSerializer:
        if document["dtype"] not in _NAMES:
            raise ValueError(f"no dtype of a NumPy number: {document['dtype']!r}")
        return cls(document["dtype"])

    @property
    def arrow_type(self) -> pa.DataType:
        return pa.from_numpy_dtype(self.dtype)

    def way_out(self, value: object) -> str:
        if value is not None:
            return f"Convert it with numpy.{self.python_type.__name__}(), or declare the state with its type."
        return super().way_out(value)

    def serialize(self, value: Any, out: DataOutputView) -> None:
        if value.__class__ is not self.python_type:
            raise self.mismatch(value)
        if value != value:
            value = self._nan
        out.write(np.asarray(value, self._big_endian).tobytes())

    def deserialize(self, source: DataInputView) -> Any:
        data = source.read(self.dtype.itemsize)
        if self.dtype.kind == "b" and data > b"\1":
            raise source.corrupt(f"a boolean is 0 or 1, found {data[0]}")
        return np.frombuffer(data, self._big_endian).astype(self.dtype)[0]

    def canonical(self, value: Any) -> Any:
        if not self.needs_canonical:
            return value
        return value + self.python_type(0) if value == value else self._nan

    def read_column(self, array: pa.Array) -> list[Any]:
        return put_nones(list(plain_numbers(array)), array)

    def resolve_compatibility(self, old: SerializerSnapshot) -> Compatibility:
        if old.type_name == self.type_name:
            dtype = np.dtype(old.content["dtype"])
            if dtype.kind == self.dtype.kind and dtype.itemsize < self.dtype.itemsize:
                return Compatibility.after_migration(f"{old} was widened to {self!r}")
        return super().resolve_compatibility(old)

    def conversion_from(self, old: TypeSerializer[Any]) -> Callable[[Any], Any] | None:
        return None if old == self else self.python_type


def numpy_scalar(dtype: object) -> NumpyScalarSerializer:
    """Return the type of NumPy's numbers of one dtype, such as ``numpy.int64``.

    It is a boolean, a signed or unsigned integer of 8 to 64 bits, or a float of 32 or 64. Another dtype, or a
    foreign byte order, raises `UnsupportedTypeError`.
    """
    try:
        found = np.dtype(dtype)  # type: ignore[call-overload]
    except TypeError:
        found = None
    if found is None or found.name not in _NAMES or not found.isnative:
        raise UnsupportedTypeError(
            f"numpy_scalar({dtype!r})",
            "it is no boolean, integer or float of this machine's byte order with at most 64 bits",
            "Convert the values with .item() and declare the state with the type of the result.",
        )
    return NumpyScalarSerializer(found.name)
