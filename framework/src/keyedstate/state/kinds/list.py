"""List state: a list per key and namespace, in the order of adding (Flink's ``ListState``)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, Generic, TypeVar, cast

from keyedstate.backend import AnyStateTable, StateKind
from keyedstate.state.context import KeyContext
from keyedstate.state.kinds.accessor import StateDescriptor, chunks
from keyedstate.state.kinds.checks import ElementChecks, check_type, element_type
from keyedstate.state.kinds.merging import MergingStateAccessor
from keyedstate.state.ttl.config import Ttl
from keyedstate.types import ListSerializer, TypeSerializer, list_of, value_checker

T = TypeVar("T")


class ListStateAccessor(ElementChecks[T], MergingStateAccessor, Generic[T]):
    """A list per key and namespace; it exists as long as it has an element.

    None is no element, also where the element type is nullable (Flink's rule).
    """

    __slots__ = ("_element", "_is_element")

    def __init__(self, descriptor: ListState[T], table: AnyStateTable, context: KeyContext) -> None:
        super().__init__(descriptor, table, context)
        self._element = element_type(descriptor.plain_serializer.element_serializer)
        self._is_element = value_checker(self._element)

    def get(self) -> list[T]:
        """Return the elements as a new list, which may be changed; it is empty where there is no element.

        Flink's ``ListState`` gives users an empty iterable, too; inside it is null, as in `get_internal`.
        """
        context = self._context
        stored = self._table.get(context.key_group, context.key, self._namespace)
        return [] if stored is None else cast("list[T]", stored.copy())

    def add(self, value: T) -> None:
        """Append one element."""
        if not self._is_element(value):
            raise self._refusal([value])
        context = self._context
        stored = self._table.get_for_update(context.key_group, context.key, self._namespace)
        if stored is None:
            self._table.put(context.key_group, context.key, self._namespace, [value])
        else:
            stored.append(value)

    def add_all(self, values: Iterable[T]) -> None:
        """Append several elements, all of them or, on an error, none."""
        new = self._checked(values)
        if new:
            context = self._context
            self._append(context.key_group, context.key, new)

    def _append(self, group: int, key: Any, new: list[T]) -> None:
        stored = self._table.get_for_update(group, key, self._namespace)
        if stored is None:
            self._table.put(group, key, self._namespace, new)
        else:
            stored.extend(new)

    def update(self, values: Iterable[T]) -> None:
        """Replace the list by other elements; without any it is the same as `clear`."""
        new = self._checked(values)
        if not new:
            self.clear()
            return
        context = self._context
        self._table.put(context.key_group, context.key, self._namespace, new)

    # -- many keys ----------------------------------------------------------------------------------------

    def get_many(self, keys: Iterable[Any], key_groups: Sequence[int] | None = None) -> list[list[T]]:
        """Return what `get` returns for each of several keys."""
        keys, groups = self._context.locate(keys, key_groups)
        lists: list[list[T]] = []
        for rows in chunks(len(keys)):
            found = self._table.get_many(groups[rows], keys[rows], self._namespace)
            lists += [[] if stored is None else stored.copy() for stored in found]
        return lists

    def add_many(
        self, keys: Iterable[Any], values: Iterable[T], key_groups: Sequence[int] | None = None
    ) -> None:
        """Append one element for each of several keys, all of them or, on an error, none.

        A key may be repeated.
        """
        keys, groups = self._context.locate(keys, key_groups)
        column = self._column(values, keys)
        if not self._element.are_values(column):
            raise self._refusal(column)
        for rows in chunks(len(keys)):
            found = self._table.get_many_for_update(groups[rows], keys[rows], self._namespace)
            new: dict[Any, list[T]] = {}
            for key, stored, value in zip(keys[rows], found, column[rows], strict=True):
                if stored is not None:
                    stored.append(value)
                elif key in new:
                    new[key].append(value)
                else:
                    new[key] = [value]
            if new:
                self._put_new(groups[rows], keys[rows], new)

    def update_many(
        self, keys: Iterable[Any], lists: Iterable[Iterable[T]], key_groups: Sequence[int] | None = None
    ) -> None:
        """Replace the lists of several keys, as repeated `update` would; on an error, none of them."""
        keys, groups = self._context.locate(keys, key_groups)
        column: list[Any] = self._column(lists, keys, "lists")
        if {list, tuple}.issuperset(map(type, column)):
            if not self._element.are_values(list(chain.from_iterable(column))):
                raise next(self._refusal(new) for new in column if not all(map(self._is_element, new)))
            for rows in chunks(len(keys)):
                # An empty list is no state: it becomes the None that removes it.
                new = [list(values) if values else None for values in column[rows]]
                self._write_many(groups[rows], keys[rows], new)
        else:
            column = [self._checked(values) or None for values in column]
            self._write_many(groups, keys, column)

    def _merge(self, merged: list[T], stored: list[T]) -> list[T]:
        merged.extend(stored)
        return merged


class ListState(StateDescriptor[ListStateAccessor[T]]):
    """A list per key.

    Parameters
    ----------
    name : str
    type : TypeSerializer
        Of the elements, for example ``types.STRING``.
    ttl : Ttl, optional
        How long each element lives; for ever without.
    """

    kind = StateKind.LIST
    plain_serializer: ListSerializer[T]
    _accessor_class = ListStateAccessor

    def __init__(self, name: str, type: TypeSerializer[T], *, ttl: Ttl | None = None) -> None:
        check_type(name, "element type", type)
        super().__init__(name, list_of(type), ttl)
