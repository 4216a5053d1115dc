"""How state is restored: from the canonical entries of earlier snapshots, or from none."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from keyedstate.backend.meta import StateMeta
from keyedstate.backend.table import AnyStateTable, EntryBatch
from keyedstate.keygroups import KeyGroupRange


class StateHandle(ABC):
    """A readable snapshot of some key-group range; the framework gives it, a backend reads it."""

    @property
    @abstractmethod
    def key_groups(self) -> KeyGroupRange:
        """The key groups that the snapshot covers; may be more or fewer than the instance has."""

    @property
    @abstractmethod
    def states(self) -> Sequence[StateMeta]:
        """The states of the snapshot, with the serializers that wrote them."""

    def occupied(self, state: str, key_groups: KeyGroupRange) -> Iterable[int]:
        """Return those of some key groups that may have entries of a state, ascending; all by default."""
        return key_groups

    @abstractmethod
    def entries(self, state: str, key_group: int) -> Iterator[EntryBatch[Any, Any, Any]]:
        """Yield the entries of one state and key group, whose bytes are verified before.

        Raises `CorruptFileError` where the stored bytes differ from the written ones.
        """


class RestoreOperation(ABC):
    """Restores the tables of one backend instance (Flink's ``RestoreOperation``)."""

    @abstractmethod
    def restore(self) -> dict[str, AnyStateTable]:
        """Return the restored tables by state name; everything is closed where it raises."""
