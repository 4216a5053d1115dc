"""The sort of an index: by columns of 64-bit numbers in NumPy, and by whole keys where these do not decide.

Flink's ``QuickSort`` moves index entries one comparison at a time, which Python cannot afford.  NumPy's sorts
keep what that one guarantees: sorted, descending and equal input take no longer than random input.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from keyedstate.memory.sorting.keys import NormalizedKeys
from keyedstate.memory.sorting.texts import WORD_BYTES, Texts

Places: TypeAlias = NDArray[np.int64]
#: Returns the whole keys of the rows at some places.
WholeKeys: TypeAlias = Callable[[Places], pa.LargeBinaryArray]

_WORD_BITS: Final = 64
#: Arrow counts numbers up to here, in about half the time of a sort.
_COUNTED_UP_TO: Final = 4096
#: Whole keys are sorted word by word up to here; beyond, Arrow compares the few that are still tied.
_WORDS_UP_TO: Final = 64


def sorted_places(keys: NormalizedKeys, whole_keys: WholeKeys) -> Places:
    """Return the places of rows in the order of their keys; equal rows keep their order.

    `whole_keys` is called once at most, with the places of the rows that their normalized keys do not order.
    """
    words = keys.words()
    places = _ranks(words[0])
    if len(words) == 1 and keys.prefix_only is None:
        return places
    places = np.require(places, requirements="W")
    ties = _Ties(words[0][places])
    for word in words[1:]:
        ties.sort(places, word)
    if keys.prefix_only is not None:
        _sort_prefixes(places, ties, keys.prefix_only, whole_keys)
    return places


def _sort_prefixes(
    places: Places, ties: _Ties, prefix_only: NDArray[np.bool_], whole_keys: WholeKeys
) -> None:
    """Sort the tied places whose keys are only prefixes."""
    ties.keep_members(places, prefix_only)
    members = ties.members(places)
    if not len(members):
        return
    keys = whole_keys(members)
    texts = Texts.of(keys)
    longest = int(texts.lengths().max())
    column = np.zeros(len(places), np.uint64)
    for depth in range(0, min(longest, _WORDS_UP_TO), WORD_BYTES):
        column[members] = texts.words(depth)
        ties.sort(places, column)
    if longest > _WORDS_UP_TO and len(ties):
        rows = np.zeros(len(places), np.int64)
        rows[members] = np.arange(len(members))
        members = ties.members(places)
        # Groups are in the order of their keys, and stay together.
        ties.permute(places, pc.sort_indices(keys.take(pa.array(rows[members]))).to_numpy())


def _ranks(values: NDArray[np.uint64]) -> Places:
    """Return the order of numbers, maybe in memory that is read-only; equal ones keep their order."""
    count = len(values)
    if not count:
        return np.zeros(0, np.int64)
    least = values.min()
    spread = int(values.max() - least)
    if spread <= _COUNTED_UP_TO:
        counted: Places = pc.array_sort_indices(pa.array(values - least)).to_numpy().view(np.int64)
        return counted
    place_bits = (count - 1).bit_length()
    if spread.bit_length() + place_bits <= _WORD_BITS:
        # Sorted together with their places: a fifth of the time of argsort.
        pairs = (values - least) << np.uint64(place_bits)
        pairs |= np.arange(count, dtype=np.uint64)
        pairs.sort()
        pairs &= np.uint64((1 << place_bits) - 1)
        ranks: Places = pairs.view(np.int64)
        return ranks
    # The stable sort takes several times as long as this one and a second one of the few that are equal.
    places: Places = np.argsort(values)
    ties = _Ties(values[places])
    ties.sort(places, np.arange(count, dtype=np.uint64))
    return places


class _Ties:
    """Where rows are tied so far: indices into the sorted places, and a number for each group of equal rows.

    Indices and the numbers of groups ascend; a group has at least two rows, and its indices are consecutive.
    """

    def __init__(self, ordered: NDArray[Any]) -> None:
        self._indices: Places = np.arange(len(ordered), dtype=np.int64)
        self._groups = np.zeros(len(ordered), np.uint64)
        self._keep(ordered[1:] == ordered[:-1])

    def __len__(self) -> int:
        return len(self._indices)

    def members(self, places: Places) -> Places:
        """Return the tied places, in the order of their groups."""
        return places[self._indices]

    def keep_members(self, places: Places, chosen: NDArray[np.bool_]) -> None:
        """Keep the ties of chosen places; a group has chosen ones only, or none."""
        kept = chosen[self.members(places)]
        self._indices, self._groups = self._indices[kept], self._groups[kept]

    def permute(self, places: Places, ranks: Places) -> None:
        """Put the tied places into another order."""
        places[self._indices] = self.members(places)[ranks]

    def sort(self, places: Places, column: NDArray[np.uint64]) -> None:
        """Sort the tied places within their groups by a column of all rows, and keep what is still tied."""
        if not len(self):
            return
        values = column[self.members(places)]
        differ = values[1:] != values[:-1]
        if not (differ & (self._groups[1:] == self._groups[:-1])).any():
            return
        ranks = _ranks(values)
        if self._groups[0] != self._groups[-1]:
            ranks = ranks[_ranks(self._groups[ranks])]
        self.permute(places, ranks)
        values = values[ranks]
        self._keep(values[1:] == values[:-1])

    def _keep(self, equal: NDArray[np.bool_]) -> None:
        """Keep what is equal to a neighbour in its group; `equal` compares each row with the next one."""
        if not len(self):
            return
        tied = equal & (self._groups[1:] == self._groups[:-1])
        kept = np.zeros(len(self), np.bool_)
        kept[1:] = tied
        kept[:-1] |= tied
        # A new group begins where a row is not tied to the one before.
        starts = np.zeros(len(self), np.uint64)
        starts[1:] = ~tied
        self._groups = np.cumsum(starts)[kept]
        self._indices = self._indices[kept]
