"""UUIDs, in the layout of Flink's ``UuidSerializer``: sixteen bytes, the most significant first."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from types import MappingProxyType

import pyarrow as pa

from keyedstate.memory.views import DataInputView, DataOutputView
from keyedstate.types.contract.arrow_columns import require_types
from keyedstate.types.scalars.scalar import ClassSerializer, register_singleton

_BYTES = 16


class UuidSerializer(ClassSerializer[uuid.UUID]):
    """``uuid.UUID``; a column of sixteen bytes each.  ``is_safe`` is not kept."""

    type_name = "uuid"
    python_type = uuid.UUID
    constraint = "a uuid.UUID"

    arrow_type = pa.binary(_BYTES)

    advice = MappingProxyType({str: "Convert it with uuid.UUID(), or declare the state as STRING."})

    def serialize(self, value: uuid.UUID, out: DataOutputView) -> None:
        if value.__class__ is not uuid.UUID:
            raise self.mismatch(value)
        out.write(value.bytes)

    def deserialize(self, source: DataInputView) -> uuid.UUID:
        return uuid.UUID(bytes=source.read(_BYTES))

    def read_column(self, array: pa.Array) -> list[uuid.UUID | None]:
        found = array.to_numpy(zero_copy_only=False).tolist()
        return [None if value is None else uuid.UUID(bytes=value) for value in found]

    def write_column(self, values: Sequence[uuid.UUID | None]) -> pa.Array:
        require_types(values, frozenset((uuid.UUID, type(None))))
        return pa.array([None if value is None else value.bytes for value in values], self.arrow_type)


UUID = UuidSerializer()
register_singleton(UUID)
