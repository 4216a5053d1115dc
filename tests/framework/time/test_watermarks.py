"""Watermarks of one input and of several: bounded lateness, the least of the active ones, idleness."""

from __future__ import annotations

import pyarrow as pa

from keyedstate.runtime.event_time import largest_by_input
from keyedstate.state.clock import BEFORE_TIME
from keyedstate.time import InputTime, bounded_out_of_orderness, watermark_of_inputs


def test_the_watermark_is_a_millisecond_before_the_largest_time_less_the_delay():
    """WM-01."""
    assert bounded_out_of_orderness(None, 10) == BEFORE_TIME
    assert bounded_out_of_orderness(1000, 0) == 999
    assert bounded_out_of_orderness(1000, 10) == 989
    assert bounded_out_of_orderness(-5, 10) == -16
    assert bounded_out_of_orderness(BEFORE_TIME, 10) == BEFORE_TIME, "saturating"


class Inputs:
    """Several inputs, epoch by epoch."""

    def __init__(self, delay_ms=0, idle_ms=None):
        self.settings = delay_ms, idle_ms
        self.inputs = {}
        self.watermark = BEFORE_TIME

    def epoch(self, now, **rows):
        for name, time in rows.items():
            known = self.inputs.get(name, InputTime(time, now))
            self.inputs[name] = InputTime(max(known.largest_event_time, time), max(known.last_seen, now))
        delay_ms, idle_ms = (dict.fromkeys(self.inputs, setting) for setting in self.settings)
        mark = watermark_of_inputs(self.inputs, delay_ms, idle_ms, now, self.watermark)
        assert mark >= self.watermark
        self.watermark = mark
        return mark


def test_the_watermark_of_several_inputs_is_the_least_of_theirs_and_never_goes_back():
    """WM-03."""
    inputs = Inputs(delay_ms=10)
    assert inputs.epoch(0) == BEFORE_TIME
    assert inputs.epoch(1, a=1000, b=500) == 489
    assert inputs.epoch(2, a=2000) == 489
    assert inputs.epoch(3, b=700) == 689
    assert inputs.epoch(4, b=600) == 689, "a late row takes nothing back"
    assert inputs.epoch(5, b=5000) == 1989


def test_an_idle_input_holds_nothing_up_until_it_has_rows_again():
    """WM-02, WM-03."""
    inputs = Inputs(idle_ms=100)
    assert inputs.epoch(0, a=1000, b=500) == 499
    assert inputs.epoch(100, a=2000) == 499
    assert inputs.epoch(101, a=2001) == 2000
    # It is active again, and lags behind: it is left out until it has caught up.
    assert inputs.epoch(102, b=600) == 2000
    assert inputs.epoch(103, a=3000, b=700) == 2999
    assert inputs.epoch(104, b=3500) == 2999
    assert inputs.epoch(105, a=9000) == 3499


def test_when_all_inputs_are_idle_everything_that_has_come_is_over():
    """WM-02, WM-03."""
    inputs = Inputs(idle_ms=100)
    inputs.epoch(0, a=1000, b=500)
    assert inputs.epoch(101) == 999
    assert inputs.epoch(102, b=500) == 999


def test_a_new_input_that_is_behind_takes_nothing_back():
    """WM-03."""
    inputs = Inputs()
    assert inputs.epoch(0, a=1000) == 999
    assert inputs.epoch(1, a=2000, new=10) == 1999
    assert inputs.epoch(2, a=4000, new=3000) == 2999


def test_the_largest_time_of_each_input_is_found_by_columns():
    names = pa.array(["a", "b", None, "a", "c"])
    assert largest_by_input(names, pa.array([1, 2, 3, 7, None])) == {"a": 7, "b": 2, "null": 3}
    assert largest_by_input(pa.array([1, 2, 1]), pa.array([5, 6, 4])) == {"1": 5, "2": 6}
    assert largest_by_input(pa.array([], pa.string()), pa.array([], pa.int64())) == {}
