"""Normalized keys: bytes of one length, whose unsigned order is the order of the values they stand for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_WORD_BYTES = 8


@dataclass(frozen=True)
class NormalizedKeys:
    """The normalized keys of several values.

    Of two values with different keys, the one with the smaller key comes first.  Two values with equal keys
    are equal unless their keys are only prefixes; equal keys are either all prefixes, or none of them is.
    """

    #: Of shape (values, bytes of a key).
    data: NDArray[np.uint8]
    #: Which keys are only prefixes, so that the values decide (Flink's ``isNormalizedKeyPrefixOnly``); None
    #: where no key is.
    prefix_only: NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return len(self.data)

    @property
    def length(self) -> int:
        """The bytes of a key."""
        return int(self.data.shape[1])

    def inverted(self) -> NormalizedKeys:
        """Return the keys of the descending order."""
        return NormalizedKeys(~self.data, self.prefix_only)

    def fitted(self, length: int) -> NormalizedKeys:
        """Return keys of another length: cut off, or filled with zeros."""
        if length == self.length:
            return self
        if length < self.length:
            return NormalizedKeys(np.ascontiguousarray(self.data[:, :length]), np.ones(len(self), np.bool_))
        data = np.zeros((len(self), length), np.uint8)
        data[:, : self.length] = self.data
        return NormalizedKeys(data, self.prefix_only)

    def words(self) -> list[NDArray[np.uint64]]:
        """Return the keys as columns of 64-bit numbers, the most significant first."""
        count = -(-self.length // _WORD_BYTES)
        if self.length % _WORD_BYTES:
            data = np.zeros((len(self), count * _WORD_BYTES), np.uint8)
            data[:, : self.length] = self.data
        else:
            data = np.ascontiguousarray(self.data)
        words: NDArray[Any] = data.view(">u8")
        return [words[:, place].astype(np.uint64) for place in range(count)]


def concatenated(parts: Sequence[NormalizedKeys], rows: int) -> NormalizedKeys:
    """Return the keys of values that consist of parts, of which the first that differs decides.

    What follows a part that is only a prefix is zero: the rest of that part decides before it.
    """
    data = np.zeros((rows, sum(part.length for part in parts)), np.uint8)
    prefix_only: NDArray[np.bool_] | None = None
    start = 0
    for part in parts:
        end = start + part.length
        data[:, start:end] = part.data
        if prefix_only is None:
            prefix_only = part.prefix_only
        else:
            data[prefix_only, start:end] = 0
            if part.prefix_only is not None:
                prefix_only = prefix_only | part.prefix_only
        start = end
    return NormalizedKeys(data, prefix_only)
