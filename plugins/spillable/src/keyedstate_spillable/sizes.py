"""What an entry of a copy-on-write map occupies in memory, estimated from samples.

An object that others own too, such as a namespace or a cached number, counts in part: its size is divided by
its references.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Sequence, Set
from dataclasses import fields, is_dataclass
from itertools import islice
from typing import Any, Final

#: Bytes of an entry of the compiled map, and of the plain one with its hash and stamps.
_ENTRY_BYTES: Final = 64
_PLAIN_ENTRY_BYTES: Final = 144
#: Bytes of a bucket at an average load.  A map keeps its buckets when entries leave.
_BUCKET_BYTES: Final = 15
#: The change log has two references to an entry that an epoch has changed.
_LOG_BYTES: Final = 18
#: Elements of a collection that are measured; the others are taken to be like them.
_ELEMENTS: Final = 32
#: Samples that a further measurement adds, and from how many maps: from others each time.
_NEW_SAMPLES: Final = 32
_MAPS_AT_ONCE: Final = 8
#: Python's own allocator has blocks of up to so many bytes; the C library has a header for larger ones.
_SMALL: Final = 512
_ALIGNMENT: Final = 16


class EntrySizes:
    """The average size of an entry of one table.

    Parameters
    ----------
    samples : int
        The newest samples, of which the average is taken.
    """

    def __init__(self, samples: int) -> None:
        self._samples: deque[float] = deque(maxlen=samples)
        self._turn = 0

    def measure(self, maps: Sequence[Any], *, compiled: bool) -> float:
        """Return the average bytes of an entry in memory; 0 if none is in memory.

        The first call measures as many entries as the average has, each further one a few: it is called for
        each sample of the process's memory.

        Parameters
        ----------
        maps : sequence of CopyOnWriteStateMap
            Of all key groups.
        compiled : bool
            Whether they are compiled.
        """
        entries = sum(map(len, maps))
        if not entries:
            return 0.0
        wanted = self._samples.maxlen or 1
        if self._samples:
            turns = max(len(maps) // _MAPS_AT_ONCE, 1)
            self._turn = (self._turn + 1) % turns
            maps = maps[self._turn :: turns]
            wanted, entries = min(_NEW_SAMPLES, wanted), max(sum(map(len, maps)), 1)
        # From each map by its part of the entries, at least one.
        for state_map in maps:
            count = -(-wanted * len(state_map) // entries)
            self._samples.extend(map(_of_entry, islice(iter(state_map), count)))
        own = _ENTRY_BYTES if compiled else _PLAIN_ENTRY_BYTES
        return sum(self._samples) / len(self._samples) + own + _LOG_BYTES + _BUCKET_BYTES


def _of_entry(entry: tuple[Any, Any, Any]) -> float:
    """Return the bytes of key, namespace and value; the tuple that shows them has references too."""
    return _of_parts(entry, _OWN_REFERENCES + 1)


def _of_parts(parts: Iterable[Any], own: int = -1) -> float:
    """Return the bytes of objects that something owns, each divided by its references but this function's."""
    own = _OWN_REFERENCES if own < 0 else own
    size = 0.0
    for part in parts:
        size += _of_object(part) / max(sys.getrefcount(part) - own, 1)
    return size


def _of_object(value: Any) -> float:
    kind = type(value)
    if value is None or kind is bool:
        return 0.0
    size = _block(sys.getsizeof(value))
    if kind in _LEAVES:
        return size
    if kind is tuple:
        return size + _of_some(value, len(value))
    if kind is list:
        # The references are a block of their own.
        return _block(_LIST_BYTES) + _block(size - _LIST_BYTES) + _of_some(value, len(value))
    if isinstance(value, dict):
        return size + _of_some(value, len(value)) + _of_some(value.values(), len(value))
    if isinstance(value, Set):
        return size + _of_some(value, len(value))
    if is_dataclass(value):
        names = [field.name for field in fields(value)]
        slots = 0 if hasattr(kind, "__slots__") else _block(8 * (len(names) + 2))
        return size + slots + _of_parts(getattr(value, name) for name in names)
    if hasattr(value, "__dict__"):
        return size + _of_object(value.__dict__)
    return size


def _of_some(elements: Iterable[Any], count: int) -> float:
    """Return the bytes of the elements of a collection, measured at some of them."""
    if count <= _ELEMENTS:
        return _of_parts(elements)
    step = count // _ELEMENTS
    return _of_parts(islice(elements, 0, step * _ELEMENTS, step)) * count / _ELEMENTS


def _block(size: float) -> float:
    """Return what the allocator takes for an object."""
    whole = int(size) if size <= _SMALL else int(size) + 8
    return -(-whole // _ALIGNMENT) * _ALIGNMENT


_LEAVES = frozenset((int, float, str, bytes, bytearray, complex))
_LIST_BYTES = sys.getsizeof([])


def _references(parts: Iterable[Any]) -> int:
    """Return the references to the last of some objects, as `_of_parts` sees them."""
    seen = 0
    for part in parts:
        seen = sys.getrefcount(part)
    return seen


#: References of the loop and the call, which differ between versions of Python.
_OWN_REFERENCES: Final = _references([object()]) - 1
