"""Entries of several key groups that leave the memory together, so that their rows are one batch."""

from __future__ import annotations

from itertools import compress
from typing import Any

from keyedstate_spillable.disk import SpilledRows


class Eviction:
    """Collects entries of maps, writes the rows of those that need one, and then drops them.

    Parameters
    ----------
    rows : SpilledRows

    Attributes
    ----------
    collected : int
        How many entries it has taken.
    """

    def __init__(self, rows: SpilledRows) -> None:
        self._rows = rows
        #: Maps with the number of entries that were taken from them and have no row yet.
        self._maps: list[tuple[Any, int]] = []
        self._key_groups: list[int] = []
        self._namespaces: list[Any] = []
        self._keys: list[Any] = []
        self._values: list[Any] = []
        self._stamps: list[int] = []
        self._dropped = 0
        self.collected = 0

    def collect(self, key_group: int, state_map: Any, position: int, period: int, limit: int) -> int | None:
        """Take entries as `CopyOnWriteStateMap.coldest` returns them; return its next position.

        Those that have a row already are dropped at once.  No position may be passed twice before `finish`.
        """
        following: int | None
        following, clean_namespaces, clean_keys, namespaces, keys, values, stamps = state_map.coldest(
            position, period, limit
        )
        if clean_keys:
            self._dropped += len(clean_keys) - len(state_map.evict(clean_namespaces, clean_keys))
        if keys:
            self._maps.append((state_map, len(keys)))
            self._key_groups += [key_group] * len(keys)
            self._namespaces += namespaces
            self._keys += keys
            self._values += values
            self._stamps += stamps
        self.collected += len(clean_keys) + len(keys)
        return following

    def finish(self) -> int:
        """Write the rows and drop their entries; where writing raises, these stay in memory.

        Returns
        -------
        int
            The entries that were dropped: one that cannot be serialized stays in memory too, and so does one
            that a serializer or another function of the user has changed meanwhile.
        """
        if not self._keys:
            return self._dropped
        written = self._rows.write_possible(
            self._key_groups, self._namespaces, self._keys, self._values, self._stamps
        )
        start = 0
        for state_map, count in self._maps:
            part = slice(start, start + count)
            start += count
            places = list(compress(range(part.start, part.stop), written[part]))
            kept = state_map.evict(
                [self._namespaces[place] for place in places], [self._keys[place] for place in places]
            )
            for place in map(places.__getitem__, kept):
                # Its row is of a value that was changed, or of an entry that was removed.
                self._rows.discard(self._key_groups[place], self._keys[place], self._namespaces[place])
            self._dropped += len(places) - len(kept)
        return self._dropped
