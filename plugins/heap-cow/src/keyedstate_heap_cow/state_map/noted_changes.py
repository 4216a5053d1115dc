"""The entries of the addresses that a change log has noted."""

from keyedstate_heap_cow import uncompiled as cython

if not cython.compiled:
    from keyedstate_heap_cow.state_map.buckets import BLOCK, Entry
    from keyedstate_heap_cow.state_map.hash_table import HashTable
    from keyedstate_heap_cow.uncompiled import Ref


@cython.cfunc
def noted_since(hash_table: HashTable, epoch: object) -> tuple:
    """Look up what has changed; see `CopyOnWriteStateMap.changes_since`."""
    written: tuple = ([], [], [])
    removed: tuple = ([], [])
    passing: tuple = ([], [])
    addresses: tuple
    if hash_table._log is not None:
        addresses = hash_table._log.addresses_since(epoch)
        collect(hash_table, addresses[0][0], addresses[0][1], written, removed)
        collect(hash_table, addresses[1][0], addresses[1][1], written, passing)
    return written + removed + passing


@cython.cfunc
def collect(
    hash_table: HashTable, namespaces: list, keys: list, written: tuple, missing: tuple
) -> cython.int:
    """Append entries to `written`, and the addresses that have none here to `missing`."""
    hashes: cython.ulonglong[64]
    start: cython.Py_ssize_t
    i: cython.Py_ssize_t
    count: cython.Py_ssize_t
    p: Ref
    written_namespaces: list = written[0]
    written_keys: list = written[1]
    values: list = written[2]
    if not cython.compiled:
        hashes = [0] * BLOCK
    for start in range(0, len(keys), BLOCK):
        count = min(BLOCK, len(keys) - start)
        for i in range(count):
            hashes[i] = hash_table._hash(keys[start + i], namespaces[start + i])
        if cython.compiled:
            for i in range(count):
                hash_table._prefetch(hashes[i])
        for i in range(count):
            p = hash_table._find(hashes[i], keys[start + i], namespaces[start + i])
            if p is not cython.NULL:
                values.append(cython.cast(Entry, p).value)
                written_namespaces.append(namespaces[start + i])
                written_keys.append(keys[start + i])
            else:
                missing[0].append(namespaces[start + i])
                missing[1].append(keys[start + i])
    return 0


@cython.cfunc
def shorten_log(hash_table: HashTable) -> cython.int:
    """Leave each added address in the log once, and only if it still has an entry.

    An entry that is added and removed again and again is noted each time; these notes must not fill the
    memory.
    """
    hash_table._log.stale = 0
    # Names of their own: a look-up may run user code, and that may begin another epoch.
    all_keys: list = hash_table._log.new_keys
    all_namespaces: list = hash_table._log.new_namespaces
    count: cython.Py_ssize_t = len(all_keys)
    keys: list = []
    namespaces: list = []
    h: cython.ulonglong
    for address in dict.fromkeys(zip(all_namespaces, all_keys, strict=True)):
        h = hash_table._hash(address[1], address[0])
        # Asked for first: this may run user code, and the entry may come into the map.
        stored = hash_table._elsewhere > 0 and hash_table._tier.contains(address[1], address[0])
        if stored or hash_table._find(h, address[1], address[0]) is not cython.NULL:
            namespaces.append(address[0])
            keys.append(address[1])
    # Addresses noted meanwhile follow those that were looked up.
    all_keys[:count] = keys
    all_namespaces[:count] = namespaces
    return 0
