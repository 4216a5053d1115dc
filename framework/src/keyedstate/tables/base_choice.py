"""Which of several snapshots an instance opens in place when it is rescaled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from keyedstate.backend import StateHandle
from keyedstate.keygroups import KeyGroupRange

#: The share of a handle's key groups that must be wanted for it to become a base, by default.
OVERLAP_THRESHOLD = 0.75

H = TypeVar("H", bound=StateHandle)


def choose_base(
    handles: Sequence[H], wanted: KeyGroupRange, threshold: float = OVERLAP_THRESHOLD
) -> H | None:
    """Return the handle whose native files an instance should open and cut to its range, or None.

    A backend with files of its own restores faster when it takes one handle's files as they are, deletes what
    lies outside its range and copies the entries of the other handles in, than when it copies all entries.
    That pays where most of the handle is wanted.  A handle of which less than `threshold` is wanted is not
    considered; of the others that with the largest ``wanted groups x fraction²`` is taken, the first among
    equals.  A single handle is taken whatever its fraction, since all entries come from it anyway.  The rule
    is that of Flink 1.6 to 1.15 (``RocksDBIncrementalCheckpointUtils``).

    Parameters
    ----------
    handles : sequence of StateHandle
        Handles whose key groups do not overlap one another.
    wanted : KeyGroupRange
        The range of the instance, `BackendContext.key_groups`.
    threshold : float
        Between 0 and 1.

    Returns
    -------
    StateHandle or None
        None where it is best to begin empty and to copy.  A handle of which nothing is wanted is never
        returned.
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
