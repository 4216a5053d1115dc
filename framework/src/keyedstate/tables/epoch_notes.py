"""Notes of changes, epoch by epoch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


def check_ascending(epoch: int, last: int | None) -> None:
    """Raise ValueError for an epoch that is not above the one before."""
    if last is not None and epoch <= last:
        raise ValueError(f"epoch {epoch} cannot begin after epoch {last}; epochs ascend")


class EpochNotes(Generic[T]):
    """The notes of each epoch that is not forgotten, of any type; the epochs of a `ChangeTracking`.

    `empty` returns the notes of a new epoch.
    """

    def __init__(self, empty: Callable[[], T]) -> None:
        self._empty = empty
        #: By epoch, ascending; the last one is running.
        self._notes: dict[int, T] = {}
        #: The notes of the running epoch; None before the first one.
        self.running: T | None = None

    def begin(self, epoch: int) -> None:
        """Begin an epoch; ValueError if it is not above the one before."""
        check_ascending(epoch, next(reversed(self._notes), None))
        self.running = self._notes[epoch] = self._empty()

    def since(self, epoch: int) -> list[T]:
        """Return the notes of the epochs above one, in their order."""
        return [notes for number, notes in self._notes.items() if number > epoch]

    def forget(self, epoch: int) -> None:
        """Drop the notes of epochs up to and including one, but not those of the running one."""
        for number in list(self._notes)[:-1]:
            if number <= epoch:
                del self._notes[number]
