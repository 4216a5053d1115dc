"""Entries of several key groups that leave the memory together, so that their rows are one batch."""

from __future__ import annotations

from itertools import chain, compress
from typing import Any

from keyedstate_spillable.objects.disk import LeavingEntries, SpilledRows


class Eviction:
    """Collects entries of maps, writes the rows of those that need one, and then drops them.

    Parameters
    ----------
    rows : SpilledRows
    module : module
        The form of the maps (`CopyOnWriteTable.module`).

    Attributes
    ----------
    collected : int
        How many entries it has taken.
    """

    def __init__(self, rows: SpilledRows, module: Any) -> None:
        self._rows = rows
        self._module = module
        #: Key groups with their maps, and the entries that were taken from them and have no row yet.
        self._leaving: list[tuple[int, Any, list[Any]]] = []
        self._dropped = 0
        self.collected = 0

    def collect(self, key_group: int, state_map: Any, position: int, period: int, limit: int) -> int | None:
        """Take entries as `CopyOnWriteStateMap.coldest` returns them; return its next position.

        Those that have a row already are dropped at once.  No position may be passed twice before `finish`.
        """
        following: int | None
        following, clean, changed = state_map.coldest(position, period, limit)
        self._dropped += state_map.evict(clean)
        if changed:
            self._leaving.append((key_group, state_map, changed))
        self.collected += len(clean) + len(changed)
        return following

    def finish(self) -> int:
        """Write the rows and drop their entries; where writing raises, these stay in memory.

        Returns
        -------
        int
            The entries that were dropped: one that cannot be serialized stays in memory too, and so does one
            that a serializer or another function of the user has changed meanwhile.
        """
        if not self._leaving:
            return self._dropped
        encoded = iter(self._rows.encode_possible(self._columns()))
        # The last user code has run: from here on, no entry changes.
        rows: list[tuple[bytes, bytes]] = []
        leaving = []
        for _, state_map, entries in self._leaving:
            possible = [
                made if made is not None and unchanged else None
                for unchanged, made in zip(state_map.may_leave(entries), encoded, strict=False)
            ]
            rows += filter(None, possible)
            leaving.append((state_map, list(compress(entries, possible))))
        if rows:
            self._rows.put([row for row, _ in rows], [data for _, data in rows])
        self._dropped += sum(state_map.evict(entries) for state_map, entries in leaving)
        return self._dropped

    def _columns(self) -> LeavingEntries:
        groups = [key_group for key_group, _, entries in self._leaving for _ in entries]
        entries = list(chain.from_iterable(entries for _, _, entries in self._leaving))
        return LeavingEntries(groups, *self._module.columns_of(entries))
