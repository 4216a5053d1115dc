"""Using entries of two tiers, and moving them between a map and its lower tier."""

from keyedstate_heap_cow import uncompiled as cython

if not cython.compiled:
    from keyedstate_heap_cow.state_map.buckets import CLEAN, END, LEAVING, STORED, Entry
    from keyedstate_heap_cow.state_map.hash_table import MAX_RESTARTS, HashTable
    from keyedstate_heap_cow.state_map.iteration import head_at, position_after
    from keyedstate_heap_cow.uncompiled import Ref

#: Buckets that a step of a walk passes for each entry that it may return.
_PASSED_PER_ENTRY = cython.declare(cython.Py_ssize_t, 16)


@cython.cfunc
@cython.inline
def use(hash_table: HashTable, h: cython.ulonglong, key: object, namespace: object) -> Ref:
    """Find an entry in order to use it; see `HashTable._find`."""
    p: Ref = hash_table._find(h, key, namespace)
    if hash_table._tier is None:
        return p
    return _use_in_tiers(hash_table, p, h, key, namespace)


@cython.cfunc
def use_to_remove(hash_table: HashTable, h: cython.ulonglong, key: object, namespace: object) -> Ref:
    """Find an entry in order to remove it; the lower tier removes it before."""
    p: Ref = use(hash_table, h, key, namespace)
    if p is not cython.NULL and cython.cast(Entry, p).hash & STORED:
        cython.cast(Entry, p).hash = h | STORED  # it is not clean without its row, whatever raises next
        hash_table._tier.discard(key, namespace)
        p = hash_table._find(h, key, namespace)  # the tier may have run anything
        if p is not cython.NULL:
            cython.cast(Entry, p).hash = h
    return p


@cython.cfunc
def _use_in_tiers(hash_table: HashTable, p: Ref, h: cython.ulonglong, key: object, namespace: object) -> Ref:
    """Note the use of an entry, which is loaded from the lower tier where only that has it."""
    stamp: cython.int
    hash_table._uses += 1
    if p is cython.NULL:
        if hash_table._elsewhere == 0:
            return p
        p = _load(hash_table, h, key, namespace)
        if p is cython.NULL:
            return p
    stamp = cython.cast(Entry, p).state_stamp
    if stamp >> 1 < hash_table._version and (hash_table._copy is None or stamp >> 1 >= hash_table._required):
        stamp = 2 * hash_table._version + (hash_table._log is not None and hash_table._log.has_noted(p))
        cython.cast(Entry, p).state_stamp = stamp
    return p


@cython.cfunc
def _load(hash_table: HashTable, h: cython.ulonglong, key: object, namespace: object) -> Ref:
    """Load an entry from the lower tier; return NULL where that has none."""
    restarts: cython.int = 0
    taken_out: cython.ulonglong
    found: tuple
    p: Ref
    while restarts <= MAX_RESTARTS:
        taken_out = hash_table._taken_out
        found = hash_table._tier.load(key, namespace)
        p = hash_table._find(h, key, namespace)
        if found is None or p is not cython.NULL:
            return p
        # The tier and the look-up may have run user code, and that may have removed the entry.
        if hash_table._taken_out == taken_out:
            _add_loaded(hash_table, h, key, namespace, found[0], found[1])
            return hash_table._head(h)
        restarts += 1
    raise RuntimeError(f"loading the key {key!r} removes entries every time")


@cython.cfunc
def admit_one(
    hash_table: HashTable,
    h: cython.ulonglong,
    key: object,
    namespace: object,
    value: object,
    stamp: cython.int,
    taken_out: cython.ulonglong,
) -> cython.bint:
    """Add an entry of the lower tier; see `CopyOnWriteStateMap.admit`."""
    if hash_table._find(h, key, namespace) is cython.NULL:
        if hash_table._taken_out != taken_out:
            return False
        _add_loaded(hash_table, h, key, namespace, value, stamp)
    return True


@cython.cfunc
def _add_loaded(
    hash_table: HashTable,
    h: cython.ulonglong,
    key: object,
    namespace: object,
    value: object,
    stamp: cython.int,
) -> cython.int:
    """Add an entry of the lower tier; a stamp of the running epoch keeps its note, another becomes old."""
    noted: cython.bint = False
    if hash_table._log is not None:
        noted = stamp & 1 and stamp >> 1 >= hash_table._log.start
    hash_table._add(h | STORED | CLEAN, key, namespace, value, 2 * hash_table._version + noted)
    hash_table._elsewhere -= 1
    return 0


@cython.cfunc
def coldest(
    hash_table: HashTable, position: cython.Py_ssize_t, period: cython.int, limit: cython.Py_ssize_t
) -> tuple:
    """Walk on from a position; see `CopyOnWriteStateMap.coldest`."""
    passed: cython.Py_ssize_t = 0
    cold: list = []
    entry: Entry
    p: Ref
    while position < END and len(cold) < limit and passed < limit * _PASSED_PER_ENTRY:
        p = head_at(hash_table, position)
        position = position_after(hash_table, position)
        passed += 1
        while p is not cython.NULL and len(cold) < limit:
            if cython.cast(Entry, p).state_stamp >> 1 < period:
                cold.append(cython.cast(Entry, p))
            p = cython.cast(Entry, p).next
            passed += 1
    clean: list = []
    changed: list = []
    for entry in cold:
        if entry.hash & CLEAN:
            clean.append(entry)
        else:
            # Now, because the lower tier writes the entry next: from then on it must know of its removal.
            entry.hash |= STORED | LEAVING
            changed.append(entry)
    return (position if position < END else None, clean, changed)


def columns_of(entries):
    """Return the namespaces, keys, values and stamps of entries that `coldest` has returned."""
    columns: tuple = ([], [], [], [])
    entry: Entry
    for entry in entries:
        columns[0].append(entry.namespace)
        columns[1].append(entry.key)
        columns[2].append(entry.value)
        columns[3].append(entry.state_stamp)
    return columns


@cython.cfunc
def may_leave(hash_table: HashTable, entry: Entry) -> cython.bint:
    """Return whether the map has an entry as `coldest` has returned it.  No user code runs."""
    p: Ref
    if not entry.hash & (CLEAN | LEAVING):
        return False
    # Where a snapshot needs it, the map may have a copy instead.
    p = hash_table._head(entry.hash)
    while p is not cython.NULL and p is not cython.cast(Ref, entry):
        p = cython.cast(Entry, p).next
    return p is not cython.NULL


@cython.cfunc
def evict(hash_table: HashTable, entries: list) -> cython.Py_ssize_t:
    """Drop entries from the map alone; see `CopyOnWriteStateMap.evict`."""
    evicted: cython.Py_ssize_t = 0
    entry: Entry
    for entry in entries:
        if may_leave(hash_table, entry):
            hash_table._take_out(cython.cast(Ref, entry), entry.hash)
            hash_table._elsewhere += 1
            evicted += 1
    return evicted
