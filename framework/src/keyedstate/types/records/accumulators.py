"""Accumulators of several aggregates of one key: plain tuples whose fields have names.

The binary layout and the evolution are those of rows.  The values are no named tuples: each epoch makes one
for each key, and Python's cycle collector untracks plain tuples of numbers, never named ones.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from keyedstate.errors import UnsupportedTypeError, ValueTypeError
from keyedstate.types.contract.composite import restore_inner
from keyedstate.types.contract.serializer import TypeSerializer, restorable
from keyedstate.types.records.rows import RowSerializer


@restorable
class AccumulatorsSerializer(RowSerializer):
    """Plain tuples with one accumulator each, in columns an Arrow struct with the accumulators' names.

    Each of them may be None: older values lack an accumulator that is added later.
    """

    type_name = "accumulators"

    def __init__(self, names: Sequence[str], fields: Sequence[TypeSerializer[Any]]) -> None:
        super().__init__(names, fields)
        self.python_type = tuple
        self.make = tuple

    @classmethod
    def restore(cls, document: Mapping[str, Any]) -> TypeSerializer[Any]:
        fields = map(restore_inner, document["fields"])
        return accumulators_of(dict(zip(document["names"], fields, strict=True)))

    def mismatch(self, value: object) -> ValueTypeError:
        if value.__class__ is tuple:
            return ValueTypeError.of(
                f"{self!r} (a tuple of {len(self.names)})", value, "Give one accumulator for each name."
            )
        return super().mismatch(value)

    def values_of(self, value: tuple[Any, ...]) -> Sequence[Any]:
        if len(value) != len(self.names):
            raise self.mismatch(value)
        return value

    def serialize(self, value: tuple[Any, ...], out: Any) -> None:
        if value.__class__ is tuple:
            self.values_of(value)
        super().serialize(value, out)

    def columns_of(self, values: Sequence[tuple[Any, ...]]) -> Iterable[Sequence[Any]]:
        if not {len(self.names)}.issuperset(map(len, values)):
            for value in values:
                self.values_of(value)
        # zip(*values) would make an iterator for each value.
        return [list(map(itemgetter(index), values)) for index in range(len(self.names))]

    def are_values(self, values: Collection[Any]) -> bool:
        if not {tuple}.issuperset(map(type, values)) or not {len(self.names)}.issuperset(map(len, values)):
            return False
        return all(
            field.are_values(list(map(itemgetter(index), values)))
            for index, field in enumerate(self.field_serializers)
        )


def accumulators_of(fields: Mapping[str, TypeSerializer[Any]]) -> AccumulatorsSerializer:
    """Return the type of tuples of accumulators with these names; each is ``nullable(...)``.

    Raises
    ------
    UnsupportedTypeError
        Without any field, and for one that may not be None.
    """
    if not fields:
        raise UnsupportedTypeError("no accumulator", "there is nothing to keep", "Use VOID for no value.")
    serializer = AccumulatorsSerializer(tuple(fields), tuple(fields.values()))
    for name, may_be_null in zip(serializer.names, serializer.may_be_null, strict=True):
        if not may_be_null:
            raise UnsupportedTypeError(
                f"the accumulator {name!r}", "older values may lack it", "Make its type nullable(...)."
            )
    return serializer
