"""Key groups: the units in which keyed state is owned, written, restored and moved between partitions.

The key group of a key never changes: it is ``pmod(hash(key), max_parallelism)`` with Spark's ``hash`` (see
`keyedstate.murmur3`).  Partition ``i`` of ``p`` owns a contiguous range of key groups, so that another
``p`` moves whole ranges and never splits a group.  The formulas are Flink's (``KeyGroupRange``,
``KeyGroupRangeAssignment``, ``KeyGroupPartitioner``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from keyedstate.errors import (
    InvalidKeyGroupRangeError,
    InvalidParallelismError,
    KeyGroupError,
    KeyGroupOutOfRangeError,
)

KEY_GROUP_COLUMN = "__keyedstate_key_group"
"""Name of the column that carries the key group of each row to its task."""

DEFAULT_LOWER_BOUND_MAX_PARALLELISM = 128
"""The smallest max parallelism that `default_max_parallelism` returns."""

UPPER_BOUND_MAX_PARALLELISM = 32_768
"""The largest allowed max parallelism: a key group always fits two bytes as a non-negative number."""


@dataclass(frozen=True, slots=True)
class KeyGroupRange:
    """The key groups from `start` to `end`, both included.

    ``len``, ``in``, truth and iteration (ascending) work as for a `range`.  The only empty range is
    `KeyGroupRange.EMPTY` with start 0 and end -1.

    Raises `InvalidKeyGroupRangeError` if `start` is negative or above `end`; `of` returns the empty range for
    the latter.
    """

    start: int
    end: int

    EMPTY: ClassVar[KeyGroupRange]

    def __post_init__(self) -> None:
        if (self.start < 0 or self.start > self.end) and (self.start, self.end) != (0, -1):
            raise InvalidKeyGroupRangeError(self.start, self.end)

    @classmethod
    def of(cls, start: int, end: int) -> KeyGroupRange:
        """Return the range from `start` to `end`, or `EMPTY` if `start` is above `end`."""
        return cls(start, end) if start <= end else cls.EMPTY

    def intersection(self, other: KeyGroupRange) -> KeyGroupRange:
        """Return the key groups in both ranges; `EMPTY` if they share none."""
        return KeyGroupRange.of(max(self.start, other.start), min(self.end, other.end))

    def __contains__(self, key_group: object) -> bool:
        return isinstance(key_group, (int, np.integer)) and bool(self.start <= key_group <= self.end)

    def __len__(self) -> int:
        return self.end - self.start + 1

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, self.end + 1))

    def __str__(self) -> str:
        return f"key groups [{self.start}, {self.end}]" if self else "the empty range of key groups"


KeyGroupRange.EMPTY = KeyGroupRange(0, -1)


class KeyGroupRangeOffsets:
    """One offset, such as a position in a file, for each key group of a range; all 0 if not given.

    Iteration yields ``(key group, offset)`` in ascending order; ``offsets[key_group]`` reads and sets one.
    Raises `KeyGroupError` if the number of offsets is not the number of key groups.
    """

    __slots__ = ("_offsets", "_range")

    def __init__(self, key_group_range: KeyGroupRange, offsets: Sequence[int] | None = None) -> None:
        self._range = key_group_range
        self._offsets = [0] * len(key_group_range) if offsets is None else list(offsets)
        if len(self._offsets) != len(key_group_range):
            raise KeyGroupError(
                f"{len(self._offsets)} offsets were given for {key_group_range}, which holds "
                f"{len(key_group_range)} key groups. Give exactly one offset per key group."
            )

    @property
    def key_group_range(self) -> KeyGroupRange:
        """The covered key groups."""
        return self._range

    def intersection(self, key_group_range: KeyGroupRange) -> KeyGroupRangeOffsets:
        """Return the key groups in both ranges with their offsets."""
        common = self._range.intersection(key_group_range)
        first = common.start - self._range.start if common else 0
        return KeyGroupRangeOffsets(common, self._offsets[first : first + len(common)])

    def _index(self, key_group: int) -> int:
        if key_group not in self._range:
            raise KeyGroupOutOfRangeError(key_group, self._range)
        return key_group - self._range.start

    def __getitem__(self, key_group: int) -> int:
        return self._offsets[self._index(key_group)]

    def __setitem__(self, key_group: int, offset: int) -> None:
        self._offsets[self._index(key_group)] = offset

    def __len__(self) -> int:
        return len(self._offsets)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._range, self._offsets, strict=True)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, KeyGroupRangeOffsets):
            return NotImplemented
        return self._range == other._range and self._offsets == other._offsets

    # Offsets can be set.
    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"KeyGroupRangeOffsets({self._range!r}, {self._offsets!r})"


@dataclass(frozen=True, slots=True, eq=False)
class KeyGroupPartition:
    """Row numbers sorted by their key groups; the result of `partition_by_key_group`."""

    key_group_range: KeyGroupRange
    #: Row numbers by key group, in ascending order within a key group.
    order: npt.NDArray[np.int64]
    #: The rows of key group ``g`` are ``order[bounds[i] : bounds[i + 1]]`` with ``i = g - start``.
    bounds: npt.NDArray[np.int64]

    def rows(self, key_group: int) -> npt.NDArray[np.int64]:
        """Return the row numbers of one key group, ascending."""
        if key_group not in self.key_group_range:
            raise KeyGroupOutOfRangeError(key_group, self.key_group_range)
        index = key_group - self.key_group_range.start
        return self.order[self.bounds[index] : self.bounds[index + 1]]

    def __iter__(self) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
        """Yield ``(key group, row numbers)`` for the key groups that have rows, ascending."""
        for index in np.flatnonzero(np.diff(self.bounds)).tolist():
            yield self.key_group_range.start + index, self.order[self.bounds[index] : self.bounds[index + 1]]


def partition_by_key_group(
    key_groups: npt.NDArray[np.integer[npt.NBitBase]], key_group_range: KeyGroupRange
) -> KeyGroupPartition:
    """Sort rows by their key groups in linear time (the counting sort of Flink's ``KeyGroupPartitioner``).

    Raises `KeyGroupOutOfRangeError` if a row has a key group outside `key_group_range`.
    """
    # In 64 bits, so that a wrong value cannot wrap into the range.
    relative = key_groups.astype(np.int64) - key_group_range.start
    outside = (relative < 0) | (relative >= len(key_group_range))
    if outside.any():
        raise KeyGroupOutOfRangeError(int(key_groups[int(outside.argmax())]), key_group_range)
    bounds = np.zeros(len(key_group_range) + 1, dtype=np.int64)
    np.cumsum(np.bincount(relative, minlength=len(key_group_range)), out=bounds[1:])
    # NumPy's stable sort of 16-bit integers is a radix sort.
    sortable = relative.astype(np.uint16) if len(key_group_range) <= 1 << 16 else relative
    order = np.argsort(sortable, kind="stable").astype(np.int64, copy=False)
    return KeyGroupPartition(key_group_range, order, bounds)


def check_max_parallelism(max_parallelism: int) -> None:
    """Raise `InvalidParallelismError` unless the value is from 1 to 32,768."""
    if not 1 <= max_parallelism <= UPPER_BOUND_MAX_PARALLELISM:
        raise InvalidParallelismError(
            "max parallelism",
            max_parallelism,
            "32768",
            "Choose a power of two well above the number of partitions.",
        )


def check_parallelism(parallelism: int, max_parallelism: int | None = None) -> None:
    """Raise `InvalidParallelismError` unless ``1 <= parallelism <= max_parallelism <= 32,768``."""
    if max_parallelism is not None:
        check_max_parallelism(max_parallelism)
    if not 1 <= parallelism <= UPPER_BOUND_MAX_PARALLELISM:
        raise InvalidParallelismError("parallelism", parallelism, "32768", "Use fewer partitions.")
    if max_parallelism is not None and parallelism > max_parallelism:
        raise InvalidParallelismError(
            "parallelism",
            parallelism,
            f"the max parallelism {max_parallelism}",
            "Use fewer partitions; the max parallelism of existing state is fixed, so a higher one needs a "
            "query that starts without state.",
        )


def default_max_parallelism(parallelism: int) -> int:
    """Return the max parallelism of an operator whose user set none, with room to grow.

    It is ``parallelism + parallelism // 2`` rounded up to a power of two, at least 128 and at most 32,768
    (Flink's ``computeDefaultMaxParallelism``).

    Raises `InvalidParallelismError` if `parallelism` is below 1 or above 32,768.
    """
    check_parallelism(parallelism)
    wanted = parallelism + parallelism // 2
    power_of_two = 1 << (wanted - 1).bit_length()
    return min(max(power_of_two, DEFAULT_LOWER_BOUND_MAX_PARALLELISM), UPPER_BOUND_MAX_PARALLELISM)


def key_group_range_for(operator_index: int, parallelism: int, max_parallelism: int) -> KeyGroupRange:
    """Return the key groups that partition `operator_index` of `parallelism` owns.

    Flink's ``computeKeyGroupRangeForOperatorIndex``: from ``ceil(i * max / p)`` to
    ``((i + 1) * max - 1) // p``.

    Raises `InvalidParallelismError` if not ``1 <= parallelism <= max_parallelism <= 32,768``; `KeyGroupError`
    if `operator_index` is not one of ``0 .. parallelism - 1``.
    """
    check_parallelism(parallelism, max_parallelism)
    if not 0 <= operator_index < parallelism:
        raise KeyGroupError(
            f"there is no partition {operator_index} of {parallelism}: partitions count from 0 to "
            f"{parallelism - 1}. Pass the partition's number and the number of partitions of the same stage."
        )
    start = (operator_index * max_parallelism + parallelism - 1) // parallelism
    end = ((operator_index + 1) * max_parallelism - 1) // parallelism
    return KeyGroupRange(start, end)


def key_group_ranges(parallelism: int, max_parallelism: int) -> list[KeyGroupRange]:
    """Return the ranges of all partitions in order: disjoint, and together ``0 .. max_parallelism - 1``."""
    return [key_group_range_for(index, parallelism, max_parallelism) for index in range(parallelism)]


def operator_index_for_key_group(key_group: int, parallelism: int, max_parallelism: int) -> int:
    """Return the number of the partition that owns `key_group`; the inverse of `key_group_range_for`.

    Flink's ``computeOperatorIndexForKeyGroup``: ``key_group * p // max``.

    Raises `InvalidParallelismError` if not ``1 <= parallelism <= max_parallelism <= 32,768``;
    `KeyGroupOutOfRangeError` if `key_group` is not one of ``0 .. max_parallelism - 1``.
    """
    check_parallelism(parallelism, max_parallelism)
    if not 0 <= key_group < max_parallelism:
        raise KeyGroupOutOfRangeError(key_group, KeyGroupRange(0, max_parallelism - 1))
    return key_group * parallelism // max_parallelism


def key_group_for_hash(key_hash: int, max_parallelism: int) -> int:
    """Return the key group of a key by its hash: Spark's ``pmod(hash, max_parallelism)``, never negative."""
    check_max_parallelism(max_parallelism)
    return key_hash % max_parallelism
