"""How often the entries of a table were accessed, and how often that asked the disk."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, NamedTuple

from keyedstate.backend import SpillableTable


class Accesses(NamedTuple):
    """Counts since a table was made.

    Attributes
    ----------
    all : int
        Accesses to entries; a table of columns estimates them from a part of the rows.
    disk : int
        Those that memory could not answer, so that the disk was asked, also for entries that did not exist.
    """

    all: int = 0
    disk: int = 0

    def since(self, before: Accesses) -> Accesses:
        """Return what was added to earlier counts; everything where the table is another one."""
        if self.all < before.all or self.disk < before.disk:
            return self
        return Accesses(self.all - before.all, self.disk - before.disk)


class CountingTable(SpillableTable):
    """A table that spills, and counts accesses.

    Attributes
    ----------
    step_entries : int
        How many entries one call should move at most: at most a few milliseconds between two looks at the
        clock.
    """

    step_entries: ClassVar[int] = 512

    @property
    @abstractmethod
    def memory_bytes(self) -> int:
        """What its entries occupy in memory, found faster than by `spillable_groups`."""

    @property
    @abstractmethod
    def accesses(self) -> Accesses:
        """The accesses to it."""

    def read_ahead(self, key_groups: list[int], keys: list[Any]) -> None:
        """Load what the next rows need of their keys, where it is likely that they use the state of most.

        For a table without namespaces.
        """
        return  # bulk operations load what they need
