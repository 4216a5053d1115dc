"""The policy ``classic``: options, defaults and formulas of FLIP-50 (``SpillAndLoadManagerImpl``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from keyedstate_spillable.errors import MarkOrderError
from keyedstate_spillable.options import (
    CHECK_INTERVAL,
    GC_THRESHOLD,
    LOAD_END,
    LOAD_START,
    SPILL_RATIO,
    STATUS_INTERVAL,
    TRIGGER_INTERVAL,
)
from keyedstate_spillable.policy import (
    Action,
    Decision,
    Move,
    Signals,
    SpillPolicy,
    StateMapMeta,
    Weights,
)


class ClassicPolicy(SpillPolicy):
    """Spills a fixed part of the state where garbage collections take long; moves whole key groups.

    Raises
    ------
    MarkOrderError
        Where loading would end below its start.
    WeightOrderError
    """

    slice_ms = None
    sees_emergencies = False

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.sample_interval_ms = options[STATUS_INTERVAL.name]
        self.check_interval_ms = options[CHECK_INTERVAL.name]
        self.trigger_interval_ms = options[TRIGGER_INTERVAL.name]
        self._threshold_ms = options[GC_THRESHOLD.name]
        self._spill_ratio = options[SPILL_RATIO.name]
        self._start, self._end = options[LOAD_START.name], options[LOAD_END.name]
        if self._start >= self._end:
            raise MarkOrderError((LOAD_START.name, LOAD_END.name), (self._start, self._end))
        self._weights = Weights.of(options)

    def decide_action(self, signals: Signals) -> tuple[Action, float]:
        """Return what to do and with which part: of the state to spill, of the used memory to load."""
        if signals.sample.collection_ms > self._threshold_ms:
            return Action.SPILL, self._spill_ratio
        if 0 < signals.used < self._start * signals.budget:
            return Action.LOAD, (self._end * signals.budget - signals.used) / signals.used
        return Action.NONE, 0.0

    def decide(self, signals: Signals) -> Decision:
        action, ratio = self.decide_action(signals)
        if action is Action.SPILL:
            return Decision(action, ratio * signals.own_bytes, "collector", cancel_snapshots=True)
        return Decision(action, ratio * signals.used, "load-start" if action is Action.LOAD else "")

    def plan(self, decision: Decision, maps: Sequence[StateMapMeta]) -> Sequence[Move]:
        """Spill key groups until the target is reached; load them until the next one would exceed it."""
        moves: list[Move] = []
        total = 0.0
        if decision.action is Action.SPILL:
            in_memory = [one for one in maps if one.in_memory]
            for one in self._weights.spill_order(in_memory, _requests):
                if total >= decision.bytes:
                    break
                total += one.memory_bytes
                moves.append(Move(one.table, one.key_group, one.memory_bytes))
        elif decision.action is Action.LOAD:
            for one in self._weights.load_order([one for one in maps if one.on_disk], _requests):
                total += one.disk_bytes
                if total > decision.bytes:
                    break
                moves.append(Move(one.table, one.key_group, one.disk_bytes))
        return moves


def _requests(one: StateMapMeta) -> float:
    return one.requests
