"""Entries with a time to live, in backends that drop the expired ones on their own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Expiry:
    """What a backend has to know of a state with a time to live (Flink's ``TtlTimeProvider`` and its like).

    Bytes begin with the timestamp, a signed 64-bit number of milliseconds: those of a value, of each element
    of a list, and of each value of a map.  Timestamp plus `ttl_ms`, or 2**63 - 1 where that is less, is the
    time at which it is expired; 2**63 - 1 as a timestamp means that the time of writing is not known.

    Attributes
    ----------
    ttl_ms : int
    now : callable
        Returns the present time in milliseconds; for the owner thread.
    live : callable
        Takes a stored value and returns what lives of it: the value itself where all does, None where nothing
        does, in which case the entry may be dropped.
    """

    ttl_ms: int
    now: Callable[[], int]
    live: Callable[[Any], Any]


class ExpiryCleanup(ABC):
    """A table that drops expired entries on its own, as in a compaction.

    It is this beside `StateTable`.  It finds `StateMeta.expiry` in its meta; a restored table gets it with
    `StateTable.replace_meta`.
    """

    @abstractmethod
    def drop_expired(self) -> None:
        """Drop expired entries, as many as is sensible; called at the end of an epoch by the owner thread.

        It is no change that an incremental checkpoint has to hold: what comes back is expired still.
        """
