"""The incremental rehash: each access moves a few buckets into the array of twice the capacity."""

from keyedstate_heap_cow import uncompiled as cython

if not cython.compiled:
    from keyedstate_heap_cow.state_map.buckets import (
        MAX_BITS,
        PAGE_BITS,
        PAGE_MASK,
        BucketArray,
        Entry,
        Page,
        append_page,
        drop_page,
        full_buckets,
        threshold_of,
    )
    from keyedstate_heap_cow.state_map.hash_table import HashTable
    from keyedstate_heap_cow.uncompiled import Ref

#: An access during a rehash moves whole buckets until this many entries have moved ...
_MOVED_PER_ACCESS = cython.declare(cython.int, 4)
#: ... but passes no more buckets than this, or a step through an emptied map would be long.
_PASSED_PER_ACCESS = cython.declare(cython.int, 64)


@cython.cfunc
def move_some(hash_table: HashTable) -> cython.int:
    """Continue the rehash: each access calls this, so that none waits for the whole of it."""
    table: BucketArray = hash_table._table
    into: BucketArray = hash_table._next
    moved: cython.int = 0
    passed: cython.int = 0
    bucket: cython.Py_ssize_t
    number: cython.Py_ssize_t
    page: Page
    new_page: Page
    p: Ref
    after: Ref
    while moved < _MOVED_PER_ACCESS and passed < _PASSED_PER_ACCESS:
        bucket = hash_table._moved
        if (2 * bucket) >> PAGE_BITS == into.count:
            append_page(into, hash_table._version)
        page = cython.cast(Page, table.pages[bucket >> PAGE_BITS])
        p = page.slots[bucket & PAGE_MASK]
        if p is not cython.NULL:
            # First what may fail for want of memory, each part of which leaves the chain as it was.
            after = p
            while cython.cast(Entry, after).next is not cython.NULL:
                after = cython.cast(Entry, after).next
            hash_table._own(after, cython.cast(Entry, after).hash)
            new_page = hash_table._own_page(into, 2 * bucket)
            page = hash_table._own_page(table, bucket)
            p = page.slots[bucket & PAGE_MASK]
            page.slots[bucket & PAGE_MASK] = cython.NULL
            # Then each reference to an entry goes from the old chain to the new.
            while p is not cython.NULL:
                after = cython.cast(Entry, p).next
                number = (cython.cast(Entry, p).hash >> into.shift) & PAGE_MASK
                cython.cast(Entry, p).next = new_page.slots[number]
                new_page.slots[number] = p
                p = after
                moved += 1
        passed += 1
        bucket += 1
        hash_table._moved = bucket
        if bucket & PAGE_MASK == 0:
            drop_page(table, (bucket - 1) >> PAGE_BITS)
        if bucket >> table.bits:
            hash_table._table = into
            hash_table._next = None
            hash_table._moved = 0
            hash_table._threshold = threshold_of(into.bits)
            break
    return 0


@cython.cfunc
def make_room(hash_table: HashTable, entries: cython.Py_ssize_t) -> cython.int:
    """Make an empty map as large as that many entries need."""
    bits: cython.int = hash_table._table.bits
    if hash_table._size or hash_table._next is not None:
        return 0
    while bits < MAX_BITS and threshold_of(bits) < entries:
        bits += 1
    if bits > hash_table._table.bits:
        hash_table._table = full_buckets(bits, hash_table._version)
        hash_table._threshold = threshold_of(bits)
    return 0
