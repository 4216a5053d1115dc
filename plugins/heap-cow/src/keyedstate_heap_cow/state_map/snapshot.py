"""Snapshots of a map, which another thread reads while the owner continues to change the map."""

from threading import get_ident
from time import perf_counter, sleep

from keyedstate_heap_cow import uncompiled as cython

if not cython.compiled:
    from keyedstate_heap_cow.state_map.buckets import (
        PAGE_BITS,
        PAGE_MASK,
        BucketArray,
        Entry,
        Page,
        copy_of_buckets,
        drop_page,
        prefetch_page,
    )
    from keyedstate_heap_cow.state_map.hash_table import HashTable
    from keyedstate_heap_cow.uncompiled import Ref

#: Seconds for which a released snapshot is freed before other threads get a turn.
_FREEING_TURN = cython.declare(cython.double, 0.0005)


class _Drop:
    def __repr__(self):
        return "DROP"


#: What a snapshot's transformer returns for an entry that must not be in the snapshot.
DROP = _Drop()


@cython.final
@cython.no_gc_clear
@cython.cclass
class CopyOnWriteStateMapSnapshot:
    """The entries of a map as they were when `CopyOnWriteStateMap.snapshot` was called.

    It can be read as often as wanted, in any thread, until it is released.  While it is live, the owner of
    the map copies what it changes: release it as soon as it is read.  As a context manager it does so itself.
    """

    if not cython.compiled:
        __slots__ = ("_map", "_moved", "_next", "_owner", "_size", "_table", "_transformer", "_version")

        def __init__(self, state_map, transformer=None):
            self.__cinit__(state_map, transformer)

    # Never change.
    _map: HashTable
    _transformer: object
    _owner: object
    _moved: cython.Py_ssize_t
    _size: cython.Py_ssize_t
    _version: cython.int

    # The pages of the map.  Both become None under the map's lock when the snapshot is released.
    _table: BucketArray
    _next: BucketArray

    def __cinit__(self, state_map: HashTable, transformer=None):
        self._map = state_map
        self._transformer = transformer
        self._owner = get_ident()
        self._moved = 0
        self._size = 0
        self._version = 0
        self._table = None
        self._next = None

    @cython.cfunc
    def _take(self) -> cython.int:
        state_map: HashTable = self._map
        self._version = state_map._version
        if state_map._next is not None:
            self._next = copy_of_buckets(state_map._next)
        self._table = copy_of_buckets(state_map._table)
        self._moved = state_map._moved
        self._size = state_map._size
        return 0

    def __len__(self):
        return self._size

    @property
    def version(self):
        """The number of this snapshot in the order of all snapshots of its map."""
        return self._version

    @property
    def is_released(self):
        """Whether `release` was called."""
        return self._table is None

    def entries(self):
        """Yield (key, namespace, value) in the order of hashes.

        Raises
        ------
        RuntimeError
            If the snapshot is released, also in the midst of the iteration.
        """
        return SnapshotEntries(self)

    def __iter__(self):
        return SnapshotEntries(self)

    def batches(self, size):
        """Yield the entries as three lists of equal length: namespaces, keys, values.

        Parameters
        ----------
        size : int
            Entries in a batch; the last one may have fewer.  Compiled, no other thread runs while a batch is
            made, some 0.2 ms per 1,000 entries.

        Raises
        ------
        ValueError
            If `size` is below 1.
        RuntimeError
            If the snapshot is released, also in the midst of the iteration.
        """
        if size < 1:
            raise ValueError(f"a batch cannot have {size} entries; give at least 1")
        return _batches(SnapshotEntries(self), size)

    def release(self):
        """Give the snapshot up; calling it again does nothing.

        What only the snapshot still had is freed: about 0.2 ms per 1,000 entries that were changed since.  In
        another thread than the one that took the snapshot this is done in small steps between which the
        owner runs, so release it where it was read.
        """
        table: BucketArray = self._table
        larger: BucketArray = self._next
        with self._map._lock:
            if self._table is None:
                return
            self._map.release_version(self._version)
            self._table = None
            self._next = None
        if cython.compiled and get_ident() != self._owner:
            _free(table)
            if larger is not None:
                _free(larger)

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        self.release()


@cython.cfunc
def _free(table: BucketArray) -> cython.int:
    """Drop the pages of a released snapshot and let other threads run now and then."""
    i: cython.Py_ssize_t
    until: cython.double = perf_counter() + _FREEING_TURN
    for i in range(table.count):
        drop_page(table, i)
        if i % 16 == 0 and perf_counter() > until:
            sleep(0)
            until = perf_counter() + _FREEING_TURN
    return 0


@cython.final
@cython.no_gc_clear
@cython.cclass
class SnapshotEntries:
    """Yields the entries of a snapshot as (key, namespace, value); for one thread."""

    if not cython.compiled:
        __slots__ = ("_bucket", "_entry", "_seen", "_snapshot", "_table")

        def __init__(self, snapshot):
            self.__cinit__(snapshot)

    _snapshot: CopyOnWriteStateMapSnapshot

    # The table that is being read and its next bucket: first the larger one of an unfinished rehash, whose
    # buckets come first in the order of hashes.
    _table: BucketArray
    _bucket: cython.Py_ssize_t

    # The next entry of the chain that is being read, or None.
    _entry: Entry

    # See `HashTable._seen`.
    _seen: cython.ulonglong

    def __cinit__(self, snapshot: CopyOnWriteStateMapSnapshot):
        self._snapshot = snapshot
        self._table = snapshot._table if snapshot._next is None else snapshot._next
        self._bucket = 0
        self._seen = 0
        self._entry = None
        if self._table is None:
            raise _released(snapshot)

    def __iter__(self):
        return self

    @cython.cfunc
    def _advance(self) -> Entry:
        """Return the next entry, or None at the end."""
        snapshot: CopyOnWriteStateMapSnapshot = self._snapshot
        entry: Entry = self._entry
        table: BucketArray = self._table
        last_table: BucketArray = snapshot._table
        i: cython.Py_ssize_t
        p: Ref
        if last_table is None:
            raise _released(snapshot)
        if entry is None:
            while True:
                i = self._bucket
                if table is last_table:
                    if i >> table.bits:
                        return None
                elif i == 2 * snapshot._moved:
                    table = last_table
                    self._table = table
                    self._bucket = snapshot._moved
                    continue
                self._bucket = i + 1
                if i & PAGE_MASK == 0:
                    self._seen ^= prefetch_page(cython.cast(Page, table.pages[i >> PAGE_BITS]))
                p = cython.cast(Page, table.pages[i >> PAGE_BITS]).slots[i & PAGE_MASK]
                if p is not cython.NULL:
                    entry = cython.cast(Entry, p)
                    break
        self._entry = None if entry.next is cython.NULL else cython.cast(Entry, entry.next)
        return entry

    def __next__(self):
        entry: Entry
        while True:
            entry = self._advance()
            if entry is None:
                raise StopIteration
            value = entry.value
            # A released entry may be changed: only now it is known that the value is the snapshot's.
            if self._snapshot._table is None:
                raise _released(self._snapshot)
            if self._snapshot._transformer is not None:
                value = self._snapshot._transformer(value)
                if value is DROP:
                    continue
            return (entry.key, entry.namespace, value)

    @cython.cfunc
    def _fill(self, namespaces: list, keys: list, values: list, size: cython.Py_ssize_t) -> cython.int:
        """Append the next entries to three lists until they have a length."""
        entry: Entry
        while len(keys) < size:
            entry = self._advance()
            if entry is None:
                break
            value = entry.value
            if self._snapshot._transformer is not None:
                value = self._snapshot._transformer(value)
                if value is DROP:
                    continue
            namespaces.append(entry.namespace)
            keys.append(entry.key)
            values.append(value)
        if self._snapshot._table is None:
            raise _released(self._snapshot)
        return 0


def _batches(reader: SnapshotEntries, size: cython.Py_ssize_t):
    namespaces: list
    keys: list
    values: list
    while True:
        namespaces, keys, values = [], [], []
        reader._fill(namespaces, keys, values, size)
        if not keys:
            return
        yield namespaces, keys, values


def _released(snapshot):
    return RuntimeError(
        f"snapshot {snapshot.version} of a state map is released and cannot be read; take another one"
    )
