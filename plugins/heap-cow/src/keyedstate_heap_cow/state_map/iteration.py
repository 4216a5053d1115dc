"""Walks through the entries of a map: an iterator that refuses changes, and a visitor that allows them.

A position is a bucket's number at the largest capacity.  It says what was shown and what was not, through any
number of rehashes, because the order of buckets is the order of hashes.
"""

from keyedstate_heap_cow import uncompiled as cython

if not cython.compiled:
    from keyedstate_heap_cow.state_map.buckets import (
        END,
        MAX_BITS,
        PAGE_BITS,
        PAGE_MASK,
        BucketArray,
        Entry,
        Page,
        prefetch_page,
    )
    from keyedstate_heap_cow.state_map.hash_table import HashTable
    from keyedstate_heap_cow.uncompiled import Ref

#: Buckets that one step of a visitor passes at most, or a nearly empty map would make it long.
_VISITED_PER_STEP = cython.declare(cython.int, 1024)


@cython.cfunc
@cython.inline
def head_at(hash_table: HashTable, position: cython.Py_ssize_t) -> Ref:
    """Return the first entry of the chain at a position."""
    i: cython.Py_ssize_t = position >> (MAX_BITS - hash_table._table.bits)
    if i < hash_table._moved:
        i = position >> (MAX_BITS - hash_table._next.bits)
        return cython.cast(Page, hash_table._next.pages[i >> PAGE_BITS]).slots[i & PAGE_MASK]
    return cython.cast(Page, hash_table._table.pages[i >> PAGE_BITS]).slots[i & PAGE_MASK]


@cython.cfunc
@cython.inline
def position_after(hash_table: HashTable, position: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Return the position of the chain after the one at a position."""
    shift: cython.int = MAX_BITS - hash_table._table.bits
    if position >> shift < hash_table._moved:
        shift = MAX_BITS - hash_table._next.bits
    return ((position >> shift) + 1) << shift


@cython.cfunc
@cython.inline
def _prefetch_page_at(hash_table: HashTable, position: cython.Py_ssize_t) -> cython.int:
    """Read ahead where a position is the first of a page."""
    table: BucketArray = hash_table._table
    i: cython.Py_ssize_t = position >> (MAX_BITS - table.bits)
    if i < hash_table._moved:
        table = hash_table._next
        i = position >> (MAX_BITS - table.bits)
    if i & PAGE_MASK == 0:
        hash_table._seen ^= prefetch_page(cython.cast(Page, table.pages[i >> PAGE_BITS]))
    return 0


@cython.cfunc
def _append_chain(p: Ref, entries: list) -> cython.int:
    """Append (key, namespace, value) of the entries of a chain."""
    first: cython.Py_ssize_t = len(entries)
    i: cython.Py_ssize_t
    entry: Entry
    while p is not cython.NULL:
        entries.append(cython.cast(Entry, p))
        p = cython.cast(Entry, p).next
    # Only now, because making a tuple may run the cycle collector, and that any finalizer.
    for i in range(first, len(entries)):
        entry = entries[i]
        entries[i] = (entry.key, entry.namespace, entry.value)
    return 0


@cython.final
@cython.no_gc_clear
@cython.cclass
class StateMapIterator:
    """Yields the entries of a map as (key, namespace, value); see `CopyOnWriteStateMap.__iter__`."""

    if not cython.compiled:
        __slots__ = ("_changes", "_entries", "_map", "_position", "_shown")

        def __init__(self, state_map):
            self.__cinit__(state_map)

    _map: HashTable
    _changes: cython.ulonglong

    # The next position to load, and what the last one held, shown up to `_shown`.  Loaded at once, because a
    # rehash may take a chain apart between two steps.
    _position: cython.Py_ssize_t
    _entries: list
    _shown: cython.Py_ssize_t

    def __cinit__(self, state_map: HashTable):
        self._map = state_map
        self._changes = state_map._changes
        self._position = 0
        self._entries = []
        self._shown = 0

    def __iter__(self):
        return self

    def __next__(self):
        p: Ref
        entry: Entry
        if self._changes != self._map._changes:
            raise RuntimeError(
                "entries came or went during iteration over a state map; use a visitor to change it meanwhile"
            )
        if self._shown == len(self._entries):
            self._entries.clear()
            self._shown = 0
            p = cython.NULL
            while p is cython.NULL:
                if self._position == END:
                    raise StopIteration
                _prefetch_page_at(self._map, self._position)
                p = head_at(self._map, self._position)
                self._position = position_after(self._map, self._position)
            if cython.cast(Entry, p).next is cython.NULL:
                entry = cython.cast(Entry, p)
                return (entry.key, entry.namespace, entry.value)
            _append_chain(p, self._entries)
        self._shown += 1
        return self._entries[self._shown - 1]


@cython.final
@cython.no_gc_clear
@cython.cclass
class StateMapVisitor:
    """A walk through a map in steps, between which anything may happen to the map.

    An entry is never shown twice, also if it is removed and put again or moved by rehashes.  An entry that is
    there from the beginning of the walk to its end is shown.  One that comes meanwhile may be shown or not.
    (Flink's ``StateIncrementalVisitor``; that the order of hashes is the order of buckets makes it exact.)

    The values must not be changed in place, because a snapshot may have them too: `update` the entry with
    another one.

    Parameters
    ----------
    state_map : CopyOnWriteStateMap
        What to walk through.
    batch_size : int
        A step ends with the chain that brings it to this many entries.

    Raises
    ------
    ValueError
        If `batch_size` is below 1.
    """

    if not cython.compiled:
        __slots__ = ("_batch_size", "_map", "_position")

        def __init__(self, state_map, batch_size):
            self.__cinit__(state_map, batch_size)

    _map: HashTable
    _batch_size: cython.Py_ssize_t

    # All chains before this position are shown, and none after it.
    _position: cython.Py_ssize_t

    def __cinit__(self, state_map: HashTable, batch_size: cython.Py_ssize_t):
        if batch_size < 1:
            raise ValueError(f"a visitor cannot walk in steps of {batch_size} entries; give at least 1")
        self._map = state_map
        self._batch_size = batch_size
        self._position = 0

    def has_next(self):
        """Return whether the walk is not over."""
        return self._position < END and self._map._size > 0

    def next_batch(self):
        """Return the next entries as (key, namespace, value).

        Returns
        -------
        list of tuple
            Empty where the buckets of this step had none: only `has_next` tells that the walk is over.
        """
        entries: list = []
        p: Ref
        passed: cython.int = 0
        while passed < _VISITED_PER_STEP and len(entries) < self._batch_size and self._position < END:
            p = head_at(self._map, self._position)
            self._position = position_after(self._map, self._position)
            _append_chain(p, entries)
            passed += 1
        return entries

    def update(self, entry, value):
        """Write a new value for an entry that was shown."""
        self._map.put(entry[0], entry[1], value)

    def remove(self, entry):
        """Remove an entry that was shown."""
        self._map.remove(entry[0], entry[1])
