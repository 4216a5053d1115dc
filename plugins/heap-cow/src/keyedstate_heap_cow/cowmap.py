# cython: language_level=3, binding=False, boundscheck=True, wraparound=False, auto_pickle=False
"""A hash map over (key, namespace) whose snapshots cost next to nothing: `CopyOnWriteStateMap`.

Flink's ``CopyOnWriteStateMap``: chained buckets, incremental rehash, and entries that are copied when they
are changed while a snapshot still needs them.  Two things differ.

- A bucket is chosen by the *highest* bits of an entry's hash, so that doubling splits bucket i into 2i and
  2i + 1 and the order of hashes is the order of buckets whatever the capacity.  A position in that order
  says what was visited and what was not, through any number of rehashes: iteration and visitors need no
  more than it.
- The bucket array is cut into pages that are copied on write like the entries, so that a snapshot copies a
  reference per page and not one per bucket, and a new array grows page by page while it is filled.

The file is in Cython's pure-Python mode.  Compiled or not it does the same; `COMPILED` tells which it is.

Threads
-------
A map belongs to one thread, its owner; everything of it is called there, and `CopyOnWriteStateMap.snapshot`
too.  A snapshot may be handed to another thread, which reads it while the owner goes on changing the map;
one iterator over it serves one thread.  `CopyOnWriteStateMapSnapshot.release` may be called in any thread at
any time, also while another one reads: that reader gets a RuntimeError at its next step, never wrong entries.

Values
------
With a `copy` function, values are mutable.  A value that was in the map when the newest live snapshot was
taken is copied at its first access, so that the owner may change what it gets.  What it got *before* the
snapshot it must not change any more, nor what iteration and visitors show, which are never copied.
Without `copy`, values are taken to be immutable and the same object is in the map and its snapshots.

Memory
------
Compiled, entries and pages are outside the cycle collector: it would visit each of them over and over.  They
are freed by reference counts as usual, but a cycle through a value (a value that refers to its map) is never
collected; `CopyOnWriteStateMap.clear` breaks it.  A table that has grown does not shrink again (as in Flink)
except by `clear`.

User code
---------
Keys and namespaces bring ``__hash__`` and ``__eq__``, values ``__del__``, and the owner gives functions.  Any
of them may raise: the entry is then as before.  Any of them may call the map: a method runs user code before
it has looked up what it changes, or looks it up again, or runs it when it has finished.  One thing is asked
of it where this file runs uncompiled: the cycle collector may then run a finalizer in the midst of a method,
and such a finalizer must not change the map.
"""

from __future__ import annotations

from threading import RLock, get_ident
from time import perf_counter, sleep
from typing import TYPE_CHECKING

from keyedstate.tables import check_ascending

if TYPE_CHECKING:  # the compiler reads this import wherever it stands; the interpreter needs no Cython
    import cython
else:
    from keyedstate_heap_cow import uncompiled as cython

if cython.compiled:
    from cython.cimports.cpython.mem import PyMem_Free, PyMem_Malloc
    from cython.cimports.cpython.object import PyObject
    from cython.cimports.cpython.ref import Py_XDECREF, Py_XINCREF, _Py_REFCNT

    #: A reference that the compiler does not count: a pointer to an entry or a page.
    Ref = cython.typedef(cython.pointer[PyObject])
    RefArray = cython.typedef(cython.pointer[cython.pointer[PyObject]])
else:
    Ref = None

    def Py_XINCREF(_reference):
        """Do nothing: the interpreter counts references itself."""

    Py_XDECREF = Py_XINCREF


#: Whether this is the compiled form of the file.
COMPILED = cython.compiled

#: Raised with every change that `table` needs, so that it can tell a compiled form older than this file.
REVISION = 2

# Classes with `no_gc_clear` are not emptied when the cycle collector breaks a cycle that they are in: whoever
# else is in that cycle may still call them, and would find no table.

#: Capacities are powers of two between these (Flink's bounds), as exponents.
_MIN_BITS = cython.declare(cython.int, 2)
_MAX_BITS = cython.declare(cython.int, 30)

#: Positions in the order of hashes: bucket numbers at the largest capacity.
_END = cython.declare(cython.Py_ssize_t, 1 << 30)

#: Buckets of a page, as exponent, mask and count; the array in `Page` has this length too.
_PAGE_BITS = cython.declare(cython.int, 7)
_PAGE_MASK = cython.declare(cython.Py_ssize_t, 127)
_PAGE_SIZE = cython.declare(cython.Py_ssize_t, 128)

#: An access during a rehash moves whole buckets until this many entries have moved ...
_MOVED_PER_ACCESS = cython.declare(cython.int, 4)
#: ... but passes no more buckets than this, or emptying a large map would leave one long step behind.
_PASSED_PER_ACCESS = cython.declare(cython.int, 64)

#: Buckets that one step of a visitor passes at most, or a nearly empty map would make it long.
_VISITED_PER_STEP = cython.declare(cython.int, 1024)

#: A key whose comparison changes the map is looked up anew, this often.
_MAX_RESTARTS = cython.declare(cython.int, 100)

#: Keys of a bulk operation that are hashed and approached together.
_BLOCK = cython.declare(cython.Py_ssize_t, 64)

#: Addresses of added and removed entries that an epoch keeps before it looks for them.
_STALE_LIMIT = cython.declare(cython.Py_ssize_t, 4096)

#: Seconds for which a released snapshot is freed before other threads get a turn.
_FREEING_TURN = cython.declare(cython.double, 0.0005)

_64_BITS = cython.declare(cython.ulonglong, 0xFFFFFFFFFFFFFFFF)
_GOLDEN = cython.declare(cython.ulonglong, 0x9E3779B97F4A7C15)
_MURMUR_1 = cython.declare(cython.ulonglong, 0xFF51AFD7ED558CCD)
_MURMUR_2 = cython.declare(cython.ulonglong, 0xC4CEB9FE1A85EC53)

#: Twice this and 1 is the largest stamp.
_LARGEST_VERSION = cython.declare(cython.int, 1073741823)

# How a comparison ended.
_DIFFERENT = cython.declare(cython.int, 0)
_EQUAL = cython.declare(cython.int, 1)
_UNDECIDED = cython.declare(cython.int, 2)  # only user code knows
_CHANGED = cython.declare(cython.int, 3)  # user code changed the chain meanwhile


class _Drop:
    def __repr__(self):
        return "DROP"


#: What a snapshot's transformer returns for an entry that must not be in the snapshot.
DROP = _Drop()


@cython.internal
@cython.final
@cython.no_gc
@cython.freelist(256)
@cython.cclass
class Entry:
    """An entry and the link to the next one of its chain."""

    if not cython.compiled:
        __slots__ = ("entry_version", "hash", "key", "namespace", "next", "state_stamp", "value")

    # Never change once set.
    hash: cython.ulonglong
    key: object
    namespace: object

    # Twice the map's version when `value` was set or copied, plus 1 where the epoch of that version has noted
    # the entry as changed (see `CopyOnWriteStateMap.begin_epoch`).  A value is of no snapshot, and may be
    # handed out for changing, where the version is not below that of the newest live snapshot.  Readers of
    # snapshots do not look at the stamp.
    value: object
    state_stamp: cython.int

    # The map's version when this entry was made.  Where it is below the version of the newest live snapshot,
    # the entry may be in a chain of that snapshot, and neither `next` nor `value` may be set any more.
    entry_version: cython.int

    # Owns a reference.
    next: Ref

    def __dealloc__(self):
        # A loop, not the recursion that dropping `next` would be: chains can be as long as hashes are bad.
        p: Ref = self.next
        after: Ref
        while p is not cython.NULL and _Py_REFCNT(p) == 1:
            after = cython.cast(Entry, p).next
            cython.cast(Entry, p).next = cython.NULL
            Py_XDECREF(p)
            p = after
        Py_XDECREF(p)


@cython.internal
@cython.final
@cython.no_gc
@cython.cclass
class Page:
    """A piece of a bucket array."""

    if not cython.compiled:
        __slots__ = ("slots", "version")

    # The map's version when this page was made.  Where it is below the version of the newest live snapshot,
    # that snapshot may hold the page, and no slot may be set any more.  So a page that holds an entry which
    # may be changed may be changed itself.
    version: cython.int

    # The heads of the chains; each owns a reference.
    slots: cython.pointer[PyObject][128]

    def __dealloc__(self):
        i: cython.Py_ssize_t
        for i in range(_PAGE_SIZE):
            Py_XDECREF(self.slots[i])


@cython.internal
@cython.final
@cython.no_gc
@cython.cclass
class Table:
    """A bucket array: pages that are appended until `capacity` buckets are there."""

    if not cython.compiled:
        __slots__ = ("bits", "count", "pages", "shift")

    # Never change: the capacity is 2 to the power of `bits`, the bucket of a hash is ``hash >> shift``.
    bits: cython.int
    shift: cython.int

    # The pages up to `count` are there, or were there and are NULL since a rehash has emptied them.
    # Each owns a reference.
    count: cython.Py_ssize_t
    pages: RefArray

    def __dealloc__(self):
        i: cython.Py_ssize_t
        for i in range(self.count):
            Py_XDECREF(self.pages[i])
        PyMem_Free(self.pages)


@cython.cfunc
@cython.inline
def _mixed(key_hash: cython.ulonglong, namespace_hash: cython.ulonglong) -> cython.ulonglong:
    """Return the final mix of Murmur3: the hashes of small numbers are the numbers themselves."""
    h: cython.ulonglong = (key_hash ^ namespace_hash) & _64_BITS
    h = ((h ^ (h >> 33)) * _MURMUR_1) & _64_BITS
    h = ((h ^ (h >> 33)) * _MURMUR_2) & _64_BITS
    return h ^ (h >> 33)


@cython.cfunc
def _compared(a: object, b: object) -> cython.int:
    """Compare without user code, where that is possible."""
    if a is b:
        return _EQUAL
    if type(a) is str and type(b) is str:
        return cython.cast(str, a) == cython.cast(str, b)
    if type(a) is type(b) and (type(a) is int or type(a) is bytes or type(a) is float):
        return a == b
    return _UNDECIDED


@cython.cfunc
def _new_page(version: cython.int) -> Page:
    page: Page = Page.__new__(Page)
    page.version = version
    if not cython.compiled:
        page.slots = [None] * _PAGE_SIZE
    return page


@cython.cfunc
def _copy_of_page(page: Page, version: cython.int) -> Page:
    copied: Page = Page.__new__(Page)
    i: cython.Py_ssize_t
    copied.version = version
    if cython.compiled:
        for i in range(_PAGE_SIZE):
            Py_XINCREF(page.slots[i])
            copied.slots[i] = page.slots[i]
    else:
        copied.slots = page.slots[:]
    return copied


@cython.cfunc
def _copy_of_entry(entry: Entry, version: cython.int) -> Entry:
    copied: Entry = Entry.__new__(Entry)
    copied.hash = entry.hash
    copied.key = entry.key
    copied.namespace = entry.namespace
    copied.value = entry.value
    copied.state_stamp = entry.state_stamp
    copied.entry_version = version
    Py_XINCREF(entry.next)
    copied.next = entry.next
    return copied


@cython.cfunc
def _pages_of(bits: cython.int) -> cython.Py_ssize_t:
    """Return how many pages a table of that capacity has."""
    return 1 if bits <= _PAGE_BITS else 1 << (bits - _PAGE_BITS)


@cython.cfunc
def _new_table(bits: cython.int) -> Table:
    """Return a table without pages."""
    table: Table = Table.__new__(Table)
    table.bits = bits
    table.shift = 64 - bits
    table.count = 0
    if cython.compiled:
        # All of it at once: untouched memory costs nothing, and nothing is moved when pages come.
        table.pages = cython.cast(RefArray, PyMem_Malloc(_pages_of(bits) * cython.sizeof(Ref)))
        if table.pages is cython.NULL:
            raise MemoryError()
    else:
        table.pages = []
    return table


@cython.cfunc
def _append_page(table: Table, version: cython.int) -> cython.int:
    page: Page = _new_page(version)
    if cython.compiled:
        Py_XINCREF(cython.cast(Ref, page))
        table.pages[table.count] = cython.cast(Ref, page)
    else:
        table.pages.append(page)
    table.count += 1
    return 0


@cython.cfunc
def _full_table(bits: cython.int, version: cython.int) -> Table:
    """Return a table with all its pages."""
    table: Table = _new_table(bits)
    while table.count < _pages_of(bits):
        _append_page(table, version)
    return table


@cython.cfunc
def _copy_of_table(table: Table) -> Table:
    """Return a table of the same pages."""
    copied: Table = _new_table(table.bits)
    i: cython.Py_ssize_t
    if cython.compiled:
        for i in range(table.count):
            Py_XINCREF(table.pages[i])
            copied.pages[i] = table.pages[i]
    else:
        copied.pages = table.pages[:]
    copied.count = table.count
    return copied


@cython.cfunc
def _drop_page(table: Table, number: cython.Py_ssize_t) -> cython.int:
    dropped: Ref = table.pages[number]
    table.pages[number] = cython.NULL
    Py_XDECREF(dropped)
    return 0


@cython.cfunc
def _bits_for(capacity: object) -> cython.int:
    """Return the exponent of the smallest allowed capacity that is not below the wanted one."""
    bits: cython.int = max(capacity - 1, 0).bit_length()
    return min(max(bits, _MIN_BITS), _MAX_BITS)


@cython.final
@cython.no_gc_clear
@cython.cclass
class CopyOnWriteStateMap:
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
        __slots__ = (
            "_changes",
            "_copy",
            "_epoch_start",
            "_epochs",
            "_live_versions",
            "_lock",
            "_moved",
            "_namespace",
            "_namespace_hash",
            "_new_keys",
            "_new_namespaces",
            "_next",
            "_old_keys",
            "_old_namespaces",
            "_removed",
            "_required",
            "_seen",
            "_size",
            "_stale",
            "_table",
            "_threshold",
            "_unique",
            "_version",
        )

        def __init__(self, copy=None, initial_capacity=128):
            self.__cinit__(copy, initial_capacity)

    # The table, and during a rehash the one of twice its capacity that replaces it.  The buckets of `_table`
    # below `_moved` are empty: their entries are in `_next`, which has pages just as far.  Outside a rehash
    # `_next` is None and `_moved` is 0.
    _table: Table
    _next: Table
    _moved: cython.Py_ssize_t

    # Entries in both tables; more than `_threshold` of them start a rehash.
    _size: cython.Py_ssize_t
    _threshold: cython.Py_ssize_t

    # Grows whenever an entry comes or goes, so that an iterator sees it.
    _changes: cython.ulonglong

    # Grows by one with each snapshot, which then has this number.  Written by the owner only.
    _version: cython.int

    # The versions of the snapshots taken and not released, ascending, and the last of them or 0.  Both are
    # written under `_lock`, because any thread may release.  `_required` rises in the owner's thread only; if
    # another thread lowers it while the owner works, the owner has at worst copied what it need not have.
    _live_versions: list
    _required: cython.int
    _lock: object

    # The namespace asked for last, and its hash spread over 64 bits: most calls have the same again.
    _namespace: object
    _namespace_hash: cython.ulonglong

    _copy: object

    # The changes of the running epoch, of which `_epoch_start` is the first version: addresses of entries
    # that are older and were changed or removed in it, and of entries that were added in it.  None while
    # changes are not tracked.  `_stale` is how many of them were removed after they were noted; as long as
    # nothing came after something went (`_removed`), no address is there twice (`_unique`).
    _old_keys: list
    _old_namespaces: list
    _new_keys: list
    _new_namespaces: list
    _stale: cython.Py_ssize_t
    _removed: cython.bint
    _unique: cython.bint
    _epoch_start: cython.int

    # Per epoch not forgotten, its number and its four lists; the last one is the running epoch's.
    _epochs: list

    # Takes what `_approach` reads, or the compiler would leave the reading out.
    _seen: cython.ulonglong

    def __cinit__(self, copy=None, initial_capacity=128):
        if initial_capacity < 0:
            raise ValueError(f"initial_capacity is {initial_capacity}; give 0 or more buckets")
        self._version = 0
        self._table = _full_table(_bits_for(initial_capacity), 0)
        self._next = None
        self._moved = 0
        self._size = 0
        self._threshold = _threshold_of(self._table.bits)
        self._changes = 0
        self._live_versions = []
        self._required = 0
        self._lock = RLock()  # reentrant: the cycle collector may release a snapshot in the midst of anything
        self._namespace = None
        self._namespace_hash = _spread(hash(None))
        self._copy = copy
        self._old_keys = None
        self._old_namespaces = None
        self._new_keys = None
        self._new_namespaces = None
        self._stale = 0
        self._removed = False
        self._unique = True
        self._epoch_start = 0
        self._epochs = []
        self._seen = 0

    # -- what it is like ---------------------------------------------------------------------------

    def __len__(self):
        return self._size

    @property
    def capacity(self):
        """The number of buckets; during a rehash, of the table that is being left."""
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
        """Return whether there is an entry, also one that holds None."""
        h: cython.ulonglong = self._hash(key, namespace)
        if self._next is not None:
            self._move_some()
        return self._find(h, key, namespace) is not cython.NULL

    def put(self, key, namespace, value):
        """Write a value."""
        self._put(self._hash(key, namespace), key, namespace, value)

    def put_and_get_old(self, key, namespace, value):
        """Write a value and return the one it replaces, or None."""
        h: cython.ulonglong = self._hash(key, namespace)
        p: Ref
        if self._next is not None:
            self._move_some()
        if self._stale >= _STALE_LIMIT and 2 * self._stale >= len(self._new_keys):
            self._shorten()
        p = self._find(h, key, namespace)
        if p is cython.NULL:
            self._insert(h, key, namespace, value)
            return None
        if self._copy is None or cython.cast(Entry, p).state_stamp >> 1 >= self._required:
            old = cython.cast(Entry, p).value
            self._store(p, h, value)
            return old
        old = self._copy(cython.cast(Entry, p).value)
        self._put(h, key, namespace, value)
        return old

    def remove(self, key, namespace):
        """Remove the entry; return whether there was one."""
        h: cython.ulonglong = self._hash(key, namespace)
        return self._remove(h, key, namespace) is not None

    def remove_and_get_old(self, key, namespace):
        """Remove the entry and return its value, or None where there was none."""
        h: cython.ulonglong = self._hash(key, namespace)
        p: Ref
        if self._next is not None:
            self._move_some()
        p = self._find(h, key, namespace)
        if p is cython.NULL:
            return None
        if self._copy is None or cython.cast(Entry, p).state_stamp >> 1 >= self._required:
            return self._unlink(p, h).value
        old = self._copy(cython.cast(Entry, p).value)
        self._remove(h, key, namespace)
        return old

    def transform(self, key, namespace, value, function):
        """Put ``function(old value or None, value)`` in the entry's place; no change where it raises.

        The function may change the old value and return it.
        """
        h: cython.ulonglong = self._hash(key, namespace)
        p: Ref
        if self._next is not None:
            self._move_some()
        p = self._find(h, key, namespace)
        if p is cython.NULL:
            old = None
        else:
            old = cython.cast(Entry, p).value
            if self._copy is not None and cython.cast(Entry, p).state_stamp >> 1 < self._required:
                old = self._copy(old)
        self._put(h, key, namespace, function(old, value))

    def clear(self):
        """Remove all entries; snapshots keep theirs."""
        position: cython.Py_ssize_t = 0
        p: Ref
        emptied = (self._table, self._next)  # freed at the end, with all the user code that this may run
        if self._old_keys is not None:
            while position < _END:
                p = self._head_at(position)
                while p is not cython.NULL:
                    self._note_removal(p)
                    p = cython.cast(Entry, p).next
                position = self._after(position)
        table: Table = _full_table(_bits_for(128), self._version)
        self._table = table
        self._next = None
        self._moved = 0
        self._size = 0
        self._threshold = _threshold_of(table.bits)
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
        ks: list = _as_list(keys)
        ns: list = _as_list(namespaces)
        vs: list = _as_list(values)
        hashes: cython.ulonglong[64]
        start: cython.Py_ssize_t
        i: cython.Py_ssize_t
        count: cython.Py_ssize_t
        _check_lengths("namespaces", ns, ks)
        _check_lengths("values", vs, ks)
        self._make_room(len(ks))
        if not cython.compiled:
            hashes = [0] * _BLOCK
        for start in range(0, len(ks), _BLOCK):
            count = min(_BLOCK, len(ks) - start)
            for i in range(count):
                hashes[i] = self._hash(ks[start + i], ns[start + i])
            if cython.compiled:
                for i in range(count):
                    self._approach(hashes[i])
            for i in range(count):
                self._put(hashes[i], ks[start + i], ns[start + i], vs[start + i])

    def restore_namespace(self, namespace, keys, values):
        """Write entries of one namespace; room for all is made first.

        Raises
        ------
        ValueError
            If there are not as many values as keys; nothing is written then.
        """
        ks: list = _as_list(keys)
        vs: list = _as_list(values)
        _check_lengths("values", vs, ks)
        self._make_room(len(ks))
        put_many([self], 0, None, ks, namespace, vs)

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
            self._version += 1
            self._live_versions.append(self._version)
            self._required = self._version
            try:
                taken._take()
            except MemoryError:
                self.release_version(self._version)
                raise
        return taken

    def release_snapshot(self, snapshot):
        """Release a snapshot of this map; nothing happens where it is released already.

        Raises
        ------
        ValueError
            If it is the snapshot of another map.
        """
        taken: CopyOnWriteStateMapSnapshot = None
        if isinstance(snapshot, CopyOnWriteStateMapSnapshot):
            taken = snapshot
        if taken is None or taken._map is not self:
            raise ValueError(f"{snapshot!r} is no snapshot of this map; release it by its own release()")
        taken.release()

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

    # -- changes -----------------------------------------------------------------------------------

    def begin_epoch(self, epoch):
        """Count every change from now on to an epoch; before the first one, nothing is counted.

        An entry is noted when it changes first in an epoch, so a change costs at most one note per entry and
        epoch, and nothing has to be looked through to find the changes.

        Parameters
        ----------
        epoch : int
            Above the one before.

        Raises
        ------
        ValueError
            If it is not.
        """
        begun: tuple = (epoch, [], [], [], [])
        if self._epochs:
            check_ascending(epoch, self._epochs[len(self._epochs) - 1][0])
        self._check_version()
        self._epochs.append(begun)
        # A version of its own: what was written before has a lower one, and so is not of this epoch.
        self._version += 1
        self._epoch_start = self._version
        self._old_keys, self._old_namespaces, self._new_keys, self._new_namespaces = begun[1:]
        self._stale = 0
        self._removed = False
        self._unique = True

    def changes_since(self, epoch):
        """Return what changed in the epochs above one that are not forgotten.

        Returns
        -------
        tuple of five lists
            Namespaces, keys and values of the entries that were written and are there; namespaces and keys
            of those that were there when the first of the epochs began and are not now.  The values are the
            map's own: before the owner goes on, a `hold` must keep it from changing them in place.
        """
        written: tuple = ([], [], [])
        removed: tuple = ([], [])
        epochs: list = [known for known in self._epochs if known[0] > epoch]
        if len(epochs) == 1 and epochs[0][1] is self._old_keys and self._unique:
            # Copies of the lists: looking up may run user code, and that may change the map.
            added: tuple = (self._new_namespaces[:], self._new_keys[:])
            self._gather(self._old_namespaces[:], self._old_keys[:], written, removed)
            self._gather(added[0], added[1], written, ())
            return written + removed
        #: Whether each address had an entry when the first of the epochs began.
        existed: dict = {}
        for _, old_keys, old_namespaces, new_keys, new_namespaces in epochs:
            for address in zip(old_namespaces, old_keys, strict=True):
                existed.setdefault(address, True)
            for address in zip(new_namespaces, new_keys, strict=True):
                existed.setdefault(address, False)
        for there in (True, False):
            addresses = [address for address, known in existed.items() if known is there]
            self._gather(
                [address[0] for address in addresses],
                [address[1] for address in addresses],
                written,
                removed if there else (),
            )
        return written + removed

    def forget_changes(self, epoch):
        """Forget the changes of epochs up to and including one, but not those of the running epoch."""
        while len(self._epochs) > 1 and self._epochs[0][0] <= epoch:
            del self._epochs[0]

    def hold(self):
        """Keep every present value from being changed in place, as a live snapshot does, without taking one.

        Returns
        -------
        int
            What `release_version` takes.
        """
        self._check_version()
        with self._lock:
            self._version += 1
            self._live_versions.append(self._version)
            self._required = self._version
            return self._version

    @cython.cfunc
    def _check_version(self) -> cython.int:
        if self._version == _LARGEST_VERSION:
            raise OverflowError(
                f"a map counts up to {_LARGEST_VERSION} snapshots and epochs; restore it into a new one"
            )
        return 0

    @cython.cfunc
    def _note(self, p: Ref) -> cython.int:
        """Note that an entry is about to be changed or removed, unless this epoch has noted it already."""
        entry: Entry = cython.cast(Entry, p)
        if entry.state_stamp & 1 and entry.state_stamp >> 1 >= self._epoch_start:
            return 0
        return _append_address(self._old_keys, self._old_namespaces, entry.key, entry.namespace)

    @cython.cfunc
    def _note_removal(self, p: Ref) -> cython.int:
        """Note that an entry is about to be removed."""
        self._removed = True
        if cython.cast(Entry, p).state_stamp & 1 and (
            cython.cast(Entry, p).state_stamp >> 1 >= self._epoch_start
        ):
            self._stale += 1
            return 0
        return self._note(p)

    @cython.cfunc
    def _gather(self, namespaces: list, keys: list, written: tuple, removed: tuple) -> cython.int:
        """Look addresses up and append the entries; the addresses of none to `removed`, if that has lists."""
        hashes: cython.ulonglong[64]
        start: cython.Py_ssize_t
        i: cython.Py_ssize_t
        count: cython.Py_ssize_t
        p: Ref
        written_namespaces: list = written[0]
        written_keys: list = written[1]
        values: list = written[2]
        if not cython.compiled:
            hashes = [0] * _BLOCK
        for start in range(0, len(keys), _BLOCK):
            count = min(_BLOCK, len(keys) - start)
            for i in range(count):
                hashes[i] = self._hash(keys[start + i], namespaces[start + i])
            if cython.compiled:
                for i in range(count):
                    self._approach(hashes[i])
            for i in range(count):
                p = self._find(hashes[i], keys[start + i], namespaces[start + i])
                if p is not cython.NULL:
                    values.append(cython.cast(Entry, p).value)
                    written_namespaces.append(namespaces[start + i])
                    written_keys.append(keys[start + i])
                elif removed:
                    removed[0].append(namespaces[start + i])
                    removed[1].append(keys[start + i])
        return 0

    @cython.cfunc
    def _shorten(self) -> cython.int:
        """Leave each address among the new ones once, and only if it still has an entry.

        Entries that come and go and come again are noted each time: whatever their number, they must not fill
        the memory.
        """
        self._stale = 0
        # Names of their own: what is asked here may run user code, and that may begin another epoch.
        all_keys: list = self._new_keys
        all_namespaces: list = self._new_namespaces
        count: cython.Py_ssize_t = len(all_keys)
        keys: list = []
        namespaces: list = []
        h: cython.ulonglong
        for address in dict.fromkeys(zip(all_namespaces, all_keys, strict=True)):
            h = self._hash(address[1], address[0])
            if self._find(h, address[1], address[0]) is not cython.NULL:
                namespaces.append(address[0])
                keys.append(address[1])
        # Those that came meanwhile stand behind those that were looked at.
        all_keys[:count] = keys
        all_namespaces[:count] = namespaces
        return 0

    # -- finding -----------------------------------------------------------------------------------

    @cython.cfunc
    @cython.inline
    def _hash(self, key: object, namespace: object) -> cython.ulonglong:
        key_hash: cython.Py_hash_t = hash(key)
        if namespace is self._namespace:
            return _mixed(cython.cast(cython.ulonglong, key_hash), self._namespace_hash)
        return _mixed(cython.cast(cython.ulonglong, key_hash), self._hash_of_namespace(namespace))

    @cython.cfunc
    def _hash_of_namespace(self, namespace: object) -> cython.ulonglong:
        spread: cython.ulonglong = _spread(hash(namespace))
        before = self._namespace
        self._namespace = namespace
        self._namespace_hash = spread
        del before  # may run user code, and that may ask for another namespace
        return spread

    @cython.cfunc
    @cython.inline
    def _head(self, h: cython.ulonglong) -> Ref:
        """Return the first entry of a hash's chain."""
        i: cython.Py_ssize_t = h >> self._table.shift
        if i < self._moved:
            i = h >> self._next.shift
            return cython.cast(Page, self._next.pages[i >> _PAGE_BITS]).slots[i & _PAGE_MASK]
        return cython.cast(Page, self._table.pages[i >> _PAGE_BITS]).slots[i & _PAGE_MASK]

    @cython.cfunc
    def _find(self, h: cython.ulonglong, key: object, namespace: object) -> Ref:
        """Return the entry or NULL.  No user code runs after the last look at the chain."""
        restarts: cython.int = 0
        found: cython.int
        p: Ref = self._head(h)
        while p is not cython.NULL:
            if cython.cast(Entry, p).hash == h:
                if cython.cast(Entry, p).key is key and cython.cast(Entry, p).namespace is namespace:
                    return p
                found = self._is_for(p, h, key, namespace)
                if found == _EQUAL:
                    return p
                if found == _CHANGED:
                    restarts += 1
                    if restarts > _MAX_RESTARTS:
                        raise RuntimeError(f"comparing with the key {key!r} changes the map every time")
                    p = self._head(h)
                    continue
            p = cython.cast(Entry, p).next
        return cython.NULL

    @cython.cfunc
    def _is_for(self, p: Ref, h: cython.ulonglong, key: object, namespace: object) -> cython.int:
        """Return whether the entry has this key and namespace, or that asking has changed its chain."""
        found: cython.int = _compared(cython.cast(Entry, p).key, key)
        if found == _EQUAL:
            found = _compared(cython.cast(Entry, p).namespace, namespace)
        if found != _UNDECIDED:
            return found
        return self._ask_user_code(p, h, key, namespace)

    @cython.cfunc
    def _ask_user_code(self, p: Ref, h: cython.ulonglong, key: object, namespace: object) -> cython.int:
        # Both are held, so that no other entry can take their place in memory and be taken for them.
        entry: Entry = cython.cast(Entry, p)
        first: Entry = cython.cast(Entry, self._head(h))
        equal: cython.bint = (entry.key is key or entry.key == key) and (
            entry.namespace is namespace or entry.namespace == namespace
        )
        # New entries come first in a chain: with the same first one, none has come that was not compared.
        q: Ref = self._head(h)
        if q is not cython.cast(Ref, first):
            return _CHANGED
        while q is not cython.NULL:
            if q is p:
                return _EQUAL if equal else _DIFFERENT
            q = cython.cast(Entry, q).next
        return _CHANGED

    @cython.cfunc
    @cython.inline
    def _approach(self, h: cython.ulonglong) -> cython.int:
        """Read what a look-up of a hash will read.

        A look-up waits for memory some four times in a row.  Done for many hashes before their look-ups, the
        waits fall together.
        """
        p: Ref = self._head(h)
        if p is not cython.NULL:
            self._seen ^= cython.cast(Entry, p).hash
        return 0

    @cython.cfunc
    @cython.inline
    def _approach_parts(self, h: cython.ulonglong) -> cython.int:
        """Read what a look-up of a hash that was approached will read of the entry's key and value."""
        p: Ref = self._head(h)
        while p is not cython.NULL and cython.cast(Entry, p).hash != h:
            p = cython.cast(Entry, p).next
        if p is not cython.NULL:
            self._seen ^= _Py_REFCNT(cython.cast(Ref, cython.cast(Entry, p).key))
            self._seen ^= _Py_REFCNT(cython.cast(Ref, cython.cast(Entry, p).value))
        return 0

    # -- changing: no user code runs in here -------------------------------------------------------

    @cython.cfunc
    @cython.inline
    def _table_of(self, h: cython.ulonglong) -> Table:
        """Return the table that holds a hash's chain."""
        i: cython.Py_ssize_t = h >> self._table.shift
        return self._next if i < self._moved else self._table

    @cython.cfunc
    @cython.inline
    def _own_page(self, table: Table, bucket: cython.Py_ssize_t) -> Page:
        """Return the page of a bucket, copied before if a snapshot may hold it."""
        number: cython.Py_ssize_t = bucket >> _PAGE_BITS
        page: Page = cython.cast(Page, table.pages[number])
        if page.version < self._required:
            page = _copy_of_page(page, self._version)
            Py_XINCREF(cython.cast(Ref, page))
            _drop_page(table, number)
            table.pages[number] = cython.cast(Ref, page)
        return page

    @cython.cfunc
    def _own(self, p: Ref, h: cython.ulonglong) -> Ref:
        """Return the entry, copied before with those that lead to it, if a snapshot may hold them."""
        table: Table = self._table_of(h)
        bucket: cython.Py_ssize_t = h >> table.shift
        page: Page = self._own_page(table, bucket)
        before: Ref = cython.NULL
        q: Ref = page.slots[bucket & _PAGE_MASK]
        last: cython.bint = False
        copied: Entry
        while True:
            last = q is p
            if cython.cast(Entry, q).entry_version < self._required:
                copied = _copy_of_entry(cython.cast(Entry, q), self._version)
                Py_XINCREF(cython.cast(Ref, copied))
                if before is cython.NULL:
                    page.slots[bucket & _PAGE_MASK] = cython.cast(Ref, copied)
                else:
                    cython.cast(Entry, before).next = cython.cast(Ref, copied)
                Py_XDECREF(q)
                before = cython.cast(Ref, copied)
            else:
                before = q
            if last:
                return before
            q = cython.cast(Entry, before).next

    @cython.cfunc
    def _store(self, p: Ref, h: cython.ulonglong, value: object) -> cython.int:
        """Set the value of an entry."""
        noted: cython.int = 0
        if self._old_keys is not None:
            self._note(p)
            noted = 1
        return self._set_value(p, h, value, noted)

    @cython.cfunc
    def _store_copy(self, p: Ref, h: cython.ulonglong, value: object) -> cython.int:
        """Set the value of an entry to its copy, which is no change."""
        noted: cython.int = cython.cast(Entry, p).state_stamp & 1
        if cython.cast(Entry, p).state_stamp >> 1 < self._epoch_start:
            noted = 0
        return self._set_value(p, h, value, noted)

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
        elif cython.cast(Entry, p).state_stamp >> 1 >= self._epoch_start:
            cython.cast(Entry, p).state_stamp |= noted
        else:
            self._unique = False  # the stamp cannot tell that it was noted
        del old  # may run user code, now that everything is in its place
        return 0

    @cython.cfunc
    def _insert(self, h: cython.ulonglong, key: object, namespace: object, value: object) -> cython.int:
        """Add an entry that is not there."""
        table: Table
        page: Page
        bucket: cython.Py_ssize_t
        entry: Entry = Entry.__new__(Entry)
        if self._size > self._threshold and self._next is None:
            self._next = _new_table(self._table.bits + 1)
        table = self._table_of(h)
        bucket = h >> table.shift
        page = self._own_page(table, bucket)
        entry.state_stamp = 2 * self._version
        if self._new_keys is not None:
            _append_address(self._new_keys, self._new_namespaces, key, namespace)
            entry.state_stamp += 1
            if self._removed:
                self._unique = False
        entry.hash = h
        entry.key = key
        entry.namespace = namespace
        entry.value = value
        entry.entry_version = self._version
        entry.next = page.slots[bucket & _PAGE_MASK]
        Py_XINCREF(cython.cast(Ref, entry))
        page.slots[bucket & _PAGE_MASK] = cython.cast(Ref, entry)
        self._size += 1
        self._changes += 1
        return 0

    @cython.cfunc
    def _unlink(self, p: Ref, h: cython.ulonglong) -> Entry:
        """Take an entry out of its chain and return it; dropping it may run user code."""
        entry: Entry = cython.cast(Entry, p)
        table: Table = self._table_of(h)
        bucket: cython.Py_ssize_t = h >> table.shift
        page: Page = self._own_page(table, bucket)
        before: Ref = page.slots[bucket & _PAGE_MASK]
        if self._old_keys is not None:
            self._note_removal(p)
        if before is p:
            Py_XINCREF(entry.next)
            page.slots[bucket & _PAGE_MASK] = entry.next
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
        return entry

    @cython.cfunc
    def _move_some(self) -> cython.int:
        """Go on with the rehash."""
        table: Table = self._table
        into: Table = self._next
        moved: cython.int = 0
        passed: cython.int = 0
        bucket: cython.Py_ssize_t
        number: cython.Py_ssize_t
        page: Page
        new_page: Page
        p: Ref
        after: Ref
        while moved < _MOVED_PER_ACCESS and passed < _PASSED_PER_ACCESS:
            bucket = self._moved
            if (2 * bucket) >> _PAGE_BITS == into.count:
                _append_page(into, self._version)
            page = cython.cast(Page, table.pages[bucket >> _PAGE_BITS])
            p = page.slots[bucket & _PAGE_MASK]
            if p is not cython.NULL:
                # First what may fail for want of memory, each part of which leaves the chain as it was.
                after = p
                while cython.cast(Entry, after).next is not cython.NULL:
                    after = cython.cast(Entry, after).next
                self._own(after, cython.cast(Entry, after).hash)
                new_page = self._own_page(into, 2 * bucket)
                page = self._own_page(table, bucket)
                p = page.slots[bucket & _PAGE_MASK]
                page.slots[bucket & _PAGE_MASK] = cython.NULL
                # Then each reference to an entry goes from the old chain to the new.
                while p is not cython.NULL:
                    after = cython.cast(Entry, p).next
                    number = (cython.cast(Entry, p).hash >> into.shift) & _PAGE_MASK
                    cython.cast(Entry, p).next = new_page.slots[number]
                    new_page.slots[number] = p
                    p = after
                    moved += 1
            passed += 1
            bucket += 1
            self._moved = bucket
            if bucket & _PAGE_MASK == 0:
                _drop_page(table, (bucket - 1) >> _PAGE_BITS)
            if bucket >> table.bits:
                self._table = into
                self._next = None
                self._moved = 0
                self._threshold = _threshold_of(into.bits)
                break
        return 0

    @cython.cfunc
    def _make_room(self, entries: cython.Py_ssize_t) -> cython.int:
        """Make an empty map as large as that many entries need."""
        bits: cython.int = self._table.bits
        if self._size or self._next is not None:
            return 0
        while bits < _MAX_BITS and _threshold_of(bits) < entries:
            bits += 1
        if bits > self._table.bits:
            self._table = _full_table(bits, self._version)
            self._threshold = _threshold_of(bits)
        return 0

    # -- the methods' common parts: user code may run, and the last thing they do is without it --------------

    @cython.cfunc
    @cython.inline
    def _get(self, h: cython.ulonglong, key: object, namespace: object) -> object:
        p: Ref
        if self._next is not None:
            self._move_some()
        p = self._find(h, key, namespace)
        if p is cython.NULL:
            return None
        if self._copy is None or cython.cast(Entry, p).state_stamp >> 1 >= self._required:
            return cython.cast(Entry, p).value
        return self._get_copied(p, h, key, namespace)

    @cython.cfunc
    def _get_for_update(self, h: cython.ulonglong, key: object, namespace: object) -> object:
        p: Ref
        if self._next is not None:
            self._move_some()
        p = self._find(h, key, namespace)
        if p is cython.NULL:
            return None
        if self._copy is not None and cython.cast(Entry, p).state_stamp >> 1 < self._required:
            value = self._get_copied(p, h, key, namespace)
            if self._old_keys is None:
                return value
            p = self._find(h, key, namespace)  # copying has replaced it, and may have run anything
            if p is cython.NULL:
                return None
        if self._old_keys is not None:
            self._note(p)
            cython.cast(Entry, p).state_stamp = 2 * self._version + 1
        return cython.cast(Entry, p).value

    @cython.cfunc
    def _put(self, h: cython.ulonglong, key: object, namespace: object, value: object) -> cython.int:
        p: Ref
        if self._next is not None:
            self._move_some()
        if self._stale >= _STALE_LIMIT and 2 * self._stale >= len(self._new_keys):
            self._shorten()
        p = self._find(h, key, namespace)
        if p is cython.NULL:
            return self._insert(h, key, namespace, value)
        return self._store(p, h, value)

    @cython.cfunc
    def _remove(self, h: cython.ulonglong, key: object, namespace: object) -> Entry:
        """Remove an entry and return it, or None."""
        p: Ref
        if self._next is not None:
            self._move_some()
        p = self._find(h, key, namespace)
        if p is cython.NULL:
            return None
        return self._unlink(p, h)

    @cython.cfunc
    def _get_copied(self, p: Ref, h: cython.ulonglong, key: object, namespace: object) -> object:
        """Copy the value of an entry, keep the copy in the map, and return it."""
        entry: Entry
        attempts: cython.int = 0
        while attempts <= _MAX_RESTARTS:
            entry = cython.cast(Entry, p)
            old = entry.value
            new = self._copy(old)
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

    # -- walking -----------------------------------------------------------------------------------

    @cython.cfunc
    @cython.inline
    def _head_at(self, position: cython.Py_ssize_t) -> Ref:
        """Return the first entry of the chain at a position."""
        i: cython.Py_ssize_t = position >> (_MAX_BITS - self._table.bits)
        if i < self._moved:
            i = position >> (_MAX_BITS - self._next.bits)
            return cython.cast(Page, self._next.pages[i >> _PAGE_BITS]).slots[i & _PAGE_MASK]
        return cython.cast(Page, self._table.pages[i >> _PAGE_BITS]).slots[i & _PAGE_MASK]

    @cython.cfunc
    @cython.inline
    def _after(self, position: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Return the position of the chain after the one at a position."""
        shift: cython.int = _MAX_BITS - self._table.bits
        if position >> shift < self._moved:
            shift = _MAX_BITS - self._next.bits
        return ((position >> shift) + 1) << shift

    @cython.cfunc
    @cython.inline
    def _approach_page_at(self, position: cython.Py_ssize_t) -> cython.int:
        """Read ahead where a position is the first of a page."""
        table: Table = self._table
        i: cython.Py_ssize_t = position >> (_MAX_BITS - table.bits)
        if i < self._moved:
            table = self._next
            i = position >> (_MAX_BITS - table.bits)
        if i & _PAGE_MASK == 0:
            self._seen ^= _approach_page(cython.cast(Page, table.pages[i >> _PAGE_BITS]))
        return 0


@cython.cfunc
def _threshold_of(bits: cython.int) -> cython.Py_ssize_t:
    """Return how many entries a table holds before it is doubled: three quarters of its capacity."""
    return _END if bits == _MAX_BITS else (1 << bits) * 3 // 4


@cython.cfunc
def _spread(namespace_hash: cython.Py_hash_t) -> cython.ulonglong:
    """Return a namespace's hash multiplied: XORed as it is, all pairs (n, n) would have the hash 0."""
    return (cython.cast(cython.ulonglong, namespace_hash) * _GOLDEN) & _64_BITS


@cython.cfunc
def _append_address(keys: list, namespaces: list, key: object, namespace: object) -> cython.int:
    """Append to both lists or to none."""
    keys.append(key)
    try:
        namespaces.append(namespace)
    except MemoryError:
        keys.pop()
        raise
    return 0


@cython.cfunc
def _approach_page(page: Page) -> cython.ulonglong:
    """Read what a walk through a page will read; see `CopyOnWriteStateMap._approach`."""
    seen: cython.ulonglong = 0
    i: cython.Py_ssize_t
    p: Ref
    if cython.compiled:
        for i in range(_PAGE_SIZE):
            p = page.slots[i]
            if p is not cython.NULL:
                seen ^= cython.cast(Entry, p).hash
        for i in range(_PAGE_SIZE):
            p = page.slots[i]
            if p is not cython.NULL:
                seen ^= _Py_REFCNT(cython.cast(Ref, cython.cast(Entry, p).key))
                seen ^= _Py_REFCNT(cython.cast(Ref, cython.cast(Entry, p).value))
    return seen


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


# -- bulk operations over maps by key group ----------------------------------------------------------
# A table holds one map per key group; the map of key group g is ``maps[g - first]``.  Without key groups all
# keys belong to the first map.  Where one raises, those before it are done and those after it are not.


def get_many(maps, first, key_groups, keys, namespace):
    """Return the values of several keys of one namespace, in their order.

    Parameters
    ----------
    maps : list of CopyOnWriteStateMap
        The maps of consecutive key groups.
    first : int
        The key group of the first map.
    key_groups : iterable of int, optional
        The key group of each key; without, the first map is asked for all.
    keys, namespace
        What to look up.

    Raises
    ------
    ValueError
        If there are not as many key groups as keys.
    IndexError
        If a key group has no map.
    """
    block = _Block(maps, first, key_groups, keys, namespace)
    found: list = []
    i: cython.Py_ssize_t
    while block._load():
        for i in range(block._count):
            found.append(block._map(i)._get(block._hashes[i], block._keys[block._start + i], namespace))
    return found


def get_many_for_update(maps, first, key_groups, keys, namespace):
    """Return what `CopyOnWriteStateMap.get_for_update` does for several keys; the caller changes all at once.

    Parameters and errors are those of `get_many`.
    """
    block = _Block(maps, first, key_groups, keys, namespace)
    found: list = []
    i: cython.Py_ssize_t
    while block._load():
        for i in range(block._count):
            found.append(
                block._map(i)._get_for_update(block._hashes[i], block._keys[block._start + i], namespace)
            )
    return found


def put_many(maps, first, key_groups, keys, namespace, values):
    """Write the values of several keys of one namespace; the last one of a repeated key counts.

    Parameters and errors are those of `get_many`; as many values as keys are needed too.
    """
    block = _Block(maps, first, key_groups, keys, namespace)
    vs: list = _as_list(values)
    i: cython.Py_ssize_t
    _check_lengths("values", vs, block._keys)
    while block._load():
        for i in range(block._count):
            block._map(i)._put(
                block._hashes[i], block._keys[block._start + i], namespace, vs[block._start + i]
            )


def remove_many(maps, first, key_groups, keys, namespace):
    """Remove the entries of several keys of one namespace; parameters and errors are those of `get_many`."""
    block = _Block(maps, first, key_groups, keys, namespace)
    i: cython.Py_ssize_t
    while block._load():
        for i in range(block._count):
            block._map(i)._remove(block._hashes[i], block._keys[block._start + i], namespace)


@cython.internal
@cython.final
@cython.no_gc_clear
@cython.cclass
class _Block:
    """A stretch of the keys of a bulk operation, hashed and approached."""

    if not cython.compiled:
        __slots__ = (
            "_count",
            "_first",
            "_groups",
            "_hashes",
            "_keys",
            "_maps",
            "_namespace_hash",
            "_numbers",
            "_start",
        )

        def __init__(self, maps, first, key_groups, keys, namespace):
            self.__cinit__(maps, first, key_groups, keys, namespace)

    _maps: list
    _first: cython.Py_ssize_t
    _groups: list
    _keys: list
    _namespace_hash: cython.ulonglong
    _start: cython.Py_ssize_t
    _count: cython.Py_ssize_t

    # Of each key of the stretch, the hash and the number of its map; 0 where there are no key groups.
    _hashes: cython.ulonglong[64]
    _numbers: cython.Py_ssize_t[64]

    def __cinit__(self, maps: list, first: cython.Py_ssize_t, key_groups, keys, namespace):
        self._maps = maps
        self._first = first
        self._keys = _as_list(keys)
        self._groups = None if key_groups is None else _as_list(key_groups)
        self._namespace_hash = _spread(hash(namespace))
        self._start = 0
        self._count = 0
        if not cython.compiled:
            self._hashes = [0] * _BLOCK
            self._numbers = [0] * _BLOCK
        if self._groups is not None:
            _check_lengths("key groups", self._groups, self._keys)

    @cython.cfunc
    @cython.inline
    def _map(self, i: cython.Py_ssize_t) -> CopyOnWriteStateMap:
        return self._maps[self._numbers[i]]

    @cython.cfunc
    def _load(self) -> cython.bint:
        """Go to the next stretch; return whether there is one."""
        i: cython.Py_ssize_t
        number: cython.Py_ssize_t
        key_hash: cython.Py_hash_t
        self._start += self._count
        self._count = min(_BLOCK, len(self._keys) - self._start)
        if self._count <= 0:
            return False
        for i in range(self._count):
            if self._groups is not None:
                number = self._groups[self._start + i]
                number -= self._first
                if not 0 <= number < len(self._maps):
                    raise IndexError(
                        f"key group {number + self._first} is not among the {len(self._maps)} "
                        f"from {self._first}"
                    )
                self._numbers[i] = number
            key_hash = hash(self._keys[self._start + i])
            self._hashes[i] = _mixed(cython.cast(cython.ulonglong, key_hash), self._namespace_hash)
        if cython.compiled:
            for i in range(self._count):
                self._map(i)._approach(self._hashes[i])
            for i in range(self._count):
                self._map(i)._approach_parts(self._hashes[i])
        return True


@cython.cfunc
def _as_list(column: object) -> list:
    return column if type(column) is list else list(column)


@cython.cfunc
def _check_lengths(name: object, column: list, keys: list) -> cython.int:
    if len(column) != len(keys):
        raise ValueError(f"{len(keys)} keys and {len(column)} {name}; give one of each for every entry")
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

    _map: CopyOnWriteStateMap
    _changes: cython.ulonglong

    # The next position to load, and what the last one held, shown up to `_shown`.  Loaded at once, because a
    # rehash may take a chain apart between two steps.
    _position: cython.Py_ssize_t
    _entries: list
    _shown: cython.Py_ssize_t

    def __cinit__(self, state_map: CopyOnWriteStateMap):
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
                if self._position == _END:
                    raise StopIteration
                self._map._approach_page_at(self._position)
                p = self._map._head_at(self._position)
                self._position = self._map._after(self._position)
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

    _map: CopyOnWriteStateMap
    _batch_size: cython.Py_ssize_t

    # All chains before this position are shown, and none after it.
    _position: cython.Py_ssize_t

    def __cinit__(self, state_map: CopyOnWriteStateMap, batch_size: cython.Py_ssize_t):
        if batch_size < 1:
            raise ValueError(f"a visitor cannot walk in steps of {batch_size} entries; give at least 1")
        self._map = state_map
        self._batch_size = batch_size
        self._position = 0

    def has_next(self):
        """Return whether the walk is not over."""
        return self._position < _END and self._map._size > 0

    def next_batch(self):
        """Return the next entries as (key, namespace, value).

        Returns
        -------
        list of tuple
            Empty where a stretch of the map had none: only `has_next` tells that the walk is over.
        """
        entries: list = []
        p: Ref
        passed: cython.int = 0
        while passed < _VISITED_PER_STEP and len(entries) < self._batch_size and self._position < _END:
            p = self._map._head_at(self._position)
            self._position = self._map._after(self._position)
            _append_chain(p, entries)
            passed += 1
        return entries

    def update(self, entry, value):
        """Write a new value for an entry that was shown."""
        self._map.put(entry[0], entry[1], value)

    def remove(self, entry):
        """Remove an entry that was shown."""
        self._map.remove(entry[0], entry[1])


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
    _map: CopyOnWriteStateMap
    _transformer: object
    _owner: object
    _moved: cython.Py_ssize_t
    _size: cython.Py_ssize_t
    _version: cython.int

    # The pages of the map.  Both become None under the map's lock when the snapshot is released.
    _table: Table
    _next: Table

    def __cinit__(self, state_map: CopyOnWriteStateMap, transformer=None):
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
        state_map: CopyOnWriteStateMap = self._map
        self._version = state_map._version
        if state_map._next is not None:
            self._next = _copy_of_table(state_map._next)
        self._table = _copy_of_table(state_map._table)
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
        table: Table = self._table
        larger: Table = self._next
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
def _free(table: Table) -> cython.int:
    """Drop the pages of a released snapshot and let other threads run now and then."""
    i: cython.Py_ssize_t
    until: cython.double = perf_counter() + _FREEING_TURN
    for i in range(table.count):
        _drop_page(table, i)
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
    _table: Table
    _bucket: cython.Py_ssize_t

    # The next entry of the chain that is being read, or None.
    _entry: Entry

    # See `CopyOnWriteStateMap._seen`.
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
        table: Table = self._table
        last_table: Table = snapshot._table
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
                if i & _PAGE_MASK == 0:
                    self._seen ^= _approach_page(cython.cast(Page, table.pages[i >> _PAGE_BITS]))
                p = cython.cast(Page, table.pages[i >> _PAGE_BITS]).slots[i & _PAGE_MASK]
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
