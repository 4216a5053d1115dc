"""New numbers for the entries of columns, given in slices so that no row waits long for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from keyedstate_heap_cow.keyindex import KeyIndex

N = TypeVar("N")

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
    arrays : list of ndarray
        The arrays in the order of the other numbers.
    numbers : ndarray of int64
        The other number of each old one; -1 for a number that is dropped.
    """

    index: KeyIndex
    spaces: list[N]
    arrays: list[npt.NDArray[Any]]
    numbers: Slots


class Renumbering(Generic[N]):
    """Copies the entries of an index, and their elements in arrays, without the entries that are gone.

    The table continues with the old ones.  It says which elements have changed since they were copied.  What
    else changes behind the position is found at the end.

    Parameters
    ----------
    index : KeyIndex
    spaces : list
        The namespaces by their numbers.
    entries : int
        About how many entries are kept.
    tracked : ndarray of bool
        Which numbers are kept although their entries were removed.
    arrays : sequence of ndarray
        Each has 0 for numbers without an entry.
    """

    def __init__(
        self,
        index: KeyIndex,
        spaces: list[N],
        entries: int,
        tracked: Flags,
        arrays: Sequence[npt.NDArray[Any]],
    ) -> None:
        self._old = index
        self._old_spaces = spaces
        # Room for those that come meanwhile: nothing is copied twice, and only what is written takes memory.
        room = entries + entries // 2
        self._new = KeyIndex(room, index.used * room // max(index.count, 1))
        # Memory of zeros is given out when it is written, slice by slice.
        self._arrays = [np.zeros(self._new.capacity, array.dtype) for array in arrays]
        self._spaces: list[N] = []
        #: The new number of each old namespace, or -1.
        self._space_numbers = np.empty(0, np.int32)
        #: The new number of each old one, plus 1; 0 where it was not copied.
        self._numbers = np.zeros(index.capacity, np.int64)
        self._tracked = tracked
        #: Up to which old number the entries were copied, and how many numbers there were then.
        self._position, self._count = 0, index.count

    def next_slice(self, size: int) -> tuple[int, int]:
        """Return the first of the next old numbers, and the one after the last."""
        grown, self._count = self._old.count - self._count, self._old.count
        # More than there are new ones, so that it ends.
        return self._position, min(self._position + size + 2 * grown, self._count)

    def copy(self, exist: Flags, arrays: Sequence[npt.NDArray[Any]], changed: Sequence[Slots]) -> None:
        """Copy the next entries, and those elements again that have changed.

        Parameters
        ----------
        exist : ndarray of bool
            For each number from the position on whether it has an entry.
        arrays : sequence of ndarray
        changed : sequence of ndarray of int64
            Numbers whose elements have changed since the last call.
        """
        for slots in changed:
            self._copy_again(slots, arrays)
        tracked = self._tracked[self._position : self._position + len(exist)]
        kept = exist.copy()
        kept[: len(tracked)] |= tracked
        self._add(np.flatnonzero(kept) + self._position, arrays)
        self._position += len(exist)

    def finish(self, kept: Flags, arrays: Sequence[npt.NDArray[Any]]) -> Numbering[N]:
        """Copy those entries that must be kept and were not when the copy passed them.

        Parameters
        ----------
        kept : ndarray of bool
            For each old number whether its entry must be kept.
        arrays : sequence of ndarray
            Without changes since the last call of `copy`.
        """
        self._add(np.flatnonzero(kept & (self._numbers[: len(kept)] == 0)), arrays)
        return Numbering(self._new, self._spaces, self._arrays, self._numbers[: len(kept)] - 1)

    def _add(self, slots: Slots, arrays: Sequence[npt.NDArray[Any]]) -> None:
        spaces = self._old.entries["space"][slots]
        missing = len(self._old_spaces) - len(self._space_numbers)
        if missing:
            more = np.full(missing, -1, np.int32)
            self._space_numbers = np.concatenate([self._space_numbers, more])
        used = np.flatnonzero(np.bincount(spaces, minlength=1))
        for space in used[self._space_numbers[used] < 0].tolist() if len(slots) else ():
            self._space_numbers[space] = len(self._spaces)
            self._spaces.append(self._old_spaces[space])
        start = self._new.count
        self._new.copy_from(self._old, slots, self._space_numbers[spaces])
        self._numbers = longer(self._numbers, self._old.capacity)
        self._numbers[slots] = np.arange(start + 1, self._new.count + 1)
        self._arrays = [longer(made, self._new.capacity) for made in self._arrays]
        for made, array in zip(self._arrays, arrays, strict=True):
            made[start : self._new.count] = array[slots]

    def _copy_again(self, slots: Slots, arrays: Sequence[npt.NDArray[Any]]) -> None:
        slots = slots[slots < len(self._numbers)]
        numbers = self._numbers[slots]
        copied = numbers > 0
        slots, numbers = slots[copied], numbers[copied] - 1
        for made, array in zip(self._arrays, arrays, strict=True):
            made[numbers] = array[slots]


def longer(array: npt.NDArray[Any], length: int) -> npt.NDArray[Any]:
    """Return an array of at least a length, with zeros at its end, whose memory is not used yet."""
    if len(array) >= length:
        return array
    made = np.zeros(length, array.dtype)
    made[: len(array)] = array
    return made


def flags_of(count: int, parts: Iterable[Slots]) -> Flags:
    """Return for each number whether it is in one of several arrays."""
    flags = np.zeros(count, np.bool_)
    for slots in parts:
        flags[slots] = True
    return flags
