"""Tables of bytes, whose restored entries are rewritten where the program registers other types."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from keyedstate.backend import AnyStateTable, StateMeta, StateTable


class RewritingTable(ABC):
    """A `StateTable` that stores bytes and can rewrite them.

    For a table of objects the framework moves the converted objects into a new table instead.
    """

    #: Whether some entries are objects, which are converted also where the types write the same bytes.
    keeps_objects: bool = False

    @abstractmethod
    def rewrite(
        self,
        meta: StateMeta,
        of_keys: Callable[[Any], Any] | None,
        of_namespaces: Callable[[Any], Any] | None,
        of_values: Callable[[Any], Any] | None,
    ) -> None:
        """Rewrite every entry of a restored state with the serializers of `meta`.

        Each entry is read with the old serializers and converted by the functions; without one, objects stay
        as they are, and None stays None.  Where a conversion raises, the table is unchanged.  Rewriting is no
        change for an incremental checkpoint.
        """

    def successor(self) -> AnyStateTable:
        """Return the table that replaces this one after its types have changed.

        By default the table itself.  A table made for a narrower group of types returns another one over the
        same rows.  The framework begins the running epoch in that one: it has begun none.
        """
        assert isinstance(self, StateTable), "a rewriting table is a state table too"
        return self
