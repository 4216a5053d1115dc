"""Watermarks of channels: the valve, and the alignment of sources."""

from __future__ import annotations

import random

from keyedstate.local.channels.elements import Watermark, WatermarkStatus
from keyedstate.local.channels.watermark_alignment import WatermarkAlignment
from keyedstate.local.channels.watermark_valve import WatermarkValve
from keyedstate.state.clock import BEFORE_TIME, END_OF_TIME

ACTIVE, IDLE = WatermarkStatus


def passed(valve, channel, *elements):
    """Return what the valve passes on; numbers are watermarks."""
    out = []
    for element in elements:
        given = Watermark(element) if isinstance(element, int) else element
        out += valve.receive(channel, given)
    return [mark.time_ms if isinstance(mark, Watermark) else mark for mark in out]


# -- the valve --------------------------------------------------------------------------------------------


def test_the_valve_passes_on_the_least_watermark_and_only_when_it_grows():
    """WM-03."""
    valve = WatermarkValve(3)
    assert passed(valve, 0, 10) == []
    assert passed(valve, 1, 20) == []
    assert valve.watermark == BEFORE_TIME
    assert passed(valve, 2, 5) == [5]
    assert passed(valve, 2, 7, 8) == [7, 8]
    assert passed(valve, 2, 30) == [10]
    assert passed(valve, 1, 15, 25) == [], "a watermark goes back, and one is not the least"
    assert passed(valve, 0, 40) == [25]
    assert valve.watermark == 25


def test_one_channel_passes_its_watermarks_and_status_through():
    """WM-03."""
    valve = WatermarkValve(1)
    assert passed(valve, 0, 10, 10, 9, 11) == [10, 11]
    assert passed(valve, 0, IDLE, 20, IDLE, ACTIVE, 20) == [IDLE, ACTIVE, 20]


def test_idle_channels_do_not_hold_the_watermark_back():
    """WM-03."""
    valve = WatermarkValve(3)
    passed(valve, 0, 10)
    passed(valve, 1, 20)
    assert passed(valve, 2, IDLE) == [10]
    assert passed(valve, 0, IDLE) == [20]
    assert passed(valve, 1, 21) == [21]
    assert valve.status is ACTIVE


def test_a_channel_that_becomes_active_behind_the_watermark_is_ignored_until_it_has_caught_up():
    """WM-03."""
    valve = WatermarkValve(2)
    passed(valve, 1, 3, IDLE)
    assert passed(valve, 0, 10) == [10]
    assert passed(valve, 1, ACTIVE, 5) == []
    assert passed(valve, 0, 20) == [20], "it does not wait"
    assert passed(valve, 1, 15, 20) == []
    assert passed(valve, 0, 30) == [], "it waits for a channel that has caught up"
    assert passed(valve, 1, 25) == [25]


def test_when_all_channels_are_idle_the_largest_watermark_is_flushed():
    """WM-03."""
    valve = WatermarkValve(3)
    passed(valve, 0, 10)
    passed(valve, 1, 30)
    passed(valve, 2, 20)
    assert passed(valve, 1, IDLE) == []
    assert passed(valve, 0, IDLE) == [20]
    assert passed(valve, 2, IDLE) == [30, IDLE]
    assert valve.status is IDLE
    assert passed(valve, 0, 100) == [], "a watermark of an idle channel"
    assert passed(valve, 0, ACTIVE, 25, 31) == [ACTIVE, 31]


def test_the_largest_watermark_is_flushed_though_the_last_active_channel_was_behind():
    """WM-03."""
    valve = WatermarkValve(3)
    passed(valve, 2, 5, IDLE)
    passed(valve, 0, 20, IDLE)
    assert passed(valve, 1, 10) == [10]
    assert passed(valve, 2, ACTIVE) == []
    assert passed(valve, 1, IDLE) == []
    assert passed(valve, 2, IDLE) == [20, IDLE]


def test_the_input_ends_when_all_channels_have_ended():
    """WM-03."""
    valve = WatermarkValve(3)
    passed(valve, 0, 10)
    passed(valve, 1, 20)
    assert passed(valve, 2, END_OF_TIME) == [10]
    assert passed(valve, 0, IDLE) == [20]
    assert passed(valve, 1, IDLE) == [IDLE], "idle channels may have rows yet"
    assert passed(valve, 0, END_OF_TIME) == []
    assert passed(valve, 1, ACTIVE, 40) == [ACTIVE, 40]
    assert passed(valve, 1, END_OF_TIME) == [END_OF_TIME]


def test_random_watermarks_never_go_back_nor_pass_a_channel_that_counts():
    """WM-03."""
    for seed in range(300):
        rng = random.Random(seed)
        valve = WatermarkValve(3)
        marks, counts, last = [BEFORE_TIME] * 3, [True] * 3, BEFORE_TIME
        for _ in range(100):
            channel = rng.randrange(3)
            element = rng.choice((IDLE, ACTIVE, *range(last + 5 if last > 0 else 5)[-8:]))
            if element in (IDLE, ACTIVE):
                counts[channel] = element is ACTIVE
            elif counts[channel]:
                marks[channel] = max(marks[channel], element)
            for mark in passed(valve, channel, element):
                if isinstance(mark, int):
                    assert mark > last, f"seed {seed}"
                    assert mark == (
                        min(m for m, counting in zip(marks, counts, strict=True) if counting and m >= mark)
                        if any(counts)
                        else max(marks)
                    ), f"seed {seed}"
                    last = mark
            assert (valve.status is ACTIVE) == any(counts), f"seed {seed}"


# -- the alignment of sources -----------------------------------------------------------------------------


def test_channels_too_far_ahead_of_the_least_watermark_pause_until_an_update():
    """WM-04."""
    group = WatermarkAlignment(3, drift_ms=100, now=0)
    for channel, time in enumerate((1000, 1050, 1200)):
        group.receive(channel, Watermark(time))
    assert group.paused == frozenset(), "there is no limit before the first update"
    group.advance(999)
    assert group.paused == frozenset()
    assert group.deadline_ms == 1000
    group.advance(1000)
    assert group.paused == {2}, "1200 > 1000 + 100"
    group.receive(1, Watermark(1101))
    assert group.paused == {1, 2}, "the limit counts between updates, too"
    group.receive(0, Watermark(1150))
    assert group.paused == {0, 1, 2}, "the least one as well, until the limit moves"
    group.advance(1999)
    assert group.paused == {0, 1, 2}
    group.advance(2000)
    assert group.paused == frozenset(), "1200 <= 1101 + 100"


def test_idle_and_ended_channels_do_not_hold_a_group_back():
    """WM-04."""
    group = WatermarkAlignment(3, drift_ms=100, now=0, update_interval_ms=10)
    group.receive(0, Watermark(1000))
    group.receive(1, Watermark(2000))
    group.advance(10)
    assert group.paused == {0, 1}, "nothing is known of the third channel"
    group.receive(2, IDLE)
    group.advance(20)
    assert group.paused == {1}
    group.receive(0, Watermark(END_OF_TIME))
    group.advance(30)
    assert group.paused == frozenset()
    group.receive(2, ACTIVE)
    group.advance(40)
    assert group.paused == {1}
    group.receive(2, Watermark(END_OF_TIME))
    group.receive(1, Watermark(END_OF_TIME))
    group.advance(50)
    assert group.paused == frozenset()
