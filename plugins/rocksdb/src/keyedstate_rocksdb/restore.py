"""Restores: native files opened in place and cut to the range, rows copied, entries written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from keyedstate.backend import (
    AnyStateTable,
    BackendContext,
    NativeHandle,
    RestoreOperation,
    StateHandle,
    StateMeta,
)
from keyedstate.keygroups import KeyGroupRange
from keyedstate.ordered import OrderedTable, RowLayout, store_of
from keyedstate.tables import FullRestoreOperation, choose_base
from keyedstate_rocksdb.options import BACKEND, RESTORE_COMPACT, RESTORE_INGEST, RESTORE_OVERLAP
from keyedstate_rocksdb.store import DATABASE, RocksStore

CreateTable = Callable[[StateMeta, BackendContext], AnyStateTable]


class RocksRestoreOperation(RestoreOperation):
    """Flink's ``RocksDBFullRestoreOperation`` and ``RocksDBIncrementalRestoreOperation``.

    One of several native handles may be opened in place (`choose_base`); the rows of the others are copied.
    Canonical entries, and the changes after a native snapshot, are written one by one.
    """

    def __init__(
        self, handles: Sequence[StateHandle], context: BackendContext, create_table: CreateTable
    ) -> None:
        self._native: list[NativeHandle] = []
        self._canonical: list[StateHandle] = []
        for handle in handles:
            if isinstance(handle, NativeHandle) and handle.backend == BACKEND:
                self._native.append(handle)
            else:
                # Files of another backend are read as entries.
                self._canonical.append(handle)
        self._context = context
        self._create_table = create_table
        self._tables: dict[str, AnyStateTable] = {}
        #: Whether the database that was opened in place had rows outside the range.
        self._cut = False

    def restore(self) -> dict[str, AnyStateTable]:
        context = self._context
        base = choose_base(self._native, context.key_groups, context.options[RESTORE_OVERLAP.name])
        if base is not None:
            self._open_in_place(base)
        for native in self._native:
            if native is not base:
                self._copy(native)
        FullRestoreOperation(self._canonical, context, lambda meta, _: self._table(meta)).restore()
        if self._cut and context.options[RESTORE_COMPACT.name]:
            store_of(context, RocksStore).compact()
        return self._tables

    def _table(self, meta: StateMeta) -> OrderedTable:  # type: ignore[type-arg]
        table = self._tables.get(meta.name)
        if table is None:
            table = self._tables[meta.name] = self._create_table(meta, self._context)
        assert isinstance(table, OrderedTable), "a table of this plugin"
        return table

    def _open_in_place(self, handle: NativeHandle) -> None:
        context = self._context
        handle.fetch(context.local_dir / DATABASE)
        store = store_of(context, RocksStore)
        store.know_origins({file.name: file.origin for file in handle.files if file.origin})
        known = {meta.name for meta in handle.states}
        for state in store.states:
            if state not in known:
                store.drop_space(state)
        outside = _outside(handle.key_groups, context.key_groups)
        self._cut = bool(outside)
        for meta in handle.states:
            table = self._table(meta)
            if meta.name in handle.native_entries:
                layout: RowLayout = table.codec.layout
                for key_groups in outside:
                    store.open_space(meta.name).delete_range(*layout.range_of(key_groups))
                table.codec.next_number = handle.details["numbers"][meta.name]
        self._apply_changes(handle)
        for meta in handle.states:
            self._table(meta).set_count(None if outside else handle.all_entries[meta.name])

    def _copy(self, handle: NativeHandle) -> None:
        wanted = handle.key_groups.intersection(self._context.key_groups)
        if not wanted:
            return
        with _opened(handle, self._context) as other:
            for meta in handle.states:
                table = self._table(meta)
                if meta.name not in handle.native_entries:
                    continue
                # Only rows of the wanted key groups: the files may contain others, which were cut off.
                rows = other.open_space(meta.name).scan(*table.codec.layout.range_of(wanted))
                if self._context.options[RESTORE_INGEST.name]:
                    table.write_back()
                    space = store_of(self._context, RocksStore).open_space(meta.name)
                    space.ingest(rows, self._context.local_dir / "ingested")
                else:
                    for key, value in rows:
                        table.buffer.put(key, value)
                table.set_count(None)
                numbers = handle.details["numbers"]
                table.codec.next_number = max(table.codec.next_number, numbers[meta.name])
        self._apply_changes(handle)

    def _apply_changes(self, handle: NativeHandle) -> None:
        wanted = self._context.key_groups
        for state, key_group, namespace, key, present, value in handle.changes():
            if key_group in wanted:
                table = self._tables[state]
                if present:
                    table.put(key_group, key, namespace, value)
                else:
                    table.remove(key_group, key, namespace)


def _outside(stored: KeyGroupRange, wanted: KeyGroupRange) -> list[KeyGroupRange]:
    """Return the stored key groups that are not wanted: those before, and those after."""
    before = KeyGroupRange.of(stored.start, min(stored.end, wanted.start - 1))
    after = KeyGroupRange.of(max(stored.start, wanted.end + 1), stored.end)
    return [key_groups for key_groups in (before, after) if key_groups]


@contextmanager
def _opened(handle: NativeHandle, context: BackendContext) -> Iterator[RocksStore]:
    """Open the files of a handle as a separate database, which is deleted afterwards."""
    other = BackendContext(handle.key_groups, context.max_parallelism, context.options, context.local_dir)
    with other.closing:
        handle.fetch(other.local_dir / DATABASE)
        yield store_of(other, RocksStore)
