"""The memory of a process, measured by a thread of its own and shared by all backend instances in it."""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from keyedstate_spillable.container import SystemMemory, resident_limit, return_freed_memory
from keyedstate_spillable.errors import SmallMemoryBudgetError
from keyedstate_spillable.options import MIB
from keyedstate_spillable.policy import EMERGENCY_MARK, MemorySample

_log = logging.getLogger(__name__)

#: Samples over which growth is averaged.
_GROWTH_SAMPLES = 10
_LONGEST_MS = 60_000
#: Memory that entries need at the least beside what the process occupies without them.
_LEAST_FOR_STATE = 16 * MIB
#: Part of the budget that counts as occupied by others at the most when the first instance is opened, unless
#: the process has occupied more from its beginning.
_OTHERS_AT_FIRST = 0.5
#: Part of the budget that must have been spilled before freed memory is returned to the system: that takes
#: milliseconds.
_WORTH_RETURNING = 0.02
#: Part of the budget by which a process has grown before it is measured at once.
_NOTABLE_GROWTH = 0.02
#: Milliseconds between two looks at the resident set alone.
_LOOK_MS = 5


#: The resident set of this process when it loaded the backend, when none of it was state.
_WITHOUT_STATE = SystemMemory().process_bytes() or 0


def monotonic_ms() -> int:
    """Return the time of a monotonic clock in milliseconds."""
    return time.monotonic_ns() // 1_000_000


class MemoryMonitor:
    """Measures memory and garbage collections, and numbers the results (FLIP-50's ``HeapStatusMonitor``).

    Parameters
    ----------
    system : SystemMemory
    clock : callable
        Returns milliseconds of a monotonic clock.

    Attributes
    ----------
    latest : MemorySample
        The newest sample; any thread may read it.
    """

    def __init__(self, system: SystemMemory, clock: Callable[[], int] = monotonic_ms) -> None:
        self._system = system
        self._clock = clock
        self._recent: deque[tuple[int, int]] = deque(maxlen=_GROWTH_SAMPLES)
        #: Of the collections since the last sample.
        self._collections = 0
        self._collecting_ms = 0.0
        self._collection_began: float | None = None
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._interval_ms = _LONGEST_MS
        #: When `newest` looked last.
        self._looked_ms = clock()
        self._thread: threading.Thread | None = None
        gc.callbacks.append(self._on_collection)
        self.latest = MemorySample(0, clock())
        self.sample()

    def sample(self) -> MemorySample:
        """Measure now; any thread may call it."""
        with self._lock:
            return self._sample()

    def _sample(self) -> MemorySample:
        now = self._clock()
        process, container = self._system.process_bytes(), self._system.container()
        growth = 0.0
        if process is not None:
            if self._recent:
                slowest = min(
                    (process - before) * 1000.0 / max(now - then, 1)
                    for then, before in (self._recent[0], self._recent[-1])
                )
                growth = max(slowest, 0.0)
            self._recent.append((now, process))
        collections, self._collections = self._collections, 0
        spent_ms, self._collecting_ms = self._collecting_ms, 0.0
        self.latest = MemorySample(
            self.latest.number + 1,
            now,
            process,
            growth,
            spent_ms / collections if collections else 0.0,
            min(spent_ms / max(now - self.latest.time_ms, 1), 1.0),
            None if container is None else container[0],
            None if container is None else container[1],
            self._system.pressure(),
        )
        return self.latest

    def newest(self, notable_bytes: int) -> MemorySample:
        """Return `latest`, or a new sample where the process has grown by more bytes since then.

        A process can fill its memory between two samples: at a gigabyte in a second it grows by 100 MB.
        """
        sample, now = self.latest, self._clock()
        if now - max(self._looked_ms, sample.time_ms) < _LOOK_MS:
            return sample
        self._looked_ms = now
        process, before = self._system.process_bytes(), sample.process_bytes
        if process is None or before is None or process - before <= notable_bytes:
            return sample
        return self.sample()

    def return_freed(self) -> int:
        """Return freed memory to the system, measure again, and return the bytes that were of objects.

        Arrow keeps memory for its next buffers, and the C library what large objects have occupied.
        """
        pa.default_memory_pool().release_unused()
        before = self.sample().process_bytes or 0
        return_freed_memory()
        return max(before - (self.sample().process_bytes or 0), 0)

    def start(self, interval_ms: int) -> None:
        """Measure in the background, at the shortest interval of all that have called this."""
        self._interval_ms = min(self._interval_ms, interval_ms)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="keyedstate-memory-monitor", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop; calling it again does nothing."""
        self._closed.set()
        if self._on_collection in gc.callbacks:
            gc.callbacks.remove(self._on_collection)
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(self._interval_ms / 1000.0):
            self.sample()

    def _on_collection(self, phase: str, _: dict[str, Any]) -> None:
        if phase == "start":
            self._collection_began = time.perf_counter()
        elif self._collection_began is not None:
            self._collecting_ms += (time.perf_counter() - self._collection_began) * 1000.0
            self._collections += 1


class MemoryAccount:
    """The memory that all backend instances of a process share.

    Parameters
    ----------
    monitor : MemoryMonitor
    budget : int
        Bytes.
    reserved : int
        What databases may occupy of them, of which they have nothing yet.
    without_state : int
        What the process occupied before it had any state.

    Raises
    ------
    SmallMemoryBudgetError
        Where that is the budget.

    Notes
    -----
    What a process frees stays in its resident set, in part or whole, until it is used again.  So the used
    memory is the entries, and what else the process occupies: its resident set without the most that entries
    have been.  That is at least what it occupied at first, and what is reserved.  What was returned to the
    system still counts for a while: much of it are buffers, which come back with the next rows.

    A process that opens an instance may have freed the state of another job, of a failed attempt for
    instance, which tells nothing of the budget.  So of a large resident set at first, a part counts as what
    can be used again, until the resident set grows.
    """

    def __init__(self, monitor: MemoryMonitor, budget: int, reserved: int, without_state: int) -> None:
        self.monitor = monitor
        self.budget = budget
        least = without_state + reserved + _LEAST_FOR_STATE
        if budget < least:
            raise SmallMemoryBudgetError(budget, without_state, least)
        occupied = monitor.latest.process_bytes or 0
        others = max(without_state, min(occupied, int(_OTHERS_AT_FIRST * budget)))
        self._reserved = reserved
        self._least_other = others + reserved
        self._lock = threading.Lock()
        #: The estimated bytes of the entries in memory, by instance, and the most that they were in all.
        self._entries: dict[object, int] = {}
        self._most = max(occupied - others, 0)
        #: The bytes of the entries at the last call of `note`.
        self._noted = 0
        #: What was spilled since freed memory was returned to the system.
        self._freed = 0
        #: The resident set at the last call of `note`, and what was returned to the system and has not been
        #: occupied again since.
        self._process = occupied
        self._returned = 0
        #: The largest resident set, or where an emergency begins.
        self._record = max(occupied, int(EMERGENCY_MARK * budget))

    def newest(self) -> MemorySample:
        """Return the newest sample, a new one where the process has grown by 2 % of the budget since then."""
        return self.monitor.newest(int(_NOTABLE_GROWTH * self.budget))

    def note(self, instance: object, entry_bytes: int, sample: MemorySample) -> tuple[int, int]:
        """Note the estimate of an instance's entries; return those of all instances, and the used memory."""
        with self._lock:
            self._entries[instance] = entry_bytes
            before, entries = self._noted, sum(self._entries.values())
            self._noted = entries
            process = sample.process_bytes
            if process is None:
                return entries, entries + self._reserved
            self._returned = max(self._returned - max(process - self._process, 0), 0)
            # What nothing needs again for long has become room for entries.
            self._returned -= self._returned >> 7
            self._process = process
            if process > self._record:
                # New entries would have used what was freed, if they could; what else grows cannot.
                self._most -= min(process - self._record, max(entries - before, 0))
                self._record = process
            self._most = max(self._most, entries)
            used = entries + max(process + self._returned - self._most, self._least_other)
            return entries, min(used, process + self._reserved)

    def adjust(self, instance: object, entry_bytes: int) -> None:
        """Note what an instance has left in memory, so that others see it before the next sample."""
        with self._lock:
            self._freed += max(self._entries.get(instance, 0) - entry_bytes, 0)
            self._entries[instance] = entry_bytes

    def return_freed(self) -> MemorySample | None:
        """Return freed memory to the system and measure again; None where little was freed since then."""
        with self._lock:
            if self._freed < _WORTH_RETURNING * self.budget:
                return None
            self._freed = 0
        returned = self.monitor.return_freed()
        with self._lock:
            self._process = self.monitor.latest.process_bytes or 0
            self._returned += returned
        return self.monitor.latest

    def forget(self, instance: object) -> None:
        """Forget a closed instance."""
        with self._lock:
            self._entries.pop(instance, None)


_shared: dict[int | float, tuple[MemoryAccount, set[object]]] = {}
_shared_lock = threading.Lock()


def acquire(instance: object, budget: int | float, reserved: int, interval_ms: int) -> MemoryAccount:
    """Return the memory of this process for a budget in bytes or as a fraction; `release` it at the end.

    Raises
    ------
    SmallMemoryBudgetError
    """
    with _shared_lock:
        if budget not in _shared:
            system = SystemMemory()
            size = budget if isinstance(budget, int) else int(budget * (system.available_bytes() or 0))
            limit = resident_limit()
            if limit is not None:
                size = min(size, limit)
            monitor = MemoryMonitor(system)
            monitor.return_freed()  # what the state of another job has left
            try:
                _shared[budget] = MemoryAccount(monitor, size, reserved, _WITHOUT_STATE), set()
            except SmallMemoryBudgetError:
                monitor.close()
                raise
        memory, users = _shared[budget]
        users.add(instance)
        memory.monitor.start(interval_ms)
        return memory


def release(instance: object, budget: int | float) -> None:
    """Release the memory of an instance; the last one stops the monitor."""
    with _shared_lock:
        if budget not in _shared:
            return
        memory, users = _shared[budget]
        memory.forget(instance)
        users.discard(instance)
        if not users:
            del _shared[budget]
            memory.monitor.close()
