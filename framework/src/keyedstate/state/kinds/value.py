"""Value state: one value per key and namespace (Flink's ``ValueState``)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar, cast, overload

from keyedstate.backend import AnyStateTable, ColumnTable, StateKind
from keyedstate.errors import InvalidDescriptorError, ValueTypeError
from keyedstate.state.context import KeyContext
from keyedstate.state.kinds.handles import StateDescriptor, StateHandle, check_type, check_value, stretches
from keyedstate.state.ttl.config import Ttl
from keyedstate.types import TypeSerializer, value_checker

T = TypeVar("T")
V = TypeVar("V")


class ValueStateHandle(StateHandle, Generic[T]):
    """One value per key and namespace; `T` is what there is, with None where the state has no default."""

    __slots__ = ("_default", "_is_value", "_serializer")

    def __init__(
        self,
        name: str,
        table: AnyStateTable,
        context: KeyContext,
        serializer: TypeSerializer[T],
        default: T | None,
    ) -> None:
        super().__init__(name, table, context)
        self._serializer = serializer
        self._is_value = value_checker(serializer)
        self._default = default

    def value(self) -> T:
        """Return the value, or a copy of the default where there is none.

        Notes
        -----
        A backend that keeps objects by reference returns the stored object: changing a mutable one in
        place changes the state.  Write such a change with `update` all the same: other backends need it,
        and only then does an incremental checkpoint have it.
        """
        context = self._context
        if context.key is self._held_key:
            return self._held  # type: ignore[no-any-return]
        value: Any
        if self._holds:
            value = self._look_up()
            if value is None:
                # Immutable, as all that is held.
                value = self._held = self._default
            return value  # type: ignore[no-any-return]
        value = self._table.get(context.key_group, context.key, self._namespace)
        if value is None and self._default is not None:
            # Copied, so that a change in place of one key's default reaches no other key.
            value = self._serializer.copy(self._default)
        return value  # type: ignore[no-any-return]

    def update(self, value: T | None) -> None:
        """Set the value; None is the same as `clear`.

        Raises
        ------
        StateValueError
            Where the value is not of the declared type; the state stays as it was.
        """
        if value is None:
            self.clear()
            return
        if not self._is_value(value):
            check_value(self._name, self._serializer, value)
        context = self._context
        if context.key is self._held_key:
            self._held = value
            self._changed = True
        elif self._holds:
            if self._changed:
                self._put_aside()
            self._held_key, self._held_turn, self._held = context.key, context.turn, value
            self._changed = True
        else:
            self._table.put(context.key_group, context.key, self._namespace, value)

    @property
    def column_table(self) -> ColumnTable[Any] | None:
        """The table, where it gives and takes values by columns; None also where accesses are sampled."""
        table = self._table
        return table if type(self) is ValueStateHandle and isinstance(table, ColumnTable) else None

    # -- many keys ----------------------------------------------------------------------------------------

    def get_many(self, keys: Iterable[Any], key_groups: Sequence[int] | None = None) -> list[T]:
        """Return what `value` returns for each of several keys; see `KeyContext.locate` for both."""
        keys, groups = self._context.locate(keys, key_groups)
        return self._found(groups, keys)

    def _found(self, groups: list[int], keys: list[Any]) -> list[T]:
        self._let_go()
        values = self._table.get_many(groups, keys, self._namespace)
        if self._default is not None:
            default, copy = self._default, self._serializer.copy
            values = [copy(default) if value is None else value for value in values]
        return cast("list[T]", values)

    def update_many(
        self, keys: Iterable[Any], values: Iterable[T | None], key_groups: Sequence[int] | None = None
    ) -> None:
        """Set the values of several keys, as `update` would one after the other.

        Raises
        ------
        StateValueError
            Where one of the values is not of the declared type; no state is changed.
        """
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
        """Replace the values of several distinct keys by what a function makes of them, a stretch at a time.

        Parameters
        ----------
        keys : iterable
            Each at most once.
        function : callable
            Takes the places of a stretch of the keys, as a slice, and what `value` returns for each of them;
            returns their new values, None for a key to be cleared.
        key_groups : sequence of int, optional
            See `KeyContext.locate`.

        Raises
        ------
        ValueError
            Where a key comes twice; no state is changed.
        StateValueError
            Where a new value is not of the declared type; stretches before it are changed.
        """
        keys, groups = self._context.locate(keys, key_groups)
        if len(set(keys)) < len(keys):
            repeated = next(key for key, times in Counter(keys).items() if times > 1)
            raise ValueError(
                f"the key {repeated!r} comes twice; give each key once to transform_many() of the state "
                f"{self._name!r}"
            )
        for rows in stretches(len(keys)):
            some_keys, some_groups = keys[rows], groups[rows]
            column = self._column(function(rows, self._found(some_groups, some_keys)), some_keys)
            self._check_column(self._serializer, column)
            self._write_many(some_groups, some_keys, column)


class ValueState(StateDescriptor[ValueStateHandle[T]]):
    """One value per key.

    Parameters
    ----------
    name : str
    type : TypeSerializer
        For example ``types.INT64``.
    default : optional
        What `ValueStateHandle.value` returns, as a copy, where there is no value.
    ttl : Ttl, optional
        How long a value lives; for ever without.
    """

    kind = StateKind.VALUE

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
            try:
                type.check(default)
            except ValueTypeError as error:
                raise InvalidDescriptorError(name, f"its default does not have its type: {error}") from None
        self.default = default

    def create_handle(self, table: AnyStateTable, context: KeyContext) -> ValueStateHandle[T]:
        return ValueStateHandle(self.name, table, context, self.serializer, self.default)
