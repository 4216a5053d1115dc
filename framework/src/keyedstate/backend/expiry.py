"""Entries with a time to live, in backends that drop expired ones on their own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Expiry:
    """What a backend has to know of a state with a time to live (as Flink's ``TtlTimeProvider``).

    The bytes of a value, of each element of a list and of each value of a map begin with the timestamp, a
    signed 64-bit number of milliseconds.  They are expired at timestamp plus `ttl_ms`, but at 2**63 - 1 at
    the latest.  The timestamp 2**63 - 1 means that the time of writing is not known.

    Attributes
    ----------
    ttl_ms : int
    now : callable
        Returns the present time in milliseconds; for the owner thread.
    live : callable
        Takes a stored value and returns what of it is not expired: the value itself where all is valid, None
        where the entry may be dropped. Of state that is neither a list nor a map, a tuple of the timestamp
        alone is enough.
    """

    ttl_ms: int
    now: Callable[[], int]
    live: Callable[[Any], Any]


class ExpiryCleanup(ABC):
    """A table that drops expired entries on its own, as in a compaction.

    Its meta has `StateMeta.expiry`; a restored table gets that with `StateTable.replace_meta`.
    """

    @abstractmethod
    def drop_expired(self) -> None:
        """Drop some expired entries; called at the end of an epoch by the owner thread.

        That is no change for an incremental checkpoint: a restored entry is still expired.
        """
