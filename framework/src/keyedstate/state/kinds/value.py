"""Value state: one value per key and namespace (Flink's ``ValueState``)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar, cast, overload

from keyedstate.backend import AnyStateTable, ColumnTable, StateKind
from keyedstate.row_path import with_cached_access
from keyedstate.state.context import KeyContext
from keyedstate.state.kinds.accessor import StateAccessor, StateDescriptor, chunks
from keyedstate.state.kinds.checks import check_initial, check_type, check_value
from keyedstate.state.ttl.config import Ttl
from keyedstate.types import TypeSerializer, value_checker

T = TypeVar("T")
V = TypeVar("V")


@with_cached_access(KeyContext)
class ValueStateAccessor(StateAccessor, Generic[T]):
    """One value per key and namespace; `T` includes None where the state has no default."""

    __slots__ = ("_default", "_is_value", "_serializer")

    def __init__(self, descriptor: ValueState[T], table: AnyStateTable, context: KeyContext) -> None:
        super().__init__(descriptor, table, context)
        self._serializer = descriptor.plain_serializer
        self._is_value = value_checker(self._serializer)
        self._default = descriptor.default

    def value(self) -> T:
        """Return the value, or a copy of the default where the key has none.

        A backend that keeps objects by reference returns the stored object: changing a mutable one in place
        changes the state. Call `update` all the same: other backends need it, and so do incremental
        checkpoints.
        """
        context = self._context
        if context.key is self._cached_key:
            return self._cached  # type: ignore[no-any-return]
        value: Any
        if self._caching:
            value = self._look_up()
            if value is None:
                # Immutable, as all that is cached.
                value = self._cached = self._default
            return value  # type: ignore[no-any-return]
        value = self._table.get(context.key_group, context.key, self._namespace)
        if value is None and self._default is not None:
            # Copied, so that a change in place of one key's default reaches no other key.
            value = self._serializer.copy(self._default)
        return value  # type: ignore[no-any-return]

    def update(self, value: T | None) -> None:
        """Set the value; None is the same as `clear`."""
        if value is None:
            self.clear()
            return
        if not self._is_value(value):
            check_value(self.name, self._serializer, value)
        context = self._context
        if context.key is self._cached_key:
            self._cached = value
            self._dirty = True
        elif self._caching:
            if self._dirty:
                self._write_cached()
            self._cached_key, self._cached_turn, self._cached = context.key, context.turn, value
            self._dirty = True
        else:
            self._table.put(context.key_group, context.key, self._namespace, value)

    @property
    def column_table(self) -> ColumnTable[Any] | None:
        """The table, where it gives and takes values by columns; None also where accesses are sampled."""
        table = self._table
        return table if type(self) is ValueStateAccessor and isinstance(table, ColumnTable) else None

    # -- many keys ----------------------------------------------------------------------------------------

    def get_many(self, keys: Iterable[Any], key_groups: Sequence[int] | None = None) -> list[T]:
        """Return what `value` returns for each of several keys."""
        keys, groups = self._context.locate(keys, key_groups)
        return self._found(groups, keys)

    def _found(self, groups: list[int], keys: list[Any]) -> list[T]:
        self._flush()
        values = self._table.get_many(groups, keys, self._namespace)
        if self._default is not None:
            default, copy = self._default, self._serializer.copy
            values = [copy(default) if value is None else value for value in values]
        return cast("list[T]", values)

    def update_many(
        self, keys: Iterable[Any], values: Iterable[T | None], key_groups: Sequence[int] | None = None
    ) -> None:
        """Set the values of several keys, as repeated `update` would; all of them or, on an error, none."""
        keys, groups = self._context.locate(keys, key_groups)
        column = self._column(values, keys)
        self._check_column(self._serializer, column)
        self._write_many(groups, keys, column)

    def transform_many(
        self,
        keys: Iterable[Any],
        function: Callable[[slice, list[T]], Iterable[T | None]],
        key_groups: Sequence[int] | None = None,
    ) -> None:
        """Replace the values of several distinct keys by what a function makes of them, chunk by chunk.

        Parameters
        ----------
        keys : iterable
            Each at most once.
        function : callable
            Takes the positions of a chunk of the keys, as a slice, and what `value` returns for each of them;
            returns their new values, None for a key to be cleared.
        key_groups : sequence of int, optional

        Raises
        ------
        ValueError
            Where a key is repeated; no state is changed.
        StateValueError
            Where a new value is not of the declared type; earlier chunks are changed.
        """
        keys, groups = self._context.locate(keys, key_groups)
        if len(set(keys)) < len(keys):
            repeated = next(key for key, times in Counter(keys).items() if times > 1)
            raise ValueError(
                f"the key {repeated!r} comes twice; give each key once to transform_many() of the state "
                f"{self.name!r}"
            )
        for rows in chunks(len(keys)):
            some_keys, some_groups = keys[rows], groups[rows]
            column = self._column(function(rows, self._found(some_groups, some_keys)), some_keys)
            self._check_column(self._serializer, column)
            self._write_many(some_groups, some_keys, column)


class ValueState(StateDescriptor[ValueStateAccessor[T]]):
    """One value per key.

    Parameters
    ----------
    name : str
    type : TypeSerializer
        For example ``types.INT64``.
    default : optional
        What `ValueStateAccessor.value` returns, as a copy, where there is no value.
    ttl : Ttl, optional
        How long a value lives; for ever without.
    """

    kind = StateKind.VALUE
    _accessor_class = ValueStateAccessor

    @overload
    def __init__(
        self: ValueState[V | None],
        name: str,
        type: TypeSerializer[V],
        default: None = None,
        *,
        ttl: Ttl | None = None,
    ) -> None: ...
    @overload
    def __init__(self, name: str, type: TypeSerializer[T], default: T, *, ttl: Ttl | None = None) -> None: ...
    def __init__(
        self, name: str, type: TypeSerializer[Any], default: Any = None, *, ttl: Ttl | None = None
    ) -> None:
        check_type(name, "type", type)
        super().__init__(name, type, ttl)
        if default is not None:
            check_initial(name, "default", type, default)
        self.default = default
