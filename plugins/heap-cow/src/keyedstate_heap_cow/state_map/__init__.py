"""A hash map over (key, namespace) whose snapshots cost next to nothing: `CopyOnWriteStateMap`.

Flink's ``CopyOnWriteStateMap``: chained buckets, incremental rehash, and entries that are copied when they
are changed while a snapshot still needs them.  Two things differ.

- A bucket is chosen by the *highest* bits of an entry's hash, so that doubling splits bucket i into 2i and
  2i + 1 and the order of hashes is the order of buckets whatever the capacity.  A position in that order
  says what was visited and what was not, through any number of rehashes: iteration and visitors need no
  more than it.
- The bucket array is cut into pages that are copied on write like the entries, so that a snapshot copies a
  reference per page and not one per bucket, and a new array grows page by page while it is filled.

The modules are in Cython's pure-Python mode.  This package is them as plain Python; `cowmap` is all of
them compiled into one extension.  Both do the same.

Threads
-------
A map belongs to one thread, its owner, which calls all its methods, `CopyOnWriteStateMap.snapshot` too.
Another thread may read a snapshot while the owner continues to change the map; one iterator over it serves
one thread.  `CopyOnWriteStateMapSnapshot.release` may be called in any thread at any time, also while another
one reads: that reader gets a RuntimeError at its next step, never wrong entries.

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
it has looked up what it changes, or looks it up again, or runs it when it has finished.  There is one
restriction where the map is not compiled: the cycle collector may then run a finalizer in the midst of a
method, and such a finalizer must not change the map.
"""

from keyedstate_heap_cow.state_map.buckets import COMPILED, REVISION
from keyedstate_heap_cow.state_map.bulk import (
    admit_many,
    find_missing,
    get_many,
    get_many_for_update,
    put_many,
    remove_many,
)
from keyedstate_heap_cow.state_map.iteration import StateMapVisitor
from keyedstate_heap_cow.state_map.map import CopyOnWriteStateMap
from keyedstate_heap_cow.state_map.snapshot import DROP, CopyOnWriteStateMapSnapshot
from keyedstate_heap_cow.state_map.tiers import columns_of

__all__ = [
    "COMPILED",
    "DROP",
    "REVISION",
    "CopyOnWriteStateMap",
    "CopyOnWriteStateMapSnapshot",
    "StateMapVisitor",
    "admit_many",
    "columns_of",
    "find_missing",
    "get_many",
    "get_many_for_update",
    "put_many",
    "remove_many",
]
