"""A process whose memory is a number, a clock that tests move, and a table whose entries are counted only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from keyedstate import types
from keyedstate.backend import SpillableGroup, StateKind, StateMeta
from keyedstate_spillable.accesses import Accesses, CountingTable
from keyedstate_spillable.adaptive import AdaptivePolicy
from keyedstate_spillable.manager import TieredSpillManager
from keyedstate_spillable.monitor import MemoryAccount, MemoryMonitor
from keyedstate_spillable.options import OPTIONS
from keyedstate_spillable.policy import SpillPolicy, StateMapMeta

MIB = 1 << 20


def options(**changed: Any) -> dict[str, Any]:
    """Return the options with their defaults and some values, as ``load_mark=0.2`` for ``...load-mark``."""
    values = {option.name: option.default for option in OPTIONS}
    for name, value in changed.items():
        (option,) = (one for one in values if one.rpartition(".")[2] == name.replace("_", "-"))
        values[option] = value
    return values


def state_map(table: str, key_group: int, **facts: Any) -> StateMapMeta:
    """Return a key group with a hundred entries of 100 bytes in memory, unless facts say otherwise."""
    given = {
        "in_memory": 100,
        "on_disk": 0,
        "entry_bytes": 100.0,
        "requests": 0,
        "rate": 0.0,
        "mutable": False,
    }
    return StateMapMeta(table, key_group, **{**given, **facts})


class Clock:
    """Milliseconds that a test sets."""

    now = 0

    def __call__(self) -> int:
        return self.now


class Machine:
    """What the system tells."""

    def __init__(self) -> None:
        self.process: int | None = 100 * MIB
        self.limits: tuple[int, int] | None = None
        self.waiting = 0.0

    def process_bytes(self) -> int | None:
        return self.process

    def container(self) -> tuple[int, int] | None:
        return self.limits

    def pressure(self) -> float:
        return self.waiting


class CountedTable(CountingTable):
    """Entries of one size, counted by key group; the process occupies what they do and returns nothing."""

    def __init__(self, world: World, groups: Mapping[int, int], entry_bytes: int, *, mutable: bool) -> None:
        values = types.list_of(types.INT64) if mutable else types.INT64
        self.meta = StateMeta("counted", StateKind.VALUE, types.STRING, types.VOID, values)
        self.world = world
        self.entry_bytes = entry_bytes
        self.memory = dict.fromkeys(groups, 0)
        self.disk = dict.fromkeys(groups, 0)
        self.requests = dict.fromkeys(groups, 0)
        self.asked_disk = 0
        self.calls: list[tuple[str, int | None, int]] = []
        for key_group, entries in groups.items():
            self.add(key_group, entries)

    def add(self, key_group: int, entries: int) -> None:
        self.memory[key_group] += entries
        self.world.occupy(entries * self.entry_bytes)

    @property
    def memory_bytes(self) -> int:
        return sum(self.memory.values()) * self.entry_bytes

    @property
    def accesses(self) -> Accesses:
        return Accesses(sum(self.requests.values()), self.asked_disk)

    def spillable_groups(self) -> Sequence[SpillableGroup]:
        return [
            SpillableGroup(
                group,
                self.memory[group],
                self.disk[group],
                self.memory[group] * self.entry_bytes,
                self.requests[group],
            )
            for group in self.memory
            if self.memory[group] or self.disk[group]
        ]

    def spill(self, key_group: int, limit: int) -> int:
        moved = min(limit, self.memory[key_group])
        self._move(key_group, moved)
        self.calls.append(("spill", key_group, moved))
        return moved

    def load(self, key_group: int, limit: int) -> int:
        moved = min(limit, self.disk[key_group])
        self._move(key_group, -moved)
        self.calls.append(("load", key_group, moved))
        return moved

    def spill_coldest(self, limit: int) -> int:
        total = 0
        for group in self.memory:
            moved = min(limit - total, self.memory[group])
            self._move(group, moved)
            total += moved
        self.calls.append(("coldest", None, total))
        return total

    def _move(self, key_group: int, entries: int) -> None:
        self.memory[key_group] -= entries
        self.disk[key_group] += entries
        self.world.occupy(-entries * self.entry_bytes)
        self.world.clock.now += self.world.ms_per_call


@dataclass(eq=False)
class World:
    """One process with one instance.

    Attributes
    ----------
    tables : dict
    ms_per_call : int
        How long one call of a table takes.
    cancelled : int
        How often snapshots were cancelled.
    """

    machine: Machine = field(default_factory=Machine)
    clock: Clock = field(default_factory=Clock)
    tables: dict[str, Any] = field(default_factory=dict)
    ms_per_call: int = 0
    cancelled: int = 0
    free: int = 0

    def occupy(self, size: int) -> None:
        """Occupy memory, first what was freed; what is freed is not returned to the system."""
        self.free -= size
        if self.free < 0:
            assert self.machine.process is not None
            self.machine.process -= self.free
            self.free = 0

    def table(
        self, name: str, groups: Mapping[int, int], entry_bytes: int = 1024, *, mutable: bool = False
    ) -> CountedTable:
        """Add a table with so many entries in its key groups."""
        self.tables[name] = CountedTable(self, groups, entry_bytes, mutable=mutable)
        return self.tables[name]

    @contextmanager
    def running(
        self, policy: SpillPolicy, budget: int = 1024 * MIB, *, cancels: bool = True, without_state: int = 0
    ) -> Iterator[Callable[[int], TieredSpillManager]]:
        """Give a function that lets time pass, measures, and balances once."""
        monitor = MemoryMonitor(self.machine, self.clock)  # type: ignore[arg-type]
        memory = MemoryAccount(monitor, budget, 0, without_state)
        manager = TieredSpillManager(
            policy, AdaptivePolicy(options()), memory, cancels=cancels, owner=self, clock=self.clock
        )

        def step(passed_ms: int) -> TieredSpillManager:
            self.clock.now += passed_ms
            monitor.sample()
            manager.balance(self.tables, self.cancel)
            return manager

        try:
            yield step
        finally:
            manager.close()
            monitor.close()

    def cancel(self) -> int:
        self.cancelled += 1
        return 1
