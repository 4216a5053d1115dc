"""The partitions that a host keeps between epochs: a cache that its threads take from and give back to."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TypeVar

from keyedstate.epoch.epoch_start import EpochStart
from keyedstate.epoch.partition import Partition
from keyedstate.epoch.partition_plan import PartitionPlan

T = TypeVar("T")

#: Which partition it is: the address of the operator's folder, and the partition's number.
ResidentKey = tuple[str, int]


class Resident:
    """One partition and the thread that alone touches it: state and functions may belong to a thread.

    Parameters
    ----------
    digest : str
        Of the plan that it was made by.
    """

    def __init__(self, digest: str) -> None:
        self.digest = digest
        self.partition: Partition | None = None
        #: The thread that is in an epoch of it; None between two epochs.
        self.thread: int | None = None
        self.last_used = time.monotonic()
        self._executor = ThreadPoolExecutor(1, "keyedstate-partition")

    def run(self, function: Callable[[], T]) -> T:
        """Run a function in the partition's own thread and wait for it."""

        def running() -> T:
            self.thread = threading.get_ident()
            try:
                return function()
            finally:
                self.thread = None

        return self._executor.submit(running).result()

    def bring(self, plan: PartitionPlan, beginning: EpochStart) -> Partition:
        """Return the partition at the version from which an epoch begins; to be called in its own thread."""
        if self.partition is not None:
            if self.partition.follow(beginning):
                return self.partition
            self._close()
        self.partition = Partition(plan, beginning, stays=True)
        return self.partition

    def drop(self) -> None:
        """Free everything, in the partition's own thread, without waiting for it."""
        self._closed = self._executor.submit(self._close)
        self._executor.shutdown(wait=False)

    def join(self, timeout_s: float) -> bool:
        """Wait until everything is freed, after `drop`; return whether it is."""
        return not wait((self._closed,), timeout_s).not_done

    def _close(self) -> None:
        partition, self.partition = self.partition, None
        if partition is not None:
            try:
                partition.close()
            except Exception:
                traceback.print_exc()


@dataclass
class Attempt:
    """An attempt at an epoch of one partition, and the resident that it alone uses.

    Attributes
    ----------
    key : tuple
    number : int
        Attempts are counted as they begin.
    resident : Resident
    """

    key: ResidentKey
    number: int
    resident: Resident


class Residents:
    """The residents of one host; all methods may be called by any thread.

    A resident is either kept here or in the hands of one attempt, never both.  Of two attempts at a partition
    the later one finds nothing and restores a copy of its own; what the earlier one gives back is dropped.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[ResidentKey, Resident] = {}
        #: The attempt that began last, of each partition that was ever asked for.
        self._newest: dict[ResidentKey, int] = {}
        #: Dropped, and perhaps not yet freed: the host's end waits for them.
        self._dropped: list[Resident] = []

    def take(self, key: ResidentKey, digest: str) -> Attempt:
        """Begin an attempt; its resident is the kept one where that was made by the same plan."""
        with self._lock:
            number = self._newest.get(key, 0) + 1
            self._newest[key] = number
            kept = self._kept.pop(key, None)
        if kept is not None and kept.digest != digest:
            self._drop([kept])
            kept = None
        return Attempt(key, number, Resident(digest) if kept is None else kept)

    def keeps(self, key: ResidentKey, digest: str, version: str) -> bool:
        """Return whether a partition is kept that the same plan has made, at a `Partition.version`."""
        with self._lock:
            kept = self._kept.get(key)
            return (
                kept is not None
                and kept.digest == digest
                and kept.partition is not None
                and kept.partition.version == version
            )

    def keep(self, attempt: Attempt) -> None:
        """Give back the resident of an attempt whose epoch's end was written."""
        attempt.resident.last_used = time.monotonic()
        with self._lock:
            is_newest = self._newest.get(attempt.key) == attempt.number
            if is_newest:
                self._kept[attempt.key] = attempt.resident
        if not is_newest:
            self._drop([attempt.resident])

    def drop(self, attempt: Attempt) -> None:
        """Forget the resident of an attempt that has failed."""
        self._drop([attempt.resident])

    def drop_unused(self, since: float) -> None:
        """Drop what was last used before a time, by `time.monotonic`."""
        with self._lock:
            unused = [key for key, resident in self._kept.items() if resident.last_used < since]
            dropped = [self._kept.pop(key) for key in unused]
        self._drop(dropped)

    def close(self, timeout_s: float) -> None:
        """Drop everything that is kept, and wait a while for functions to be closed."""
        with self._lock:
            dropped, self._kept = list(self._kept.values()), {}
        self._drop(dropped)
        deadline = time.monotonic() + timeout_s
        for resident in self._dropped:
            resident.join(max(deadline - time.monotonic(), 0.0))

    def _drop(self, residents: Iterable[Resident]) -> None:
        for resident in residents:
            resident.drop()
            with self._lock:
                self._dropped = [one for one in self._dropped if not one.join(0.0)] + [resident]
