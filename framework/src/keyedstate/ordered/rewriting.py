"""Tables of bytes, whose restored entries have to be written anew where the types of the program differ."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from keyedstate.backend import AnyStateTable, StateMeta, StateTable


class RewritingTable(ABC):
    """A table that keeps bytes and can write them anew; it is this beside `StateTable`.

    For a table of objects the framework moves the converted ones into a new table instead.
    """

    @abstractmethod
    def rewrite(
        self,
        meta: StateMeta,
        of_keys: Callable[[Any], Any] | None,
        of_namespaces: Callable[[Any], Any] | None,
        of_values: Callable[[Any], Any] | None,
    ) -> None:
        """Write every entry of a restored state anew with the serializers of `meta`.

        Each is read with the old serializers and converted by what is given, which is None where nothing has
        to be; None is converted to None.  Where a conversion raises, the table stays as it was.  It is no
        change that an incremental checkpoint has to hold.
        """

    def going_on(self) -> AnyStateTable:
        """Return the table that goes on over the entries with the types that they have by now.

        The table itself, unless it is made for types of another sort; then nobody uses it any more.
        """
        assert isinstance(self, StateTable), "it is this beside StateTable"
        return self
