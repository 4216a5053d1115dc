"""What reads a table behind a cache while that goes on: rows, and laid over them what only the cache has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, compress, islice
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from keyedstate.backend.changes import AddressBatch, TableChanges
from keyedstate.backend.table import EntryBatch, TableSnapshot
from keyedstate.keygroups import KeyGroupRange
from keyedstate.ordered.codecs import Entry, ValueCodec
from keyedstate.ordered.object_cache import ABSENT_ENTRY, CacheKey, Mark
from keyedstate.ordered.snapshots import groups_with_rows
from keyedstate.ordered.store import RowCopy, end_of
from keyedstate.ordered.touched_addresses import TouchedKeys
from keyedstate.types import VOID_NAMESPACE

_NAMESPACE, _KEY = itemgetter(0), itemgetter(1)


class LaidOverEntries(TableSnapshot[Any, Any, Any]):
    """The entries of a copy of rows, and over them what was not written to the rows yet.

    Parameters
    ----------
    codec : ValueCodec
        For the thread that reads.
    by_key : bool
        Whether `keys` are keys; otherwise pairs of a namespace and a key.
    copy : RowCopy
    keys, key_groups, values : list
        What is laid over.
    """

    def __init__(
        self,
        codec: ValueCodec,
        by_key: bool,
        copy: RowCopy,
        keys: list[CacheKey],
        key_groups: list[int],
        values: list[Any],
    ) -> None:
        self._codec = codec
        self._by_key = by_key
        self._copy = copy
        self._keys = keys
        self._values = values
        self._groups = np.fromiter(key_groups, np.int64, len(key_groups))
        self._order: npt.NDArray[np.int64] | None = None
        self._marked = Mark in set(map(type, values))

    def batches(self, key_group: int, size: int) -> Iterator[EntryBatch[Any, Any, Any]]:
        if self._order is None:
            self._order = np.argsort(self._groups, kind="stable")
            self._groups = self._groups[self._order]
        first, last = np.searchsorted(self._groups, [key_group, key_group + 1]).tolist()
        places = self._order[first:last].tolist()
        keys, values = [self._keys[place] for place in places], [self._values[place] for place in places]
        prefix = self._codec.layout.group_prefix(key_group)
        rows = iter(self._copy.scan(prefix, end_of(prefix)))
        row = next(rows, None)
        if row is not None:
            rows = chain((row,), rows)
            if keys:
                hidden = set(addresses_of(self._codec, self._by_key, [key_group] * len(keys), keys))
                rows = (row for row in rows if row[0] not in hidden)
            entries: Iterator[Entry] = self._codec.entries(rows)
            while found := list(islice(entries, size)):
                _, stored_keys, namespaces, stored = zip(*found, strict=True)
                yield EntryBatch(namespaces, stored_keys, stored)
        if self._marked:
            there = [value is not ABSENT_ENTRY for value in values]
            keys = list(compress(keys, there))
            values = [_plain(value) for value in compress(values, there)]
        for start in range(0, len(keys), size):
            some = slice(start, start + size)
            yield EntryBatch(*_split(keys[some], self._by_key), values[some])

    def occupied(self, key_groups: KeyGroupRange) -> Iterable[int]:
        stored = groups_with_rows(self._codec.layout, self._copy, key_groups)
        laid_over = (group for group in self._groups.tolist() if group in key_groups)
        return sorted({*stored, *laid_over})

    def release(self) -> None:
        self._keys, self._values, self._groups, self._order = [], [], self._groups[:0], None
        self._copy.release()


class TouchedChanges(TableChanges[Any, Any, Any]):
    """The keys that epochs have touched, with their values; what was not cached is read when it is asked for.

    Parameters
    ----------
    codec : ValueCodec
        For the thread that reads.
    by_key : bool
    copy : RowCopy or None
        Where some values are None: they are in its rows.
    keys : list
    codes : ndarray of int64
        As `TouchedKeys` gives them.
    values : list
    """

    def __init__(
        self,
        codec: ValueCodec,
        by_key: bool,
        copy: RowCopy | None,
        keys: list[CacheKey],
        codes: npt.NDArray[np.int64],
        values: list[Any],
    ) -> None:
        self._codec = codec
        self._by_key = by_key
        self._copy = copy
        self._keys = keys
        self._values = values
        written, removed = TouchedKeys.kinds(codes)
        self._groups = TouchedKeys.groups(codes)
        #: The places of what was written and removed, in the order of key groups.
        self._places = [
            places[np.argsort(self._groups[places], kind="stable")] for places in (written, removed)
        ]

    def __len__(self) -> int:
        """Return how many keys were written or removed."""
        return sum(map(len, self._places))

    def occupied(self, key_groups: KeyGroupRange) -> Iterable[int]:
        return [group for group in np.unique(self._groups).tolist() if group in key_groups]

    def _parts(self, kind: int, key_group: int, size: int) -> Iterator[list[int]]:
        places = self._places[kind]
        groups = self._groups[places]
        first, last = np.searchsorted(groups, [key_group, key_group + 1]).tolist()
        for start in range(first, last, size):
            yield places[start : min(start + size, last)].tolist()

    def written(self, key_group: int, size: int) -> Iterator[EntryBatch[Any, Any, Any]]:
        for part in self._parts(0, key_group, size):
            keys = [self._keys[place] for place in part]
            values = [self._values[place] for place in part]
            if self._copy is not None:
                self._fill(key_group, keys, values)
            yield EntryBatch(*_split(keys, self._by_key), list(map(_plain, values)))

    def _fill(self, key_group: int, keys: list[CacheKey], values: list[Any]) -> None:
        assert self._copy is not None
        places = [place for place, value in enumerate(values) if value is None]
        wanted = [keys[place] for place in places]
        rows = addresses_of(self._codec, self._by_key, [key_group] * len(places), wanted)
        for place, value in zip(places, self._codec.decode_many(self._copy.get_many(rows)), strict=True):
            values[place] = value

    def removed(self, key_group: int, size: int) -> Iterator[AddressBatch[Any, Any]]:
        for part in self._parts(1, key_group, size):
            yield AddressBatch(*_split([self._keys[place] for place in part], self._by_key))

    def release(self) -> None:
        self._keys, self._values = [], []
        self._places = [places[:0] for places in self._places]
        if self._copy is not None:
            self._copy.release()


def _plain(value: Any) -> Any:
    return None if value.__class__ is Mark else value


def _split(cached: list[CacheKey], by_key: bool) -> tuple[list[Any], list[Any]]:
    """Return the namespaces and the keys of what is cached under keys."""
    if by_key:
        return [VOID_NAMESPACE] * len(cached), cached
    return list(map(_NAMESPACE, cached)), list(map(_KEY, cached))


def addresses_of(
    codec: ValueCodec, by_key: bool, key_groups: list[int], cached: list[CacheKey]
) -> list[bytes]:
    """Return the keys of the rows of what is cached under keys."""
    layout = codec.layout
    if by_key:
        return layout.addresses(key_groups, cached, VOID_NAMESPACE)
    namespaces = set(map(_NAMESPACE, cached))
    if len(namespaces) == 1:
        return layout.addresses(key_groups, list(map(_KEY, cached)), namespaces.pop())
    return [
        layout.address(group, key, namespace)
        for group, (namespace, key) in zip(key_groups, cached, strict=True)
    ]
