"""What list, reducing and aggregating state share: a stored form, and namespaces that merge."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from keyedstate.backend import AnyStateTable
from keyedstate.errors import NullNamespaceError, StateValueError, ValueTypeError
from keyedstate.state.context import KeyContext
from keyedstate.state.kinds.handles import StateHandle, check_value, stretches
from keyedstate.types import TypeSerializer


class MergingStateHandle(StateHandle):
    """A state whose stored form can be read, overwritten and merged.

    The window operator does so (Flink's ``InternalAppendingState`` and ``InternalMergingState``).
    """

    __slots__ = ("_serializer",)

    def __init__(
        self, name: str, table: AnyStateTable, context: KeyContext, serializer: TypeSerializer[Any]
    ) -> None:
        super().__init__(name, table, context)
        self._serializer = serializer

    def get_internal(self) -> Any:
        """Return what is stored (the list, the reduced value, the accumulator), or None where nothing is.

        Give it back to `update_internal` after changing it.
        """
        self._let_go()
        context = self._context
        return self._table.get(context.key_group, context.key, self._namespace)

    def update_internal(self, stored: Any) -> None:
        """Overwrite what is stored; None is the same as `clear`.

        Raises
        ------
        StateValueError
            Where it is not of the stored form's type; the state stays as it was.
        """
        if stored is None:
            self.clear()
            return
        check_value(self._name, self._serializer, stored)
        self._let_go()
        context = self._context
        self._table.put(context.key_group, context.key, self._namespace, stored)

    def merge_namespaces(self, target: Any, sources: Iterable[Any]) -> None:
        """Fold what the sources hold for the current key into the target, and remove the sources.

        The target comes first, then the sources in their order; the target among the sources is left out.
        Those that hold nothing are fine.

        Raises
        ------
        NullNamespaceError
            Where one of them is None.
        """
        namespaces = dict.fromkeys(sources)
        if target is None or None in namespaces:
            raise NullNamespaceError(self._name)
        namespaces.pop(target, None)
        self._let_go()
        table, key, group = self._table, self._context.key, self._context.key_group
        merged = table.get(group, key, target)
        emptied = []
        for namespace in namespaces:
            stored = table.get(group, key, namespace)
            if stored is not None:
                merged = stored if merged is None else self._merge(merged, stored)
                emptied.append(namespace)
        if emptied:
            # Only now, so that a function that raises leaves every source where it was.
            if merged is None:
                table.remove(group, key, target)
            else:
                self._put_merged(group, key, target, merged)
            for namespace in emptied:
                table.remove(group, key, namespace)

    def _put_merged(self, group: int, key: Any, target: Any, merged: Any) -> None:
        """Write what was merged."""
        self._table.put(group, key, target, merged)

    @abstractmethod
    def _merge(self, merged: Any, stored: Any) -> Any:
        """Return both in one, or None where nothing is left; the first may be changed in place."""


class AccumulatingStateHandle(MergingStateHandle):
    """A state that folds what is added into one stored value, without keeping what was added.

    Parameters
    ----------
    name, table, context, serializer
        As for every handle.
    accumulate : callable
        Returns ``(stored value or None, added value)`` in one.  Its attribute ``column``, if it has one, does
        so for a column of each, and checks what it has made at once: faster, where values are immutable, so
        that what a call must not check anew (an accumulator that it changed in place) is not checked.
    """

    __slots__ = ("_accumulate",)

    def __init__(
        self,
        name: str,
        table: AnyStateTable,
        context: KeyContext,
        serializer: TypeSerializer[Any],
        accumulate: Callable[[Any, Any], Any],
    ) -> None:
        super().__init__(name, table, context, serializer)
        self._accumulate = accumulate

    def add(self, value: Any) -> None:
        """Fold a value into the state; None is the same as `clear` (Flink's heap states).

        Raises
        ------
        StateValueError
            Where the value, or what the function makes of it, is not of the declared type.
        """
        if value is None:
            self.clear()
            return
        self._add_one(value)

    def _add_one(self, value: Any) -> None:
        context = self._context
        if context.key is self._held_key:
            self._held = self._accumulate(self._held, value)
            self._changed = True
        elif self._holds:
            self._held = self._accumulate(self._look_up(), value)
            self._changed = True
        else:
            self._table.transform(context.key_group, context.key, self._namespace, value, self._accumulate)

    def _stored(self) -> Any:
        """Return what is stored under the current key, or None."""
        return self._held if self._context.key is self._held_key else self._look_up()

    def _stored_many(self, keys: list[Any], groups: list[int]) -> list[Any]:
        self._let_go()
        return self._table.get_many(groups, keys, self._namespace)

    def add_many(
        self, keys: Iterable[Any], values: Iterable[Any], key_groups: Sequence[int] | None = None
    ) -> None:
        """Fold one value into the state of each of several keys, as `add` would one after the other.

        A key may come more than once.  See `KeyContext.locate` for keys and key groups.

        Raises
        ------
        StateValueError
            As `add`; no state is changed, except where the function changes stored values in place.
        """
        keys, groups = self._context.locate(keys, key_groups)
        column = self._column(values, keys)
        self._check_added(column)
        accumulate = self._accumulate
        if len(set(keys)) == len(keys) and type(None) not in set(map(type, column)):
            in_one_go = getattr(accumulate, "column", None)
            made: list[Any] = []
            for rows in stretches(len(keys)):
                found = self._stored_many(keys[rows], groups[rows])
                made += in_one_go(found, column[rows]) if in_one_go else map(accumulate, found, column[rows])
            self._write_many(groups, keys, made)
            return
        group_of = dict(zip(keys, groups, strict=True))
        groups, keys_once = list(group_of.values()), list(group_of)
        folded = dict(zip(keys_once, self._stored_many(keys_once, groups), strict=True))
        for key, value in zip(keys, column, strict=True):
            folded[key] = None if value is None else accumulate(folded[key], value)
        self._write_many(groups, keys_once, list(folded.values()))

    def _check_added(self, column: list[Any]) -> None:
        """Refuse a column with a value that must not be added; None may."""


def check_column_made(state: str, serializer: TypeSerializer[Any], made: list[Any], function: object) -> None:
    """Raise `StateValueError` unless all that a user's function made for several keys can be stored."""
    if type(None) in set(map(type, made)) or not serializer.are_values(made):
        for one in made:
            check_made(state, serializer, one, function)


def check_made(state: str, serializer: TypeSerializer[Any], made: object, function: object) -> None:
    """Raise `StateValueError` unless what a user's function made can be stored."""
    name = getattr(function, "__qualname__", type(function).__qualname__)
    if made is None:
        raise StateValueError(state, f"{name} returned None. Return what is to be stored.")
    try:
        serializer.check(made)
    except ValueTypeError as error:
        raise StateValueError(state, f"{name} returned a wrong one. {error}") from None
