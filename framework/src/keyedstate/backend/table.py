"""The state table: the entries of one registered state.

An address is (key group, key, namespace) and is always passed in; only state accessors have a current key.
The caller guarantees that the key group is the key's own and in the table's range, and that keys and
namespaces are hashable and in their serializer's canonical form.

Except where a method says otherwise, a table belongs to one owner thread.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from keyedstate.backend.meta import StateMeta
from keyedstate.keygroups import KeyGroupRange

K = TypeVar("K")
N = TypeVar("N")
V = TypeVar("V")
U = TypeVar("U")


@dataclass(frozen=True)
class EntryBatch(Generic[K, N, V]):
    """Entries of one state and one key group, as three lists of equal length."""

    namespaces: Sequence[N]
    keys: Sequence[K]
    values: Sequence[V]

    def __len__(self) -> int:
        return len(self.keys)


@dataclass(slots=True)  # not frozen, which would make it five times slower to make
class StateEntry(Generic[K, N, V]):
    """One entry, as an `IncrementalVisitor` shows it."""

    key_group: int
    key: K
    namespace: N
    value: V


class TableSnapshot(ABC, Generic[K, N, V]):
    """The entries of a table as they were when the snapshot was taken.

    Where the backend claims asynchronous snapshots, another thread may read it while the owner changes the
    table; otherwise the owner reads it before the next change.
    """

    @abstractmethod
    def batches(self, key_group: int, size: int) -> Iterator[EntryBatch[K, N, V]]:
        """Yield the entries of one key group, at most `size` at a time, each exactly once."""

    def occupied(self, key_groups: KeyGroupRange) -> Iterable[int]:
        """Return those of some key groups that may have entries, ascending; all of them by default."""
        return key_groups

    @abstractmethod
    def release(self) -> None:
        """Free the snapshot; calling it again does nothing."""


class IncrementalVisitor(ABC, Generic[K, N, V]):
    """Walks a table in small steps between which the table may change (Flink's ``StateIncrementalVisitor``).

    An entry that is neither added nor removed during the walk is shown exactly once.
    """

    @abstractmethod
    def next_entries(self) -> Sequence[StateEntry[K, N, V]]:
        """Return the next entries; an empty sequence ends the walk."""

    @abstractmethod
    def update(self, entry: StateEntry[K, N, V], value: V) -> None:
        """Write a new value for an entry of the last step."""

    @abstractmethod
    def remove(self, entry: StateEntry[K, N, V]) -> None:
        """Remove an entry of the last step."""


class StateTable(ABC, Generic[K, N, V]):
    """The entries of one registered state over one key-group range.

    None is a value: an entry with it exists (`contains`), though `get` cannot tell it from an absent one.

    Eleven members are abstract.  The others have defaults, which are right where `get` returns the stored
    object or an equal one; a table overrides those that it can do faster.
    """

    @property
    @abstractmethod
    def meta(self) -> StateMeta:
        """The state's name, kind and serializers."""

    @abstractmethod
    def replace_meta(self, meta: StateMeta) -> None:
        """Adopt the serializers that the running program registered for a restored state.

        They are compatible with the old ones.  A table of bytes gets serializers that read and write the same
        bytes; for others it is a `RewritingTable`.
        """

    @property
    @abstractmethod
    def key_groups(self) -> KeyGroupRange:
        """The key groups that the table owns."""

    @abstractmethod
    def get(self, key_group: int, key: K, namespace: N) -> V | None:
        """Return the value, or None where there is no entry.

        For map state it may be an object with the methods of a dict that reads the map entry by entry, and an
        empty one where there is no entry, so that nothing has to be looked up.
        """

    def get_for_update(self, key_group: int, key: K, namespace: N) -> V | None:
        """Return the value, which the caller changes in place at once, or None where there is no entry.

        Change tracking counts the entry as changed, and a live snapshot keeps the old value.  List and map
        state need it.  The default is right for a table that does not track changes and whose `get` returns
        the stored object.  Another table returns an object that writes the changes: for map state one like
        that of `get`, for list state one with the ``append`` and ``extend`` of a list.  With a time to live
        both have ``stamps``, which the caller changes after the values.  The object may be returned without
        an entry too.
        """
        return self.get(key_group, key, namespace)

    @abstractmethod
    def contains(self, key_group: int, key: K, namespace: N) -> bool:
        """Return whether there is an entry, also one with the value None."""

    @abstractmethod
    def put(self, key_group: int, key: K, namespace: N, value: V) -> None:
        """Write a value."""

    def put_and_get_old(self, key_group: int, key: K, namespace: N, value: V) -> V | None:
        """Write a value and return the one it replaces, or None."""
        old = self.get(key_group, key, namespace)
        self.put(key_group, key, namespace, value)
        return old

    @abstractmethod
    def remove(self, key_group: int, key: K, namespace: N) -> None:
        """Remove the entry if there is one."""

    def remove_and_get_old(self, key_group: int, key: K, namespace: N) -> V | None:
        """Remove the entry and return its value, or None if no entry existed."""
        old = self.get(key_group, key, namespace)
        self.remove(key_group, key, namespace)
        return old

    def transform(
        self, key_group: int, key: K, namespace: N, value: U, function: Callable[[V | None, U], V]
    ) -> None:
        """Put ``function(old value or None, value)`` in the entry's place; no change where it raises."""
        self.put(key_group, key, namespace, function(self.get(key_group, key, namespace), value))

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of entries over all key groups and namespaces."""

    def keys(self, namespace: N) -> Iterator[K]:
        """Yield the keys of one namespace; a change of the table meanwhile may raise RuntimeError."""
        return (key for key, other in self.keys_and_namespaces() if other == namespace)

    @abstractmethod
    def keys_and_namespaces(self) -> Iterator[tuple[K, N]]:
        """Yield every address; a change of the table meanwhile may raise RuntimeError."""

    @abstractmethod
    def visitor(self, batch_size: int) -> IncrementalVisitor[K, N, V]:
        """Return a visitor that shows about `batch_size` entries a step; ValueError for less than 1."""

    @abstractmethod
    def snapshot(self) -> TableSnapshot[K, N, V]:
        """Capture the present entries; the synchronous part of a snapshot, so it must be short."""

    def trim(self, since: float) -> None:
        """Give back memory that other tables of the process have lacked since a time, by `time.monotonic`.

        The framework calls it in the owner's thread, again and again, between two epochs of a query that has
        been unused for some seconds; `since` is the end of these.  What the table shows stays the same.
        """
        return

    def restore_entries(self, key_group: int, batch: EntryBatch[K, N, V]) -> None:
        """Add entries at addresses of one key group that have none; used by restore operations."""
        for namespace, key, value in zip(batch.namespaces, batch.keys, batch.values, strict=True):
            self.put(key_group, key, namespace, value)

    # -- many entries: the defaults are loops -----------------------------------------------------------
    # Columns of unequal length are a ValueError: otherwise rows would be lost.

    def get_many(self, key_groups: Iterable[int], keys: Iterable[K], namespace: N) -> list[V | None]:
        """Return the values of several keys of one namespace, in their order."""
        get = self.get
        return [get(group, key, namespace) for group, key in zip(key_groups, keys, strict=True)]

    def get_many_for_update(
        self, key_groups: Iterable[int], keys: Iterable[K], namespace: N
    ) -> list[V | None]:
        """Return what `get_for_update` returns for several keys of one namespace, in their order."""
        get = self.get_for_update
        return [get(group, key, namespace) for group, key in zip(key_groups, keys, strict=True)]

    def put_many(
        self, key_groups: Iterable[int], keys: Iterable[K], namespace: N, values: Iterable[V]
    ) -> None:
        """Write the values of several keys of one namespace; the last one of a repeated key counts."""
        put = self.put
        for group, key, value in zip(key_groups, keys, values, strict=True):
            put(group, key, namespace, value)

    def remove_many(self, key_groups: Iterable[int], keys: Iterable[K], namespace: N) -> None:
        """Remove the entries of several keys of one namespace."""
        remove = self.remove
        for group, key in zip(key_groups, keys, strict=True):
            remove(group, key, namespace)


#: A table of any types.
AnyStateTable = StateTable[Any, Any, Any]
