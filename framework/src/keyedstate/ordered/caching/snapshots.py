"""What reads a cached table while its owner changes it: the rows, and over them what only the cache has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import chain, groupby, islice
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from keyedstate.backend.changes import AddressBatch, TableChanges
from keyedstate.backend.table import EntryBatch, TableSnapshot
from keyedstate.keygroups import KeyGroupRange
from keyedstate.ordered.caching.object_cache import CacheKey, Mark
from keyedstate.ordered.codecs import Entry, ValueCodec
from keyedstate.ordered.snapshots import CopiedRows
from keyedstate.ordered.store import RowCopy
from keyedstate.ordered.tracked_addresses import TrackedKeys
from keyedstate.types import VOID_NAMESPACE
from keyedstate.types.contract.transposing import transposed

_NAMESPACE, _KEY = itemgetter(0), itemgetter(1)

_Numbers = npt.NDArray[np.int64]


class CachedEntries(TableSnapshot[Any, Any, Any]):
    """The entries of a copy of rows, with cached entries in the place of outdated rows.

    The codec is for the thread that reads. Unless `by_key`, the cached keys are pairs of a namespace and a
    key; each of them has an entry.
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
        self._rows = CopiedRows(codec.layout, copy)
        self._keys = keys
        self._values = values
        self._groups = np.fromiter(key_groups, np.int64, len(key_groups))
        self._order: npt.NDArray[np.int64] | None = None

    def batches(self, key_group: int, size: int) -> Iterator[EntryBatch[Any, Any, Any]]:
        if self._order is None:
            self._order = np.argsort(self._groups, kind="stable")
            self._groups = self._groups[self._order]
        first, last = np.searchsorted(self._groups, [key_group, key_group + 1]).tolist()
        cached = self._order[first:last].tolist()
        keys, values = [self._keys[i] for i in cached], [self._values[i] for i in cached]
        yield from self._stored(key_group, keys, size)
        if Mark in set(map(type, values)):
            values = list(map(_plain, values))
        for start in range(0, len(keys), size):
            some = slice(start, start + size)
            yield EntryBatch(*_split(keys[some], self._by_key), values[some])

    def _stored(
        self, key_group: int, cached: list[CacheKey], size: int
    ) -> Iterator[EntryBatch[Any, Any, Any]]:
        """Yield the entries of rows, but those that are cached."""
        rows = self._rows.of(key_group)
        first = next(rows, None)
        if first is None:
            return
        rows = chain((first,), rows)
        if cached:
            hidden = set(addresses_of(self._codec, self._by_key, [key_group] * len(cached), cached))
            rows = (row for row in rows if row[0] not in hidden)
        entries: Iterator[Entry] = self._codec.entries(rows)
        while found := list(islice(entries, size)):
            _, keys, namespaces, values = transposed(found, 4)
            yield EntryBatch(namespaces, keys, values)

    def occupied(self, key_groups: KeyGroupRange) -> Iterable[int]:
        cached = (group for group in np.unique(self._groups).tolist() if group in key_groups)
        # One at a time, so that the scan goes through each key group once.
        return (group for group, _ in groupby(merge(self._rows.occupied(key_groups), cached)))

    def release(self) -> None:
        self._keys, self._values, self._groups, self._order = [], [], self._groups[:0], None
        self._rows.release()


class CachedChanges(TableChanges[Any, Any, Any]):
    """The keys that epochs have touched, with their values; those not cached are read on demand.

    The codec is for the thread that reads. The copy of the rows contains the values that are None in
    `values`; `codes` are those of `TrackedKeys`.
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
        groups = TrackedKeys.key_groups(codes)
        #: The indices of written and of removed keys by key group, with these.
        self._written, self._removed = (
            _by_key_group(indices, groups[indices]) for indices in TrackedKeys.written_and_removed(codes)
        )

    def __len__(self) -> int:
        return len(self._written[0]) + len(self._removed[0])

    def occupied(self, key_groups: KeyGroupRange) -> Iterable[int]:
        found = np.union1d(self._written[1], self._removed[1])
        return [group for group in found.tolist() if group in key_groups]

    def _parts(self, of: tuple[_Numbers, _Numbers], key_group: int, size: int) -> Iterator[list[int]]:
        indices, groups = of
        first, last = np.searchsorted(groups, [key_group, key_group + 1]).tolist()
        for start in range(first, last, size):
            yield indices[start : min(start + size, last)].tolist()

    def written(self, key_group: int, size: int) -> Iterator[EntryBatch[Any, Any, Any]]:
        for part in self._parts(self._written, key_group, size):
            keys = [self._keys[i] for i in part]
            values = [self._values[i] for i in part]
            if self._copy is not None:
                missing = [i for i, value in enumerate(values) if value is None]
                groups, wanted = [key_group] * len(missing), [keys[i] for i in missing]
                rows = addresses_of(self._codec, self._by_key, groups, wanted)
                stored = self._codec.decode_many(self._copy.get_many(rows))
                for i, value in zip(missing, stored, strict=True):
                    values[i] = value
            if Mark in set(map(type, values)):
                values = list(map(_plain, values))
            yield EntryBatch(*_split(keys, self._by_key), values)

    def removed(self, key_group: int, size: int) -> Iterator[AddressBatch[Any, Any]]:
        for part in self._parts(self._removed, key_group, size):
            yield AddressBatch(*_split([self._keys[i] for i in part], self._by_key))

    def release(self) -> None:
        self._keys, self._values = [], []
        none = np.empty(0, np.int64)
        self._written = self._removed = none, none
        if self._copy is not None:
            self._copy.release()


def _by_key_group(indices: _Numbers, groups: _Numbers) -> tuple[_Numbers, _Numbers]:
    order = np.argsort(groups, kind="stable")
    return indices[order], groups[order]


def _plain(value: Any) -> Any:
    return None if value.__class__ is Mark else value


def _split(cached: list[CacheKey], by_key: bool) -> tuple[list[Any], list[Any]]:
    """Return the namespaces and the keys of cache keys."""
    if by_key:
        return [VOID_NAMESPACE] * len(cached), cached
    return list(map(_NAMESPACE, cached)), list(map(_KEY, cached))


def addresses_of(
    codec: ValueCodec, by_key: bool, key_groups: list[int], cached: list[CacheKey]
) -> list[bytes]:
    """Return the keys of the rows of cache keys."""
    layout = codec.layout
    if by_key:
        return layout.addresses(key_groups, cached, VOID_NAMESPACE)
    namespaces, keys = _split(cached, by_key)
    if len(set(namespaces)) == 1:
        return layout.addresses(key_groups, keys, namespaces[0])
    return list(map(layout.address, key_groups, keys, namespaces))
