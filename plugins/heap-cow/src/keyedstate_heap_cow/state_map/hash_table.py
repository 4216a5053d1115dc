"""A hash table with chained buckets whose pages and entries are copied when a snapshot may contain them."""

from threading import RLock

from keyedstate_heap_cow import uncompiled as cython

if not cython.compiled:
    from keyedstate_heap_cow.state_map.buckets import (
        CHANGED,
        DIFFERENT,
        EQUAL,
        PAGE_BITS,
        PAGE_MASK,
        STORED,
        UNDECIDED,
        BucketArray,
        Entry,
        Page,
        bits_for,
        compared,
        copy_of_entry,
        copy_of_page,
        drop_page,
        full_buckets,
        has_hash,
        mixed,
        new_buckets,
        spread,
        threshold_of,
    )
    from keyedstate_heap_cow.state_map.change_log import ChangeLog
    from keyedstate_heap_cow.uncompiled import Py_XDECREF, Py_XINCREF, Ref, _Py_REFCNT

#: A key whose comparison changes the map is looked up again, this often.
MAX_RESTARTS = cython.declare(cython.int, 100)

#: Twice this and 1 is the largest stamp.
_LARGEST_VERSION = cython.declare(cython.int, 1073741823)


@cython.internal
@cython.no_gc_clear
@cython.cclass
class HashTable:
    """Finding and changing entries, and the versions that say what a snapshot may contain.

    `CopyOnWriteStateMap` adds its interface; parameters and errors are described there.
    """

    if not cython.compiled:
        __slots__ = (
            "_changes",
            "_copy",
            "_elsewhere",
            "_live_versions",
            "_lock",
            "_log",
            "_moved",
            "_namespace",
            "_namespace_hash",
            "_next",
            "_required",
            "_seen",
            "_size",
            "_table",
            "_taken_out",
            "_threshold",
            "_tier",
            "_uses",
            "_version",
        )

        def __init__(self, copy=None, initial_capacity=128):
            self.__cinit__(copy, initial_capacity)

    # The buckets, and during a rehash the array of twice their capacity that replaces them.  The buckets of
    # `_table` below `_moved` are empty: their entries are in `_next`, which has pages just as far.  Outside a
    # rehash `_next` is None and `_moved` is 0.
    _table: BucketArray
    _next: BucketArray
    _moved: cython.Py_ssize_t

    # Entries in both arrays; more than `_threshold` of them start a rehash.
    _size: cython.Py_ssize_t
    _threshold: cython.Py_ssize_t

    # Grows whenever an entry is added or removed, so that an iterator sees it.
    _changes: cython.ulonglong

    # Grows whenever an entry is taken out, so that what the lower tier has returned before is not added.
    _taken_out: cython.ulonglong

    # Grows by one with each snapshot, which then has this number.  Written by the owner only.
    _version: cython.int

    # The versions of the snapshots taken and not released, ascending, and the last of them or 0.  Both are
    # written under `_lock`, because any thread may release.  `_required` rises in the owner's thread only; if
    # another thread lowers it while the owner works, the owner has at worst copied what it need not have.
    _live_versions: list
    _required: cython.int
    _lock: object

    # The namespace of the last call, and its hash spread over 64 bits: most calls have the same again.
    _namespace: object
    _namespace_hash: cython.ulonglong

    # Copies a value, or None where values are immutable.
    _copy: object

    # None while changes are not tracked.
    _log: ChangeLog

    # What stores entries that are not in the map, or None; see `CopyOnWriteStateMap.use_tier`.  `_elsewhere`
    # is the number of its entries that are not in the map, `_uses` that of the look-ups.
    _tier: object
    _elsewhere: cython.Py_ssize_t
    _uses: cython.ulonglong

    # Takes what `_prefetch` reads, or the compiler would leave the reading out.
    _seen: cython.ulonglong

    def __cinit__(self, copy=None, initial_capacity=128):
        if initial_capacity < 0:
            raise ValueError(f"initial_capacity is {initial_capacity}; give 0 or more buckets")
        self._version = 0
        self._table = full_buckets(bits_for(initial_capacity), 0)
        self._next = None
        self._moved = 0
        self._size = 0
        self._threshold = threshold_of(self._table.bits)
        self._changes = 0
        self._taken_out = 0
        self._live_versions = []
        self._required = 0
        self._lock = RLock()  # reentrant: the cycle collector may release a snapshot in the midst of anything
        self._namespace = None
        self._namespace_hash = spread(hash(None))
        self._copy = copy
        self._log = None
        self._tier = None
        self._elsewhere = 0
        self._uses = 0
        self._seen = 0

    # -- versions ----------------------------------------------------------------------------------

    @cython.final
    @cython.cfunc
    def _check_version(self) -> cython.int:
        if self._version == _LARGEST_VERSION:
            raise OverflowError(
                f"a map counts up to {_LARGEST_VERSION} snapshots and epochs; restore it into a new one"
            )
        return 0

    @cython.final
    @cython.cfunc
    def _add_version(self) -> cython.int:
        """Keep what the map contains now from being changed; call it under the lock."""
        self._version += 1
        self._live_versions.append(self._version)
        self._required = self._version
        return 0

    def release_version(self, version):
        """Stop keeping what a snapshot of this version shows; its own ``release`` calls this.

        Raises
        ------
        ValueError
            If no live snapshot has this version.
        """
        with self._lock:
            if version not in self._live_versions:
                raise ValueError(
                    f"no live snapshot of this map has the version {version!r}; "
                    f"it must be one of {self._live_versions}"
                )
            self._live_versions.remove(version)
            self._required = self._live_versions[len(self._live_versions) - 1] if self._live_versions else 0

    # -- finding -----------------------------------------------------------------------------------

    @cython.final
    @cython.cfunc
    @cython.inline
    def _hash(self, key: object, namespace: object) -> cython.ulonglong:
        key_hash: cython.Py_hash_t = hash(key)
        if namespace is self._namespace:
            return mixed(cython.cast(cython.ulonglong, key_hash), self._namespace_hash)
        return mixed(cython.cast(cython.ulonglong, key_hash), self._hash_of_namespace(namespace))

    @cython.final
    @cython.cfunc
    def _hash_of_namespace(self, namespace: object) -> cython.ulonglong:
        namespace_hash: cython.ulonglong = spread(hash(namespace))
        before = self._namespace
        self._namespace = namespace
        self._namespace_hash = namespace_hash
        del before  # may run user code, and that may ask for another namespace
        return namespace_hash

    @cython.final
    @cython.cfunc
    @cython.inline
    def _head(self, h: cython.ulonglong) -> Ref:
        """Return the first entry of a hash's chain."""
        i: cython.Py_ssize_t = h >> self._table.shift
        if i < self._moved:
            i = h >> self._next.shift
            return cython.cast(Page, self._next.pages[i >> PAGE_BITS]).slots[i & PAGE_MASK]
        return cython.cast(Page, self._table.pages[i >> PAGE_BITS]).slots[i & PAGE_MASK]

    @cython.final
    @cython.cfunc
    def _find(self, h: cython.ulonglong, key: object, namespace: object) -> Ref:
        """Return the entry or NULL.  No user code runs after the last look at the chain."""
        restarts: cython.int = 0
        found: cython.int
        p: Ref = self._head(h)
        while p is not cython.NULL:
            if has_hash(p, h):
                if cython.cast(Entry, p).key is key and cython.cast(Entry, p).namespace is namespace:
                    return p
                found = self._is_for(p, h, key, namespace)
                if found == EQUAL:
                    return p
                if found == CHANGED:
                    restarts += 1
                    if restarts > MAX_RESTARTS:
                        raise RuntimeError(f"comparing with the key {key!r} changes the map every time")
                    p = self._head(h)
                    continue
            p = cython.cast(Entry, p).next
        return cython.NULL

    @cython.final
    @cython.cfunc
    def _is_for(self, p: Ref, h: cython.ulonglong, key: object, namespace: object) -> cython.int:
        """Return whether the entry has this key and namespace, or that asking has changed its chain."""
        found: cython.int = compared(cython.cast(Entry, p).key, key)
        if found == EQUAL:
            found = compared(cython.cast(Entry, p).namespace, namespace)
        if found != UNDECIDED:
            return found
        return self._ask_user_code(p, h, key, namespace)

    @cython.final
    @cython.cfunc
    def _ask_user_code(self, p: Ref, h: cython.ulonglong, key: object, namespace: object) -> cython.int:
        # Both are referenced, so that no other entry can take their place in memory and be taken for them.
        entry: Entry = cython.cast(Entry, p)
        first: Entry = cython.cast(Entry, self._head(h))
        equal: cython.bint = (entry.key is key or entry.key == key) and (
            entry.namespace is namespace or entry.namespace == namespace
        )
        # A new entry is the first of its chain: with the same first one, no entry was added uncompared.
        q: Ref = self._head(h)
        if q is not cython.cast(Ref, first):
            return CHANGED
        while q is not cython.NULL:
            if q is p:
                return EQUAL if equal else DIFFERENT
            q = cython.cast(Entry, q).next
        return CHANGED

    @cython.final
    @cython.cfunc
    @cython.inline
    def _prefetch(self, h: cython.ulonglong) -> cython.int:
        """Read what a look-up of a hash will read.

        A look-up waits for memory some four times in a row.  Where many hashes are prefetched before their
        look-ups, the waits overlap.
        """
        p: Ref = self._head(h)
        if p is not cython.NULL:
            self._seen ^= cython.cast(Entry, p).hash
        return 0

    @cython.final
    @cython.cfunc
    @cython.inline
    def _prefetch_parts(self, h: cython.ulonglong) -> cython.int:
        """Read what a look-up of a prefetched hash will read of the entry's key and value."""
        p: Ref = self._head(h)
        while p is not cython.NULL and not has_hash(p, h):
            p = cython.cast(Entry, p).next
        if p is not cython.NULL:
            self._seen ^= _Py_REFCNT(cython.cast(Ref, cython.cast(Entry, p).key))
            self._seen ^= _Py_REFCNT(cython.cast(Ref, cython.cast(Entry, p).value))
        return 0

    # -- changing: no user code runs here ----------------------------------------------------------

    @cython.final
    @cython.cfunc
    @cython.inline
    def _table_of(self, h: cython.ulonglong) -> BucketArray:
        """Return the bucket array with a hash's chain."""
        i: cython.Py_ssize_t = h >> self._table.shift
        return self._next if i < self._moved else self._table

    @cython.final
    @cython.cfunc
    @cython.inline
    def _own_page(self, table: BucketArray, bucket: cython.Py_ssize_t) -> Page:
        """Return the page of a bucket, copied before if a snapshot may contain it."""
        number: cython.Py_ssize_t = bucket >> PAGE_BITS
        page: Page = cython.cast(Page, table.pages[number])
        if page.version < self._required:
            page = copy_of_page(page, self._version)
            Py_XINCREF(cython.cast(Ref, page))
            drop_page(table, number)
            table.pages[number] = cython.cast(Ref, page)
        return page

    @cython.final
    @cython.cfunc
    def _own(self, p: Ref, h: cython.ulonglong) -> Ref:
        """Return the entry, copied before with those that lead to it, if a snapshot may contain them."""
        table: BucketArray = self._table_of(h)
        bucket: cython.Py_ssize_t = h >> table.shift
        page: Page = self._own_page(table, bucket)
        before: Ref = cython.NULL
        q: Ref = page.slots[bucket & PAGE_MASK]
        last: cython.bint = False
        copied: Entry
        while True:
            last = q is p
            if cython.cast(Entry, q).entry_version < self._required:
                copied = copy_of_entry(cython.cast(Entry, q), self._version)
                Py_XINCREF(cython.cast(Ref, copied))
                if before is cython.NULL:
                    page.slots[bucket & PAGE_MASK] = cython.cast(Ref, copied)
                else:
                    cython.cast(Entry, before).next = cython.cast(Ref, copied)
                Py_XDECREF(q)
                before = cython.cast(Ref, copied)
            else:
                before = q
            if last:
                return before
            q = cython.cast(Entry, before).next

    @cython.final
    @cython.cfunc
    def _store(self, p: Ref, h: cython.ulonglong, value: object) -> cython.int:
        """Set the value of an entry."""
        noted: cython.int = 0
        cython.cast(Entry, p).hash = h | (cython.cast(Entry, p).hash & STORED)
        if self._log is not None:
            self._log.note_change(p)
            noted = 1
        return self._set_value(p, h, value, noted)

    @cython.final
    @cython.cfunc
    def _store_copy(self, p: Ref, h: cython.ulonglong, value: object) -> cython.int:
        """Set the value of an entry to its copy, which is no change."""
        noted: cython.int = self._log is not None and self._log.has_noted(p)
        return self._set_value(p, h, value, noted)

    @cython.final
    @cython.cfunc
    @cython.inline
    def _set_value(self, p: Ref, h: cython.ulonglong, value: object, noted: cython.int) -> cython.int:
        if cython.cast(Entry, p).entry_version < self._required:
            p = self._own(p, h)
        old = cython.cast(Entry, p).value
        # Put again, the object that a live snapshot shows is still that snapshot's, if it can be changed.
        if old is not value or self._copy is None or cython.cast(Entry, p).state_stamp >> 1 >= self._required:
            cython.cast(Entry, p).value = value
            cython.cast(Entry, p).state_stamp = 2 * self._version + noted
        elif self._log is not None:
            if cython.cast(Entry, p).state_stamp >> 1 >= self._log.start:
                cython.cast(Entry, p).state_stamp |= noted
            else:
                self._log.unique = False  # the stamp cannot tell that it was noted
        del old  # may run user code, now that the entry is complete
        return 0

    @cython.final
    @cython.cfunc
    def _insert(self, h: cython.ulonglong, key: object, namespace: object, value: object) -> cython.int:
        """Add an entry for an address that has none."""
        stamp: cython.int = 2 * self._version
        if self._log is not None:
            self._log.note_addition(key, namespace)
            stamp += 1
        return self._add(h, key, namespace, value, stamp)

    @cython.final
    @cython.cfunc
    def _add(
        self, h: cython.ulonglong, key: object, namespace: object, value: object, stamp: cython.int
    ) -> cython.int:
        """Add an entry, which is no change; the lowest bits of `h` are those of the entry."""
        table: BucketArray
        page: Page
        bucket: cython.Py_ssize_t
        entry: Entry = Entry.__new__(Entry)
        if self._size > self._threshold and self._next is None:
            self._next = new_buckets(self._table.bits + 1)
        table = self._table_of(h)
        bucket = h >> table.shift
        page = self._own_page(table, bucket)
        entry.state_stamp = stamp
        entry.hash = h
        entry.key = key
        entry.namespace = namespace
        entry.value = value
        entry.entry_version = self._version
        entry.next = page.slots[bucket & PAGE_MASK]
        Py_XINCREF(cython.cast(Ref, entry))
        page.slots[bucket & PAGE_MASK] = cython.cast(Ref, entry)
        self._size += 1
        self._changes += 1
        return 0

    @cython.final
    @cython.cfunc
    def _unlink(self, p: Ref, h: cython.ulonglong) -> Entry:
        """Remove an entry and return it; dropping it may run user code."""
        if self._log is not None:
            self._log.note_removal(p)
        return self._take_out(p, h)

    @cython.final
    @cython.cfunc
    def _take_out(self, p: Ref, h: cython.ulonglong) -> Entry:
        """Take an entry out of its chain and return it, which is no change."""
        entry: Entry = cython.cast(Entry, p)
        table: BucketArray = self._table_of(h)
        bucket: cython.Py_ssize_t = h >> table.shift
        page: Page = self._own_page(table, bucket)
        before: Ref = page.slots[bucket & PAGE_MASK]
        if before is p:
            Py_XINCREF(entry.next)
            page.slots[bucket & PAGE_MASK] = entry.next
        else:
            while cython.cast(Entry, before).next is not p:
                before = cython.cast(Entry, before).next
            if cython.cast(Entry, before).entry_version < self._required:
                before = self._own(before, h)
            Py_XINCREF(entry.next)
            cython.cast(Entry, before).next = entry.next
        Py_XDECREF(p)
        self._size -= 1
        self._changes += 1
        self._taken_out += 1
        return entry
