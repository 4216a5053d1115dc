"""The policy ``adaptive``: several signals, as much as brings memory under a mark, and the coldest entries.

Where entries are used unevenly within key groups, as hashes spread them, the entries that were not used for
longest are spilled.  Where whole key groups are hardly used, those are: nothing has to be searched then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from keyedstate_spillable.errors import MarkOrderError
from keyedstate_spillable.options import (
    ADAPTIVE_INTERVAL,
    HIGH_MARK,
    LOAD_MARK,
    LOW_MARK,
    SAMPLE_INTERVAL,
    SLICE,
)
from keyedstate_spillable.policy import (
    NOTHING,
    Action,
    Decision,
    Move,
    Signals,
    SpillPolicy,
    StateMapMeta,
    Weights,
)

#: Percentage of time that processes wait for memory, and part of it in the collector, above which entries
#: are spilled before the high mark.
_PRESSURE = 10.0
_COLLECTING = 0.2
#: Key groups are spilled whole where their bytes are in this much less demand than the average byte.
_COLD = 0.25
#: Milliseconds without spilling after which key groups are loaded: what the rows of a chunk, or a merge of
#: the database, need for a moment is no free memory.
_REST_MS = 10_000
#: Bytes that an entry costs on its way back apart from its own.
_FETCH_BYTES = 256


class AdaptivePolicy(SpillPolicy):
    """Keeps the memory of the process between two marks.

    Raises
    ------
    MarkOrderError
        Where the marks do not ascend.
    WeightOrderError
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.sample_interval_ms = options[SAMPLE_INTERVAL.name]
        self.check_interval_ms = options[ADAPTIVE_INTERVAL.name]
        self.slice_ms = options[SLICE.name]
        marks = (LOAD_MARK.name, LOW_MARK.name, HIGH_MARK.name)
        self._load, self._low, self._high = values = tuple(options[mark] for mark in marks)
        if not self._load < self._low < self._high:
            raise MarkOrderError(marks, values)
        self._weights = Weights.of(options)
        #: The time of the sample by which entries were spilled last.
        self._spilled_ms: int | None = None

    def decide(self, signals: Signals) -> Decision:
        """Spill above the high mark, now or by the next check, to the low one; load below the load mark.

        Nothing is loaded within ten seconds after it has spilled.
        """
        decision = self._decide(signals)
        if decision.action is Action.SPILL:
            self._spilled_ms = signals.sample.time_ms
        return decision

    def _decide(self, signals: Signals) -> Decision:
        used, sample = signals.used, signals.sample
        low, high, load = map(signals.mark, (self._low, self._high, self._load))
        if signals.excess > 0:
            # Threads of other instances may wait for rows, so this one frees all of it.
            wanted = max(used - low, signals.excess)
            return Decision(Action.SPILL, wanted, "emergency", urgent=True, cancel_snapshots=True)
        projected = used + sample.growth * self.check_interval_ms / 1000.0
        if projected > high:
            reason = "high-mark" if used > high else "growth"
            return Decision(Action.SPILL, (projected - low) * signals.share, reason)
        if used > low and (sample.pressure > _PRESSURE or sample.collecting > _COLLECTING):
            reason = "pressure" if sample.pressure > _PRESSURE else "collector"
            return Decision(Action.SPILL, (used - low) * signals.share, reason)
        rested = self._spilled_ms is None or sample.time_ms - self._spilled_ms >= _REST_MS
        if projected < load and signals.on_disk and rested:
            # Half way to the low mark: loading does not lead to spilling.
            return Decision(Action.LOAD, (low + load) / 2 - projected, "load-mark")
        return NOTHING

    def plan(self, decision: Decision, maps: Sequence[StateMapMeta]) -> Sequence[Move]:
        if decision.action is Action.SPILL:
            return self._spill(decision.bytes, [one for one in maps if one.in_memory])
        if decision.action is Action.LOAD:
            return self._load_wanted(decision.bytes, [one for one in maps if one.on_disk and one.rate])
        return ()

    def _spill(self, wanted: float, maps: Sequence[StateMapMeta]) -> list[Move]:
        everything = sum(one.memory_bytes for one in maps)
        if not everything:
            return []
        moves: list[Move] = []
        size = demand = 0.0
        for one in self._weights.spill_order(maps, _cost_of_return):
            if size >= wanted:
                break
            part = min(one.memory_bytes, wanted - size)
            size += one.memory_bytes
            demand += _cost_of_return(one)
            moves.append(Move(one.table, one.key_group, part))
        average = sum(map(_cost_of_return, maps)) / everything
        if size and demand / size <= _COLD * average:
            return moves
        return _coldest(wanted, maps, average)

    def _load_wanted(self, room: float, maps: Sequence[StateMapMeta]) -> list[Move]:
        moves = []
        for one in self._weights.load_order(maps, _cost_of_return):
            room -= one.disk_bytes
            if room < 0:
                break
            moves.append(Move(one.table, one.key_group, one.disk_bytes))
        return moves


def _cost_of_return(one: StateMapMeta) -> float:
    """Return the bytes per second that would be read, and written again, if all its entries were on disk."""
    return one.rate * (_FETCH_BYTES + one.entry_bytes * (2 if one.mutable else 1))


def _coldest(wanted: float, maps: Sequence[StateMapMeta], average: float) -> list[Move]:
    """Take from every table, more from those whose bytes are in less demand."""
    sizes: dict[str, float] = {}
    demands: dict[str, float] = {}
    for one in maps:
        sizes[one.table] = sizes.get(one.table, 0.0) + one.memory_bytes
        demands[one.table] = demands.get(one.table, 0.0) + _cost_of_return(one)
    parts = {
        table: size * average / (average + demands[table] / size) if average else size
        for table, size in sizes.items()
        if size
    }
    of_all = wanted / sum(parts.values())
    return [Move(table, None, min(part * of_all, sizes[table])) for table, part in parts.items()]
