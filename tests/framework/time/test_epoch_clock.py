"""What the clock of one machine can do to the processing time of an epoch."""

from __future__ import annotations

import pytest

from keyedstate.time.epoch_clock import ClockComparison, EpochClock

DAY = 86_400_000
SKEW = 60_000
NOW = 100 * DAY


@pytest.mark.parametrize(
    ("ahead", "expected"),
    [(0, 0), (SKEW, SKEW), (-SKEW, -SKEW), (SKEW + 1, 0), (30 * DAY, 0), (-30 * DAY, 0)],
)
def test_a_machine_too_far_from_the_storage_goes_by_its_clock(ahead, expected):
    clock = EpochClock(NOW + ahead, NOW, SKEW)
    assert clock.processing_time(None) == NOW + expected
    assert clock.machine_ms + clock.correction_ms == NOW + expected
    assert clock.skew_ms == ahead


@pytest.mark.parametrize("storage", [NOW, None])
@pytest.mark.parametrize(
    ("stored", "expected"), [(None, 0), (-1, 0), (SKEW - 1, SKEW - 1), (SKEW, SKEW), (30 * DAY, SKEW)]
)
def test_time_stops_for_the_largest_skew_at_most(storage, stored, expected):
    found = EpochClock(NOW, storage, SKEW).processing_time(None if stored is None else NOW + stored)
    assert found == NOW + expected


def test_without_a_clock_of_the_storage_that_of_the_machine_counts():
    clock = EpochClock(NOW, None, SKEW)
    assert (clock.skew_ms, clock.correction_ms) == (0, 0)


@pytest.mark.parametrize(
    ("stamp", "skew"),
    [(NOW, 0), (NOW + 10 * SKEW, 0), (NOW + 5 * SKEW, 0), (NOW - DAY, DAY), (NOW + DAY, 10 * SKEW - DAY)],
)
def test_a_slow_storage_is_no_skew_of_the_clock(stamp, skew):
    clock = EpochClock.at_stamp(NOW, stamp, NOW + 10 * SKEW, SKEW)
    assert clock.skew_ms == skew
    assert clock.processing_time(None) == stamp


def test_without_a_stamp_the_time_after_the_request_counts():
    assert EpochClock.at_stamp(NOW, None, NOW + 1, SKEW).processing_time(None) == NOW + 1


def test_a_comparison_tells_the_storages_time_without_another_request() -> None:
    comparison = ClockComparison.at_stamp(1_000, 501_000, 1_010, 77, 60_000)
    later = comparison.clock_at(6_010, 5_077)
    assert later == EpochClock(6_010, 506_000, 60_000)
    assert later.skew_ms == comparison.clock.skew_ms


def test_a_slow_request_shows_no_skew_later_either() -> None:
    comparison = ClockComparison.at_stamp(1_000, 1_000, 1_800, 77, 100)
    later = comparison.clock_at(11_800, 10_077)
    assert later == EpochClock(11_800, 11_800, 100)


def test_a_comparison_follows_a_machine_whose_clock_is_slewed() -> None:
    comparison = ClockComparison.at_stamp(1_000, 1_005, 1_010, 82, 60_000)
    later = comparison.clock_at(7_005, 5_077)
    assert later is not None
    assert (later.skew_ms, later.storage_ms) == (1_000, 6_005)


@pytest.mark.parametrize(("machine_ms", "monotonic_ms"), [(8_010, 5_077), (1_010, 5_077), (700_000, 699_077)])
def test_clocks_are_compared_again_once_one_was_set_or_after_a_while(
    machine_ms: int, monotonic_ms: int
) -> None:
    """The clock was set forward, or the machine slept; it was set back; the comparison is old."""
    comparison = ClockComparison.at_stamp(1_000, 1_005, 1_010, 82, 60_000)
    assert comparison.clock_at(machine_ms, monotonic_ms) is None


def test_a_comparison_with_a_storage_without_times_finds_none_later() -> None:
    comparison = ClockComparison.at_stamp(1_000, None, 1_010, 77, 60_000)
    assert comparison.clock_at(6_010, 5_077) == EpochClock(6_010, None, 60_000)
