"""Which of several snapshots an instance opens in place when it is rescaled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from keyedstate.backend import StateHandle
from keyedstate.keygroups import KeyGroupRange

#: By default, the least fraction of a handle's key groups that the instance must own to open it in place.
OVERLAP_THRESHOLD = 0.75

H = TypeVar("H", bound=StateHandle)


def choose_base(
    handles: Sequence[H], wanted: KeyGroupRange, threshold: float = OVERLAP_THRESHOLD
) -> H | None:
    """Return the handle whose native files an instance should open and cut to its range, or None.

    A backend with files of its own may open one handle's files in place, delete what is outside its range and
    copy the entries of the other handles, whose key groups do not overlap. That is faster than copying all
    entries where it needs most of the handle. So a handle counts if at least the fraction `threshold` of its
    key groups is wanted; of these the one with the largest ``wanted groups x fraction²`` is returned, the
    first among equals, and None where it is best to copy all. A single handle is returned whatever its
    fraction, if anything of it is wanted. The rule is that of Flink 1.6 to 1.15
    (``RocksDBIncrementalCheckpointUtils``).
    """
    if not 0.0 <= threshold <= 1.0:
        raise ValueError(f"the threshold is a fraction between 0 and 1, and not {threshold!r}")
    best, best_score = None, 0.0
    for handle in handles:
        overlap = len(handle.key_groups.intersection(wanted))
        if not overlap:
            continue
        if len(handles) == 1:
            return handle
        fraction = overlap / len(handle.key_groups)
        score = overlap * fraction * fraction
        if fraction >= threshold and score > best_score:
            best, best_score = handle, score
    return best
