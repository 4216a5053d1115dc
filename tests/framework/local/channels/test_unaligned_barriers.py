"""Unaligned checkpoints: a barrier overtakes rows, at once or after a timeout; they become channel state."""

from __future__ import annotations

import pytest
from support.channels import RecordingTask

from keyedstate.local.channels.actions import AbortReason
from keyedstate.local.channels.barrier_aligner import BarrierAligner
from keyedstate.local.channels.elements import (
    Barrier,
    BarrierAnnouncement,
    CancellationBarrier,
    EndOfChannel,
    Watermark,
    WatermarkStatus,
)

UNALIGNED = Barrier(1, 0, alignment_timeout_ms=0)
#: Aligned until the time 150.
PATIENT = Barrier(1, 100, alignment_timeout_ms=50)
END = EndOfChannel()


def aligning(channels, channel_state=None):
    return RecordingTask(BarrierAligner(channels, channel_state), channels)


def test_the_first_barrier_triggers_and_rows_before_the_others_become_channel_state():
    """BAR-03: the picture by which alignment is explained; nothing waits, nothing is lost or doubled."""
    task = aligning(2)
    fast, slow = 0, 1
    assert task.receive(fast, "a", "b", UNALIGNED, "c") == ["0:a", "0:b", "snapshot 1", "0:c"]
    assert task.receive(slow, "1", "2") == ["1:1", "1:2"]
    assert task.gate.collecting == {slow}
    assert task.receive(slow, UNALIGNED, "3") == ["complete 1", "1:3"]
    assert task.gate.collecting == set()
    assert task.snapshots == {1: {fast: ["a", "b"], slow: []}}
    assert task.channel_state == {1: {slow: ("1", "2")}}
    assert task.gate.blocked == set()


def test_the_barrier_overtakes_rows_that_wait_in_its_own_queue():
    """BAR-03."""
    task = aligning(2)
    task.gate.receive(1, "x")
    for element in ("a", "b", UNALIGNED, "c"):
        task.gate.receive(0, element)
    assert task.run() == ["snapshot 1", "1:x", "0:a", "0:b", "0:c"]
    assert task.receive(1, UNALIGNED) == ["complete 1"]
    assert task.channel_state == {1: {0: ("a", "b"), 1: ("x",)}}


def test_an_announcement_triggers_before_its_barrier_arrives():
    """BAR-03: a sender announces the barrier in front of the rows that wait in its own buffer."""
    task = aligning(1)
    assert task.receive(0, BarrierAnnouncement(UNALIGNED), "a") == ["snapshot 1", "0:a"]
    assert task.receive(0, UNALIGNED, "b") == ["complete 1", "0:b"]
    assert task.channel_state == {1: {0: ("a",)}}


def test_watermarks_and_status_are_channel_state_in_their_order():
    """BAR-03."""
    task = aligning(2)
    task.receive(0, UNALIGNED)
    task.receive(1, "x", Watermark(5), WatermarkStatus.IDLE, UNALIGNED)
    assert task.channel_state == {1: {1: ("x", Watermark(5), WatermarkStatus.IDLE)}}


def test_channel_state_is_replayed_before_new_input():
    """BAR-03."""
    task = aligning(2, {1: ("x", "y")})
    task.gate.receive(0, "a")
    task.gate.receive(1, "z")
    task.run()
    assert task.processed == {0: ["a"], 1: ["x", "y", "z"]}


def test_channel_state_that_was_not_replayed_yet_belongs_to_the_next_checkpoint():
    """BAR-03."""
    task = aligning(2, {1: ("x", "y")})
    task.gate.receive(0, UNALIGNED)
    assert task.run() == ["snapshot 1", "1:x", "1:y"]
    task.receive(1, "z", UNALIGNED)
    assert task.channel_state == {1: {1: ("x", "y", "z")}}


def test_the_end_of_a_channel_completes_an_unaligned_checkpoint():
    """BAR-01, BAR-03."""
    task = aligning(3)
    task.gate.receive(2, "m")
    task.gate.receive(2, END)
    task.gate.receive(0, UNALIGNED)
    assert task.run() == ["snapshot 1", "2:m", f"2:{END}"]
    assert task.receive(1, "x", END) == ["1:x", "complete 1", f"1:{END}"]
    assert task.channel_state == {1: {1: ("x",), 2: ("m",)}}


def test_a_newer_barrier_or_a_cancellation_aborts_an_unaligned_checkpoint():
    """BAR-03."""
    task = aligning(2)
    task.receive(0, UNALIGNED)
    second = Barrier(2, 0, alignment_timeout_ms=0)
    assert task.receive(1, "x", second) == ["1:x", "abort 1", "snapshot 2"]
    assert task.aborted == {1: AbortReason.SUBSUMED}
    task.gate.receive(0, "a")
    task.gate.receive(0, CancellationBarrier(2))
    assert task.run() == ["abort 2", "0:a"], "a cancellation overtakes rows, too"
    assert task.receive(0, second) == []
    assert task.channel_state == {}


def test_the_unaligned_barrier_is_the_one_to_send():
    """BAR-03, BAR-04."""
    task = aligning(1)
    task.gate.receive(0, "a")
    task.gate.receive(0, PATIENT)
    assert task.run(150) == ["snapshot 1", "complete 1", "0:a"]
    assert [sent.barrier for sent in task.sent] == [PATIENT.as_unaligned()]
    assert task.sent[0].barrier.triggered_ms == PATIENT.triggered_ms


# -- aligned with a timeout -------------------------------------------------------------------------------


def test_a_checkpoint_that_aligns_within_the_timeout_stays_aligned():
    """BAR-04."""
    task = aligning(2)
    assert task.receive(0, "a", PATIENT, "b", now=149) == ["0:a"]
    assert task.gate.blocked == {0}
    assert task.gate.deadline_ms == 150
    assert task.receive(1, "x", PATIENT, now=149) == ["1:x", "snapshot 1", "complete 1", "0:b"]
    assert task.channel_state == {1: {}}
    assert task.gate.deadline_ms is None
    assert task.run(1000) == [], "not after the completion"
    assert [sent.barrier for sent in task.sent] == [PATIENT]


def test_after_the_timeout_blocked_channels_resume_and_the_rest_becomes_channel_state():
    """BAR-04."""
    task = aligning(3)
    task.receive(0, "a", PATIENT, "b", now=110)
    task.receive(1, "x", now=120)
    assert task.run(149) == []
    assert task.run(150) == ["snapshot 1", "0:b"]
    assert task.gate.blocked == set()
    task.receive(1, "y", PATIENT, "z", now=160)
    assert task.receive(2, "m", PATIENT, now=170) == ["2:m", "complete 1"]
    assert task.snapshots == {1: {0: ["a"], 1: ["x"], 2: []}}
    assert task.channel_state == {1: {1: ("y",), 2: ("m",)}}


def test_the_timeout_counts_from_an_announcement_alone():
    """BAR-04."""
    task = aligning(2)
    assert task.receive(0, BarrierAnnouncement(PATIENT), "a", now=100) == ["0:a"]
    assert task.gate.deadline_ms == 150
    assert task.run(150) == ["snapshot 1"]
    assert task.receive(0, "b", PATIENT, now=151) == ["0:b"]
    assert task.receive(1, PATIENT, now=152) == ["complete 1"]
    assert task.channel_state == {1: {0: ("b",)}}


def test_the_timeout_counts_from_the_trigger_and_not_from_the_arrival():
    """BAR-04."""
    task = aligning(2)
    assert task.receive(0, PATIENT, "a", now=500) == ["snapshot 1", "0:a"]


def test_an_aborted_checkpoint_does_not_time_out():
    """BAR-04."""
    task = aligning(2)
    task.receive(0, PATIENT, "a", now=100)
    task.receive(1, CancellationBarrier(1), now=120)
    assert task.gate.deadline_ms is None
    assert task.run(1000) == []
    assert task.snapshots == {}


def test_nothing_times_out_after_the_channels_have_ended():
    """BAR-04."""
    task = aligning(2)
    task.receive(0, BarrierAnnouncement(PATIENT), END, now=100)
    assert task.receive(1, END, now=110) == ["snapshot 1", "complete 1", f"1:{END}"]
    assert task.gate.ended
    assert task.gate.deadline_ms is None
    assert task.run(1000) == []


def test_a_barrier_that_is_unaligned_already_ends_the_alignment_of_the_others():
    """BAR-04: the task before this one had its timeout earlier."""
    task = aligning(3)
    task.receive(0, PATIENT, "a", now=100)
    assert task.receive(1, "x", PATIENT.as_unaligned(), now=110) == ["1:x", "snapshot 1", "0:a"]
    assert task.receive(2, "m", PATIENT, now=120) == ["2:m", "complete 1"]
    assert task.channel_state == {1: {2: ("m",)}}


@pytest.mark.parametrize("timeout", [0, 50, None])
def test_a_savepoint_is_always_aligned(timeout):
    """BAR-04."""
    savepoint = Barrier(1, 100, savepoint=True, alignment_timeout_ms=timeout)
    task = aligning(2)
    assert task.receive(0, BarrierAnnouncement(savepoint), "a", savepoint, "b", now=1000) == ["0:a"]
    assert task.gate.deadline_ms is None
    assert task.receive(1, "x", savepoint, now=2000) == ["1:x", "snapshot 1", "complete 1", "0:b"]
    assert task.channel_state == {1: {}}


def test_the_announcement_of_a_newer_barrier_aborts_the_incomplete_checkpoint():
    """BAR-04."""
    task = aligning(2)
    task.receive(0, PATIENT, "a", now=100)
    second = Barrier(2, 200, alignment_timeout_ms=50)
    assert task.receive(1, BarrierAnnouncement(second), now=120) == ["abort 1", "0:a"]
    assert task.gate.deadline_ms == 250
    assert task.receive(1, BarrierAnnouncement(PATIENT), now=300) == ["snapshot 2"]
