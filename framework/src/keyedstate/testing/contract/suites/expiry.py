"""What states with a time to live must do over a backend, through the keyed backend that a job uses."""

from __future__ import annotations

from typing import Any

import pytest

from keyedstate import types
from keyedstate.backend import StateKind
from keyedstate.state import IncrementalCleanup, ManualClock, Ttl, TtlClock, UpdateType, Visibility
from keyedstate.state.registry.keyed_backend import KeyedStateBackend
from keyedstate.testing.contract.base import ContractBase, requires
from keyedstate.testing.contract.keyed import KeyedInstances
from keyedstate.testing.contract.parts import TablePart
from keyedstate.testing.contract.suites.kinds import KINDS, Kind, at, every_kind, merging_kinds

#: What is expired stays until it is read.
TTL = Ttl(100, background_cleanup=False)
NAMESPACE = "w1"
#: What a state shows that "ab" was written to at 0 and "cd" at 60: before 100, and from then to 159.  The
#: elements of a list expire one by one; what is accumulated lives from the last addition.
REWRITTEN: dict[StateKind, tuple[str, str]] = {
    StateKind.VALUE: ("cd", "cd"),
    StateKind.LIST: ("abcd", "cd"),
    StateKind.MAP: ("cd", "cd"),
    StateKind.REDUCING: ("abcd", "abcd"),
    StateKind.AGGREGATING: ("abcd", "abcd"),
}
#: A backend drops as much as is sensible at the end of an epoch, and everything in the end.
EPOCHS_TO_DROP = 100


class TimedState:
    """One state with a time to live over a backend whose clock the test moves.

    Attributes
    ----------
    clock : ManualClock
    backend : KeyedStateBackend
    declared : StateDescriptor
    """

    def __init__(
        self, keyed: KeyedInstances, kind: Kind, ttl: Ttl | None = TTL, *, track_changes: bool = False
    ) -> None:
        self._keyed, self._kind, self._tracks = keyed, kind, track_changes
        self.clock = ManualClock(0)
        self._open([], ttl)

    def _open(self, handles: list[Any], ttl: Ttl | None) -> None:
        self._ttl = ttl
        self.declared = self._kind.declare("state", types.STRING, ttl=ttl)
        self.backend: KeyedStateBackend = self._keyed.open(
            handles, clock=self.clock, track_changes=self._tracks
        )
        # Its clean-up begins with the declaration.
        self.backend.get_state(self.declared, NAMESPACE, types.STRING)

    def restore(self, *ttl: Ttl | None) -> None:
        """Go on from a snapshot in a new instance, with another time to live where one is given."""
        self._open([self._keyed.snapshot(self.backend)], *(ttl or (self._ttl,)))

    def write(self, text: str, key: int = 1, namespace: str = NAMESPACE, *, now: int | None = None) -> None:
        """Write a text, at a time where one is given."""
        if now is not None:
            self.clock.now = now
        self._kind.write(at(self.backend, self.declared, key, namespace), text)

    def shown(self, now: int | None = None, key: int = 1, namespace: str = NAMESPACE) -> str:
        """Return what a read shows, at a time where one is given."""
        if now is not None:
            self.clock.now = now
        return self._kind.read(at(self.backend, self.declared, key, namespace))

    def keys_of_one_group(self, number: int) -> list[int]:
        """Return some keys of one key group."""
        group_of = self.backend.current.key_group_of
        return [key for key in range(100 * number) if group_of(key) == group_of(0)][:number]

    def merge(self, target: str, *sources: str, key: int = 1) -> None:
        """Merge namespaces of a key."""
        at(self.backend, self.declared, key, target).merge_namespaces(target, sources)

    def fill(self, keys: range, now: int) -> None:
        """Write to each of some keys."""
        for key in keys:
            self.write("ab", key, now=now)

    def end_epochs(self, now: int, left: int) -> None:
        """End epochs until no more entries are left, or too many of them."""
        self.clock.now = now
        for _ in range(EPOCHS_TO_DROP):
            self.backend.end_epoch()
            if self.stored <= left:
                break

    @property
    def stored(self) -> int:
        """The number of entries that are there, expired or not."""
        return self.backend.num_entries()


class ExpiryContract(ContractBase):
    """Tests of the time to live; each runs where the kind of state is claimed."""

    # -- what is shown -----------------------------------------------------------------------------------

    @every_kind
    @pytest.mark.parametrize("restored", [False, True], ids=["live", "restored"])
    def test_an_entry_is_expired_at_exactly_its_time_to_live(
        self, keyed: KeyedInstances, kind: Kind, restored: bool
    ) -> None:
        """TTL-01, TTL-03, TTL-13: a snapshot keeps the ages."""
        state = TimedState(keyed, kind)
        assert state.shown() == ""
        state.write("ab", now=50)
        if restored:
            state.clock.now = 120
            state.restore()
        assert state.shown(149) == "ab"
        assert state.stored == 1
        assert state.shown(150) == ""
        assert state.stored == 0, "a read removes what it finds expired"

    @every_kind
    @pytest.mark.parametrize("restored", [False, True], ids=["live", "restored"])
    def test_what_is_written_again_lives_from_then(
        self, keyed: KeyedInstances, kind: Kind, restored: bool
    ) -> None:
        """TTL-03."""
        state = TimedState(keyed, kind)
        state.write("ab", now=0)
        state.write("cd", now=60)
        before, after = REWRITTEN[kind.kind]
        for now, shown in ((99, before), (100, after), (159, after), (160, "")):
            if restored:
                state.restore()
            assert state.shown(now) == shown, now

    @every_kind
    def test_every_key_and_namespace_has_a_time_of_its_own(self, keyed: KeyedInstances, kind: Kind) -> None:
        """TTL-09, TTL-10."""
        state = TimedState(keyed, kind)
        addresses = [(key, namespace) for key in range(20) for namespace in ("w1", "w2")]
        for number, address in enumerate(addresses):
            state.write("ab", *address, now=number)
        state.restore()
        for now in (99, 110, 139):
            shown = [state.shown(now, *address) for address in addresses]
            assert shown == ["ab" if number + 100 > now else "" for number in range(40)]
        assert state.stored == 0

    @every_kind
    def test_a_read_gives_a_new_time_where_reads_count(self, keyed: KeyedInstances, kind: Kind) -> None:
        """TTL-05: also in a snapshot."""
        state = TimedState(keyed, kind, Ttl(100, UpdateType.ON_READ_AND_WRITE, background_cleanup=False))
        state.write("ab", now=0)
        assert state.shown(90) == "ab"
        state.restore()
        assert state.shown(189) == "ab"
        assert state.shown(289) == ""

    @every_kind
    def test_what_is_expired_is_shown_once_where_that_is_asked_for(
        self, keyed: KeyedInstances, kind: Kind
    ) -> None:
        """TTL-04."""
        relaxed = Visibility.RETURN_EXPIRED_IF_NOT_CLEANED_UP
        state = TimedState(keyed, kind, Ttl(100, visibility=relaxed, background_cleanup=False))
        state.write("ab", now=0)
        assert state.shown(500) == "ab"
        assert state.stored == 0
        assert state.shown() == ""

    # -- other settings over existing state --------------------------------------------------------------

    @every_kind
    def test_a_time_to_live_can_be_added_and_changed_and_removed(
        self, keyed: KeyedInstances, kind: Kind
    ) -> None:
        """TTL-14."""
        state = TimedState(keyed, kind, None)
        state.write("ab", now=0)
        state.clock.now = 1_000
        state.restore(TTL)
        assert state.shown(1_099) == "ab", "it begins to live at the restart"
        state.restore(Ttl(300, background_cleanup=False))
        assert state.shown(1_299) == "ab", "the old timestamp counts"
        state.clock.now = 1_300
        state.restore(None)
        assert state.shown() == "ab", "an entry that was not removed stays for ever"
        assert state.shown(10**12) == "ab"

    @every_kind
    def test_in_event_time_the_watermark_decides(self, keyed: KeyedInstances, kind: Kind) -> None:
        state = TimedState(keyed, kind, Ttl(100, clock=TtlClock.EVENT_TIME, background_cleanup=False))
        state.backend.advance_watermark(1_000)
        state.write("ab")
        assert state.shown(10**12) == "ab"
        state.restore()
        state.backend.advance_watermark(1_099)
        assert state.shown() == "ab"
        state.backend.advance_watermark(1_100)
        assert state.shown() == ""

    # -- clocks that jump --------------------------------------------------------------------------------

    @every_kind
    def test_a_clock_that_goes_back_lets_entries_live_on(self, keyed: KeyedInstances, kind: Kind) -> None:
        state = TimedState(keyed, kind, Ttl(100, incremental=IncrementalCleanup(3), expiry_index=True))
        state.write("ab", now=1_000)
        for now in (500, -(10**12), 1_099):
            state.clock.now = now
            state.backend.end_epoch()
            state.restore()
            assert state.shown() == "ab", now
        state.write("cd", 2, now=500)
        state.end_epochs(2_000, 0)
        assert state.stored == 0

    @every_kind
    def test_the_longest_time_to_live_survives_the_longest_jump(
        self, keyed: KeyedInstances, kind: Kind
    ) -> None:
        """TTL-07: nothing wraps around."""
        state = TimedState(keyed, kind, Ttl(2**63 - 1))
        state.write("ab", now=10)
        state.clock.now = 2**62
        state.backend.end_epoch()
        state.restore()
        assert state.shown() == "ab"

    @requires(StateKind.VALUE)
    def test_the_expiry_index_removes_in_time_what_is_overwritten_after_the_clock_went_back(
        self, keyed: KeyedInstances
    ) -> None:
        state = TimedState(keyed, KINDS["value"], Ttl(100, background_cleanup=False, expiry_index=True))
        state.write("ab", now=1_000)
        state.write("cd", now=500)
        for now, left in ((599, 1), (602, 0)):
            state.clock.now = now
            state.backend.end_epoch()
            assert state.stored == left, now

    # -- namespaces that merge ---------------------------------------------------------------------------

    @merging_kinds
    @pytest.mark.parametrize("read", [True, False], ids=["read", "not read"])
    def test_merged_entries_expire_in_time_wherever_the_clean_up_is(
        self, keyed: KeyedInstances, kind: Kind, read: bool
    ) -> None:
        """A round of the clean-up may have passed the target and not yet have come to the source."""
        ttl = Ttl(100, background_cleanup=False, incremental=IncrementalCleanup(1))
        others = [f"other {number}" for number in range(4)]
        for source, target in (("a", "z" * 9), ("z" * 9, "a"), ("w1", "w2"), ("w2", "w1")):
            for accesses in range(20):
                state = TimedState(keyed, kind, ttl)
                key, early, late = state.keys_of_one_group(3)
                # Backends walk in different orders: in some the target comes first and the source last.
                for namespace in (target, *others):
                    state.write("cd", early, namespace, now=10)
                state.write("ab", key, source)
                for namespace in (target, *others):
                    state.write("cd", late, namespace, now=90)
                for namespace in (target, *others):
                    at(state.backend, state.declared, early, namespace).clear()
                for namespace in others:
                    state.write("cd", key, namespace)
                # A round of the clean-up begins when the first entry could be expired.
                for _ in range(accesses):
                    state.shown(100, 1_000)
                state.merge(target, source, key=key)
                for now in (109, 110):
                    assert state.stored == 10, "nothing is expired"
                    for _ in range(40):
                        state.shown(now, 1_000)
                if read:
                    assert state.shown(150, key, target) == "", (source, accesses)
                assert state.stored == 9, (source, accesses)
                state.backend.close()

    @merging_kinds
    @pytest.mark.parametrize("known", [False, True], ids=["new target", "cleared target"])
    def test_the_expiry_index_removes_merged_entries_in_time(
        self, keyed: KeyedInstances, kind: Kind, known: bool
    ) -> None:
        state = TimedState(keyed, kind, Ttl(100, background_cleanup=False, expiry_index=True))
        state.write("ab", now=10, namespace="w2")
        if known:
            state.write("cd", now=90)
            at(state.backend, state.declared, 1, NAMESPACE).clear()
        state.clock.now = 100
        state.merge(NAMESPACE, "w2")
        for now, left in ((109, 1), (112, 0)):
            state.clock.now = now
            state.backend.end_epoch()
            assert state.stored == left, now

    @pytest.mark.parametrize("living", ["target", "source"])
    @pytest.mark.parametrize(
        "kind", [KINDS["reducing"], KINDS["aggregating"]], ids=["reducing", "aggregating"]
    )
    def test_what_lives_of_two_merged_accumulations_begins_to_live(
        self, keyed: KeyedInstances, kind: Kind, living: str
    ) -> None:
        """As Flink's ``TtlReduceFunction`` has it, also where the other one is expired."""
        for at_living, at_other in ((0, 0), (60, 0)):
            state = TimedState(keyed, kind)
            own, other = (NAMESPACE, "w2") if living == "target" else ("w2", NAMESPACE)
            state.write("cd", now=at_other, namespace=other)
            state.write("ab", now=at_living, namespace=own)
            state.clock.now = 99 if at_living == at_other else 130
            state.merge(NAMESPACE, "w2")
            assert state.stored == 1
            now = state.clock.now + 99
            expected = {"cdab", "abcd"} if at_living == at_other else {"ab"}
            assert state.shown(now) in expected
            assert state.shown(now + 1) == ""

    @merging_kinds
    def test_merged_entries_that_are_all_expired_stay_expired(
        self, keyed: KeyedInstances, kind: Kind
    ) -> None:
        state = TimedState(keyed, kind)
        for namespace in ("w1", "w2", "w3"):
            state.write("ab", now=0, namespace=namespace)
        state.clock.now = 100
        state.merge("w1", "w2", "w3")
        assert [state.shown(namespace=namespace) for namespace in ("w1", "w2", "w3")] == [""] * 3
        assert state.stored == 0

    # -- clean-up ----------------------------------------------------------------------------------------

    @every_kind
    def test_the_incremental_clean_up_removes_what_is_not_read(
        self, keyed: KeyedInstances, kind: Kind
    ) -> None:
        """TTL-15, TTL-18: and nothing that lives; live, and where it was restored."""
        ttl = Ttl(100, background_cleanup=False, incremental=IncrementalCleanup(3))
        for restored in (False, True):
            state = TimedState(keyed, kind, ttl)
            state.fill(range(60), now=0)
            state.fill(range(60, 70), now=50)
            state.clock.now = 99
            if restored:
                state.restore()
            for key in range(1_000, 1_100):
                state.shown(99, key)
            assert state.stored == 70
            for key in range(1_000, 1_200):
                state.shown(100, key)
            assert state.stored == 10
            assert [state.shown(149, key) for key in range(60, 70)] == ["ab"] * 10

    @every_kind
    def test_the_expiry_index_removes_what_is_idle_at_the_end_of_an_epoch(
        self, keyed: KeyedInstances, kind: Kind
    ) -> None:
        ttl = Ttl(100, background_cleanup=False, expiry_index=True)
        for restored in (False, True):
            state = TimedState(keyed, kind, ttl)
            state.fill(range(30), now=0)
            state.fill(range(30, 40), now=50)
            if restored:
                state.restore()
            for now, left in ((99, 40), (100, 10), (149, 10), (150, 0)):
                state.clock.now = now
                state.backend.end_epoch()
                assert state.stored == left, now

    @every_kind
    def test_a_full_snapshot_leaves_expired_entries_out_where_that_is_asked_for(
        self, keyed: KeyedInstances, kind: Kind
    ) -> None:
        """SB-52: and the running state keeps them."""
        state = TimedState(keyed, kind, Ttl(100, background_cleanup=False, full_snapshot=True))
        state.fill(range(20), now=0)
        state.fill(range(20, 25), now=50)
        state.clock.now = 100
        state.backend.end_epoch()
        running = state.backend
        state.restore()
        assert running.num_entries() == 25
        assert state.stored == 5
        assert [state.shown(key=key) for key in range(20, 25)] == ["ab"] * 5

    @requires(TablePart.CHANGE_TRACKING)
    @every_kind
    def test_what_a_read_or_the_framework_removes_is_a_change_of_the_epoch(
        self, keyed: KeyedInstances, kind: Kind
    ) -> None:
        """Or a chain of deltas would keep it for ever."""
        state = TimedState(
            keyed, kind, Ttl(100, background_cleanup=False, expiry_index=True), track_changes=True
        )
        state.backend.begin_epoch(1)
        state.fill(range(10), now=0)
        state.fill(range(10, 20), now=50)
        state.backend.begin_epoch(2)
        assert state.shown(100, 3) == ""
        state.backend.end_epoch()
        (changes,) = state.backend.changes_since(1).values()
        groups = state.backend.key_groups
        removed = [key for group in groups for batch in changes.removed(group, 10) for key in batch.keys]
        written = [key for group in groups for batch in changes.written(group, 10) for key in batch.keys]
        changes.release()
        assert (sorted(removed), written) == (list(range(10)), [])

    @requires(TablePart.EXPIRY_CLEANUP)
    @every_kind
    @pytest.mark.parametrize("restored", [False, True], ids=["live", "restored"])
    def test_the_backend_drops_what_is_expired_and_nothing_else_where_that_is_claimed(
        self, keyed: KeyedInstances, kind: Kind, restored: bool
    ) -> None:
        """Without any access; no clean-up of the framework's takes part."""
        state = TimedState(keyed, kind, Ttl(100))
        state.fill(range(300), now=0)
        state.fill(range(290, 310), now=50)
        if restored:
            state.restore()
        state.end_epochs(99, 0)
        assert state.stored == 310, "nothing was expired"
        state.end_epochs(100, 20)
        assert sorted(state.backend.get_keys("state", NAMESPACE)) == list(range(290, 310))
        again = "abab" if REWRITTEN[kind.kind][1] == "abcd" else "ab"
        assert [state.shown(149, key) for key in range(290, 310)] == [again] * 10 + ["ab"] * 10
        state.end_epochs(150, 0)
        assert state.stored == 0

    @requires(TablePart.EXPIRY_CLEANUP, StateKind.VALUE)
    def test_the_backend_drops_nothing_that_has_no_time(self, keyed: KeyedInstances) -> None:
        """In event time, what was written before the first watermark."""
        state = TimedState(keyed, KINDS["value"], Ttl(100, clock=TtlClock.EVENT_TIME))
        state.fill(range(20), now=0)
        for watermark in (None, 10**12):
            if watermark is not None:
                state.backend.advance_watermark(watermark)
            state.end_epochs(10**12, 0)
            assert state.stored == 20
        assert [state.shown(key=key) for key in range(20)] == ["ab"] * 20
