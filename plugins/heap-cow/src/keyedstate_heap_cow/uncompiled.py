"""What the names that only Cython defines mean where the map runs as plain Python.

The modules of `state_map` are written in Cython's pure-Python mode: the compiler reads ``cython.cfunc`` and
its like as declarations.  These stand-ins do nothing, and need no Cython.  ``cowmap.pyx`` says what the
compiler takes in place of those that are no names of Cython's module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

#: Whether the code that asks is compiled.
compiled = False

#: The end of a chain, and an empty slot.
NULL = None


class _Type:
    """A C type, or an array of it: named by annotations, constants and casts, and never used."""

    def __getitem__(self, _length: Any) -> _Type:
        return self


Py_hash_t = Py_ssize_t = bint = double = int = ulonglong = _Type()

#: A reference that the compiler does not count, and an array of such.
Ref = RefArray = _Type()


def _unchanged(declared: T) -> T:
    return declared


cclass = cfunc = final = inline = internal = no_gc = no_gc_clear = _unchanged

# The interpreter counts references and frees memory itself; only the first two are called.
Py_XINCREF = Py_XDECREF = _Py_REFCNT = PyMem_Free = PyMem_Malloc = _unchanged


def freelist(_size: Any) -> Callable[[T], T]:
    """Change nothing: the interpreter has its own free memory."""
    return _unchanged


def cast(_type: Any, value: T) -> T:
    """Return `value`: a cast changes what the compiler knows, never the object."""
    return value


def declare(_type: Any, value: T) -> T:
    """Return `value`: a declaration gives a C variable its type."""
    return value
