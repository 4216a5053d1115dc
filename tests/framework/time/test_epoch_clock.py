"""What the clock of one machine can do to the processing time of an epoch."""

from __future__ import annotations

import pytest

from keyedstate.time.epoch_clock import EpochClock

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
