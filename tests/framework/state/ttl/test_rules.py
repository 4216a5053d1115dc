"""The rules of the time to live, for every kind of state, each step also over a snapshot and a restore."""

from __future__ import annotations

import pytest

from keyedstate import types
from keyedstate.state import IncrementalCleanup, Ttl, TtlClock, UpdateType, Visibility
from keyedstate.state.clock import END_OF_TIME

WRITTEN = UpdateType.ON_CREATE_AND_WRITE
READ = UpdateType.ON_READ_AND_WRITE
STRICT = Visibility.NEVER_RETURN_EXPIRED
RELAXED = Visibility.RETURN_EXPIRED_IF_NOT_CLEANED_UP


def ttl(update=WRITTEN, visibility=STRICT, ms=100, **settings):
    return Ttl(ms, update, visibility, background_cleanup=False, **settings)


def test_an_unset_state_reads_as_empty(rig):
    """TTL-01."""
    rig.declare(ttl())
    rig.check_empty()
    assert rig.stored == 0


def test_an_entry_lives_from_its_last_write(rig):
    """TTL-03: exactly at its time to live an entry is expired; reading it removes it."""
    rig.declare(ttl())
    rig.write(0)
    rig.at(20).check()
    rig.at(50).write(1)
    rig.at(120).check()
    rig.at(170).write(2)
    rig.at(220).check()
    rig.at(270).check_empty()
    assert rig.stored == 0


def test_an_entry_lives_one_millisecond_less_than_its_time_to_live_and_no_longer(rig):
    """TTL-03."""
    rig.declare(ttl())
    rig.write(0)
    rig.at(99).check()
    rig.at(100).check_empty()


def test_an_expired_entry_may_be_shown_once_before_it_is_removed(rig):
    """TTL-04."""
    rig.declare(ttl(visibility=RELAXED))
    rig.write(0)
    rig.at(120).check()
    assert rig.stored == 0
    rig.check_empty()


def test_a_read_gives_an_entry_a_new_time_where_reads_count(rig):
    """TTL-05."""
    rig.declare(ttl(READ))
    rig.write(0)
    rig.at(50).check()
    rig.at(120).check()
    rig.at(250).check_empty()


def test_reading_what_is_expired_gives_it_no_new_time(rig):
    """TTL-06."""
    rig.declare(ttl(READ, RELAXED))
    rig.write(0)
    rig.at(50).check()
    rig.at(170).check()
    rig.check_empty()


def test_the_longest_time_to_live_does_not_wrap_around(rig):
    """TTL-07."""
    rig.declare(ttl(ms=2**63 - 1))
    rig.at(10).write(0)
    rig.at(50).check()


def test_keys_expire_each_at_its_own_time(rig):
    """TTL-09."""
    rig.declare(ttl())
    _check_two_addresses(rig, (1, 0), (2, 0))


def test_namespaces_expire_each_at_its_own_time(rig):
    """TTL-10."""
    rig.declare(ttl())
    _check_two_addresses(rig, (1, 0), (1, 1))


def _check_two_addresses(rig, one, two):
    rig.use(*two)
    rig.write(0)
    rig.at(50).use(*one)
    rig.write(0)
    rig.use(*two)
    rig.write(1)
    rig.at(120)
    for address in one, two:
        rig.use(*address)
        rig.check()
    rig.at(170).use(*two)
    rig.write(2)
    rig.at(230).use(*one)
    rig.check_empty()
    rig.use(*two)
    rig.check()
    rig.at(300)
    for address in one, two:
        rig.use(*address)
        rig.check_empty()


def test_entries_keep_their_age_over_a_restore(rig):
    """TTL-13: what was written after the snapshot is gone with the restore."""
    rig.declare(ttl())
    rig.write(0)
    rig.at(50).write(1)
    rig.at(100).use(2)
    rig.write(0)
    segment, parts = rig.snapshot(), dict(rig.parts)
    rig.at(170).use(1)
    rig.write(2)
    rig.use(2)
    rig.write(2)
    rig.restore(segment)
    rig.parts = parts
    rig.at(180).use(1)
    rig.check_empty()
    rig.use(2)
    rig.check()


def test_a_time_to_live_that_is_added_begins_at_the_restore(rig):
    """TTL-14: nothing is lost, nothing is expired at once."""
    rig.declare(None)
    rig.write(0)
    rig.at(1000)
    segment = rig.snapshot()
    rig.ttl = ttl()
    rig.restore(segment)
    rig.parts = {
        address: {part: (1000, value) for part, (_, value) in parts.items()}
        for address, parts in rig.parts.items()
    }
    rig.at(1099).check()
    rig.at(1100).check_empty()


def test_a_state_continues_without_its_time_to_live(rig):
    """TTL-14: also what is expired and was not removed is there again."""
    rig.declare(ttl())
    rig.write(0)
    rig.at(200)
    segment = rig.snapshot()
    rig.ttl = None
    rig.restore(segment)
    assert rig.kind.read(rig.handle) == rig.kind.show(rig.parts[1, 0])
    rig.at(10_000)
    assert rig.kind.read(rig.handle) == rig.kind.show(rig.parts[1, 0])


def test_another_time_to_live_counts_from_the_old_times(rig):
    """TTL-14."""
    rig.declare(ttl(ms=1000))
    rig.write(0)
    rig.at(60)
    segment = rig.snapshot()
    rig.ttl = ttl(ms=100)
    rig.restore(segment)
    rig.at(99).check()
    rig.at(100).check_empty()


def test_another_clock_gives_everything_the_present_time_of_that_clock(rig):
    """Event time may be far from processing time; an age in one says nothing in the other."""
    rig.declare(ttl())
    rig.write(0)
    rig.at(90)
    segment = rig.snapshot()
    rig.ttl = ttl(clock=TtlClock.EVENT_TIME)
    rig.restores = False
    rig.backend = rig.instances.open([segment], clock=rig.clock)
    rig.backend.advance_watermark(7_000_000)
    rig.use(1)
    assert rig.kind.read(rig.handle) == rig.kind.show(rig.parts[1, 0])
    rig.backend.advance_watermark(7_000_099)
    assert rig.kind.read(rig.handle) == rig.kind.show(rig.parts[1, 0])
    rig.backend.advance_watermark(7_000_100)
    rig.check_empty()


# -- event time -------------------------------------------------------------------------------------------


@pytest.fixture
def event_rig(rig):
    rig.restores = False
    rig.declare(ttl(clock=TtlClock.EVENT_TIME))
    return rig


def _shown(rig):
    return rig.kind.show(rig.parts[1, 0])


def test_event_time_stands_still_however_late_it_gets(event_rig):
    event_rig.backend.advance_watermark(1000)
    event_rig.write(0)
    event_rig.clock.now = 10**9
    event_rig.use(1)
    assert event_rig.kind.read(event_rig.handle) == _shown(event_rig)
    event_rig.backend.advance_watermark(1100)
    event_rig.check_empty()


def test_an_entry_lives_from_the_timestamp_of_its_record_where_the_watermark_lags(event_rig):
    event_rig.backend.advance_watermark(1000)
    event_rig.backend.current.timestamp = 1500
    event_rig.backend.set_current_key(1)
    event_rig.write(0)
    event_rig.backend.advance_watermark(1599)
    assert event_rig.kind.read(event_rig.handle) == _shown(event_rig)
    event_rig.backend.advance_watermark(1600)
    event_rig.check_empty()


def test_a_late_record_lives_from_the_watermark(event_rig):
    event_rig.backend.advance_watermark(1000)
    event_rig.backend.current.timestamp = 10
    event_rig.backend.set_current_key(1)
    event_rig.write(0)
    event_rig.backend.advance_watermark(1099)
    assert event_rig.kind.read(event_rig.handle) == _shown(event_rig)


def test_a_late_row_that_reads_makes_no_entry_older(rig):
    """TTL-05: how long an entry lives does not depend on the order in which rows read it."""
    rig.restores = False
    rig.declare(ttl(READ, clock=TtlClock.EVENT_TIME))
    rig.backend.advance_watermark(500)
    for timestamp, use in ((1000, lambda: rig.write(0)), (600, None), (1020, None), (700, None)):
        rig.backend.current.timestamp = timestamp
        rig.backend.set_current_key(1)
        if use is not None:
            use()
        else:
            assert rig.kind.read(rig.handle) == _shown(rig)
    rig.backend.current.timestamp = None
    rig.backend.advance_watermark(1119)
    assert rig.stored == 1
    rig.backend.advance_watermark(1120)
    rig.check_empty()


def test_the_watermark_never_goes_back(event_rig):
    event_rig.backend.advance_watermark(1000)
    event_rig.write(0)
    event_rig.backend.advance_watermark(10)
    assert event_rig.backend.watermark == 1000
    event_rig.backend.advance_watermark(1100)
    event_rig.check_empty()


def test_what_is_written_before_the_first_watermark_does_not_expire_with_it(event_rig):
    event_rig.write(0)
    event_rig.backend.advance_watermark(10**12)
    assert event_rig.kind.read(event_rig.handle) == _shown(event_rig)


@pytest.mark.parametrize(
    "settings", [{"incremental": IncrementalCleanup(5, every_record=True)}, {"expiry_index": True}]
)
def test_what_has_no_time_yet_gets_the_watermarks_and_not_that_of_another_record(rig, settings):
    """An old record that passes by before the first watermark must not make all that is restored expire."""
    rig.restores = False
    rig.declare(ttl(clock=TtlClock.EVENT_TIME, **settings))
    rig.write(0)
    rig.backend.current.timestamp = 5
    for key in (2, 3):
        rig.backend.set_current_key(key)
        rig.backend.end_epoch()
    rig.backend.current.timestamp = None
    rig.backend.advance_watermark(1000)
    rig.backend.current.timestamp = 10**9
    for key in (2, 3):
        rig.backend.set_current_key(key)
        rig.backend.end_epoch()
    rig.use(1)
    assert rig.kind.read(rig.handle) == _shown(rig)
    rig.backend.advance_watermark(1100)
    rig.check_empty()


def test_at_the_end_of_event_time_everything_is_expired(event_rig):
    """TTL-07: as sums saturate, also what lives as long as can be."""
    event_rig.backend.advance_watermark(1000)
    event_rig.write(0)
    event_rig.backend.advance_watermark(END_OF_TIME)
    event_rig.check_empty()


def test_a_clock_that_goes_back_lets_entries_live_on(rig):
    rig.restores = False
    rig.declare(ttl())
    rig.at(1000).write(0)
    rig.at(500)
    assert rig.kind.read(rig.handle) == _shown(rig)
    rig.at(1099)
    assert rig.kind.read(rig.handle) == _shown(rig)
    rig.at(1100).check_empty()


# -- clean-up ---------------------------------------------------------------------------------------------


def _filled(rig, settings, keys):
    """Write to many keys at time 0, then go to time 100, at which all are expired."""
    rig.restores = False
    rig.declare(settings)
    for key in range(keys):
        rig.use(key)
        rig.write(0)
    rig.clock.now = 100


def test_selecting_keys_cleans_everything_up_where_every_record_counts(rig):
    """TTL-15: as many keys as make heap-cow rehash while it is walked over."""
    keys = (128 // 2 + 128 // 4 + 1) * 10
    _filled(rig, ttl(incremental=IncrementalCleanup(5, every_record=True)), keys)
    assert rig.stored == keys
    for key in range(keys):
        rig.backend.set_current_key(key)
    assert rig.stored == 0


@pytest.mark.usefixtures("cleaned_by_use")
def test_using_a_state_cleans_up_five_entries_at_a_time(rig):
    """TTL-18: the defaults of the background clean-up."""
    _filled(rig, Ttl(100), 50)
    rig.use(10_000)
    assert rig.stored == 50
    rig.check_empty()
    # The last of five may be found together with others of its bucket.
    assert 30 < rig.stored <= 45
    for _ in range(20):
        rig.check_empty()
    assert rig.stored == 0


def test_without_clean_up_only_what_is_read_is_removed(rig):
    """TTL-17, TTL-18."""
    _filled(rig, ttl(), 50)
    rig.use(10_000)
    for _ in range(50):
        rig.check_empty()
    assert rig.stored == 50


def test_the_clean_up_rests_until_something_can_expire_and_then_misses_nothing(rig):
    """TTL-15: entries written at different times, and some of them again."""
    rig.restores = False
    rig.declare(ttl(incremental=IncrementalCleanup(2)))
    for key in range(40):
        rig.at(key).use(key)
        rig.write(0)
    for key in range(0, 40, 2):
        rig.at(60).use(key)
        rig.write(1)
    rig.at(99).use(10_000)
    for _ in range(100):
        rig.check_empty()
    assert rig.stored == 40
    rig.at(139)
    for _ in range(100):
        rig.check_empty()
    assert rig.stored == 20
    for key in range(0, 40, 2):
        rig.use(key)
        rig.check()
    rig.at(159).use(10_000)
    for _ in range(100):
        rig.check_empty()
    assert rig.stored == 20
    rig.at(160)
    for _ in range(100):
        rig.check_empty()
    assert rig.stored == 0


def test_the_clean_up_of_a_restored_state_begins_at_once(rig):
    _filled(rig, ttl(incremental=IncrementalCleanup(5)), 20)
    rig.restore(rig.snapshot())
    rig.use(10_000)
    for _ in range(20):
        rig.check_empty()
    assert rig.stored == 0


@pytest.mark.usefixtures("cleaned_by_use")
def test_the_clean_up_gives_a_time_to_what_was_written_before_the_first_watermark(rig):
    rig.restores = False
    rig.declare(Ttl(100, clock=TtlClock.EVENT_TIME))
    rig.write(0)
    rig.backend.advance_watermark(1000)
    rig.use(10_000)
    rig.check_empty()
    rig.backend.advance_watermark(1099)
    rig.check_empty()
    rig.check_empty()
    assert rig.stored == 1
    rig.backend.advance_watermark(1100)
    rig.check_empty()
    rig.check_empty()
    assert rig.stored == 0


@pytest.mark.usefixtures("cleaned_by_use")
def test_what_the_clean_up_removes_is_a_change_of_the_epoch(instances, kind):
    from keyedstate.state import ManualClock

    clock = ManualClock(0)
    backend = instances.open(clock=clock, track_changes=True)
    backend.begin_epoch(1)
    handle = backend.get_state(kind.declare(Ttl(100)))
    for key in range(5):
        backend.set_current_key(key)
        kind.write(handle, kind.writes[0])
    backend.begin_epoch(2)
    clock.now = 100
    backend.set_current_key(1000)
    for _ in range(3):
        kind.read(handle)
    changes = backend.changes_since(1)["state"]
    removed = [key for group in range(10) for batch in changes.removed(group, 10) for key in batch.keys]
    assert sorted(removed) == [0, 1, 2, 3, 4]
    changes.release()


def test_a_full_snapshot_leaves_expired_entries_out_and_the_running_state_keeps_them(rig):
    """SB-52."""
    _filled(rig, ttl(full_snapshot=True), 50)
    rig.use(7)
    rig.write(1)
    expected = dict(rig.parts)
    segment = rig.snapshot()
    assert rig.stored == 50
    rig.restore(segment)
    assert rig.stored == 1
    rig.parts = expected
    rig.use(7)
    rig.check()


def test_a_full_snapshot_is_filtered_by_the_time_at_which_it_was_taken(rig):
    """SB-52."""
    rig.restores = False
    rig.declare(ttl(full_snapshot=True))
    rig.write(0)
    rig.at(99)
    task = rig.backend.snapshot(1)
    rig.clock.now = 1000
    segment = rig.instances.write(rig.backend, task)
    rig.clock.now = 99
    rig.restore(segment)
    rig.check()


# -- the expiry index -------------------------------------------------------------------------------------


def test_idle_keys_go_at_the_end_of_an_epoch_with_an_expiry_index(rig):
    _filled(rig, ttl(expiry_index=True), 50)
    rig.use(7)
    rig.write(1)
    rig.backend.end_epoch()
    assert rig.stored == 1
    rig.check()
    rig.clock.now = 199
    rig.backend.end_epoch()
    assert rig.stored == 1
    rig.clock.now = 200
    rig.backend.end_epoch()
    assert rig.stored == 0


def test_an_expiry_index_has_the_restored_entries(rig):
    _filled(rig, ttl(expiry_index=True), 50)
    rig.clock.now = 60
    rig.use(7)
    rig.write(1)
    rig.restore(rig.snapshot())
    rig.clock.now = 100
    rig.backend.end_epoch()
    assert rig.stored == 1
    rig.clock.now = 160
    rig.backend.end_epoch()
    assert rig.stored == 0


def test_an_expiry_index_follows_reads_where_reads_count(rig):
    rig.restores = False
    rig.declare(ttl(READ, expiry_index=True))
    rig.write(0)
    rig.at(60).check()
    rig.clock.now = 159
    rig.backend.end_epoch()
    assert rig.stored == 1
    rig.clock.now = 160
    rig.backend.end_epoch()
    assert rig.stored == 0


def test_an_expiry_index_keeps_entries_cleared_and_written_again(rig):
    rig.restores = False
    rig.declare(ttl(expiry_index=True))
    for now in range(0, 1000, 10):
        rig.at(now).handle.clear()
        rig.parts.clear()
        rig.write(0)
        rig.backend.end_epoch()
        rig.check()
    rig.clock.now = 1090
    rig.backend.end_epoch()
    assert rig.stored == 0


def test_an_expiry_index_is_at_most_a_64th_of_the_ttl_late(rig):
    rig.restores = False
    rig.declare(ttl(ms=64_000, expiry_index=True))
    rig.at(999).write(0)
    rig.clock.now = 64_998
    rig.backend.end_epoch()
    assert rig.stored == 1
    rig.clock.now = 65_999
    rig.backend.end_epoch()
    assert rig.stored == 0


def test_an_expiry_index_gives_a_time_to_what_was_written_before_the_first_watermark(rig):
    rig.restores = False
    rig.declare(ttl(clock=TtlClock.EVENT_TIME, expiry_index=True))
    rig.write(0)
    rig.backend.end_epoch()
    rig.backend.advance_watermark(1000)
    rig.backend.end_epoch()
    rig.backend.advance_watermark(1099)
    rig.backend.end_epoch()
    assert rig.stored == 1
    rig.backend.advance_watermark(1100)
    rig.backend.end_epoch()
    assert rig.stored == 0


def test_namespaces_other_than_numbers_have_a_time_to_live_too(instances, kind):
    from keyedstate.state import ManualClock

    clock = ManualClock(0)
    backend = instances.open(clock=clock)
    handle = backend.get_state(
        kind.declare(Ttl(100, expiry_index=True)), ("a", 1), types.tuple_of(types.STRING, types.INT64)
    )
    backend.set_current_key(1)
    kind.write(handle, kind.writes[0])
    clock.now = 100
    backend.end_epoch()
    assert backend.num_entries() == 0
