"""What changed since an epoch, in all tables of one keyed backend, whether they track changes or not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from keyedstate.backend import (
    AddressBatch,
    AnyStateTable,
    ChangeTracking,
    EntryBatch,
    EntryChange,
    IncrementalVisitor,
    StateEntry,
    StateMeta,
    StateTable,
    TableChanges,
    TableSnapshot,
)
from keyedstate.errors import UnknownChangesError
from keyedstate.keygroups import KeyGroupRange
from keyedstate.tables import EpochNotes, GatheredChanges, GroupChanges, check_ascending
from keyedstate.types.contract.transposing import transposed

K = TypeVar("K")
N = TypeVar("N")
V = TypeVar("V")
U = TypeVar("U")


class ChangeTracker:
    """The changes of all tables of one keyed backend; a table that does not track its own is wrapped."""

    def __init__(self) -> None:
        self._tables: dict[str, ChangeTracking[Any, Any, Any]] = {}
        self._epoch: int | None = None
        self._known_since: int | None = None

    def track(self, table: AnyStateTable) -> AnyStateTable:
        """Track a table, and return the one through which it must be changed from now on."""
        tracked = table if isinstance(table, ChangeTracking) else TouchedTable(table)
        if self._epoch is not None:
            tracked.begin_epoch(self._epoch)
        self._tables[table.meta.name] = tracked
        return tracked

    def begin_epoch(self, epoch: int) -> None:
        """Begin an epoch in every table."""
        check_ascending(epoch, self._epoch)
        for table in self._tables.values():
            table.begin_epoch(epoch)
        if self._known_since is None:
            self._known_since = epoch - 1
        self._epoch = epoch

    def changes_since(self, epoch: int) -> dict[str, TableChanges[Any, Any, Any]]:
        """Capture the changes of every table."""
        if self._known_since is None or epoch < self._known_since:
            raise UnknownChangesError(epoch, self._known_since)
        captured: dict[str, TableChanges[Any, Any, Any]] = {}
        try:
            for name, table in self._tables.items():
                captured[name] = table.changes_since(epoch)
        except BaseException:
            for changes in captured.values():
                changes.release()
            raise
        return captured

    def forget_changes(self, epoch: int) -> None:
        """Forget the changes of ended epochs."""
        if self._epoch is None or self._known_since is None:
            return
        if epoch >= self._epoch:
            raise ValueError(f"epoch {epoch} is not over: forget epochs before {self._epoch}")
        for table in self._tables.values():
            table.forget_changes(epoch)
        self._known_since = max(self._known_since, epoch)


class TouchedTable(StateTable[K, N, V], ChangeTracking[K, N, V]):
    """Wraps a table, all of whose changes must come through the wrapper, and notes the touched addresses.

    The first touch of an address in an epoch costs a look-up, a later one a check.
    """

    def __init__(self, table: StateTable[K, N, V]) -> None:
        self._table = table
        self._first = table.key_groups.start
        #: By epoch and key group: the touched addresses, and whether each had an entry when the epoch began.
        self._notes = EpochNotes[list[dict[tuple[N, K], bool]]](lambda: [{} for _ in table.key_groups])
        #: Those of the running epoch; before the first one, none.
        self._current: list[dict[tuple[N, K], bool]] = []

    # -- epochs -------------------------------------------------------------------------------------------

    def begin_epoch(self, epoch: int) -> None:
        self._notes.begin(epoch)
        self._current = self._notes.running or []

    def changes_since(self, epoch: int) -> TableChanges[K, N, V]:
        wanted = self._notes.since(epoch)
        groups: dict[int, GroupChanges[K, N, V]] = {}
        for key_group in self._table.key_groups:
            touched: dict[tuple[N, K], bool] = {}
            for noted in wanted:
                for address, existed in noted[key_group - self._first].items():
                    touched.setdefault(address, existed)
            if touched:
                groups[key_group] = self._look_up(key_group, touched)
        # While a snapshot exists, a table that keeps objects by reference returns copies of those above.
        return GatheredChanges(groups, self._table.snapshot().release)

    def _look_up(self, key_group: int, touched: dict[tuple[N, K], bool]) -> GroupChanges[K, N, V]:
        written: tuple[list[N], list[K], list[V]] = [], [], []
        removed: tuple[list[N], list[K]] = [], []
        table = self._table
        for (namespace, key), existed in touched.items():
            value = table.get(key_group, key, namespace)
            if value is not None or table.contains(key_group, key, namespace):
                written[0].append(namespace)
                written[1].append(key)
                written[2].append(value)  # type: ignore[arg-type] # None is a value
            elif existed:
                removed[0].append(namespace)
                removed[1].append(key)
        return GroupChanges(EntryBatch(*written), AddressBatch(*removed))

    def forget_changes(self, epoch: int) -> None:
        self._notes.forget(epoch)

    def _touch(self, key_group: int, key: K, namespace: N) -> bool:
        """Note an address before a change; return whether it is the first one of the epoch."""
        if not self._current:
            return False
        touched = self._current[key_group - self._first]
        address = namespace, key
        if address in touched:
            return False
        touched[address] = self._table.contains(key_group, key, namespace)
        return True

    # -- changes --------------------------------------------------------------------------------------------

    def get_for_update(self, key_group: int, key: K, namespace: N) -> V | None:
        self._touch(key_group, key, namespace)
        return self._table.get_for_update(key_group, key, namespace)

    def get_many_for_update(
        self, key_groups: Iterable[int], keys: Iterable[K], namespace: N
    ) -> list[V | None]:
        groups, found = self._touch_many(key_groups, keys, namespace)
        return self._table.get_many_for_update(groups, found, namespace)

    def put(self, key_group: int, key: K, namespace: N, value: V) -> None:
        self._touch(key_group, key, namespace)
        self._table.put(key_group, key, namespace, value)

    def put_and_get_old(self, key_group: int, key: K, namespace: N, value: V) -> V | None:
        self._touch(key_group, key, namespace)
        return self._table.put_and_get_old(key_group, key, namespace, value)

    def remove(self, key_group: int, key: K, namespace: N) -> None:
        self._touch(key_group, key, namespace)
        self._table.remove(key_group, key, namespace)

    def remove_and_get_old(self, key_group: int, key: K, namespace: N) -> V | None:
        self._touch(key_group, key, namespace)
        return self._table.remove_and_get_old(key_group, key, namespace)

    def transform(
        self, key_group: int, key: K, namespace: N, value: U, function: Callable[[V | None, U], V]
    ) -> None:
        first = self._touch(key_group, key, namespace)
        try:
            self._table.transform(key_group, key, namespace, value, function)
        except BaseException:
            if first:
                del self._current[key_group - self._first][namespace, key]
            raise

    def put_many(
        self, key_groups: Iterable[int], keys: Iterable[K], namespace: N, values: Iterable[V]
    ) -> None:
        groups, found = self._touch_many(key_groups, keys, namespace)
        self._table.put_many(groups, found, namespace, values)

    def remove_many(self, key_groups: Iterable[int], keys: Iterable[K], namespace: N) -> None:
        groups, found = self._touch_many(key_groups, keys, namespace)
        self._table.remove_many(groups, found, namespace)

    def restore_entries(self, key_group: int, batch: EntryBatch[K, N, V]) -> None:
        for namespace, key in zip(batch.namespaces, batch.keys, strict=True):
            self._touch(key_group, key, namespace)
        self._table.restore_entries(key_group, batch)

    def visitor(self, batch_size: int) -> IncrementalVisitor[K, N, V]:
        return _TouchingVisitor(self, self._table.visitor(batch_size))

    def _touch_many(
        self, key_groups: Iterable[int], keys: Iterable[K], namespace: N
    ) -> tuple[list[int], list[K]]:
        groups, found = list(key_groups), list(keys)
        for key_group, key in zip(groups, found, strict=True):
            self._touch(key_group, key, namespace)
        return groups, found

    # -- forwarded ------------------------------------------------------------------------------------------

    @property
    def meta(self) -> StateMeta:
        return self._table.meta

    def replace_meta(self, meta: StateMeta) -> None:
        self._table.replace_meta(meta)

    @property
    def key_groups(self) -> KeyGroupRange:
        return self._table.key_groups

    def get(self, key_group: int, key: K, namespace: N) -> V | None:
        return self._table.get(key_group, key, namespace)

    def get_many(self, key_groups: Iterable[int], keys: Iterable[K], namespace: N) -> list[V | None]:
        return self._table.get_many(key_groups, keys, namespace)

    def contains(self, key_group: int, key: K, namespace: N) -> bool:
        return self._table.contains(key_group, key, namespace)

    def __len__(self) -> int:
        return len(self._table)

    def keys(self, namespace: N) -> Iterator[K]:
        return self._table.keys(namespace)

    def keys_and_namespaces(self) -> Iterator[tuple[K, N]]:
        return self._table.keys_and_namespaces()

    def snapshot(self) -> TableSnapshot[K, N, V]:
        return self._table.snapshot()


class _TouchingVisitor(IncrementalVisitor[K, N, V]):
    def __init__(self, table: TouchedTable[K, N, V], visitor: IncrementalVisitor[K, N, V]) -> None:
        self._table = table
        self._visitor = visitor

    def next_entries(self) -> Sequence[StateEntry[K, N, V]]:
        return self._visitor.next_entries()

    def update(self, entry: StateEntry[K, N, V], value: V) -> None:
        self._table._touch(entry.key_group, entry.key, entry.namespace)
        self._visitor.update(entry, value)

    def remove(self, entry: StateEntry[K, N, V]) -> None:
        self._table._touch(entry.key_group, entry.key, entry.namespace)
        self._visitor.remove(entry)


def apply_changes(table: AnyStateTable, changes: Iterable[EntryChange]) -> None:
    """Write or remove entries of a table; of one entry the last change counts."""
    # Grouped by namespace: a table of columns takes many as fast as one.
    last = {(change.namespace, change.key): change for change in changes}
    together: dict[tuple[Any, bool], list[EntryChange]] = {}
    for change in last.values():
        together.setdefault((change.namespace, change.present), []).append(change)
    for (namespace, present), some in together.items():
        _, groups, _, keys, _, values = transposed(some, 6)
        if present:
            table.put_many(groups, keys, namespace, values)
        else:
            table.remove_many(groups, keys, namespace)
