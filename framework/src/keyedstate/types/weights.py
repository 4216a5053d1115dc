"""What values weigh in memory: of the types whose values may be cached as objects."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from keyedstate.types.collections.maps import MapSerializer
from keyedstate.types.collections.nullable import NullableSerializer
from keyedstate.types.collections.sequences import ListSerializer
from keyedstate.types.collections.ttl import TtlListSerializer, TtlMapSerializer, TtlSerializer
from keyedstate.types.collections.tuples import TupleSerializer
from keyedstate.types.contract.serializer import TypeSerializer
from keyedstate.types.records.rows import AccumulatorsSerializer, RowSerializer

#: Bytes of a tuple, of each of its slots, and of a number.
TUPLE_BYTES: Final = 56
SLOT_BYTES: Final = 8
_NUMBER_BYTES = 32
#: Bytes of an entry of a dict, of a list or a dict that is empty, and of a date and time.
_ENTRY_BYTES = 100
_COLLECTION_BYTES = 64
_TIME_BYTES = 56


class Weight(NamedTuple):
    """The bytes of a value: a fixed number, and what a function returns for the value."""

    fixed: int
    varying: Callable[[Any], int] | None = None


def weight_of(serializer: TypeSerializer[Any]) -> Weight | None:
    """Return what values of a type weigh; None for a type whose values must not be cached.

    A read must not depend on what is cached.  So values that the user may change in place are not cached, nor
    values that a serializer returns otherwise than it got them (a float in 32 bits).  Timestamps are equal to
    what it returns, but may have a ``fold``, or another object of the same zone.
    """
    kind = type(serializer)
    if kind in (AccumulatorsSerializer, RowSerializer, TupleSerializer):
        return _weight_of_parts(list(serializer.field_serializers))  # type: ignore[attr-defined]
    if kind is TtlSerializer:
        inner = weight_of(serializer.value_serializer)  # type: ignore[attr-defined]
        if inner is None:
            return None
        varying = None if inner.varying is None else _of_part(1, inner.varying)
        return Weight(TUPLE_BYTES + 2 * SLOT_BYTES + _NUMBER_BYTES + inner.fixed, varying)
    if kind is NullableSerializer:
        return weight_of(serializer.inner_serializer)  # type: ignore[attr-defined]
    return _SCALARS.get(serializer.type_name)


def weight_of_collection(serializer: TypeSerializer[Any]) -> Weight | None:
    """Return what lists or maps of a type weigh; None where they must not be cached.

    What is cached of them has to be copied for each reader, with the serializer.
    """
    if isinstance(serializer, (ListSerializer, TtlListSerializer)):
        parts, each = [serializer.element_serializer], SLOT_BYTES
        columns: list[Callable[[Any], Iterable[Any]]] = [iter]
    elif isinstance(serializer, (MapSerializer, TtlMapSerializer)):
        if serializer.key_serializer.needs_canonical:
            # Two NaN are two keys of a dict.
            return None
        parts, each = [serializer.key_serializer, serializer.value_serializer], _ENTRY_BYTES
        columns = [iter, dict.values]
    else:
        return None
    weights = [
        found for part in parts if (found := weight_of(part) or weight_of_collection(part)) is not None
    ]
    if len(weights) < len(parts):
        return None
    each += sum(weight.fixed for weight in weights)
    if isinstance(serializer, (TtlListSerializer, TtlMapSerializer)):
        each += (SLOT_BYTES if len(parts) == 1 else _ENTRY_BYTES) + _NUMBER_BYTES
    varying = [(of.varying, column) for of, column in zip(weights, columns, strict=True) if of.varying]

    def weigh(value: Any) -> int:
        return each * len(value) + sum(
            of(part) for of, column in varying for part in column(value) if part is not None
        )

    return Weight(_COLLECTION_BYTES, weigh)


def _weight_of_parts(serializers: Sequence[TypeSerializer[Any]]) -> Weight | None:
    known = [part for part in map(weight_of, serializers) if part is not None]
    if len(known) < len(serializers):
        return None
    fixed = TUPLE_BYTES + sum(SLOT_BYTES + part.fixed for part in known)
    varying = [_of_part(i, part.varying) for i, part in enumerate(known) if part.varying is not None]
    return Weight(fixed, (lambda value: sum(of(value) for of in varying)) if varying else None)


def _of_part(i: int, of: Callable[[Any], int]) -> Callable[[Any], int]:
    return lambda value: 0 if value is None else of(value[i])


_SCALARS = {
    **dict.fromkeys(("int8", "int16", "int32", "int64", "float64"), Weight(_NUMBER_BYTES)),
    **dict.fromkeys(("boolean", "void"), Weight(0)),
    **dict.fromkeys(("string", "bytes"), Weight(0, sys.getsizeof)),
    **dict.fromkeys(("date", "timestamp", "timestamp_ntz"), Weight(_TIME_BYTES)),
}
