"""How state comes back: from nothing, or from the canonical entries of earlier snapshots."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from keyedstate.backend.context import BackendContext
from keyedstate.backend.meta import StateMeta
from keyedstate.backend.table import AnyStateTable, EntryBatch
from keyedstate.keygroups import KeyGroupRange

#: The share of a handle's key groups that must be wanted for it to become a base, by default.
OVERLAP_THRESHOLD = 0.75


class StateHandle(ABC):
    """A readable snapshot of some key-group range; the framework gives it, a backend reads it."""

    @property
    @abstractmethod
    def key_groups(self) -> KeyGroupRange:
        """The key groups that the snapshot covers; they may exceed or fall short of what is wanted."""

    @property
    @abstractmethod
    def states(self) -> Sequence[StateMeta]:
        """The states in it, with the serializers that wrote them."""

    def occupied(self, state: str, key_groups: KeyGroupRange) -> Iterable[int]:
        """Return those of some key groups that may have entries of a state, ascending; all by default."""
        return key_groups

    @abstractmethod
    def entries(self, state: str, key_group: int) -> Iterator[EntryBatch[Any, Any, Any]]:
        """Yield the entries of one state and key group; their bytes were verified before they are yielded.

        Raises
        ------
        CorruptSegmentError
            Where the stored bytes are not those that were written.
        """


class RestoreOperation(ABC):
    """Brings the tables of one backend instance back (Flink's ``RestoreOperation``)."""

    @abstractmethod
    def restore(self) -> dict[str, AnyStateTable]:
        """Return the restored tables by state name; nothing is kept open where it raises."""


class FullRestoreOperation(RestoreOperation):
    """Restores any key-group range from canonical entries, out of `StateTable.restore_entries` alone.

    Parameters
    ----------
    handles : sequence of StateHandle
        Snapshots whose ranges may intersect the instance's own; none means an empty start.
    context : BackendContext
    create_table : callable
        The plugin's own ``keyedstate_create_state_table``.
    """

    def __init__(
        self,
        handles: Sequence[StateHandle],
        context: BackendContext,
        create_table: Callable[[StateMeta, BackendContext], AnyStateTable],
    ) -> None:
        self._handles = handles
        self._context = context
        self._create_table = create_table

    def restore(self) -> dict[str, AnyStateTable]:
        tables: dict[str, AnyStateTable] = {}
        for handle in self._handles:
            wanted = handle.key_groups.intersection(self._context.key_groups)
            for meta in handle.states:
                table = tables.get(meta.name)
                if table is None:
                    table = tables[meta.name] = self._create_table(meta, self._context)
                for key_group in handle.occupied(meta.name, wanted):
                    for batch in handle.entries(meta.name, key_group):
                        table.restore_entries(key_group, batch)
        return tables


H = TypeVar("H", bound=StateHandle)


def choose_base(
    handles: Sequence[H], wanted: KeyGroupRange, threshold: float = OVERLAP_THRESHOLD
) -> H | None:
    """Return the handle whose native files an instance should open and cut to its range, or None.

    A backend with files of its own restores faster when it takes one handle's files as they are, deletes what
    lies outside its range and copies the entries of the other handles in, than when it copies all entries.
    That pays where most of the handle is wanted.  A handle of which less than `threshold` is wanted is not
    considered; of the others that with the largest ``wanted groups x fraction²`` is taken, the first among
    equals.  A single handle is taken whatever its fraction, since all entries come from it anyway.  The rule
    is that of Flink 1.6 to 1.15 (``RocksDBIncrementalCheckpointUtils``).

    Parameters
    ----------
    handles : sequence of StateHandle
        Handles whose key groups do not overlap one another.
    wanted : KeyGroupRange
        The range of the instance, `BackendContext.key_groups`.
    threshold : float
        Between 0 and 1.

    Returns
    -------
    StateHandle or None
        None where it is best to begin empty and to copy.  A handle of which nothing is wanted is never
        returned.
    """
    if not 0.0 <= threshold <= 1.0:
        raise ValueError(f"the threshold is a fraction between 0 and 1, and not {threshold!r}")
    best, best_score = None, 0.0
    for handle in handles:
        overlap = len(handle.key_groups.intersection(wanted))
        if not overlap:
            continue
        if len(handles) == 1:
            return handle
        fraction = overlap / len(handle.key_groups)
        score = overlap * fraction * fraction
        if fraction >= threshold and score > best_score:
            best, best_score = handle, score
    return best
