"""What list, reducing and aggregating state share: a stored form, and namespaces that merge."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from keyedstate.backend import AnyStateTable
from keyedstate.errors import NullNamespaceError
from keyedstate.state.context import KeyContext
from keyedstate.state.kinds.accessor import StateAccessor, StateDescriptor, chunks
from keyedstate.state.kinds.checks import check_value


class MergingStateAccessor(StateAccessor):
    """A state whose stored form can be read, overwritten and merged.

    For the window operator (Flink's ``InternalAppendingState`` and ``InternalMergingState``).
    """

    __slots__ = ("_serializer",)

    def __init__(self, descriptor: StateDescriptor[Any], table: AnyStateTable, context: KeyContext) -> None:
        super().__init__(descriptor, table, context)
        self._serializer = descriptor.plain_serializer

    def get_internal(self) -> Any:
        """Return what is stored (the list, the reduced value, the accumulator), or None where nothing is.

        Pass it to `update_internal` after changing it.
        """
        self._flush()
        context = self._context
        return self._table.get(context.key_group, context.key, self._namespace)

    def update_internal(self, stored: Any) -> None:
        """Overwrite what is stored; None is the same as `clear`."""
        if stored is None:
            self.clear()
            return
        check_value(self.name, self._serializer, stored)
        self._flush()
        context = self._context
        self._table.put(context.key_group, context.key, self._namespace, stored)

    def merge_namespaces(self, target: Any, sources: Iterable[Any]) -> None:
        """Merge what the current key has in the sources into the target, and remove the sources.

        The target comes first, then the sources in their order.  The target may be among the sources, and
        sources may be empty.

        Raises `NullNamespaceError` where one of them is None.
        """
        namespaces = dict.fromkeys(sources)
        if target is None or None in namespaces:
            raise NullNamespaceError(self.name)
        namespaces.pop(target, None)
        self._flush()
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
        self._table.put(group, key, target, merged)

    @abstractmethod
    def _merge(self, merged: Any, stored: Any) -> Any:
        """Return both in one, or None where nothing is left; the first may be changed in place."""


class AccumulatingStateAccessor(MergingStateAccessor):
    """A state that folds what is added into one stored value, without keeping what was added."""

    __slots__ = ("_accumulate",)

    #: Returns ``(stored value or None, added value)`` in one.  Where values are immutable it has an attribute
    #: ``column``, which does so for a column of each and checks all that it has made at once.
    _accumulate: Callable[[Any, Any], Any]

    def add(self, value: Any) -> None:
        """Fold a value into the state; None is the same as `clear` (Flink's heap states).

        Raises `StateValueError` where the value, or what the function makes of it, is not of the declared
        type; the state stays as it was.
        """
        if value is None:
            self.clear()
            return
        self._add_one(value)

    def _add_one(self, value: Any) -> None:
        context = self._context
        if context.key is self._cached_key:
            self._cached = self._accumulate(self._cached, value)
            self._dirty = True
        elif self._caching:
            self._cached = self._accumulate(self._look_up(), value)
            self._dirty = True
        else:
            self._table.transform(context.key_group, context.key, self._namespace, value, self._accumulate)

    def _stored(self) -> Any:
        """Return what a read shows under the current key, or None."""
        return self._cached if self._context.key is self._cached_key else self._look_up()

    def _stored_many(self, keys: list[Any], groups: list[int]) -> list[Any]:
        self._flush()
        return self._table.get_many(groups, keys, self._namespace)

    def _read_many(self, keys: Iterable[Any], key_groups: Sequence[int] | None) -> list[Any]:
        """Return what a read shows under each of several keys, or None."""
        keys, groups = self._context.locate(keys, key_groups)
        return self._stored_many(keys, groups)

    def add_many(
        self, keys: Iterable[Any], values: Iterable[Any], key_groups: Sequence[int] | None = None
    ) -> None:
        """Fold one value into the state of each of several keys, as `add` would; a key may be repeated.

        Raises `StateValueError` as `add`; no state is changed, except where the function changes stored
        values in place.
        """
        keys, groups = self._context.locate(keys, key_groups)
        column = self._column(values, keys)
        self._check_added(column)
        accumulate = self._accumulate
        if len(set(keys)) == len(keys) and type(None) not in set(map(type, column)):
            in_one_go = getattr(accumulate, "column", None)
            made: list[Any] = []
            for rows in chunks(len(keys)):
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
