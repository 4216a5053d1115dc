"""Records of a class or one of its declared subclasses.

Flink's ``PojoSerializer`` finds unregistered subclasses as it meets them.  Here they are declared, so that a
checkpoint has the fields of every class before the first value is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from keyedstate.errors import CorruptDataError, UnsupportedTypeError, ValueTypeError
from keyedstate.memory.views import DataInputView, DataOutputView
from keyedstate.types.contract.composite import CompositeSerializer, compose
from keyedstate.types.contract.registry import restorable
from keyedstate.types.contract.serializer import Compatibility, SerializerSnapshot, TypeSerializer
from keyedstate.types.records.records import (
    NO_SUBCLASS,
    SUBCLASS,
    TAGGED_SUBCLASS,
    RecordSerializer,
    RestoredRecordSerializer,
    refuse_other_class,
    subclasses_of,
)

_MAX_TAGS = 256


@restorable
class HierarchySerializer(CompositeSerializer[Any]):
    """Records of one class and its subclasses; in columns a struct with one nullable struct per class."""

    type_name = "record"
    tells_null = True

    def __init__(
        self,
        base: RecordSerializer[Any],
        tagged: Sequence[RecordSerializer[Any]],
        named: Sequence[RecordSerializer[Any]],
    ) -> None:
        self.base = base
        #: Subclasses whose tag is their position here; tags that a checkpoint has never change.
        self.tagged = tuple(tagged)
        #: Subclasses that are written with their names.
        self.named = tuple(named)
        self.inners = self.records = (base, *self.tagged, *self.named)
        self.inner_names = tuple(record.name for record in self.records)
        names = list(self.inner_names)
        if len(set(names)) < len(names) or len(self.tagged) > _MAX_TAGS:
            raise UnsupportedTypeError(
                f"{base!r} with the subclasses {', '.join(names[1:])}",
                "a class is declared once, and at most 256 have a tag",
                "Name every subclass once, in subclasses= or in tagged=.",
            )
        self.immutable = all(record.immutable for record in self.records)
        self.needs_canonical = any(record.needs_canonical for record in self.records)
        self._by_class = {record.python_type: record for record in self.records}
        #: Tagged ones, too: they may have been written with their names before they had a tag.
        self._by_name = {record.name: record for record in self.records[1:]}
        self._headers = {base.python_type: b""}
        for tag, record in enumerate(self.tagged):
            self._headers[record.python_type] = bytes((TAGGED_SUBCLASS, tag))
        for record in self.named:
            out = DataOutputView()
            out.write_byte(SUBCLASS)
            out.write_utf(record.name)
            self._headers[record.python_type] = out.to_bytes()
        short = [name.rpartition(".")[2] for name in names]
        #: The name of each class's struct within the column.
        self._members = short if len(set(short)) == len(short) else names

    def parts(self) -> tuple[object, ...]:
        return self.base, self.tagged, self.named

    def __repr__(self) -> str:
        lists = (("tagged", self.tagged), ("subclasses", self.named))
        shown = [
            f"{word}=[{', '.join(record.name for record in records)}]" for word, records in lists if records
        ]
        return f"{repr(self.base)[:-1]}, {', '.join(shown)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self.parts()

    @classmethod
    def restore(cls, document: Mapping[str, Any]) -> TypeSerializer[Any]:
        """Return the serializer of a class, or of a class and its subclasses."""
        base = RestoredRecordSerializer.restore(document)
        if "tagged" not in document and "subclasses" not in document:
            return base
        tagged = list(map(RestoredRecordSerializer.restore, document.get("tagged", ())))
        return cls(base, tagged, list(map(RestoredRecordSerializer.restore, document.get("subclasses", ()))))

    def rebuild(self, inners: Sequence[TypeSerializer[Any]]) -> HierarchySerializer:
        records: Any = tuple(inners)
        tags = 1 + len(self.tagged)
        return HierarchySerializer(records[0], records[1:tags], records[tags:])

    def snapshot_content(self) -> dict[str, Any]:
        return {
            **self.base.snapshot_content(),
            "tagged": [record.snapshot().to_json() for record in self.tagged],
            "subclasses": [record.snapshot().to_json() for record in self.named],
        }

    def _record_of(self, value: object) -> RecordSerializer[Any]:
        record = self._by_class.get(value.__class__)
        if record is None:
            way_out = "Convert the value, or declare the state with the type that it has."
            if value is None:
                way_out = f"Declare the type as nullable({self!r}) if None is a value."
            elif isinstance(value, self.base.python_type):
                way_out = f"Declare {type(value).__name__} among subclasses= or tagged= of record_of."
            raise ValueTypeError.of(f"{self!r} (one of {', '.join(self.inner_names)})", value, way_out)
        return record

    # -- bytes --------------------------------------------------------------------------------------

    def serialize(self, value: Any, out: DataOutputView) -> None:
        record = self._record_of(value)
        out.write(self._headers[value.__class__])
        record.serialize(value, out)

    def deserialize(self, source: DataInputView) -> Any:
        header = source.read_unsigned_byte()
        if header == NO_SUBCLASS:
            return self.base.deserialize_fields(source)
        if header == TAGGED_SUBCLASS:
            tag = source.read_unsigned_byte()
            if tag < len(self.tagged):
                return self.tagged[tag].deserialize(source)
            raise source.corrupt(f"the tag {tag} of {self.base.name}, which has {len(self.tagged)}")
        if header == SUBCLASS:
            name = source.read_utf()
            if name in self._by_name:
                return self._by_name[name].deserialize(source)
            raise source.corrupt(f"{name!r} is no subclass of {self.base.name} that was declared")
        raise source.corrupt(f"a record of {self.base.name} has the header {header}")

    # -- columns ------------------------------------------------------------------------------------

    @property
    def arrow_type(self) -> pa.DataType:
        return pa.struct(
            [(member, record.arrow_type) for member, record in zip(self._members, self.records, strict=True)]
        )

    def reads(self, arrow_type: pa.DataType) -> bool:
        return bool(
            pa.types.is_struct(arrow_type)
            and [arrow_type.field(index).name for index in range(arrow_type.num_fields)] == self._members
        )

    def read_column(self, array: pa.Array) -> list[Any]:
        columns = array.flatten()  # under a null slot everything is null
        found = np.zeros(len(array), np.int64)
        for column in columns:
            found += column.is_valid().to_numpy(zero_copy_only=False)
        if (found != array.is_valid().to_numpy(zero_copy_only=False)).any():
            raise CorruptDataError(f"a record that is not of exactly one class, in {self!r}", 0)
        values: list[Any] = [None] * len(array)
        for record, column in zip(self.records, columns, strict=True):
            for row, value in enumerate(record.from_arrow(column)):
                if value is not None:
                    values[row] = value
        return values

    def write_column(self, values: Sequence[Any]) -> pa.Array:
        for value in values:
            if value is not None:
                self._record_of(value)
        columns = [
            record.to_arrow([value if value.__class__ is record.python_type else None for value in values])
            for record in self.records
        ]
        nulls = np.fromiter((value is None for value in values), np.bool_, len(values))
        return pa.StructArray.from_arrays(columns, names=self._members, mask=pa.array(nulls))

    # -- values -------------------------------------------------------------------------------------

    def check(self, value: object) -> None:
        self._record_of(value).check(value)

    def is_value(self, value: object) -> bool:
        record = self._by_class.get(value.__class__)
        return record is not None and record.is_value(value)

    def copy(self, value: Any) -> Any:
        return value if self.immutable else self._record_of(value).copy(value)

    def canonical(self, value: Any) -> Any:
        return self._record_of(value).canonical(value) if self.needs_canonical else value

    # -- evolution ----------------------------------------------------------------------------------

    def resolve_compatibility(self, old: SerializerSnapshot) -> Compatibility:
        other = refuse_other_class(self.base, old)
        if other is not None:
            return other
        documents = [*old.content.get("tagged", ()), *old.content.get("subclasses", ())]
        written = {document["class"]: SerializerSnapshot.from_json(document) for document in documents}
        missing = sorted(written.keys() - self._by_name.keys())
        if missing:
            return Compatibility.incompatible(
                f"the subclasses {', '.join(missing)} of {self.base.name} are no longer declared, and values "
                "may be theirs"
            )
        nested = [("", self.base, self.base.resolve_fields(old))]
        for record in self.records[1:]:
            verdict = Compatibility.AS_IS
            if record.name in written:
                verdict = record.resolve_compatibility(written[record.name])
            nested.append((f"the subclass {record.name}", record, verdict))
        composed = compose(nested, self.rebuild)
        if composed.is_incompatible or composed.is_after_migration:
            return composed
        records: list[Any] = [verdict.serializer or record for _, record, verdict in nested]
        by_name = {record.name: record for record in records[1:]}
        old_tags, old_names = subclasses_of(old)
        tags = [*old_tags, *(record.name for record in self.tagged if record.name not in old_tags)]
        merged = HierarchySerializer(
            records[0],
            [by_name.pop(name) for name in tags],
            list(by_name.values()),
        )
        unchanged = tags == old_tags and [record.name for record in self.named] == old_names
        if unchanged and merged == self:
            return Compatibility.AS_IS
        return Compatibility.reconfigured_with(
            merged, f"subclasses of {self.base.name} keep their old tags, new ones follow"
        )

    def conversion_from(self, old: TypeSerializer[Any]) -> Callable[[Any], Any] | None:
        records = dict(_records_of(self))
        conversions = {
            record.python_type: records[name].conversion_from(record) for name, record in _records_of(old)
        }
        if not any(conversions.values()):
            return None

        def convert(value: Any) -> Any:
            conversion = conversions[value.__class__]
            return value if conversion is None else conversion(value)

        return convert


def _records_of(serializer: TypeSerializer[Any]) -> Iterator[tuple[str, RecordSerializer[Any]]]:
    records = serializer.records if isinstance(serializer, HierarchySerializer) else (serializer,)
    for record in records:
        assert isinstance(record, RecordSerializer)
        yield record.name, record
