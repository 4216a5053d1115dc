# cython: language_level=3, binding=False, boundscheck=True, wraparound=False, auto_pickle=False
"""The package `state_map` compiled: one extension of all its modules, so that their calls are calls of C.

The modules import each other where they run as plain Python only.  A class is declared before the signatures
and attributes that name it, which gives the order here.
"""

cimport cython
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.object cimport PyObject
from cpython.ref cimport Py_XDECREF, Py_XINCREF, _Py_REFCNT

#: A reference that the compiler does not count: a pointer to an entry or a page.
ctypedef PyObject* Ref
ctypedef PyObject** RefArray

include "state_map/buckets.py"
include "state_map/change_log.py"
include "state_map/hash_table.py"
include "state_map/rehash.py"
include "state_map/iteration.py"
include "state_map/snapshot.py"
include "state_map/tiers.py"
include "state_map/noted_changes.py"
include "state_map/map.py"
include "state_map/bulk.py"
