"""Rows that can be read once: generators and readers, and the sources over them."""

from __future__ import annotations

from typing import Any
from weakref import WeakValueDictionary

from keyedstate.errors import SourceError

#: By their identity, objects whose rows were read in this process, while they exist.
_READ: WeakValueDictionary[int, Any] = WeakValueDictionary()


def note_read(rows: object) -> None:
    """Note that rows which can be read once are read now.

    A few iterators of Python, such as that of a list, have no weak references: these are not noted. Raises
    `SourceError` where they were read before: a second reader would get what the first one left.
    """
    if _READ.get(id(rows)) is rows:
        raise SourceError(
            "the rows",
            "they can be read once, and were read already",
            "Make the generator or reader again and give it to a new stream, or give a list or a table.",
        )
    try:
        _READ[id(rows)] = rows
    except TypeError:
        return
