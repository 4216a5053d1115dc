"""Aggregating state: an accumulator per key and namespace (Flink's ``AggregatingState``)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

from keyedstate.backend import AnyStateTable, StateKind
from keyedstate.errors import InvalidDescriptorError, MergeError, forgotten_call
from keyedstate.state.context import KeyContext
from keyedstate.state.kinds.accessor import StateDescriptor
from keyedstate.state.kinds.checks import check_column_made, check_initial, check_made, check_type
from keyedstate.state.kinds.merging import AccumulatingStateAccessor
from keyedstate.state.ttl.config import Ttl
from keyedstate.types import TypeSerializer, value_checker

IN = TypeVar("IN")
ACC = TypeVar("ACC")
OUT = TypeVar("OUT")


class AggregateFunction(ABC, Generic[IN, ACC, OUT]):
    """How values become an accumulator, and an accumulator a result (Flink's ``AggregateFunction``).

    One object serves every key, so it must not keep anything of a key.  `add` and `merge` may change the
    accumulator, or the first of two, in place and return it.
    """

    @abstractmethod
    def create_accumulator(self) -> ACC:
        """Return the accumulator of no values."""

    @abstractmethod
    def add(self, value: IN, accumulator: ACC) -> ACC:
        """Return the accumulator with one more value."""

    def add_all(self, values: Sequence[IN], accumulator: ACC) -> ACC:
        """Return the accumulator with several more values, as repeated `add` would.

        Vectorised aggregates call it with the values of a key; override it where there is a faster way.
        """
        for value in values:
            accumulator = self.add(value, accumulator)
        return accumulator

    @abstractmethod
    def get_result(self, accumulator: ACC) -> OUT:
        """Return the result; the accumulator stays as it is."""

    def merge(self, first: ACC, second: ACC) -> ACC:
        """Return two accumulators as one; merging windows need it."""
        raise NotImplementedError


class AggregatingStateAccessor(AccumulatingStateAccessor, Generic[IN, ACC, OUT]):
    """The aggregate of all values added under a key and namespace."""

    __slots__ = ("_function",)

    def __init__(
        self, descriptor: AggregatingState[IN, ACC, OUT], table: AnyStateTable, context: KeyContext
    ) -> None:
        super().__init__(descriptor, table, context)
        self._function = descriptor.function
        self._accumulate = _accumulator(self.name, self._serializer, descriptor.function)

    def get(self) -> OUT | None:
        """Return the result of the accumulator, or None where nothing was added."""
        stored = self._stored()
        return None if stored is None else self._function.get_result(stored)

    def get_many(self, keys: Iterable[Any], key_groups: Sequence[int] | None = None) -> list[OUT | None]:
        """Return what `get` returns for each of several keys."""
        result = self._function.get_result
        found = self._read_many(keys, key_groups)
        return [None if stored is None else result(stored) for stored in found]

    def _merge(self, merged: ACC, stored: ACC) -> ACC:
        function = self._function
        try:
            both = function.merge(merged, stored)
        except NotImplementedError:
            raise MergeError(self.name, type(function).__qualname__, "has no merge()") from None
        if both is not merged and both is not stored:
            check_made(self.name, self._serializer, both, function.merge)
        return both


class AggregatingState(StateDescriptor[AggregatingStateAccessor[IN, ACC, OUT]]):
    """An aggregate per key.

    Parameters
    ----------
    name : str
    function : AggregateFunction
    accumulator_type : TypeSerializer
        Of what is stored; values and results need no type.
    ttl : Ttl, optional
        How long an accumulator lives after the last addition; for ever without.
    """

    kind = StateKind.AGGREGATING
    _accessor_class = AggregatingStateAccessor

    def __init__(
        self,
        name: str,
        function: AggregateFunction[IN, ACC, OUT],
        accumulator_type: TypeSerializer[ACC],
        *,
        ttl: Ttl | None = None,
    ) -> None:
        if not isinstance(function, AggregateFunction):
            raise InvalidDescriptorError(
                name,
                f"its function is {function!r}{forgotten_call(function)}; give an AggregateFunction, then "
                "the accumulator's type",
            )
        check_type(name, "accumulator type", accumulator_type)
        super().__init__(name, accumulator_type, ttl)
        self.function = function


class FoldingState(AggregatingState[IN, ACC, ACC]):
    """A fold per key: an aggregate that begins with a value and is its own result (as in Flink 1).

    In checkpoints it is an aggregating state.  Its namespaces do not merge.

    Parameters
    ----------
    name : str
    initial : object
        The fold before the first value of each key, as a copy.
    function : callable
        Returns ``(fold, added value)`` in one.
    type : TypeSerializer
        Of the fold.
    ttl : Ttl, optional
        How long a fold lives after the last addition; for ever without.
    """

    def __init__(
        self,
        name: str,
        initial: ACC,
        function: Callable[[ACC, IN], ACC],
        type: TypeSerializer[ACC],
        *,
        ttl: Ttl | None = None,
    ) -> None:
        check_type(name, "type", type)
        if not callable(function):
            raise InvalidDescriptorError(name, f"its function is {function!r}; give a function")
        check_initial(name, "initial value", type, initial)
        super().__init__(name, _Fold(initial, function, type), type, ttl=ttl)


class _Fold(AggregateFunction[IN, ACC, ACC]):
    def __init__(self, initial: ACC, function: Callable[[ACC, IN], ACC], type: TypeSerializer[ACC]) -> None:
        self._initial = initial
        self._function = function
        self._copy = type.copy

    def create_accumulator(self) -> ACC:
        return self._copy(self._initial)

    def add(self, value: IN, accumulator: ACC) -> ACC:
        return self._function(accumulator, value)

    def get_result(self, accumulator: ACC) -> ACC:
        return accumulator


def _accumulator(
    name: str, serializer: TypeSerializer[ACC], function: AggregateFunction[IN, ACC, Any]
) -> Callable[[ACC | None, IN], ACC]:
    is_value, add, create = value_checker(serializer), function.add, function.create_accumulator

    def accumulate(stored: ACC | None, value: IN) -> ACC:
        accumulator = add(value, create() if stored is None else stored)
        # One changed in place is checked when it is written out: an add must not cost more as it grows.
        if accumulator is not stored and (accumulator is None or not is_value(accumulator)):
            check_made(name, serializer, accumulator, add)
        return accumulator

    def accumulate_column(stored: list[ACC | None], values: list[IN]) -> list[ACC]:
        before = [create() if old is None else old for old in stored]
        accumulators = list(map(add, values, before))
        check_column_made(name, serializer, accumulators, add)
        return accumulators

    if serializer.immutable:
        accumulate.column = accumulate_column  # type: ignore[attr-defined]
    return accumulate
