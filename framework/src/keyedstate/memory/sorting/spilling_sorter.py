"""What the sorters that spill runs to disk share: how they are read once, how they fail, and how they end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from keyedstate.errors import SorterClosedError, SpillError
from keyedstate.memory.sorting.spilled_runs import SpilledRuns

if TYPE_CHECKING:
    from typing_extensions import Self


class SpillingSorter(ABC):
    """A sorter with runs on disk; a context manager that closes it."""

    def __init__(self, runs: SpilledRuns) -> None:
        self._runs = runs
        self._finished = self._closed = False

    @property
    def runs(self) -> int:
        """How many sorted runs are on disk."""
        return len(self._runs)

    @abstractmethod
    def close(self) -> None:
        """Release the memory, and delete all files; again has no effect."""

    def _check_open(self) -> None:
        if self._closed:
            raise SorterClosedError("was closed")

    def _check_unread(self) -> None:
        self._check_open()
        if self._finished:
            raise SorterClosedError("has been read")

    @contextmanager
    def _closed_by_a_failed_write(self) -> Iterator[None]:
        try:
            yield
        except SpillError:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
