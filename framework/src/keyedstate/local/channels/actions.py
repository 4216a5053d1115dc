"""What a task does next: process an element, take a snapshot, complete or abort a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeAlias

from keyedstate.local.channels.elements import Barrier, EndOfChannel, InFlight, T


@dataclass(frozen=True, slots=True)
class Process(Generic[T]):
    """Process the next element of a channel: rows, a watermark, a status, or the end of the channel."""

    channel: int
    element: InFlight[T] | EndOfChannel


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Take the snapshot of the task's state now, and send the barrier to the next tasks."""

    #: The one to send.  If the checkpoint is unaligned, it overtakes rows at once; elements of the channels
    #: that belong to the checkpoint follow with `CompleteCheckpoint`.
    barrier: Barrier


@dataclass(frozen=True, slots=True)
class CompleteCheckpoint(Generic[T]):
    """Acknowledge the checkpoint whose snapshot was taken: its barrier has arrived in every channel."""

    checkpoint_id: int
    #: By channel the elements that came before its barrier and after the snapshot.  They are processed too. A
    #: restarted task processes them before new input.  Empty in an aligned checkpoint.
    channel_state: Mapping[int, Sequence[InFlight[T]]]


class AbortReason(Enum):
    """Why a task aborts a checkpoint."""

    #: The barrier of a newer checkpoint came first.
    SUBSUMED = "a newer checkpoint has begun"
    #: A cancellation barrier came instead of a barrier.
    CANCELLED = "another task has cancelled it"


@dataclass(frozen=True, slots=True)
class AbortCheckpoint:
    """Discard the snapshot of the checkpoint, if it was taken, and send a cancellation barrier instead."""

    checkpoint_id: int
    reason: AbortReason


Action: TypeAlias = Process[T] | TakeSnapshot | CompleteCheckpoint[T] | AbortCheckpoint
