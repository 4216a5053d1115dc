"""Operations on many keys at once, over the maps of consecutive key groups.

The map of key group g is ``maps[g - first]``.  Without key groups, all keys belong to the first map.  Where
an operation raises, the keys before it are done and those after it are not.
"""

from keyedstate_heap_cow import uncompiled as cython

if not cython.compiled:
    from keyedstate_heap_cow.state_map.buckets import BLOCK, mixed, spread
    from keyedstate_heap_cow.state_map.tiers import admit_one

    #: Named by annotations only; its module imports this one.
    CopyOnWriteStateMap = object


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
    vs: list = as_list(values)
    i: cython.Py_ssize_t
    check_lengths("values", vs, block._keys)
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


def find_missing(maps, first, key_groups, keys, namespace):
    """Return the indices of the keys that a map does not have, but may be in its lower tier.

    Parameters and errors are those of `get_many`.
    """
    block = _Block(maps, first, key_groups, keys, namespace)
    missing: list = []
    i: cython.Py_ssize_t
    key: object
    while block._load():
        for i in range(block._count):
            if block._map(i)._elsewhere:
                key = block._keys[block._start + i]
                if block._map(i)._find(block._hashes[i], key, namespace) is cython.NULL:
                    missing.append(block._start + i)
    return missing


def admit_many(maps, first, key_groups, keys, namespace, values, stamps, taken_out):
    """Add entries of one namespace that only lower tiers have; see `CopyOnWriteStateMap.admit`.

    It ends where a map has lost entries since `taken_out` had what each map says.  Other parameters and
    errors are those of `put_many`; as many stamps are needed too.
    """
    block = _Block(maps, first, key_groups, keys, namespace)
    vs: list = as_list(values)
    stamped: list = as_list(stamps)
    before: list = as_list(taken_out)
    i: cython.Py_ssize_t
    place: cython.Py_ssize_t
    check_lengths("values", vs, block._keys)
    check_lengths("stamps", stamped, block._keys)
    while block._load():
        for i in range(block._count):
            place = block._start + i
            if not admit_one(
                block._map(i),
                block._hashes[i],
                block._keys[place],
                namespace,
                vs[place],
                stamped[place],
                before[block._numbers[i]],
            ):
                return


@cython.internal
@cython.final
@cython.no_gc_clear
@cython.cclass
class _Block:
    """A chunk of the keys of a bulk operation, hashed and prefetched."""

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

    # Of each key of the chunk, the hash and the number of its map; 0 where there are no key groups.
    _hashes: cython.ulonglong[64]
    _numbers: cython.Py_ssize_t[64]

    def __cinit__(self, maps: list, first: cython.Py_ssize_t, key_groups, keys, namespace):
        self._maps = maps
        self._first = first
        self._keys = as_list(keys)
        self._groups = None if key_groups is None else as_list(key_groups)
        self._namespace_hash = spread(hash(namespace))
        self._start = 0
        self._count = 0
        if not cython.compiled:
            self._hashes = [0] * BLOCK
            self._numbers = [0] * BLOCK
        if self._groups is not None:
            check_lengths("key groups", self._groups, self._keys)

    @cython.cfunc
    @cython.inline
    def _map(self, i: cython.Py_ssize_t) -> CopyOnWriteStateMap:
        return self._maps[self._numbers[i]]

    @cython.cfunc
    def _load(self) -> cython.bint:
        """Go to the next chunk; return whether there is one."""
        i: cython.Py_ssize_t
        number: cython.Py_ssize_t
        key_hash: cython.Py_hash_t
        self._start += self._count
        self._count = min(BLOCK, len(self._keys) - self._start)
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
            self._hashes[i] = mixed(cython.cast(cython.ulonglong, key_hash), self._namespace_hash)
        if cython.compiled:
            for i in range(self._count):
                self._map(i)._prefetch(self._hashes[i])
            for i in range(self._count):
                self._map(i)._prefetch_parts(self._hashes[i])
        return True


@cython.cfunc
def as_list(column: object) -> list:
    """Return the column, as a list if it is none."""
    return column if type(column) is list else list(column)


@cython.cfunc
def check_lengths(name: object, column: list, keys: list) -> cython.int:
    """Refuse a column that is not as long as the keys."""
    if len(column) != len(keys):
        raise ValueError(f"{len(keys)} keys and {len(column)} {name}; give one of each for every entry")
    return 0
