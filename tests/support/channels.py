"""A task that records what its input gate lets it do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keyedstate.local.channels.actions import (
    AbortCheckpoint,
    AbortReason,
    CompleteCheckpoint,
    Process,
    TakeSnapshot,
)
from keyedstate.local.channels.elements import EndOfChannel
from keyedstate.local.channels.input_gate import InputGate


class RecordingTask:
    """Processes elements by appending them to lists, which are its state.

    Attributes
    ----------
    log : list of str
        What it did, in order: ``0:a`` an element of channel 0, ``snapshot 1``, ``complete 1``, ``abort 1``.
    processed : dict of int to list
        The elements of each channel, without the end.
    snapshots : dict of int to dict
        By checkpoint id the elements that were processed when the snapshot was taken.
    channel_state : dict of int to mapping
        That of each completed checkpoint.
    aborted : dict of int to AbortReason
    """

    def __init__(self, gate: InputGate[Any], channels: int) -> None:
        self.gate = gate
        self.log: list[str] = []
        self.processed: dict[int, list[Any]] = {channel: [] for channel in range(channels)}
        self.snapshots: dict[int, dict[int, list[Any]]] = {}
        self.sent: list[TakeSnapshot] = []
        self.channel_state: dict[int, Mapping[int, Any]] = {}
        self.aborted: dict[int, AbortReason] = {}

    def receive(self, channel: int, *elements: Any, now: int = 0) -> list[str]:
        """Receive elements, processing what can be after each; return what the task did."""
        begin = len(self.log)
        for element in elements:
            self.gate.receive(channel, element)
            self.run(now)
        return self.log[begin:]

    def run(self, now: int = 0) -> list[str]:
        """Do what can be done, and return it."""
        begin = len(self.log)
        while self.step(now):
            pass
        return self.log[begin:]

    def step(self, now: int = 0) -> bool:
        """Do one thing, and return whether there was one."""
        action = self.gate.poll(now)
        match action:
            case Process(channel, element):
                if not isinstance(element, EndOfChannel):
                    self.processed[channel].append(element)
                self.log.append(f"{channel}:{element}")
            case TakeSnapshot(barrier):
                assert barrier.checkpoint_id not in self.snapshots, "one snapshot per checkpoint"
                self.snapshots[barrier.checkpoint_id] = {
                    channel: list(elements) for channel, elements in self.processed.items()
                }
                self.sent.append(action)
                self.log.append(f"snapshot {barrier.checkpoint_id}")
            case CompleteCheckpoint(id, channel_state):
                assert id in self.snapshots, "a snapshot comes first"
                assert id not in self.aborted.keys() | self.channel_state.keys(), "it ends once"
                self.channel_state[id] = channel_state
                self.log.append(f"complete {id}")
            case AbortCheckpoint(id, reason):
                assert id not in self.aborted.keys() | self.channel_state.keys(), "it ends once"
                self.aborted[id] = reason
                self.log.append(f"abort {id}")
        return action is not None
