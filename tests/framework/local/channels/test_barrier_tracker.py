"""At-least-once: the tracker counts barriers and lets every row through."""

from __future__ import annotations

from support.channels import RecordingTask

from keyedstate.local.channels.actions import AbortReason
from keyedstate.local.channels.barrier_tracker import BarrierTracker
from keyedstate.local.channels.elements import Barrier, BarrierAnnouncement, CancellationBarrier, EndOfChannel

FIRST, SECOND, THIRD = Barrier(1, 0), Barrier(2, 0), Barrier(3, 0)
END = EndOfChannel()


def tracking(channels):
    return RecordingTask(BarrierTracker(channels), channels)


def test_rows_behind_the_barrier_of_a_fast_channel_count_and_would_be_doubled_after_a_failure():
    """BAR-02: the picture by which alignment is explained, without alignment."""
    task = tracking(2)
    fast, slow = 0, 1
    assert task.receive(fast, "a", "b", FIRST, "c", "d") == ["0:a", "0:b", "0:c", "0:d"]
    assert task.receive(slow, "1", "2", FIRST) == ["1:1", "1:2", "snapshot 1", "complete 1"]
    assert task.snapshots == {1: {fast: ["a", "b", "c", "d"], slow: ["1", "2"]}}
    # The source sends again what comes after its barrier.
    restarted = tracking(2)
    restarted.receive(fast, "c", "d")
    assert task.snapshots[1][fast] + restarted.processed[fast] == ["a", "b", "c", "d", "c", "d"]


def test_several_checkpoints_are_incomplete_at_a_time():
    """BAR-02."""
    task = tracking(3)
    task.receive(0, FIRST, SECOND, THIRD)
    task.receive(1, FIRST, SECOND)
    assert task.receive(2, FIRST) == ["snapshot 1", "complete 1"]
    assert task.receive(2, SECOND) == ["snapshot 2", "complete 2"]
    task.receive(1, THIRD)
    assert task.receive(2, THIRD) == ["snapshot 3", "complete 3"]
    assert task.aborted == {}


def test_a_complete_checkpoint_aborts_older_ones_whose_late_barriers_are_ignored():
    """BAR-02."""
    task = tracking(2)
    task.receive(0, FIRST, SECOND)
    assert task.receive(1, SECOND) == ["abort 1", "snapshot 2", "complete 2"]
    assert task.aborted == {1: AbortReason.SUBSUMED}
    assert task.receive(1, FIRST, "x") == ["1:x"]
    assert task.receive(0, FIRST) == []


def test_at_most_fifty_checkpoints_are_incomplete():
    """BAR-02."""
    task = tracking(2)
    task.receive(0, *(Barrier(id, 0) for id in range(52)))
    assert list(task.aborted) == [0, 1]
    assert task.receive(1, Barrier(1, 0)) == []
    assert task.receive(1, Barrier(2, 0)) == ["snapshot 2", "complete 2"]


def test_a_finished_channel_is_not_waited_for():
    """BAR-02."""
    task = tracking(2)
    task.receive(0, FIRST, SECOND)
    assert task.receive(1, "x", END) == ["1:x", "abort 1", "snapshot 2", "complete 2", f"1:{END}"]
    assert task.receive(0, THIRD, END) == ["snapshot 3", "complete 3", f"0:{END}"]
    assert task.gate.ended


def test_a_cancellation_aborts_its_checkpoint_and_older_ones():
    """BAR-02."""
    task = tracking(2)
    task.receive(0, FIRST, SECOND, THIRD)
    assert task.receive(1, CancellationBarrier(2)) == ["abort 1", "abort 2"]
    assert task.aborted == {1: AbortReason.SUBSUMED, 2: AbortReason.CANCELLED}
    assert task.receive(1, SECOND, CancellationBarrier(2)) == []
    assert task.receive(1, THIRD) == ["snapshot 3", "complete 3"]


def test_a_cancellation_before_any_barrier_makes_later_barriers_meaningless():
    """BAR-02."""
    task = tracking(2)
    assert task.receive(0, CancellationBarrier(5)) == ["abort 5"]
    assert task.receive(1, Barrier(5, 0), CancellationBarrier(4)) == []


def test_neither_announcements_nor_timeouts_change_a_tracker():
    """BAR-02."""
    barrier = Barrier(1, 0, alignment_timeout_ms=0)
    task = tracking(2)
    assert task.receive(0, BarrierAnnouncement(barrier), "a", barrier, "b", now=100) == ["0:a", "0:b"]
    assert task.gate.deadline_ms is None
    assert task.receive(1, barrier) == ["snapshot 1", "complete 1"]
    assert task.channel_state == {1: {}}
