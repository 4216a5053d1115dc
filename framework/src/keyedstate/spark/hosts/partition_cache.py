"""The partitions that a host keeps between epochs."""

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

#: Seconds after which, and in which, an unused partition is asked to give back memory: longer than the gaps
#: between most queries' epochs.
_TRIM_AFTER_S = 10.0
#: The address of the operator's folder, and the partition's number.
PartitionKey = tuple[str, int]


class CachedPartition:
    """One partition and the only thread that touches it: state and functions may belong to a thread.

    The digest is that of the plan that made it.
    """

    def __init__(self, digest: str, query: str) -> None:
        self.digest = digest
        self.query = query
        self.partition: Partition | None = None
        #: The thread that runs an epoch of it; None between two epochs.
        self.thread: int | None = None
        self.last_used = self._last_trimmed = time.monotonic()
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

    def at(self, plan: PartitionPlan, start: EpochStart) -> Partition:
        """Return the partition at the version where an epoch starts; call it in the partition's thread."""
        if self.partition is not None:
            if self.partition.follow(start):
                return self.partition
            self._close()
        self.partition = Partition(plan, start, stays=True)
        return self.partition

    def trim(self, now: float, last_used: float) -> None:
        """Let it give back memory, in its own thread and without waiting for it, if it is due.

        The query has not been used since a time.
        """
        if now - max(last_used, self._last_trimmed) > _TRIM_AFTER_S:
            self._last_trimmed = now
            self._executor.submit(self._trim, last_used + _TRIM_AFTER_S)

    def _trim(self, since: float) -> None:
        if self.partition is not None:
            try:
                self.partition.trim_memory(since)
            except Exception:
                # The next epoch restores it, or fails and says why.
                traceback.print_exc()
                self._close()

    def drop(self) -> None:
        """Free everything in the partition's own thread, without waiting for it."""
        self._closed = self._executor.submit(self._close)
        self._executor.shutdown(wait=False)

    def join(self, timeout_s: float) -> bool:
        """Wait after `drop` until everything is freed; return whether it is."""
        return not wait((self._closed,), timeout_s).not_done

    def _close(self) -> None:
        partition, self.partition = self.partition, None
        if partition is not None:
            try:
                partition.close()
            except Exception:
                traceback.print_exc()


@dataclass(eq=False)
class Attempt:
    """An attempt at an epoch of one partition, numbered in order, and the copy that it alone uses."""

    key: PartitionKey
    number: int
    cached: CachedPartition


class PartitionCache:
    """The cached partitions of one host; thread-safe.

    A cached partition is either in the cache or used by one attempt, never both.  Of two attempts at a
    partition the later one finds none and restores its own copy; the copy that the earlier one returns is
    dropped.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[PartitionKey, CachedPartition] = {}
        self._running: set[Attempt] = set()
        #: The number of the last attempt at each partition.
        self._newest: dict[PartitionKey, int] = {}
        #: Dropped and perhaps not yet freed; the host waits for them when it ends.
        self._dropped: list[CachedPartition] = []

    def take(self, key: PartitionKey, digest: str, query: str) -> Attempt:
        """Start an attempt of a query, by its id, with the cached partition if the same plan made it."""
        with self._lock:
            number = self._newest.get(key, 0) + 1
            self._newest[key] = number
            kept = self._kept.pop(key, None)
            fits = kept is not None and kept.digest == digest
            attempt = Attempt(key, number, kept if kept and fits else CachedPartition(digest, query))
            self._running.add(attempt)
        if kept is not None and not fits:
            self._drop([kept])
        return attempt

    def has(self, key: PartitionKey, digest: str, version: str) -> bool:
        """Return whether the cache has a partition that the same plan made, at a `Partition.version`."""
        with self._lock:
            kept = self._kept.get(key)
            return (
                kept is not None
                and kept.digest == digest
                and kept.partition is not None
                and kept.partition.version == version
            )

    def put_back(self, attempt: Attempt) -> None:
        """Return the partition of an attempt that has written its manifest."""
        attempt.cached.last_used = time.monotonic()
        with self._lock:
            self._running.discard(attempt)
            is_newest = self._newest.get(attempt.key) == attempt.number
            if is_newest:
                self._kept[attempt.key] = attempt.cached
        if not is_newest:
            self._drop([attempt.cached])

    def drop(self, attempt: Attempt) -> None:
        """Free the partition of an attempt that failed."""
        with self._lock:
            self._running.discard(attempt)
        self._drop([attempt.cached])

    def drop_unused(self, since: float) -> None:
        """Drop the partitions that were last used before a time, by `time.monotonic`."""
        with self._lock:
            unused = [key for key, cached in self._kept.items() if cached.last_used < since]
            dropped = [self._kept.pop(key) for key in unused]
        self._drop(dropped)

    def trim_unused(self, now: float) -> None:
        """Let partitions whose query is unused for some seconds give back memory that others lack.

        Not of single partitions: those of a query, and of its operators, take turns within an epoch, and
        lack what the others have.
        """
        # Under the lock, so that an attempt which takes a partition meanwhile comes after that in its thread.
        with self._lock:
            last_used = dict.fromkeys((attempt.cached.query for attempt in self._running), now)
            for cached in self._kept.values():
                last_used[cached.query] = max(last_used.get(cached.query, 0.0), cached.last_used)
            for cached in self._kept.values():
                cached.trim(now, last_used[cached.query])

    def close(self, timeout_s: float) -> None:
        """Drop everything, and wait for a limited time until functions are closed."""
        with self._lock:
            dropped, self._kept = list(self._kept.values()), {}
        self._drop(dropped)
        deadline = time.monotonic() + timeout_s
        for cached in self._dropped:
            cached.join(max(deadline - time.monotonic(), 0.0))

    def _drop(self, dropped: Iterable[CachedPartition]) -> None:
        for cached in dropped:
            cached.drop()
            with self._lock:
                self._dropped = [one for one in self._dropped if not one.join(0.0)] + [cached]
