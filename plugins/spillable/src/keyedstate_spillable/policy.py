"""What a spill policy is: signals in, decisions out; it touches neither tables nor threads nor clocks.

The manager measures, asks the policy for a decision, asks it for the moves that carry it out, and moves.
A distribution provides a policy by an entry point in the group `POLICY_GROUP`: a function that takes the
values of the backend's options and returns a `SpillPolicy`.
"""

from __future__ import annotations

import enum
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import Any

from keyedstate.entry_points import installed_entry_points
from keyedstate.errors import DuplicateProviderError
from keyedstate_spillable.errors import InvalidPolicyError, UnknownPolicyError, WeightOrderError
from keyedstate_spillable.options import POLICY, WEIGHT_REQUESTS, WEIGHT_SIZE

POLICY_GROUP = "keyedstate_spillable.policies"
#: Fraction of a container's limit above which memory is about to be exhausted: the rest is used before the
#: next sample.
EMERGENCY_MARK = 0.95
#: Fractions of the budget above which the slices of an emergency are longer, and above which rows wait.  The
#: limit of a container leaves no such room: the system ends a process that exceeds it.
OVERRUN_MARK = 1.1
WAIT_MARK = 1.12


class Action(enum.Enum):
    """What a decision asks for."""

    SPILL = "spill"
    LOAD = "load"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class MemorySample:
    """One measurement of the monitor.

    Attributes
    ----------
    number : int
        Ascends by one from 1.
    time_ms : int
        Of a monotonic clock.
    process_bytes : int or None
        What the process occupies (its resident set); None where the system does not tell.
    growth : float
        How fast that grows, in bytes per second: the slower of the last interval and the last ten, so that
        neither a burst that is over nor a single batch counts; at least 0.
    collection_ms : float
        The average time of a garbage collection since the sample before; 0 without any.
    collecting : float
        The fraction of that time spent in garbage collections.
    container_bytes, container_limit : int or None
        The memory of the container (cgroup) without what the kernel can drop, and its limit.
    pressure : float
        The percentage of the last ten seconds in which some process waited for memory (PSI); 0 where the
        system does not tell.
    """

    number: int
    time_ms: int
    process_bytes: int | None = None
    growth: float = 0.0
    collection_ms: float = 0.0
    collecting: float = 0.0
    container_bytes: int | None = None
    container_limit: int | None = None
    pressure: float = 0.0


@dataclass(frozen=True, slots=True)
class StateMapMeta:
    """One key group of one state (FLIP-50's ``StateMapMeta``).

    Attributes
    ----------
    table : str
        The state.
    key_group : int
    in_memory, on_disk : int
        Entries in memory, and those on disk only.
    entry_bytes : float
        An estimate of what an entry occupies in memory.
    requests : int
        Accesses since the table was made.
    rate : float
        Accesses per second, of which older ones count less.
    mutable : bool
        Whether values may be changed in place, so that an entry that was read must be written again.
    """

    table: str
    key_group: int
    in_memory: int
    on_disk: int
    entry_bytes: float
    requests: int
    rate: float
    mutable: bool

    @property
    def memory_bytes(self) -> float:
        """An estimate of what its entries occupy in memory."""
        return self.in_memory * self.entry_bytes

    @property
    def disk_bytes(self) -> float:
        """An estimate of what its entries on disk would occupy in memory."""
        return self.on_disk * self.entry_bytes


@dataclass(frozen=True, slots=True)
class Signals:
    """What a policy decides by.

    Attributes
    ----------
    sample : MemorySample
    budget, used : int
        Bytes that the process may occupy, and those that it occupies without what it has freed and not
        returned to the system.
    own_bytes, all_bytes : int
        The estimated size of the entries in memory of this instance, and of all instances of the process.
    on_disk : int
        Entries of this instance that are on disk only.
    """

    sample: MemorySample
    budget: int
    used: int
    own_bytes: int
    all_bytes: int
    on_disk: int

    def mark(self, fraction: float) -> float:
        """Return what is used where entries have a fraction of the memory that the budget leaves for them.

        What the process occupies without entries is no part of it: in a small budget that is most of it.
        """
        others = max(self.used - self.all_bytes, 0)
        return others + fraction * (self.budget - others)

    @property
    def excess(self) -> float:
        """The bytes above the budget, or near the container's limit; 0 where both are kept."""
        return self._above(self.budget)

    @property
    def overrun(self) -> float:
        """The bytes far above the budget, or near the container's limit: slices are longer then."""
        return self._above(OVERRUN_MARK * self.budget)

    @property
    def far_overrun(self) -> float:
        """The bytes that must move before the next rows: above 112 % of the budget, or near the limit."""
        return self._above(WAIT_MARK * self.budget)

    def _above(self, mark: float) -> float:
        sample, above = self.sample, self.used - mark
        if sample.container_bytes is not None and sample.container_limit is not None:
            above = max(above, sample.container_bytes - EMERGENCY_MARK * sample.container_limit)
        return max(above, 0.0)

    @property
    def share(self) -> float:
        """The part of the process's entries in memory that is this instance's."""
        return min(self.own_bytes / self.all_bytes, 1.0) if self.all_bytes > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Decision:
    """What a policy wants.

    Attributes
    ----------
    action : Action
    bytes : float
        How much this instance moves; for `Action.LOAD` at most.
    reason : str
        Why, in a word or two for metrics, such as ``high-mark``.
    urgent : bool
        Whether chunks of rows wait longer for it: each up to 20 ms, above 110 % of the budget up to 40, and
        as long as more than 112 % of it is used or the container's limit is near.
    cancel_snapshots : bool
        Whether full snapshots in the background are cancelled first, where the option allows it.
    """

    action: Action
    bytes: float = 0.0
    reason: str = ""
    urgent: bool = False
    cancel_snapshots: bool = False

    def fault(self) -> str | None:
        """Return what is wrong with it, or None."""
        if not math.isfinite(self.bytes) or self.bytes < 0:
            return f"{self.bytes!r} is no number of bytes"
        return None


NOTHING = Decision(Action.NONE)


@dataclass(frozen=True, slots=True)
class Move:
    """Part of a decision: move about so many bytes of a key group, or of the coldest entries of a table.

    Attributes
    ----------
    table : str
    key_group : int or None
        None for the entries that were not used for longest; only for `Action.SPILL`.
    bytes : float
        What the moved entries occupy in memory.
    """

    table: str
    key_group: int | None
    bytes: float

    def fault(self, maps: Iterable[StateMapMeta], action: Action) -> str | None:
        """Return what is wrong with it, or None."""
        if not math.isfinite(self.bytes) or self.bytes < 0:
            return f"a move has {self.bytes!r} bytes"
        if self.key_group is None:
            if action is Action.LOAD:
                return f"a move without a key group loads the table {self.table!r}"
            known = any(one.table == self.table for one in maps)
        else:
            known = any((one.table, one.key_group) == (self.table, self.key_group) for one in maps)
        return (
            None if known else f"it moves the key group {self.key_group} of {self.table!r}, which is unknown"
        )


class SpillPolicy(ABC):
    """Decides what moves; one object for each backend instance.

    Attributes
    ----------
    sample_interval_ms : int
        The time between two measurements of memory.
    check_interval_ms : int
        The time between two calls of `decide`.
    trigger_interval_ms : int
        The time from the end of one move to the next call of `decide`.
    slice_ms : int or None
        How long a chunk of rows waits for a move that is not urgent; None for all of it.
    sees_emergencies : bool
        Whether `decide` is called at once where memory exceeds the budget, whatever the intervals.
    """

    sample_interval_ms: int = 100
    check_interval_ms: int = 1_000
    trigger_interval_ms: int = 0
    slice_ms: int | None = 10
    sees_emergencies: bool = True

    @abstractmethod
    def decide(self, signals: Signals) -> Decision:
        """Return what to do now."""

    @abstractmethod
    def plan(self, decision: Decision, maps: Sequence[StateMapMeta]) -> Sequence[Move]:
        """Return the moves that carry out a decision, in their order."""


@dataclass(frozen=True, slots=True)
class Weights:
    """How much sizes and requests count where key groups are ordered.

    Raises
    ------
    WeightOrderError
        Where requests count as much as sizes, or more.
    """

    size: float
    requests: float

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Weights:
        """Return those that the options name."""
        weights = cls(options[WEIGHT_SIZE.name], options[WEIGHT_REQUESTS.name])
        if weights.requests >= weights.size:
            raise WeightOrderError(weights.size, weights.requests)
        return weights

    def spill_order(
        self, maps: Sequence[StateMapMeta], demand: Callable[[StateMapMeta], float]
    ) -> list[StateMapMeta]:
        """Return key groups, those to spill first at the beginning: large ones of little demand."""
        return self._ordered(maps, lambda one: one.memory_bytes, demand, (self.size, -self.requests))

    def load_order(
        self, maps: Sequence[StateMapMeta], demand: Callable[[StateMapMeta], float]
    ) -> list[StateMapMeta]:
        """Return key groups, those to load first at the beginning: small ones of much demand."""
        return self._ordered(maps, lambda one: one.disk_bytes, demand, (-self.requests, self.size))

    def _ordered(
        self,
        maps: Sequence[StateMapMeta],
        size: Callable[[StateMapMeta], float],
        demand: Callable[[StateMapMeta], float],
        factors: tuple[float, float],
    ) -> list[StateMapMeta]:
        sizes, demands = _normalised(map(size, maps)), _normalised(map(demand, maps))
        weights = [
            (factors[0] * one + factors[1] * other) / (self.size - self.requests)
            for one, other in zip(sizes, demands, strict=True)
        ]
        # Sorting is stable: equal ones are in the order of the states and their key groups.
        return [maps[i] for i in sorted(range(len(maps)), key=weights.__getitem__, reverse=True)]


def _normalised(values: Iterable[float]) -> list[float]:
    """Map numbers to 0 for the smallest to 1 for the largest; all to 0 where they are equal."""
    numbers = list(values)
    low, high = min(numbers, default=0.0), max(numbers, default=0.0)
    return [(number - low) / (high - low) if high > low else 0.0 for number in numbers]


def make_policy(options: Mapping[str, Any]) -> SpillPolicy:
    """Return the policy that the option ``spillable.policy`` names.

    Raises
    ------
    UnknownPolicyError
        Where no installed distribution provides it.
    DuplicateProviderError
        Where several do.
    InvalidPolicyError
        Where it cannot be imported or made, or is none.
    """
    name = options[POLICY.name]
    installed = installed_entry_points(POLICY_GROUP)
    found = [entry for entry in installed if entry.name == name]
    if not found:
        raise UnknownPolicyError(name, sorted({entry.name for entry in installed}))
    if len(found) > 1:
        raise DuplicateProviderError("spill policy", name, sorted(map(_origin, found)))
    (entry,) = found
    try:
        factory = entry.load()
    except Exception as error:  # whatever a module raises while it is imported
        raise InvalidPolicyError(name, entry.value, f"{type(error).__name__}: {error}") from error
    policy = factory(options)
    if not isinstance(policy, SpillPolicy):
        raise InvalidPolicyError(name, entry.value, f"it is a {type(policy).__name__} and no SpillPolicy")
    return policy


def _origin(entry: EntryPoint) -> str:
    return "" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"
