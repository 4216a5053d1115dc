"""Random rows and barriers on several channels, compared with what the streams themselves say.

Every run restarts from each of its checkpoints: state, channel state, and what comes behind the barriers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import islice, repeat
from typing import Any, NamedTuple

import pytest
from support.channels import RecordingTask

from keyedstate.local.channels.actions import CompleteCheckpoint, Process
from keyedstate.local.channels.barrier_aligner import BarrierAligner
from keyedstate.local.channels.barrier_tracker import BarrierTracker
from keyedstate.local.channels.elements import Barrier, BarrierAnnouncement, CancellationBarrier, EndOfChannel
from keyedstate.local.channels.input_gate import InputGate

Make = Callable[..., InputGate[Any]]


class Stream(NamedTuple):
    """What one channel sends: rows are numbers that ascend."""

    elements: list[Any]

    @property
    def rows(self) -> list[int]:
        return [element for element in self.elements if isinstance(element, int)]

    def behind(self, checkpoint_id: int) -> list[Any]:
        """Return what comes behind a barrier: nothing in a channel that ended without it."""
        for place, element in enumerate(self.elements):
            if isinstance(element, Barrier) and element.checkpoint_id == checkpoint_id:
                return self.elements[place + 1 :]
        return [EndOfChannel()]


def streams(
    rng: random.Random, channels: int, checkpoints: int, timeout: int | None, faults: bool
) -> list[Stream]:
    """Return streams with the barriers of each checkpoint, in order.

    With `faults` a channel may end early, announce barriers, send cancellations instead, or neither.
    """
    made = []
    for _ in range(channels):
        elements: list[Any] = []
        row = 0
        last = rng.randrange(1, checkpoints + 1) if faults and rng.random() < 0.2 else checkpoints
        for id in range(1, checkpoints + 1):
            savepoint = id % 5 == 0
            barrier = Barrier(id, 10 * id, savepoint=savepoint, alignment_timeout_ms=timeout)
            announced = len(elements)
            for _ in range(rng.choice((0, 0, 1, 3))):
                elements.append(row)
                row += 1
            if id > last:
                break
            chance = rng.random() if faults else 1.0
            if chance < 0.1:
                elements.append(CancellationBarrier(id))
            elif chance > 0.2:
                if chance < 0.4:
                    elements.insert(rng.randrange(announced, len(elements) + 1), BarrierAnnouncement(barrier))
                elements.append(barrier)
        elements.append(row)
        elements.append(EndOfChannel())
        made.append(Stream(elements))
    return made


def run(rng: random.Random, gate: InputGate[Any], sent: list[Stream]) -> RecordingTask:
    """Let a task receive and process in random turns, while time passes."""
    task = RecordingTask(gate, len(sent))
    waiting = {channel: list(reversed(stream.elements)) for channel, stream in enumerate(sent)}
    now = 0
    while waiting:
        now += rng.randrange(4)
        if rng.random() < 0.5:
            task.step(now)
            continue
        channel = rng.choice(list(waiting))
        gate.receive(channel, waiting[channel].pop())
        if not waiting[channel]:
            del waiting[channel]
    task.run(now)
    assert gate.ended
    assert not any(gate.queued(channel) for channel in range(len(sent)))
    return task


def restarted(
    rng: random.Random, make: Make, task: RecordingTask, sent: list[Stream], id: int
) -> list[list[Any]]:
    """Return the rows of each channel that have counted in the end, after a restart from a checkpoint."""
    later = [Stream(stream.behind(id)) for stream in sent]
    after = run(rng, make(len(sent), task.channel_state[id]), later)
    return [task.snapshots[id][channel] + after.processed[channel] for channel in range(len(sent))]


GUARANTEES = [
    pytest.param(BarrierAligner, None, id="aligned"),
    pytest.param(BarrierAligner, 20, id="timeout"),
    pytest.param(BarrierAligner, 0, id="unaligned"),
    pytest.param(BarrierTracker, None, id="at-least-once"),
]


@pytest.mark.parametrize("faults", [False, True], ids=["all-barriers", "lost-barriers"])
@pytest.mark.parametrize(("make", "timeout"), GUARANTEES)
def test_every_checkpoint_of_random_streams_restarts_with_its_guarantee(make, timeout, faults):
    """BAR-01, BAR-02, BAR-03, BAR-04."""
    unaligned = 0
    for seed in range(400):
        rng = random.Random(seed)
        channels = rng.choice((2, 3))
        sent = streams(rng, channels, 8, timeout, faults)
        task = run(rng, make(channels), sent)
        rows = [stream.rows for stream in sent]
        assert list(task.processed.values()) == rows, f"seed {seed}: no row is lost, doubled or out of order"
        for id, channel_state in task.channel_state.items():
            unaligned += bool(channel_state)
            counted = restarted(rng, make, task, sent, id)
            if make is BarrierTracker:
                assert channel_state == {}
                assert [sorted(set(once)) for once in counted] == rows, f"seed {seed}: at least once"
            else:
                assert counted == rows, f"seed {seed}: exactly once"
        if not faults and (make is BarrierTracker or timeout is None):
            assert not task.aborted, f"seed {seed}"
            assert list(task.channel_state) == list(range(1, 9)), f"seed {seed}"
    assert (unaligned > 100) == (timeout is not None), "the streams are of the kind that they should be"


@pytest.mark.parametrize("channels", [2, 3])
def test_an_aligned_task_never_mixes_epochs_over_tens_of_thousands_of_barriers(channels):
    """BAR-01: each row is the epoch that it belongs to."""
    rng = random.Random(channels)
    waiting = [epochs(rng, 20_000) for _ in range(channels)]
    gate: InputGate[int] = BarrierAligner(channels)
    epoch = 1
    while not gate.ended:
        channel = rng.randrange(channels)
        for element in islice(waiting[channel], rng.randrange(1, 6)):
            gate.receive(channel, element)
        while rng.random() < 0.9 and (action := gate.poll(0)) is not None:
            match action:
                case Process(_, int() as row):
                    assert row == epoch
                case CompleteCheckpoint(id, _):
                    assert id == epoch
                    epoch += 1
    assert epoch == 20_001


def epochs(rng: random.Random, checkpoints: int) -> Iterator[Any]:
    for id in range(1, checkpoints + 1):
        yield from repeat(id, rng.choice((0, 1, 2)))
        yield Barrier(id, 0)
    yield EndOfChannel()


def test_a_tracker_processes_whatever_has_arrived_over_tens_of_thousands_of_barriers():
    """BAR-02: it never blocks, so nothing waits when a task has done what it could."""
    rng = random.Random(0)
    waiting = [epochs(rng, 20_000) for _ in range(3)]
    gate: InputGate[int] = BarrierTracker(3)
    completed = []
    while not gate.ended:
        channel = rng.randrange(3)
        for element in islice(waiting[channel], 20):
            gate.receive(channel, element)
        while (action := gate.poll(0)) is not None:
            if isinstance(action, CompleteCheckpoint):
                completed.append(action.checkpoint_id)
        assert not gate.blocked
        assert not any(gate.queued(channel) for channel in range(3))
    assert completed == sorted(set(completed))
    assert completed[-1] == 20_000
