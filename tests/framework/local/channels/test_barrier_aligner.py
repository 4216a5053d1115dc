"""Exactly-once with aligned barriers: what comes before a barrier counts, what is behind it waits."""

from __future__ import annotations

import pytest
from support.channels import RecordingTask

from keyedstate.local.channels.actions import AbortReason, TakeSnapshot
from keyedstate.local.channels.barrier_aligner import BarrierAligner
from keyedstate.local.channels.elements import Barrier, CancellationBarrier, EndOfChannel, Watermark

FIRST, SECOND, THIRD = Barrier(1, 0), Barrier(2, 0), Barrier(3, 0)
END = EndOfChannel()


def aligning(channels):
    return RecordingTask(BarrierAligner(channels), channels)


def test_rows_behind_the_barrier_of_a_fast_channel_wait_and_those_before_a_slow_one_count():
    """BAR-01: the picture by which alignment is explained."""
    task = aligning(2)
    fast, slow = 0, 1
    assert task.receive(fast, "a", "b", FIRST, "c", "d") == ["0:a", "0:b"]
    assert task.gate.blocked == {fast}
    assert task.receive(slow, "1", "2") == ["1:1", "1:2"]
    assert task.receive(slow, FIRST) == ["snapshot 1", "complete 1", "0:c", "0:d"]
    assert task.gate.blocked == set()
    assert task.receive(slow, "3") == ["1:3"]
    assert task.snapshots == {1: {fast: ["a", "b"], slow: ["1", "2"]}}
    assert task.channel_state == {1: {}}


def test_the_snapshot_comes_after_the_barriers_of_all_of_three_channels():
    """BAR-01."""
    task = aligning(3)
    assert task.receive(0, "a", FIRST, "b") == ["0:a"]
    assert task.receive(2, FIRST, "x") == []
    assert task.receive(1, "m", "n") == ["1:m", "1:n"]
    assert task.receive(1, FIRST, "o") == ["snapshot 1", "complete 1", "0:b", "2:x", "1:o"]


def test_barriers_that_wait_in_a_blocked_channel_begin_their_checkpoints_in_order():
    """BAR-01."""
    task = aligning(2)
    task.receive(0, FIRST, "a", SECOND, "b", THIRD, "c")
    assert task.receive(1, FIRST, "x") == ["snapshot 1", "complete 1", "0:a", "1:x"]
    assert task.receive(1, SECOND) == ["snapshot 2", "complete 2", "0:b"]
    assert task.receive(1, "y", THIRD) == ["1:y", "snapshot 3", "complete 3", "0:c"]
    assert task.aborted == {}


def test_one_channel_needs_no_alignment():
    """BAR-01."""
    task = aligning(1)
    assert task.receive(0, "a", FIRST, "b", SECOND) == [
        "0:a",
        "snapshot 1",
        "complete 1",
        "0:b",
        "snapshot 2",
        "complete 2",
    ]
    assert [sent.barrier for sent in task.sent] == [FIRST, SECOND]


def test_watermarks_behind_a_barrier_wait_like_rows():
    """BAR-01."""
    task = aligning(2)
    task.receive(0, FIRST, Watermark(10))
    assert task.processed[0] == []
    task.receive(1, Watermark(5), FIRST)
    assert task.processed == {0: [Watermark(10)], 1: [Watermark(5)]}


def test_the_barrier_of_a_newer_checkpoint_aborts_the_incomplete_one():
    """BAR-01."""
    task = aligning(3)
    task.receive(0, FIRST, "a")
    task.receive(1, FIRST, "x")
    assert task.receive(2, "m", SECOND) == ["2:m", "abort 1", "0:a", "1:x"]
    assert task.aborted == {1: AbortReason.SUBSUMED}
    assert task.gate.blocked == {2}
    # The late barrier of the first checkpoint means nothing, in whichever channel it comes.
    assert task.receive(0, FIRST, "b", SECOND) == ["0:b"]
    assert task.receive(1, SECOND) == ["snapshot 2", "complete 2"]


def test_a_finished_channel_counts_as_aligned():
    """BAR-01."""
    task = aligning(3)
    task.receive(0, FIRST, "a")
    task.receive(1, FIRST)
    assert task.receive(2, "m", END) == ["2:m", "snapshot 1", "complete 1", f"2:{END}", "0:a"]
    task.receive(0, SECOND)
    assert task.receive(1, SECOND) == ["snapshot 2", "complete 2"]


def test_the_end_behind_a_barrier_waits_for_the_alignment():
    """BAR-01."""
    task = aligning(2)
    task.receive(0, "a", FIRST, END)
    assert not task.gate.ended
    assert task.receive(1, FIRST, END) == ["snapshot 1", "complete 1", f"0:{END}", f"1:{END}"]
    assert task.gate.ended


def test_a_cancellation_aborts_and_lets_blocked_channels_resume():
    """BAR-01."""
    task = aligning(3)
    task.receive(0, FIRST, "a")
    assert task.receive(1, CancellationBarrier(1)) == ["abort 1", "0:a"]
    assert task.aborted == {1: AbortReason.CANCELLED}
    assert task.receive(1, "x") == ["1:x"]
    assert task.receive(2, FIRST, "m", CancellationBarrier(1)) == ["2:m"], "once"
    for channel in range(3):
        task.receive(channel, SECOND)
    assert task.log[-2:] == ["snapshot 2", "complete 2"]


def test_a_cancellation_before_any_barrier_makes_later_barriers_meaningless():
    """BAR-01."""
    task = aligning(2)
    assert task.receive(0, CancellationBarrier(1)) == ["abort 1"]
    assert task.receive(1, FIRST, "x") == ["1:x"]


def test_the_cancellation_of_a_newer_checkpoint_aborts_the_incomplete_one():
    """BAR-01."""
    task = aligning(2)
    task.receive(0, FIRST, "a")
    assert task.receive(1, CancellationBarrier(2)) == ["abort 1", "abort 2", "0:a"]
    assert task.aborted == {1: AbortReason.SUBSUMED, 2: AbortReason.CANCELLED}
    assert task.receive(0, SECOND, "b") == ["0:b"]


def test_a_cancellation_behind_the_last_barrier_does_not_abort():
    """BAR-01: cancellations of later checkpoints keep their place among the barriers."""
    task = aligning(2)
    task.gate.receive(1, FIRST)
    task.gate.receive(1, CancellationBarrier(2))
    task.gate.receive(0, FIRST)
    assert task.run() == ["snapshot 1", "complete 1", "abort 2"]


def test_channels_take_turns():
    task = aligning(2)
    for element in "abc":
        task.gate.receive(0, element)
    for element in "xyz":
        task.gate.receive(1, element)
    assert [task.gate.queued(channel) for channel in (0, 1)] == [3, 3]
    assert task.run() == ["0:a", "1:x", "0:b", "1:y", "0:c", "1:z"]
    assert task.gate.poll(0) is None


def test_an_element_of_an_ended_or_unknown_channel_is_refused():
    task = aligning(2)
    task.receive(0, END)
    with pytest.raises(ValueError, match="channel 0 received 'a', but it has ended"):
        task.gate.receive(0, "a")
    with pytest.raises(ValueError, match="channel 2"):
        task.gate.receive(2, "a")
    with pytest.raises(ValueError, match="at least one channel"):
        BarrierAligner(0)
    with pytest.raises(ValueError, match="channel 2 has channel state"):
        BarrierAligner(2, {2: ["a"]})


def test_the_barrier_to_send_is_the_one_that_came():
    savepoint = Barrier(7, 123, savepoint=True, alignment_timeout_ms=50)
    task = aligning(1)
    task.receive(0, savepoint)
    assert task.sent == [TakeSnapshot(savepoint)]
