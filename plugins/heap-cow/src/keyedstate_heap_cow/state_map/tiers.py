"""Moving entries between a map and its lower tier."""

from keyedstate_heap_cow import uncompiled as cython

if not cython.compiled:
    from keyedstate_heap_cow.state_map.buckets import CLEAN, END, LEAVING, STORED, Entry
    from keyedstate_heap_cow.state_map.hash_table import HashTable
    from keyedstate_heap_cow.state_map.iteration import head_at, position_after
    from keyedstate_heap_cow.uncompiled import Ref

#: Buckets that a step of a walk passes for each entry that it may return.
_PASSED_PER_ENTRY = cython.declare(cython.Py_ssize_t, 16)


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
    clean: tuple = ([], [])
    changed: tuple = ([], [], [], [])
    for entry in cold:
        if entry.hash & CLEAN:
            clean[0].append(entry.namespace)
            clean[1].append(entry.key)
        else:
            # Now, because the lower tier writes the entry next: from then on it must know of its removal.
            entry.hash |= STORED | LEAVING
            changed[0].append(entry.namespace)
            changed[1].append(entry.key)
            changed[2].append(entry.value)
            changed[3].append(entry.state_stamp)
    return (position if position < END else None, *clean, *changed)


@cython.cfunc
def evict(hash_table: HashTable, namespaces: list, keys: list) -> list:
    """Drop entries from the map alone; see `CopyOnWriteStateMap.evict`."""
    kept: list = []
    h: cython.ulonglong
    i: cython.Py_ssize_t
    p: Ref
    entry: Entry
    for i in range(len(keys)):
        h = hash_table._hash(keys[i], namespaces[i])
        p = hash_table._find(h, keys[i], namespaces[i])
        if p is cython.NULL or not cython.cast(Entry, p).hash & (CLEAN | LEAVING):
            kept.append(i)
            continue
        entry = hash_table._take_out(p, h)
        hash_table._elsewhere += 1
        del entry  # may run user code, now that the entry is counted
    return kept


@cython.cfunc
def admit(hash_table: HashTable, namespaces: list, keys: list, values: list, stamps: list) -> cython.int:
    """Add entries of the lower tier."""
    i: cython.Py_ssize_t
    for i in range(len(keys)):
        admit_one(hash_table, namespaces[i], keys[i], values[i], stamps[i])
    return 0


@cython.cfunc
def admit_one(
    hash_table: HashTable, namespace: object, key: object, value: object, stamp: cython.int
) -> cython.int:
    """Add an entry of the lower tier; a stamp of the running epoch keeps its note, another becomes old."""
    h: cython.ulonglong = hash_table._hash(key, namespace)
    noted: cython.bint = False
    if hash_table._find(h, key, namespace) is not cython.NULL:
        return 0
    if hash_table._log is not None:
        noted = stamp & 1 and stamp >> 1 >= hash_table._log.start
    hash_table._add(h | STORED | CLEAN, key, namespace, value, 2 * hash_table._version + noted)
    hash_table._elsewhere -= 1
    return 0
