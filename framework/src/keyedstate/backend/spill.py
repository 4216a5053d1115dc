"""Moving key groups between memory and disk, for backends that use both."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from keyedstate.backend.table import AnyStateTable


class SpillManager(ABC):
    """Decides which key groups live in memory and which on disk, and moves them.

    The framework calls it in the owner's thread between two epochs, never per record.
    """

    @abstractmethod
    def balance(self, tables: Mapping[str, AnyStateTable]) -> None:
        """Move key groups where memory and load ask for it; must not block for long."""

    @abstractmethod
    def close(self) -> None:
        """Stop and free everything; calling it again does nothing."""
