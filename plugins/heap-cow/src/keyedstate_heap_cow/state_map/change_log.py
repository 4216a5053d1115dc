"""The addresses that changed in each epoch: what a delta is made from."""

from keyedstate.tables import check_ascending
from keyedstate_heap_cow import uncompiled as cython

if not cython.compiled:
    from keyedstate_heap_cow.state_map.buckets import Entry
    from keyedstate_heap_cow.uncompiled import Ref

#: Addresses of added and removed entries that an epoch keeps before it looks for them.
_STALE_LIMIT = cython.declare(cython.Py_ssize_t, 4096)


@cython.internal
@cython.final
@cython.no_gc_clear
@cython.cclass
class ChangeLog:
    """The changes of the running epoch and of earlier ones, by address.

    An entry is noted when it changes first in an epoch, and its stamp says so: a change costs at most one
    note per entry and epoch, and no search.
    """

    if not cython.compiled:
        __slots__ = (
            "epochs",
            "new_keys",
            "new_namespaces",
            "old_keys",
            "old_namespaces",
            "removed",
            "stale",
            "start",
            "unique",
        )

        def __init__(self):
            self.__cinit__()

    # Per epoch not forgotten, its number and its four lists; the last one is the running epoch.
    epochs: list

    # The running epoch, of which `start` is the first version: addresses of entries that are older and were
    # changed or removed in it, and of entries that were added in it.
    start: cython.int
    old_keys: list
    old_namespaces: list
    new_keys: list
    new_namespaces: list

    # How many of its addresses were removed after they were noted.  As long as no entry was added after one
    # was removed (`removed`), no address is in the lists twice (`unique`).
    stale: cython.Py_ssize_t
    removed: cython.bint
    unique: cython.bint

    def __cinit__(self):
        self.epochs = []
        self.start = 0

    @cython.cfunc
    def begin(self, epoch: object, version: cython.int) -> cython.int:
        """Begin an epoch with a version of its own: what was written before has a lower one."""
        begun: tuple = (epoch, [], [], [], [])
        if self.epochs:
            check_ascending(epoch, self.epochs[len(self.epochs) - 1][0])
        self.epochs.append(begun)
        self.start = version
        self.old_keys, self.old_namespaces, self.new_keys, self.new_namespaces = begun[1:]
        self.stale = 0
        self.removed = False
        self.unique = True
        return 0

    @cython.cfunc
    def forget(self, epoch: object) -> cython.int:
        """Forget the epochs up to and including one, but not the running one."""
        while len(self.epochs) > 1 and self.epochs[0][0] <= epoch:
            del self.epochs[0]
        return 0

    @cython.cfunc
    def addresses_since(self, epoch: object) -> tuple:
        """Return the addresses noted in the epochs above one.

        They are two pairs of lists (namespaces, keys): addresses that had an entry when the first of the
        epochs began, and addresses that had none.  The lists are copies, because looking up may run user code
        that changes the map.
        """
        epochs: list = [known for known in self.epochs if known[0] > epoch]
        if len(epochs) == 1 and self.unique:
            return (
                (self.old_namespaces[:], self.old_keys[:]),
                (self.new_namespaces[:], self.new_keys[:]),
            )
        #: Whether each address had an entry when the first of the epochs began.
        existed: dict = {}
        for _, old_keys, old_namespaces, new_keys, new_namespaces in epochs:
            for address in zip(old_namespaces, old_keys, strict=True):
                existed.setdefault(address, True)
            for address in zip(new_namespaces, new_keys, strict=True):
                existed.setdefault(address, False)
        pairs: tuple = (([], []), ([], []))
        for address, known in existed.items():
            namespaces, keys = pairs[0 if known else 1]
            namespaces.append(address[0])
            keys.append(address[1])
        return pairs

    @cython.cfunc
    @cython.inline
    def has_noted(self, p: Ref) -> cython.bint:
        """Return whether the running epoch has noted an entry: its stamp says so."""
        stamp: cython.int = cython.cast(Entry, p).state_stamp
        return stamp & 1 and stamp >> 1 >= self.start

    @cython.cfunc
    @cython.inline
    def note_change(self, p: Ref) -> cython.int:
        """Note that an entry is about to be changed, unless this epoch has noted it already."""
        if self.has_noted(p):
            return 0
        return _append_address(
            self.old_keys, self.old_namespaces, cython.cast(Entry, p).key, cython.cast(Entry, p).namespace
        )

    @cython.cfunc
    def note_removal(self, p: Ref) -> cython.int:
        """Note that an entry is about to be removed."""
        self.removed = True
        if self.has_noted(p):
            self.stale += 1
        return self.note_change(p)

    @cython.cfunc
    @cython.inline
    def note_addition(self, key: object, namespace: object) -> cython.int:
        """Note an address that is about to get an entry."""
        _append_address(self.new_keys, self.new_namespaces, key, namespace)
        if self.removed:
            self.unique = False
        return 0

    @cython.cfunc
    @cython.inline
    def is_stale(self) -> cython.bint:
        """Return whether half of the added addresses, and many, were removed again."""
        return self.stale >= _STALE_LIMIT and 2 * self.stale >= len(self.new_keys)


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
