"""The managed memory of a process, which its consumers share by weights.

Flink has a budget per slot.  A process here runs many partitions, so there is one budget for all of them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from keyedstate.memory.manager import MemoryManager

T = TypeVar("T")

_log = logging.getLogger(__name__)

#: The consumers: a state backend's caches and buffers, those of its spilled entries, and sorters.
STATE_BACKEND: Final = "state-backend"
SPILL: Final = "spill"
SORT: Final = "sort"

DEFAULT_MANAGED_BYTES: Final = 512 << 20
DEFAULT_WEIGHTS: Final[Mapping[str, int]] = {STATE_BACKEND: 4, SPILL: 1, SORT: 3}


class ProcessMemory:
    """A memory manager, the shares of its consumers, and what several instances of a consumer share.

    A consumer allocates or reserves at most its share.

    Parameters
    ----------
    managed_bytes : int
        The budget of the manager.
    weights : mapping
        A whole number for each consumer, not all of them 0.

    Attributes
    ----------
    manager : MemoryManager
    weights : dict
    """

    def __init__(
        self, managed_bytes: int = DEFAULT_MANAGED_BYTES, weights: Mapping[str, int] = DEFAULT_WEIGHTS
    ) -> None:
        self.manager = MemoryManager(managed_bytes)
        self.weights = dict(weights)
        self._lock = threading.Lock()
        # Each shared object with the number of its users, by the owner of its bytes.
        self._shared: dict[str, tuple[Any, int]] = {}

    def share_of(self, consumer: str) -> int:
        """Return the bytes of a consumer: its weight of the budget, rounded down."""
        # Without a fraction, whose rounding could make the shares larger than the whole.
        return self.manager.budget_bytes * self.weights[consumer] // sum(self.weights.values())

    @contextmanager
    def shared(self, owner: str, size: int, create: Callable[[], T]) -> Iterator[T]:
        """Return an object that all users of one owner share (Flink's ``SharedResources``).

        The first user makes it and reserves its bytes; they are released when the last one has ended.

        Parameters
        ----------
        owner : str
            Users that give the same name share the object.
        size : int
            Bytes that the object allocates by itself; 0 for one whose memory is not managed.
        create : callable

        Raises
        ------
        MemoryBudgetError
            Where the budget has no room for the first user.
        """
        with self._lock:
            if owner not in self._shared:
                self.manager.reserve(owner, size)
                try:
                    self._shared[owner] = create(), 0
                except BaseException:
                    self.manager.release_reservation(owner, size)
                    raise
            resource, users = self._shared[owner]
            self._shared[owner] = resource, users + 1
        try:
            yield resource
        finally:
            with self._lock:
                _, users = self._shared.pop(owner)
                if users > 1:
                    self._shared[owner] = resource, users - 1
                else:
                    self.manager.release_reservation(owner, size)


_lock = threading.Lock()
_of_this_process: ProcessMemory | None = None


def process_memory(
    managed_bytes: int | None = None, weights: Mapping[str, int] | None = None
) -> ProcessMemory:
    """Return the managed memory of this process.

    The first call makes it.  A later one with another size or other weights has no effect but a warning:
    consumers may have taken their shares by then.

    Parameters
    ----------
    managed_bytes : int, optional
        The option ``memory.managed-size``; `DEFAULT_MANAGED_BYTES` in a process without options.
    weights : mapping, optional
        The option ``memory.weights``; `DEFAULT_WEIGHTS` in a process without options.
    """
    global _of_this_process
    with _lock:
        if _of_this_process is None:
            _of_this_process = ProcessMemory(
                DEFAULT_MANAGED_BYTES if managed_bytes is None else managed_bytes, weights or DEFAULT_WEIGHTS
            )
        memory = _of_this_process
    has = memory.manager.budget_bytes, memory.weights
    wanted = managed_bytes if managed_bytes is not None else has[0], dict(weights or has[1])
    if wanted != has:
        _log.warning(
            "memory.managed-size=%d bytes and memory.weights=%s have no effect: this process has %d bytes "
            "with %s already",
            *(wanted[0], _shown(wanted[1]), has[0], _shown(has[1])),
        )
    return memory


def _shown(weights: Mapping[str, int]) -> str:
    return ",".join(f"{consumer}={weight}" for consumer, weight in weights.items())
