"""Entries in chains, chains in buckets, buckets in pages: what the map and its snapshots share."""

from keyedstate_heap_cow import uncompiled as cython

if not cython.compiled:
    from keyedstate_heap_cow.uncompiled import (
        Py_XDECREF,
        Py_XINCREF,
        PyMem_Free,
        PyMem_Malloc,
        Ref,
        RefArray,
        _Py_REFCNT,
    )

#: Whether this is the compiled form.
COMPILED = cython.compiled

#: Raised with every change that `table` needs, so that it can tell a compiled form older than the source.
REVISION = 5

# Classes with `no_gc_clear` are not emptied when the cycle collector breaks a cycle that they are in: other
# objects of that cycle may still call them, and would find no table.

#: Capacities are powers of two between these (Flink's bounds), as exponents.
MIN_BITS = cython.declare(cython.int, 2)
MAX_BITS = cython.declare(cython.int, 30)

#: Positions in the order of hashes: bucket numbers at the largest capacity.
END = cython.declare(cython.Py_ssize_t, 1 << 30)

#: Buckets of a page, as exponent, mask and count; the array in `Page` has this length too.
PAGE_BITS = cython.declare(cython.int, 7)
PAGE_MASK = cython.declare(cython.Py_ssize_t, 127)
PAGE_SIZE = cython.declare(cython.Py_ssize_t, 128)

#: Keys of a bulk operation that are hashed and prefetched together.
BLOCK = cython.declare(cython.Py_ssize_t, 64)

ALL_64_BITS = cython.declare(cython.ulonglong, 0xFFFFFFFFFFFFFFFF)
_GOLDEN = cython.declare(cython.ulonglong, 0x9E3779B97F4A7C15)
_MURMUR_1 = cython.declare(cython.ulonglong, 0xFF51AFD7ED558CCD)
_MURMUR_2 = cython.declare(cython.ulonglong, 0xC4CEB9FE1A85EC53)

#: The three lowest bits of an entry's `hash`, which are no part of the hash: the lower tier of the map stores
#: the entry too; what it stores has the same value; `coldest` has returned the entry, and nothing has changed
#: it since, so that it may leave.
STORED = cython.declare(cython.ulonglong, 1)
CLEAN = cython.declare(cython.ulonglong, 2)
LEAVING = cython.declare(cython.ulonglong, 4)
_HASH_MASK = cython.declare(cython.ulonglong, 0xFFFFFFFFFFFFFFF8)

# How a comparison ended.
DIFFERENT = cython.declare(cython.int, 0)
EQUAL = cython.declare(cython.int, 1)
UNDECIDED = cython.declare(cython.int, 2)  # only user code knows
CHANGED = cython.declare(cython.int, 3)  # user code changed the chain meanwhile


@cython.internal
@cython.final
@cython.no_gc
@cython.freelist(256)
@cython.cclass
class Entry:
    """An entry and the link to the next one of its chain."""

    if not cython.compiled:
        __slots__ = ("entry_version", "hash", "key", "namespace", "next", "state_stamp", "value")

    # Never change once set, but for the lowest bits, which only the owner reads and writes.
    hash: cython.ulonglong
    key: object
    namespace: object

    # Twice the map's version when `value` was set or copied, plus 1 where the epoch of that version has noted
    # the entry as changed (see `CopyOnWriteStateMap.begin_epoch`).  A value is of no snapshot, and may be
    # handed out for changing, where the version is not below that of the newest live snapshot.  In a map with
    # a lower tier each use raises the version, where that keeps this rule.  Readers of snapshots do not look
    # at the stamp.
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
    slots: Ref[128]

    def __dealloc__(self):
        i: cython.Py_ssize_t
        for i in range(PAGE_SIZE):
            Py_XDECREF(self.slots[i])


@cython.internal
@cython.final
@cython.no_gc
@cython.cclass
class BucketArray:
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
def mixed(key_hash: cython.ulonglong, namespace_hash: cython.ulonglong) -> cython.ulonglong:
    """Return the final mix of Murmur3 without its lowest bits: Python hashes a small number as itself."""
    h: cython.ulonglong = (key_hash ^ namespace_hash) & ALL_64_BITS
    h = ((h ^ (h >> 33)) * _MURMUR_1) & ALL_64_BITS
    h = ((h ^ (h >> 33)) * _MURMUR_2) & ALL_64_BITS
    return (h ^ (h >> 33)) & _HASH_MASK


@cython.cfunc
@cython.inline
def has_hash(p: Ref, h: cython.ulonglong) -> cython.bint:
    """Return whether an entry has a hash."""
    return (cython.cast(Entry, p).hash ^ h) <= STORED | CLEAN | LEAVING


@cython.cfunc
def compared(a: object, b: object) -> cython.int:
    """Compare without user code, where that is possible."""
    if a is b:
        return EQUAL
    if type(a) is str and type(b) is str:
        return cython.cast(str, a) == cython.cast(str, b)
    if type(a) is type(b) and (type(a) is int or type(a) is bytes or type(a) is float):
        return a == b
    return UNDECIDED


@cython.cfunc
def new_page(version: cython.int) -> Page:
    """Return a page of empty buckets."""
    page: Page = Page.__new__(Page)
    page.version = version
    if not cython.compiled:
        page.slots = [None] * PAGE_SIZE
    return page


@cython.cfunc
def copy_of_page(page: Page, version: cython.int) -> Page:
    """Return a page of the same chains."""
    copied: Page = Page.__new__(Page)
    i: cython.Py_ssize_t
    copied.version = version
    if cython.compiled:
        for i in range(PAGE_SIZE):
            Py_XINCREF(page.slots[i])
            copied.slots[i] = page.slots[i]
    else:
        copied.slots = page.slots[:]
    return copied


@cython.cfunc
def copy_of_entry(entry: Entry, version: cython.int) -> Entry:
    """Return an entry with the same value and the same next one."""
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
def pages_of(bits: cython.int) -> cython.Py_ssize_t:
    """Return how many pages a table of that capacity has."""
    return 1 if bits <= PAGE_BITS else 1 << (bits - PAGE_BITS)


@cython.cfunc
def new_buckets(bits: cython.int) -> BucketArray:
    """Return a table without pages."""
    table: BucketArray = BucketArray.__new__(BucketArray)
    table.bits = bits
    table.shift = 64 - bits
    table.count = 0
    if cython.compiled:
        # All of it at once: untouched memory costs nothing, and nothing is moved when pages come.
        table.pages = cython.cast(RefArray, PyMem_Malloc(pages_of(bits) * cython.sizeof(Ref)))
        if table.pages is cython.NULL:
            raise MemoryError()
    else:
        table.pages = []
    return table


@cython.cfunc
def append_page(table: BucketArray, version: cython.int) -> cython.int:
    """Append a page of empty buckets."""
    page: Page = new_page(version)
    if cython.compiled:
        Py_XINCREF(cython.cast(Ref, page))
        table.pages[table.count] = cython.cast(Ref, page)
    else:
        table.pages.append(page)
    table.count += 1
    return 0


@cython.cfunc
def full_buckets(bits: cython.int, version: cython.int) -> BucketArray:
    """Return a table with all its pages."""
    table: BucketArray = new_buckets(bits)
    while table.count < pages_of(bits):
        append_page(table, version)
    return table


@cython.cfunc
def copy_of_buckets(table: BucketArray) -> BucketArray:
    """Return a table of the same pages."""
    copied: BucketArray = new_buckets(table.bits)
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
def drop_page(table: BucketArray, number: cython.Py_ssize_t) -> cython.int:
    """Free a page that the table does not need any more."""
    dropped: Ref = table.pages[number]
    table.pages[number] = cython.NULL
    Py_XDECREF(dropped)
    return 0


@cython.cfunc
def bits_for(capacity: object) -> cython.int:
    """Return the exponent of the smallest allowed capacity that is not below the wanted one."""
    bits: cython.int = max(capacity - 1, 0).bit_length()
    return min(max(bits, MIN_BITS), MAX_BITS)


@cython.cfunc
def threshold_of(bits: cython.int) -> cython.Py_ssize_t:
    """Return how many entries a table contains before it is doubled: three quarters of its capacity."""
    return END if bits == MAX_BITS else (1 << bits) * 3 // 4


@cython.cfunc
def spread(namespace_hash: cython.Py_hash_t) -> cython.ulonglong:
    """Return a namespace's hash multiplied: XORed as it is, all pairs (n, n) would have the hash 0."""
    return (cython.cast(cython.ulonglong, namespace_hash) * _GOLDEN) & ALL_64_BITS


@cython.cfunc
def prefetch_page(page: Page) -> cython.ulonglong:
    """Read what a walk through a page will read; see `HashTable._prefetch`."""
    seen: cython.ulonglong = 0
    i: cython.Py_ssize_t
    p: Ref
    if cython.compiled:
        for i in range(PAGE_SIZE):
            p = page.slots[i]
            if p is not cython.NULL:
                seen ^= cython.cast(Entry, p).hash
        for i in range(PAGE_SIZE):
            p = page.slots[i]
            if p is not cython.NULL:
                seen ^= _Py_REFCNT(cython.cast(Ref, cython.cast(Entry, p).key))
                seen ^= _Py_REFCNT(cython.cast(Ref, cython.cast(Entry, p).value))
    return seen
