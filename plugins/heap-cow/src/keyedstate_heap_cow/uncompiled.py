"""What the names of the ``cython`` module mean while `cowmap` runs as plain Python.

``cowmap.py`` is written in Cython's pure-Python mode.  The compiler reads ``cython.cfunc`` and its like
as declarations; an interpreter would need Cython installed to know them, and Cython's own stand-ins do
work on every call.  These do nothing, and need nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

#: What `cowmap` asks to learn in which form it runs.
compiled = False

#: The end of a chain, and an empty slot.
NULL = None

# The types that constants and casts name; annotations are not evaluated.
Py_ssize_t: Any = None
double: Any = None
int: Any = None
ulonglong: Any = None


def _unchanged(declared: T) -> T:
    return declared


cclass = cfunc = final = inline = internal = no_gc = no_gc_clear = _unchanged


def freelist(_size: Any) -> Callable[[T], T]:
    """Change nothing: the interpreter has its own free memory."""
    return _unchanged


def cast(_type: Any, value: T) -> T:
    """Return `value`: a cast changes what the compiler knows, never the object."""
    return value


def declare(_type: Any, value: T) -> T:
    """Return `value`: a declaration gives a C variable its type."""
    return value
