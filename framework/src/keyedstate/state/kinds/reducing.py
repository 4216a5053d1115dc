"""Reducing state: the values added under a key and namespace, reduced to one (Flink's ``ReducingState``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar, cast

from keyedstate.backend import AnyStateTable, StateKind
from keyedstate.errors import InvalidDescriptorError
from keyedstate.state.context import KeyContext
from keyedstate.state.kinds.accessor import StateDescriptor
from keyedstate.state.kinds.checks import check_column_made, check_made, check_type, check_value
from keyedstate.state.kinds.merging import AccumulatingStateAccessor
from keyedstate.state.ttl.config import Ttl
from keyedstate.types import TypeSerializer, value_checker

T = TypeVar("T")


class ReducingStateAccessor(AccumulatingStateAccessor, Generic[T]):
    """The reduction of all values added under a key and namespace."""

    __slots__ = ("_is_value",)

    def __init__(self, descriptor: ReducingState[T], table: AnyStateTable, context: KeyContext) -> None:
        super().__init__(descriptor, table, context)
        self._is_value = value_checker(self._serializer)
        self._accumulate = _reducer(self.name, self._serializer, descriptor.function)

    def get(self) -> T | None:
        """Return the reduced value, or None where nothing was added."""
        return cast("T | None", self._stored())

    def add(self, value: T | None) -> None:
        if value is None:
            self.clear()
            return
        if not self._is_value(value):
            check_value(self.name, self._serializer, value)
        self._add_one(value)

    def get_many(self, keys: Iterable[Any], key_groups: Sequence[int] | None = None) -> list[T | None]:
        """Return what `get` returns for each of several keys."""
        return self._read_many(keys, key_groups)

    def _check_added(self, column: list[Any]) -> None:
        self._check_column(self._serializer, column)

    def _merge(self, merged: T, stored: T) -> T:
        return cast(T, self._accumulate(merged, stored))


class ReducingState(StateDescriptor[ReducingStateAccessor[T]]):
    """A reduced value per key.

    Parameters
    ----------
    name : str
    function : callable
        Returns two values of the type reduced to one: ``operator.add``, ``max``, ``lambda a, b: a + b``.
    type : TypeSerializer
        Of the values and of their reduction.
    ttl : Ttl, optional
        How long a reduction lives after the last addition; for ever without.
    """

    kind = StateKind.REDUCING
    _accessor_class = ReducingStateAccessor

    def __init__(
        self,
        name: str,
        function: Callable[[T, T], T],
        type: TypeSerializer[T],
        *,
        ttl: Ttl | None = None,
    ) -> None:
        if not callable(function):
            raise InvalidDescriptorError(
                name, f"its function is {function!r}; give a function of two values, then the type"
            )
        check_type(name, "type", type)
        super().__init__(name, type, ttl)
        self.function = function


def _reducer(
    name: str, serializer: TypeSerializer[T], function: Callable[[T, T], T]
) -> Callable[[T | None, T], T]:
    is_value = value_checker(serializer)

    def reduce(stored: T | None, value: T) -> T:
        if stored is None:
            return value
        reduced = function(stored, value)
        # The arguments are checked already; one changed in place is checked when it is written out.
        if reduced is not stored and reduced is not value and (reduced is None or not is_value(reduced)):
            check_made(name, serializer, reduced, function)
        return reduced

    def reduce_column(stored: list[T | None], values: list[T]) -> list[T]:
        if type(None) in set(map(type, stored)):
            reduced = [
                value if old is None else function(old, value)
                for old, value in zip(stored, values, strict=True)
            ]
        else:
            reduced = list(map(function, stored, values))  # type: ignore[arg-type] # there is no None
        check_column_made(name, serializer, reduced, function)
        return reduced

    if serializer.immutable:
        reduce.column = reduce_column  # type: ignore[attr-defined]
    return reduce
