"""The state machine of the time to live: clocks, clean-ups and merged namespaces against a plain model."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from keyedstate import types
from keyedstate.backend import StateKind
from keyedstate.state import IncrementalCleanup, ManualClock, Ttl
from keyedstate.testing.contract.base import ContractBase
from keyedstate.testing.contract.keyed import KeyedInstances
from keyedstate.testing.contract.machines.state_machine import profile
from keyedstate.testing.contract.suites.kinds import KINDS, Kind, at

TTL_MS = 100
#: Each removes expired entries in another way; the first few entries at a time, so that rounds last long.
TTLS = (
    *3 * (Ttl(TTL_MS, background_cleanup=False, incremental=IncrementalCleanup(1)),),
    Ttl(TTL_MS, background_cleanup=False, expiry_index=True),
    Ttl(TTL_MS, background_cleanup=False, incremental=IncrementalCleanup(1), expiry_index=True),
    Ttl(TTL_MS),
    Ttl(TTL_MS, background_cleanup=False, full_snapshot=True),
)
MERGING = (StateKind.LIST, StateKind.REDUCING, StateKind.AGGREGATING)
ACCUMULATING = (StateKind.REDUCING, StateKind.AGGREGATING)

Address = tuple[int, str]
#: When texts were written, in their order.  A list has one per element; other kinds have one.
Parts = list[tuple[int, str]]

KEYS = range(4)
_keys = st.sampled_from(KEYS)
_namespaces = st.sampled_from(("w1", "w2", "w3", "another one"))
_texts = st.sampled_from(("ab", "cd", "ef"))


class ExpiryMachine(RuleBasedStateMachine):
    """One state, of which only what a rule touches is read, so that clean-ups find the rest."""

    def __init__(self, keyed: KeyedInstances) -> None:
        super().__init__()
        self.keyed = keyed
        self.clock = ManualClock(1_000)
        self.model: dict[Address, Parts] = {}
        claimed = [kind for kind in KINDS.values() if keyed.supports(kind.kind)]
        #: Lists most often: their elements keep their times wherever they go.
        self.kinds = claimed + 5 * [kind for kind in claimed if kind.kind is StateKind.LIST]

    @initialize(
        kind=st.runner().flatmap(lambda self: st.sampled_from(self.kinds)),
        ttl=st.sampled_from(TTLS),
    )
    def declare(self, kind: Kind, ttl: Ttl) -> None:
        self.kind = kind
        self.state = kind.declare("state", types.STRING, ttl=ttl)
        self.backend = self.keyed.open(clock=self.clock)

    def _handle(self, address: Address) -> Any:
        return at(self.backend, self.state, *address)

    def _living(self, address: Address) -> Parts:
        return [part for part in self.model.get(address, []) if part[0] + TTL_MS > self.clock.now]

    @rule(key=_keys, namespace=_namespaces)
    def read(self, key: int, namespace: str) -> None:
        living = self._living((key, namespace))
        assert self.kind.read(self._handle((key, namespace))) == "".join(text for _, text in living)
        self.model[key, namespace] = living

    @rule(key=_keys, namespace=_namespaces, text=_texts)
    def write(self, key: int, namespace: str, text: str) -> None:
        address, now = (key, namespace), self.clock.now
        living = self._living(address)
        self.kind.write(self._handle(address), text)
        if self.kind.kind is StateKind.LIST:
            self.model[address] = [*living, *((now, element) for element in text)]
        elif self.kind.kind in ACCUMULATING:
            # An addition makes nothing older where the clock went back.
            stamp = max([now, *(stamp for stamp, _ in living)])
            self.model[address] = [(stamp, "".join(old for _, old in living) + text)]
        else:
            self.model[address] = [(now, text)]

    @rule(key=_keys, namespace=_namespaces)
    def clear(self, key: int, namespace: str) -> None:
        self._handle((key, namespace)).clear()
        self.model.pop((key, namespace), None)

    @precondition(lambda self: self.kind.kind in MERGING)
    @rule(key=_keys, into=_namespaces, sources=st.lists(_namespaces, min_size=1, max_size=3, unique=True))
    def merge(self, key: int, into: str, sources: list[str]) -> None:
        namespaces = [into, *(source for source in sources if source != into)]
        if self.kind.kind in ACCUMULATING:
            # Whether an expired one is stored still decides whether a living one gets a new time.
            for namespace in namespaces:
                self.read(key, namespace)
        self._handle((key, into)).merge_namespaces(into, sources)
        found = [living for namespace in namespaces if (living := self._living((key, namespace)))]
        for namespace in namespaces:
            self.model.pop((key, namespace), None)
        parts = [part for living in found for part in living]
        if self.kind.kind in ACCUMULATING and len(found) > 1:
            stamp = max(self.clock.now, *(stamp for stamp, _ in parts))
            parts = [(stamp, "".join(text for _, text in parts))]
        if parts:
            self.model[key, into] = parts

    @precondition(lambda self: self.kind.kind in MERGING)
    @rule(
        into=_namespaces,
        source=_namespaces,
        texts=st.lists(_texts, min_size=2, max_size=6),
        accesses=st.integers(0, 5),
    )
    def merge_while_the_clean_up_walks(self, into: str, source: str, texts: list[str], accesses: int) -> None:
        """From a source that has little time left; a round of the clean-up has begun for what had less."""
        for key in KEYS:
            self.write(key, "expires first", "ab")
            self.let_time_pass(10)
            self.write(key, source, "ab")
            self.let_time_pass(90)
            for number, text in enumerate(texts):
                self.write(key, f"{source}{number}", text)
            self.let_the_clean_up_walk(accesses)
            self.merge(key, into, [source])
            self.let_the_clean_up_walk(40)
            self.let_time_pass(20)
            self.read(key, into)

    @rule(step=st.sampled_from((1, 20, 49, 50, 51, 99, 100, -30, -150)))
    def let_time_pass(self, step: int) -> None:
        if step < 0:
            # What is expired must be gone, or it lives again.
            for address in list(self.model):
                self.read(*address)
        self.clock.advance(step)

    @rule(accesses=st.integers(1, 12))
    def let_the_clean_up_walk(self, accesses: int) -> None:
        for _ in range(accesses):
            assert self.kind.read(self._handle((1_000, "w1"))) == ""

    @rule()
    def end_epoch(self) -> None:
        self.backend.end_epoch()

    @rule()
    def restore(self) -> None:
        snapshot = self.keyed.snapshot(self.backend)
        self.backend.close()
        self.backend = self.keyed.open([snapshot], clock=self.clock)

    def teardown(self) -> None:
        if hasattr(self, "kind"):
            for address in list(self.model):
                self.read(*address)
            self.backend.close()


class ExpiryMachineContract(ContractBase):
    """The state machine as a test."""

    def test_entries_live_as_long_as_a_plain_model_says(self, keyed: KeyedInstances) -> None:
        # Hypothesis takes whatever makes a machine, and says that it takes a class.
        run_state_machine_as_test(lambda: ExpiryMachine(keyed), settings=profile())  # type: ignore[arg-type]
