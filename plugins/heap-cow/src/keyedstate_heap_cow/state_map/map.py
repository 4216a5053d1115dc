"""The copy-on-write map: the operations of its owner."""

from keyedstate_heap_cow import uncompiled as cython

if not cython.compiled:
    from keyedstate_heap_cow.state_map.buckets import (
        BLOCK,
        END,
        STORED,
        BucketArray,
        Entry,
        bits_for,
        full_buckets,
        threshold_of,
    )
    from keyedstate_heap_cow.state_map.bulk import as_list, check_lengths, get_many, put_many, remove_many
    from keyedstate_heap_cow.state_map.change_log import ChangeLog
    from keyedstate_heap_cow.state_map.hash_table import MAX_RESTARTS, HashTable
    from keyedstate_heap_cow.state_map.iteration import (
        StateMapIterator,
        StateMapVisitor,
        head_at,
        position_after,
    )
    from keyedstate_heap_cow.state_map.noted_changes import noted_since, shorten_log
    from keyedstate_heap_cow.state_map.rehash import make_room, move_some
    from keyedstate_heap_cow.state_map.snapshot import CopyOnWriteStateMapSnapshot
    from keyedstate_heap_cow.state_map.tiers import admit_one, coldest, evict, may_leave, use, use_to_remove
    from keyedstate_heap_cow.uncompiled import Ref


@cython.final
@cython.no_gc_clear
@cython.cclass
class CopyOnWriteStateMap(HashTable):
    """A map from (key, namespace) to a value, with snapshots that another thread can read.

    Parameters
    ----------
    copy : callable, optional
        Returns a deep copy of a value.  None says that values are immutable.
    initial_capacity : int, default 128
        Buckets to begin with; rounded up to a power of two between 4 and 2**30.

    Raises
    ------
    ValueError
        If `initial_capacity` is negative.

    Notes
    -----
    None is a value: `contains` is True for it.  Keys and namespaces must be hashable; they are equal where
    ``==`` says so, as in a dict.  See the module's text for threads, values and user code.
    """

    if not cython.compiled:
        __slots__ = ()

    # -- its size and versions ---------------------------------------------------------------------

    def __len__(self):
        return self._size

    @property
    def capacity(self):
        """The number of buckets; during a rehash, of the array that is being left."""
        return 1 << self._table.bits

    @property
    def is_rehashing(self):
        """Whether entries are being moved into a larger table."""
        return self._next is not None

    @property
    def version(self):
        """The version of the newest snapshot ever taken; 0 before the first. Epochs raise it too."""
        return self._version

    @property
    def live_snapshot_versions(self):
        """The versions of the snapshots not yet released, ascending."""
        return tuple(self._live_versions)

    # -- single entries ----------------------------------------------------------------------------

    def get(self, key, namespace):
        """Return the value, or None where there is no entry."""
        return self._get(self._hash(key, namespace), key, namespace)

    def get_for_update(self, key, namespace):
        """Return the value, which the caller changes in place at once, or None where there is no entry.

        Like `get`, and the entry counts as changed.
        """
        return self._get_for_update(self._hash(key, namespace), key, namespace)

    def contains(self, key, namespace):
        """Return whether there is an entry, also one of the value None."""
        h: cython.ulonglong = self._hash(key, namespace)
        if self._next is not None:
            move_some(self)
        return use(self, h, key, namespace) is not cython.NULL

    def put(self, key, namespace, value):
        """Write a value."""
        self._put(self._hash(key, namespace), key, namespace, value)

    def put_and_get_old(self, key, namespace, value):
        """Write a value and return the one it replaces, or None."""
        h: cython.ulonglong = self._hash(key, namespace)
        p: Ref
        if self._next is not None:
            move_some(self)
        if self._log is not None and self._log.is_stale():
            shorten_log(self)
        p = use(self, h, key, namespace)
        if p is cython.NULL:
            self._insert(h, key, namespace, value)
            return None
        if self._copy is None or cython.cast(Entry, p).state_stamp >> 1 >= self._required:
            old = cython.cast(Entry, p).value
            self._store(p, h, value)
            return old
        old = self._copy_of(cython.cast(Entry, p).value)
        self._put(h, key, namespace, value)
        return old

    def remove(self, key, namespace):
        """Remove the entry; return whether there was one."""
        h: cython.ulonglong = self._hash(key, namespace)
        return self._remove(h, key, namespace) is not None

    def remove_and_get_old(self, key, namespace):
        """Remove the entry and return its value, or None if no entry existed."""
        h: cython.ulonglong = self._hash(key, namespace)
        p: Ref
        if self._next is not None:
            move_some(self)
        p = use_to_remove(self, h, key, namespace)
        if p is cython.NULL:
            return None
        if self._copy is None or cython.cast(Entry, p).state_stamp >> 1 >= self._required:
            return self._unlink(p, h).value
        old = self._copy_of(cython.cast(Entry, p).value)
        self._remove(h, key, namespace)
        return old

    def transform(self, key, namespace, value, function):
        """Put ``function(old value or None, value)`` in the entry's place; no change where it raises.

        The function may change the old value and return it.
        """
        h: cython.ulonglong = self._hash(key, namespace)
        p: Ref
        if self._next is not None:
            move_some(self)
        p = use(self, h, key, namespace)
        if p is cython.NULL:
            old = None
        else:
            old = cython.cast(Entry, p).value
            if self._copy is not None and cython.cast(Entry, p).state_stamp >> 1 < self._required:
                old = self._copy_of(old)
        self._put(h, key, namespace, function(old, value))

    def clear(self):
        """Remove all entries; snapshots keep theirs."""
        position: cython.Py_ssize_t = 0
        p: Ref
        emptied = (self._table, self._next)  # freed at the end, with all the user code that this may run
        if self._log is not None:
            while position < END:
                p = head_at(self, position)
                while p is not cython.NULL:
                    self._log.note_removal(p)
                    p = cython.cast(Entry, p).next
                position = position_after(self, position)
        table: BucketArray = full_buckets(bits_for(128), self._version)
        self._table = table
        self._next = None
        self._moved = 0
        self._size = 0
        self._threshold = threshold_of(table.bits)
        self._changes += 1
        del emptied

    # -- many entries ------------------------------------------------------------------------------
    # Where one raises, those before it are done and those after it are not.

    def get_many(self, keys, namespace):
        """Return the values of several keys of one namespace, in their order."""
        return get_many([self], 0, None, keys, namespace)

    def put_many(self, keys, namespace, values):
        """Write the values of several keys of one namespace; the last one of a repeated key counts.

        Raises
        ------
        ValueError
            If there are not as many values as keys; nothing is written then.
        """
        put_many([self], 0, None, keys, namespace, values)

    def remove_many(self, keys, namespace):
        """Remove the entries of several keys of one namespace."""
        remove_many([self], 0, None, keys, namespace)

    def restore_entries(self, namespaces, keys, values):
        """Write entries each with a namespace of its own; room for all is made first.

        Raises
        ------
        ValueError
            If the lengths differ; nothing is written then.
        """
        ks: list = as_list(keys)
        ns: list = as_list(namespaces)
        vs: list = as_list(values)
        hashes: cython.ulonglong[64]
        start: cython.Py_ssize_t
        i: cython.Py_ssize_t
        count: cython.Py_ssize_t
        check_lengths("namespaces", ns, ks)
        check_lengths("values", vs, ks)
        make_room(self, len(ks))
        if not cython.compiled:
            hashes = [0] * BLOCK
        for start in range(0, len(ks), BLOCK):
            count = min(BLOCK, len(ks) - start)
            for i in range(count):
                hashes[i] = self._hash(ks[start + i], ns[start + i])
            if cython.compiled:
                for i in range(count):
                    self._prefetch(hashes[i])
            for i in range(count):
                self._put(hashes[i], ks[start + i], ns[start + i], vs[start + i])

    # -- walks -------------------------------------------------------------------------------------

    def __iter__(self):
        """Yield (key, namespace, value), each entry once, in the order of their hashes.

        Raises
        ------
        RuntimeError
            If an entry came or went since the iteration began.  Replacing values is allowed.
        """
        return StateMapIterator(self)

    def visitor(self, batch_size):
        """Return a walk in steps of about `batch_size` entries that tolerates every change meanwhile."""
        return StateMapVisitor(self, batch_size)

    # -- snapshots ---------------------------------------------------------------------------------

    def snapshot(self, transformer=None):
        """Return the present entries, to be read while the map changes, and released.

        Parameters
        ----------
        transformer : callable, optional
            Gets each value when the snapshot is read, in the reader's thread, and returns what the reader
            sees instead, or `DROP`.  It must not change the value.
        """
        taken = CopyOnWriteStateMapSnapshot(self, transformer)
        self._check_version()
        with self._lock:
            # No user code may run between these: what it wrote would count as written after the snapshot, and
            # be in it.  Nothing here makes an object that the cycle collector counts, which might start it.
            self._add_version()
            try:
                taken._take()
            except MemoryError:
                self.release_version(self._version)
                raise
        return taken

    # -- changes -----------------------------------------------------------------------------------

    def begin_epoch(self, epoch):
        """Log every change from now on as one of an epoch; before the first one, nothing is logged.

        Parameters
        ----------
        epoch : int
            Above the one before.

        Raises
        ------
        ValueError
            If it is not.
        """
        log: ChangeLog = self._log if self._log is not None else ChangeLog()
        self._check_version()
        log.begin(epoch, self._version + 1)
        self._version += 1
        self._log = log

    def changes_since(self, epoch):
        """Return what changed in the epochs above one that are not forgotten.

        Returns
        -------
        tuple of seven lists
            Namespaces, keys and values of the entries that were written and still exist; namespaces and keys
            of those that existed when the first of the epochs began and do not now; namespaces and keys of
            those that existed neither then nor now, but in between.  The last four include entries that only
            the lower tier has.  The values are the map's own: before the owner continues, a `hold` must keep
            it from changing them in place.
        """
        return noted_since(self, epoch)

    def forget_changes(self, epoch):
        """Forget the changes of epochs up to and including one, but not those of the running epoch."""
        if self._log is not None:
            self._log.forget(epoch)

    def hold(self):
        """Keep every present value from being changed in place, as a live snapshot does, without taking one.

        Returns
        -------
        int
            What `release_version` takes.
        """
        self._check_version()
        with self._lock:
            self._add_version()
            return self._version

    # -- two tiers ---------------------------------------------------------------------------------
    # A map can be the upper tier of two: entries that were not used for long move to the lower one, and come
    # back when they are used.  Moving an entry changes no snapshot, and is no change of an epoch.

    def use_tier(self, tier):
        """Load entries from a lower tier where the map has none, and note each use of an entry.

        Parameters
        ----------
        tier : object
            ``load(key, namespace)`` returns the value and the stamp of an entry, or None;
            ``contains(key, namespace)`` returns whether the tier has it, and ``discard(key, namespace)``
            removes it.  They are called in the owner's thread, and only for entries that were evicted or
            admitted.
        """
        self._tier = tier

    @property
    def elsewhere(self):
        """The number of entries that only the lower tier has."""
        return self._elsewhere

    @property
    def uses(self):
        """How often an entry was looked up since `use_tier` was called."""
        return self._uses

    def holds(self, key, namespace):
        """Return whether the map itself has an entry; that is no use of it."""
        return self._find(self._hash(key, namespace), key, namespace) is not cython.NULL

    def begin_uses(self):
        """Begin a period of use, for `coldest`, and return its number."""
        self._check_version()
        self._version += 1
        return self._version

    def coldest(self, position, period, limit):
        """Return entries of the map that were not used since a period began, the next ones in a walk.

        Parameters
        ----------
        position : int
            Where the walk continues; it begins at 0.
        period : int
            What `begin_uses` returned.
        limit : int
            How many entries to return at most; a step also ends after 16 times as many were passed.

        Returns
        -------
        tuple
            The next position, or None at the end of the walk; a list of entries that the lower tier has with
            the same value; and one of others, which the lower tier has to write before they are evicted.
        """
        return coldest(self, position, period, limit)

    def may_leave(self, entries):
        """Return of each entry that `coldest` returned whether it is unchanged since; no user code runs."""
        return [may_leave(self, entry) for entry in entries]

    def evict(self, entries):
        """Drop unchanged entries that the lower tier has now; return how many; no user code runs."""
        return evict(self, entries)

    @property
    def taken_out(self):
        """How many entries have left the map, by removal or eviction."""
        return self._taken_out

    def admit(self, key, namespace, value, stamp, taken_out):
        """Add an entry that only the lower tier has, unless the map has it.

        Returns False where the map has lost entries since `taken_out` was that, before the tier was read:
        this may be one of them.
        """
        return admit_one(self, self._hash(key, namespace), key, namespace, value, stamp, taken_out)

    def add_elsewhere(self, entries):
        """Count entries that were added to the lower tier, or removed from it, and are not in the map."""
        self._elsewhere += entries

    # -- the methods' common parts: they run user code before their last step, and none in it -------------

    @cython.cfunc
    @cython.inline
    def _get(self, h: cython.ulonglong, key: object, namespace: object) -> object:
        p: Ref
        if self._next is not None:
            move_some(self)
        p = use(self, h, key, namespace)
        if p is cython.NULL:
            return None
        if self._copy is None or cython.cast(Entry, p).state_stamp >> 1 >= self._required:
            return cython.cast(Entry, p).value
        return self._get_copied(p, h, key, namespace)

    @cython.cfunc
    def _get_for_update(self, h: cython.ulonglong, key: object, namespace: object) -> object:
        p: Ref
        if self._next is not None:
            move_some(self)
        p = use(self, h, key, namespace)
        if p is cython.NULL:
            return None
        if self._copy is not None and cython.cast(Entry, p).state_stamp >> 1 < self._required:
            value = self._get_copied(p, h, key, namespace)
            if self._log is None and self._tier is None:
                return value
            p = self._find(h, key, namespace)  # copying has replaced it, and may have run anything
            if p is cython.NULL:
                return None
        cython.cast(Entry, p).hash = h | (cython.cast(Entry, p).hash & STORED)
        if self._log is not None:
            self._log.note_change(p)
            cython.cast(Entry, p).state_stamp = 2 * self._version + 1
        return cython.cast(Entry, p).value

    @cython.cfunc
    def _put(self, h: cython.ulonglong, key: object, namespace: object, value: object) -> cython.int:
        p: Ref
        if self._next is not None:
            move_some(self)
        if self._log is not None and self._log.is_stale():
            shorten_log(self)
        p = use(self, h, key, namespace)
        if p is cython.NULL:
            return self._insert(h, key, namespace, value)
        return self._store(p, h, value)

    @cython.cfunc
    def _remove(self, h: cython.ulonglong, key: object, namespace: object) -> Entry:
        """Remove an entry and return it, or None."""
        p: Ref
        if self._next is not None:
            move_some(self)
        p = use_to_remove(self, h, key, namespace)
        if p is cython.NULL:
            return None
        return self._unlink(p, h)

    @cython.cfunc
    def _copy_of(self, value: object) -> object:
        """Return a copy of a value; None is one of every type."""
        return None if value is None else self._copy(value)

    @cython.cfunc
    def _get_copied(self, p: Ref, h: cython.ulonglong, key: object, namespace: object) -> object:
        """Copy the value of an entry, keep the copy in the map, and return it."""
        entry: Entry
        attempts: cython.int = 0
        while attempts <= MAX_RESTARTS:
            entry = cython.cast(Entry, p)
            old = entry.value
            new = self._copy_of(old)
            # The function may have changed the map, or the snapshot been released.
            p = self._find(h, key, namespace)
            if p is cython.NULL:
                return None
            if cython.cast(Entry, p).state_stamp >> 1 >= self._required:
                return cython.cast(Entry, p).value
            if p is cython.cast(Ref, entry) and entry.value is old:
                self._store_copy(p, h, new)
                return new
            attempts += 1
        raise RuntimeError(f"copying the value of the key {key!r} changes the map every time")
