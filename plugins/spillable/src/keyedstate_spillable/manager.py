"""The spill manager: measures, asks the policy, and moves entries in slices between chunks of rows."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from keyedstate.backend import (
    AnyStateTable,
    BackendContext,
    SpillManager,
)
from keyedstate.errors import KeyedStateError
from keyedstate.types import VOID
from keyedstate_spillable import monitor
from keyedstate_spillable.accesses import Accesses, CountingTable
from keyedstate_spillable.adaptive import AdaptivePolicy
from keyedstate_spillable.monitor import MemoryAccount, monotonic_ms
from keyedstate_spillable.options import CANCEL_SNAPSHOTS, MEMORY_BUDGET
from keyedstate_spillable.policy import (
    NOTHING,
    Action,
    Decision,
    MemorySample,
    Move,
    Signals,
    SpillPolicy,
    StateMapMeta,
    make_policy,
)
from keyedstate_spillable.store.database import disk_memory

_log = logging.getLogger(__name__)

_MANAGER = "spill manager"
#: Bytes of one call of a table, between two looks at the clock.
_STEP_BYTES = 1 << 20
#: Bytes of an entry of a table that has had none in memory yet.
_UNMEASURED_BYTES = 256.0
#: Milliseconds after which an access counts half in a rate.
_HALF_LIFE_MS = 30_000
#: How long a chunk of rows waits for an urgent move, and how long far above the budget.
_URGENT_SLICE_MS = 20
_OVERRUN_SLICE_MS = 40
#: How long nothing is spilled after the disk has refused entries.
_REFUSED_MS = 10_000
#: Part of the budget below which an instance's entries are not what exhausts it.
_LITTLE = 0.02


def manager_of(context: BackendContext) -> TieredSpillManager:
    """Return the manager of an instance, the same one each time.

    A restore calls it before it reads anything, and `TieredSpillManager.balance` between batches.

    Raises
    ------
    SmallMemoryBudgetError, MarkOrderError, WeightOrderError
    UnknownPolicyError, InvalidPolicyError, DuplicateProviderError
    """
    manager: TieredSpillManager | None = context.resources.get(_MANAGER)
    if manager is None:
        policy, options = make_policy(context.options), context.options
        builtin = policy if isinstance(policy, AdaptivePolicy) else AdaptivePolicy(options)
        budget = options[MEMORY_BUDGET.name]
        owner = object()
        memory = monitor.acquire(owner, budget, disk_memory(options), policy.sample_interval_ms)
        context.closing.callback(monitor.release, owner, budget)
        manager = TieredSpillManager(
            policy, builtin, memory, cancels=options[CANCEL_SNAPSHOTS.name], owner=owner
        )
        context.resources[_MANAGER] = manager
    return manager


class TieredSpillManager(SpillManager):
    """Carries out what a policy decides for the tables of one instance, in its owner's thread.

    Parameters
    ----------
    policy : SpillPolicy
    builtin : AdaptivePolicy
        Decides in an emergency where `policy` fails.
    memory : MemoryAccount
    cancels : bool
        Whether snapshots may be cancelled.
    owner : object
        The name of the instance in `memory`.
    clock : callable, optional
        Returns milliseconds of a monotonic clock.
    """

    def __init__(
        self,
        policy: SpillPolicy,
        builtin: AdaptivePolicy,
        memory: MemoryAccount,
        *,
        cancels: bool,
        owner: object,
        clock: Callable[[], int] = monotonic_ms,
    ) -> None:
        self._policy = policy
        self._builtin = builtin
        self._memory = memory
        self._cancels = cancels
        self._owner = owner
        self._clock = clock
        self._all: Mapping[str, AnyStateTable] = {}
        self._tables: dict[str, CountingTable] = {}
        self._mutable: dict[str, bool] = {}
        #: The tables without namespaces.
        self._by_key: list[CountingTable] = []
        self._seen = 0
        self._checked_ms: int | None = None
        self._triggered_ms: int | None = None
        #: By table and key group: the requests and the time of the last look, and their rate then.
        self._rates: dict[tuple[str, int], tuple[int, int, float]] = {}
        self._action = Action.NONE
        #: What is left of the last decision, and how long a chunk of rows waits for it.
        self._moves: deque[Move] = deque()
        self._slice_ms: int | None = None
        #: The bytes of an entry of each table, as they were when it had one in memory.
        self._entry_bytes: dict[str, float] = {}
        self._counts: Counter[str] = Counter()
        #: By table what `metrics` has told of.
        self._accesses: dict[str, Accesses] = {}
        self._moving_ms = 0
        self._own_bytes = 0.0
        #: The entries on disk at the last survey.
        self._on_disk = 0
        self._faults: set[str] = set()
        #: Until when nothing is spilled, after the disk has refused entries.
        self._refused_until_ms: int | None = None
        self._warned = False

    # -- called between chunks of rows ----------------------------------------------------------------------

    def balance(self, tables: Mapping[str, AnyStateTable], cancel_snapshots: Callable[[], int]) -> None:
        """Continue the present move, or look at a new measurement."""
        sample = self._memory.newest() if self._policy.sees_emergencies else self._memory.monitor.latest
        if sample.number != self._seen:
            self._seen = sample.number
            self._adopt(tables)
            overrun = self._check_resource(sample, cancel_snapshots)
        else:
            overrun = 0.0
        if self._moves:
            self._move(overrun)

    def read_ahead(self, keys: list[Any], key_groups: list[int]) -> None:
        for table in self._by_key:
            table.read_ahead(key_groups, keys)

    def metrics(self) -> Mapping[str, int]:
        """Return what moved, why, and what was accessed since the last call; the size of each state."""
        counts, self._counts = self._counts, Counter()
        moving_ms, self._moving_ms = self._moving_ms, 0
        found = {**counts, "moving-ms": moving_ms} if counts or moving_ms else {}
        for name, table in self._tables.items():
            accesses = table.accesses
            new = accesses.since(self._accesses.get(name, Accesses()))
            self._accesses[name] = accesses
            # All accesses to columns are an estimate, which may be below those that asked the disk.
            found[f"{name}.memory-accesses"] = max(new.all - new.disk, 0)
            found[f"{name}.disk-accesses"] = new.disk
            groups = table.spillable_groups()
            found[f"{name}.memory-entries"] = sum(group.in_memory for group in groups)
            found[f"{name}.disk-entries"] = sum(group.on_disk for group in groups)
            found[f"{name}.memory-bytes"] = sum(group.memory_bytes for group in groups)
        return found

    def close(self) -> None:
        self._moves.clear()
        self._all, self._tables, self._by_key = {}, {}, []
        self._memory.forget(self._owner)

    # -- deciding -------------------------------------------------------------------------------------------

    def _adopt(self, tables: Mapping[str, AnyStateTable]) -> None:
        """Note the tables that spill, where others were registered or replaced since the last call."""
        if self._all == tables:
            return
        self._all = dict(tables)
        self._tables = {name: table for name, table in tables.items() if isinstance(table, CountingTable)}
        self._mutable = {name: not tables[name].meta.value_serializer.immutable for name in self._tables}
        self._by_key = [
            table for name, table in self._tables.items() if tables[name].meta.namespace_serializer == VOID
        ]

    def _check_resource(self, sample: MemorySample, cancel_snapshots: Callable[[], int]) -> float:
        """Decide by a sample where the intervals have passed, or at once in an emergency.

        Returns the bytes that must move before the next rows.
        """
        # Entries that come back must not delay the decision to spill.
        loading = bool(self._moves) and self._action is Action.LOAD
        due = (loading or not self._moves) and self._is_due()
        maps = self._survey() if due else None
        self._own_bytes = sum(table.memory_bytes for table in self._tables.values())
        signals = self._signals(sample)
        if signals.excess > 0 and (returned := self._memory.return_freed()) is not None:
            signals = self._signals(returned)
        emergency = signals.excess > 0 and self._policy.sees_emergencies
        if not emergency and not due:
            return 0.0
        if maps is None:
            maps = self._survey()
        self._checked_ms = self._clock()
        if emergency:
            if loading:
                self._moves.clear()
            self._warn_of_others(signals)
        decision, moves = self._decide(signals, maps, emergency=emergency)
        if not moves or (decision.action is Action.SPILL and self._is_refused()):
            return 0.0
        if decision.action is Action.SPILL and decision.cancel_snapshots and self._cancels:
            cancelled = cancel_snapshots()
            if cancelled:
                self._counts["cancelled-snapshots"] += cancelled
        self._counts[f"decisions.{decision.action.value}.{decision.reason}"] += 1
        _log.info(
            "spillable: %s %d bytes (%s): %d of %d used, %d in entries, growing by %d a second",
            decision.action.value,
            decision.bytes,
            decision.reason,
            signals.used,
            signals.budget,
            signals.all_bytes,
            sample.growth,
        )
        self._action = decision.action
        self._moves = deque(moves)
        if not decision.urgent:
            self._slice_ms = self._policy.slice_ms
            return 0.0
        self._slice_ms = _OVERRUN_SLICE_MS if signals.overrun else _URGENT_SLICE_MS
        return signals.far_overrun

    def _signals(self, sample: MemorySample) -> Signals:
        """Note the entries in memory with those of other instances, and return what a policy decides by."""
        own, memory = int(self._own_bytes), self._memory
        entries, used = memory.note(self._owner, own, sample)
        return Signals(sample, memory.budget, used, own, entries, self._on_disk)

    def _is_refused(self) -> bool:
        return self._refused_until_ms is not None and self._clock() < self._refused_until_ms

    def _is_due(self) -> bool:
        now = self._clock()
        checked = self._checked_ms is None or now - self._checked_ms >= self._policy.check_interval_ms
        rested = self._triggered_ms is None or now - self._triggered_ms >= self._policy.trigger_interval_ms
        return checked and rested

    def _survey(self) -> list[StateMapMeta]:
        """Return all key groups that have entries; update their rates, and the sizes of entries."""
        now, maps = self._clock(), []
        rates: dict[tuple[str, int], tuple[int, int, float]] = {}
        for name, table in self._tables.items():
            groups = table.spillable_groups()
            in_memory = sum(group.in_memory for group in groups)
            if in_memory:
                self._entry_bytes[name] = sum(group.memory_bytes for group in groups) / in_memory
            size = self._entry_bytes.get(name, _UNMEASURED_BYTES)
            for group in groups:
                address = name, group.key_group
                requests, then, rate = self._rates.get(address, (0, now, 0.0))
                if now > then:
                    part = 1.0 - 0.5 ** ((now - then) / _HALF_LIFE_MS)
                    rate += part * ((group.requests - requests) * 1000.0 / (now - then) - rate)
                rates[address] = group.requests, now, rate
                maps.append(
                    StateMapMeta(
                        name,
                        group.key_group,
                        group.in_memory,
                        group.on_disk,
                        group.memory_bytes / group.in_memory if group.in_memory else size,
                        group.requests,
                        rate,
                        self._mutable[name],
                    )
                )
        self._rates = rates
        self._on_disk = sum(one.on_disk for one in maps)
        return maps

    def _decide(
        self, signals: Signals, maps: Sequence[StateMapMeta], *, emergency: bool
    ) -> tuple[Decision, Sequence[Move]]:
        """Ask the policy; where it fails, decide nothing, or in an emergency what the built-in one does."""
        try:
            return _decided(self._policy, signals, maps)
        except Exception as error:  # whatever a policy raises
            fault = f"{type(error).__name__}: {error}"
        self._counts["policy-faults"] += 1
        if fault not in self._faults:
            self._faults.add(fault)
            policy = type(self._policy).__qualname__
            _log.error("spillable: the policy %s failed, so only emergencies move entries: %s", policy, fault)
        return _decided(self._builtin, signals, maps) if emergency else (NOTHING, ())

    def _warn_of_others(self, signals: Signals) -> None:
        if not self._warned and signals.all_bytes < _LITTLE * signals.budget:
            self._warned = True
            _log.warning(
                "spillable: the process occupies %d bytes of %d in spillable.memory-budget, and only %d of "
                "them are entries of state: raise the budget, or use less memory in functions",
                signals.used,
                signals.budget,
                signals.all_bytes,
            )

    # -- moving ---------------------------------------------------------------------------------------------

    def _move(self, least_bytes: float) -> None:
        """Move entries for a slice of time, but spill at least so many bytes."""
        began, before = self._clock(), self._own_bytes
        try:
            for _ in self._steps():
                late = self._slice_ms is not None and self._clock() - began >= self._slice_ms
                if late and (self._action is Action.LOAD or before - self._own_bytes >= least_bytes):
                    break
        except (KeyedStateError, OSError) as error:
            if self._action is Action.LOAD:
                raise
            # The entries are still in memory, where the job may continue.
            self._moves.clear()
            self._refused_until_ms = self._clock() + _REFUSED_MS
            self._counts["refused-moves"] += 1
            _log.error(
                "spillable: entries cannot be spilled and stay in memory; the next attempt is in %d s: %s",
                _REFUSED_MS // 1000,
                error,
            )
        self._memory.adjust(self._owner, max(int(self._own_bytes), 0))
        if not self._moves:
            self._triggered_ms = self._clock()
        self._moving_ms += self._clock() - began

    def _steps(self) -> Iterator[None]:
        """Carry out the moves, one call of a table at a time."""
        while self._moves:
            move = self._moves.popleft()
            table = self._tables.get(move.table)
            if table is None or move.bytes <= 0:
                continue
            size = max(self._entry_bytes.get(move.table, _UNMEASURED_BYTES), 1.0)
            left = max(int(move.bytes / size), 1)
            limit = min(left, table.step_entries, max(int(_STEP_BYTES / size), 1))
            if move.key_group is None:
                moved = table.spill_coldest(limit)
                ended = not moved
            else:
                moved = (table.spill if self._action is Action.SPILL else table.load)(move.key_group, limit)
                ended = moved < limit
            self._own_bytes += moved * size if self._action is Action.LOAD else -moved * size
            verb = "spilled" if self._action is Action.SPILL else "loaded"
            self._counts[f"{move.table}.{verb}-entries"] += moved
            self._counts[f"{move.table}.{verb}-bytes"] += int(moved * size)
            if not ended and moved < left:
                self._moves.appendleft(Move(move.table, move.key_group, move.bytes - moved * size))
            yield


def _decided(
    policy: SpillPolicy, signals: Signals, maps: Sequence[StateMapMeta]
) -> tuple[Decision, Sequence[Move]]:
    """Return the checked decision of a policy and its moves; raises ValueError for nonsense."""
    decision = policy.decide(signals)
    if not isinstance(decision, Decision):
        raise ValueError(f"it decided {decision!r}, which is no Decision")
    fault = decision.fault()
    moves: Sequence[Move] = ()
    if fault is None and decision.action is not Action.NONE:
        moves = policy.plan(decision, maps)
        fault = next((fault for move in moves if (fault := move.fault(maps, decision.action))), None)
    if fault is not None:
        raise ValueError(fault)
    return decision, moves
