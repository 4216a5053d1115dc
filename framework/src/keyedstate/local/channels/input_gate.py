"""The input of a task: the queues of its channels, and the order in which it processes their elements.

An input gate has neither threads nor a clock.  The task puts elements into it as they arrive and takes
actions out of it until no more are due::

    while not gate.ended:
        channel, element = ...  # of a channel that has room, at the latest until gate.deadline_ms
        gate.receive(channel, element)
        while (action := gate.poll(now())) is not None:
            ...

A queue grows while its channel is blocked, so a task does not read from channels with long queues
(`InputGate.queued`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Generic

from keyedstate.local.channels.actions import (
    AbortCheckpoint,
    AbortReason,
    Action,
    CompleteCheckpoint,
    Process,
    TakeSnapshot,
)
from keyedstate.local.channels.elements import (
    Barrier,
    BarrierAnnouncement,
    CancellationBarrier,
    Element,
    EndOfChannel,
    InFlight,
    Queued,
    T,
)

#: Less than the id of every checkpoint.
NO_CHECKPOINT = -1


class InputGate(ABC, Generic[T]):
    """The channels of a task, numbered from 0; there is at least one.

    Channels take turns. The elements of one channel are processed in their order. The elements of a restored
    checkpoint, `channel_state`, come before everything received.
    """

    def __init__(
        self, channels: int, channel_state: Mapping[int, Sequence[InFlight[T]]] | None = None
    ) -> None:
        if channels < 1:
            raise ValueError(f"an input gate needs at least one channel, not {channels}")
        self._queues: list[deque[Queued[T]]] = [deque() for _ in range(channels)]
        #: Channels with elements that are not blocked, in the order of their turns.
        self._ready: deque[int] = deque()
        self._blocked: set[int] = set()
        #: Channels whose end was not received, and those whose end was not processed.
        self._receiving = set(range(channels))
        self._open = set(range(channels))
        #: What to do before anything else.
        self._actions: deque[Action[T]] = deque()
        for channel, elements in (channel_state or {}).items():
            if channel not in self._open:
                raise ValueError(f"channel {channel} has channel state, but there are {channels} channels")
            for element in elements:
                self._put(channel, element)

    # -- what the task calls ------------------------------------------------------------------------------

    def receive(self, channel: int, element: Element[T]) -> None:
        """Put an element that has arrived into the queue of its channel; ValueError where that has ended."""
        if channel not in self._receiving:
            raise ValueError(f"channel {channel} received {element!r}, but it has ended or does not exist")
        if isinstance(element, BarrierAnnouncement):
            self._on_announcement(element.barrier)
            return
        if isinstance(element, EndOfChannel):
            self._receiving.discard(channel)
        self._put(channel, element)
        self._on_receipt(channel, element)

    def poll(self, now: int) -> Action[T] | None:
        """Return what to do at a time, in milliseconds since 1970 UTC; None where the task has to wait."""
        if not self._actions:
            self._on_time(now)
        while not self._actions and self._ready:
            channel = self._ready.popleft()
            self._take(channel, self._queues[channel].popleft())
            if self._queues[channel] and channel not in self._blocked:
                self._ready.append(channel)
        return self._actions.popleft() if self._actions else None

    def queued(self, channel: int) -> int:
        """Return how many elements of a channel wait."""
        return len(self._queues[channel])

    @property
    def blocked(self) -> frozenset[int]:
        """The channels whose elements wait until the barrier has arrived in the others."""
        return frozenset(self._blocked)

    @property
    def collecting(self) -> frozenset[int]:
        """The channels whose barrier has not arrived in an unaligned checkpoint, whose snapshot was taken."""
        return frozenset()

    @property
    def deadline_ms(self) -> int | None:
        """The time of the next `poll` at the latest, even if nothing arrives; None without a deadline."""
        return None

    @property
    def ended(self) -> bool:
        """Whether all channels have ended and no action is left."""
        return not self._open and not self._actions

    # -- what a guarantee defines -------------------------------------------------------------------------

    @abstractmethod
    def _on_barrier(self, channel: int, barrier: Barrier) -> None:
        """Handle the barrier at the head of a queue."""

    @abstractmethod
    def _on_cancellation(self, checkpoint_id: int) -> None:
        """Handle the cancellation barrier at the head of a queue."""

    @abstractmethod
    def _on_end(self) -> None:
        """Handle that a channel is no longer open."""

    def _on_announcement(self, barrier: Barrier) -> None:
        """Handle that a barrier is in a channel, in front of which it was announced."""

    def _on_receipt(self, channel: int, element: Queued[T]) -> None:
        """Handle that an element has arrived, at the end of its queue."""

    def _on_time(self, now: int) -> None:
        """Handle the passing of time."""

    # -- what they have in common -------------------------------------------------------------------------

    def _put(self, channel: int, element: Queued[T]) -> None:
        if not self._queues[channel] and channel not in self._blocked:
            self._ready.append(channel)
        self._queues[channel].append(element)

    def _take(self, channel: int, element: Queued[T]) -> None:
        if isinstance(element, Barrier):
            self._on_barrier(channel, element)
        elif isinstance(element, CancellationBarrier):
            self._on_cancellation(element.checkpoint_id)
        elif isinstance(element, EndOfChannel):
            self._open.discard(channel)
            self._on_end()
            self._actions.append(Process(channel, element))
        else:
            self._actions.append(Process(channel, element))

    def _complete(self, barrier: Barrier) -> None:
        """Complete a checkpoint without channel state."""
        self._actions.append(TakeSnapshot(barrier))
        self._actions.append(CompleteCheckpoint(barrier.checkpoint_id, {}))

    def _abort(self, checkpoint_id: int, reason: AbortReason) -> None:
        self._actions.append(AbortCheckpoint(checkpoint_id, reason))
