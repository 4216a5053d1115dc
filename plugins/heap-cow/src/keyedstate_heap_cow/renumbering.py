"""New numbers for the entries of columns, given in slices so that no row waits long for them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from keyedstate_heap_cow.keyindex import KeyIndex

N = TypeVar("N")
T = TypeVar("T", bound=np.generic)

Slots = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Numbering(Generic[N]):
    """Other numbers for entries.

    Attributes
    ----------
    index : KeyIndex
    spaces : list
        The namespaces by their numbers.
    kept : ndarray of int64
        The old number of each new one.
    numbers : ndarray of int64
        The new number of each old one; -1 for a number that is dropped.
    """

    index: KeyIndex
    spaces: list[N]
    kept: Slots
    numbers: Slots

    def taken(self, array: npt.NDArray[T], missing: int = 0) -> npt.NDArray[T]:
        """Return the elements of the entries, and `missing` up to the capacity of the index.

        An array that grew after it was taken would be copied twice.
        """
        taken: npt.NDArray[T] = np.zeros(self.index.capacity, array.dtype)
        # With a mode it needs no copy of what it writes; all indices are in the array.
        np.take(array, self.kept, out=taken[: len(self.kept)], mode="clip")
        if missing:
            taken[len(self.kept) :] = missing
        return taken


class Renumbering(Generic[N]):
    """Copies the entries of an index into another one, without those that are gone.

    The table continues with the old index.  What changes behind the position is found at the end.

    Parameters
    ----------
    index : KeyIndex
    spaces : list
        The namespaces by their numbers.
    entries : int
        About how many entries are kept.
    tracked : ndarray of bool
        Which numbers are kept although their entries were removed.
    """

    def __init__(self, index: KeyIndex, spaces: list[N], entries: int, tracked: Flags) -> None:
        self._old = index
        self._old_spaces = spaces
        self._new = KeyIndex(entries + entries // 2, index.used * entries // max(index.count, 1))
        self._spaces: list[N] = []
        #: The new number of each old namespace, or -1.
        self._space_numbers = np.empty(0, np.int32)
        self._kept: list[Slots] = []
        self._tracked = tracked
        #: Up to which old number the entries were copied, and how many numbers there were then.
        self._position, self._count = 0, index.count

    def next_slice(self, size: int) -> tuple[int, int]:
        """Return the first of the next old numbers, and the one after the last."""
        grown, self._count = self._old.count - self._count, self._old.count
        # More than there are new ones, so that it ends.
        return self._position, min(self._position + size + 2 * grown, self._count)

    def copy(self, exist: Flags) -> None:
        """Copy the next entries; `exist` says of each number whether it has one."""
        tracked = self._tracked[self._position : self._position + len(exist)]
        kept = exist.copy()
        kept[: len(tracked)] |= tracked
        self._add(np.flatnonzero(kept) + self._position)
        self._position += len(exist)

    def finish(self, kept: Flags) -> Numbering[N]:
        """Copy those entries that must be kept and were not when the copy passed them.

        Parameters
        ----------
        kept : ndarray of bool
            For each old number whether its entry must be kept.
        """
        numbers = np.full(len(kept), -1, np.int64)
        for slots in self._kept:
            kept[slots] = False
        self._add(np.flatnonzero(kept))
        copied = np.concatenate(self._kept)
        numbers[copied] = np.arange(len(copied))
        self._new.adopt_calls(self._old, copied)
        return Numbering(self._new, self._spaces, copied, numbers)

    def _add(self, slots: Slots) -> None:
        spaces = self._old.entries["space"][slots]
        missing = len(self._old_spaces) - len(self._space_numbers)
        if missing:
            more = np.full(missing, -1, np.int32)
            self._space_numbers = np.concatenate([self._space_numbers, more])
        used = np.flatnonzero(np.bincount(spaces, minlength=1))
        for space in used[self._space_numbers[used] < 0].tolist() if len(slots) else ():
            self._space_numbers[space] = len(self._spaces)
            self._spaces.append(self._old_spaces[space])
        self._new.copy_from(self._old, slots, self._space_numbers[spaces])
        self._kept.append(slots)


def flags_of(count: int, parts: Iterable[Slots]) -> Flags:
    """Return for each number whether it is in one of several arrays."""
    flags = np.zeros(count, np.bool_)
    for slots in parts:
        flags[slots] = True
    return flags
