"""Reducing state: the values added under a key and namespace, reduced to one (Flink's ``ReducingState``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar, cast

from keyedstate.backend import AnyStateTable, StateKind
from keyedstate.errors import InvalidDescriptorError
from keyedstate.state.context import KeyContext
from keyedstate.state.kinds.handles import StateDescriptor, check_type, check_value
from keyedstate.state.kinds.merging import AccumulatingStateHandle, check_column_made, check_made
from keyedstate.state.ttl.config import Ttl
from keyedstate.types import TypeSerializer, value_checker

T = TypeVar("T")


class ReducingStateHandle(AccumulatingStateHandle, Generic[T]):
    """The reduction of all values added under a key and namespace."""

    __slots__ = ("_is_value",)

    def __init__(
        self,
        name: str,
        table: AnyStateTable,
        context: KeyContext,
        serializer: TypeSerializer[T],
        function: Callable[[T, T], T],
    ) -> None:
        super().__init__(name, table, context, serializer, _reducer(name, serializer, function))
        self._is_value = value_checker(serializer)

    def get(self) -> T | None:
        """Return the reduced value, or None where nothing was added."""
        return cast("T | None", self._stored())

    def add(self, value: T | None) -> None:
        """Reduce a value into the state; None is the same as `clear` (Flink's heap state).

        Raises
        ------
        StateValueError
            Where the value, or what the function returns, is not of the declared type; the state stays as it
            was.
        """
        if value is None:
            self.clear()
            return
        if not self._is_value(value):
            check_value(self._name, self._serializer, value)
        self._add_one(value)

    def get_many(self, keys: Iterable[Any], key_groups: Sequence[int] | None = None) -> list[T | None]:
        """Return what `get` returns for each of several keys; see `KeyContext.locate` for both."""
        keys, groups = self._context.locate(keys, key_groups)
        return self._stored_many(keys, groups)

    def _check_added(self, column: list[Any]) -> None:
        self._check_column(self._serializer, column)

    def _merge(self, merged: T, stored: T) -> T:
        return cast(T, self._accumulate(merged, stored))


class ReducingState(StateDescriptor[ReducingStateHandle[T]]):
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

    def create_handle(self, table: AnyStateTable, context: KeyContext) -> ReducingStateHandle[T]:
        return ReducingStateHandle(self.name, table, context, self.serializer, self.function)


def _reducer(
    name: str, serializer: TypeSerializer[T], function: Callable[[T, T], T]
) -> Callable[[T | None, T], T]:
    is_value = value_checker(serializer)

    def reduce(stored: T | None, value: T) -> T:
        if stored is None:
            return value
        reduced = function(stored, value)
        # What was there was checked when it came; one changed in place is checked when it is written out.
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
