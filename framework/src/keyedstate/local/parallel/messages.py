"""What the process of a run and its subtasks send each other, in addition to rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from keyedstate.checkpoint.format.manifest import CheckpointMetadata
from keyedstate.checkpoint.protocol.coordinator import Acknowledgement
from keyedstate.epoch.partition_plan import PartitionPlan
from keyedstate.local.channels.elements import Barrier
from keyedstate.local.run.operator_task import RunIdentity
from keyedstate.runtime.timers import AtEnd


@dataclass(frozen=True)
class Begin:
    """To a subtask: open the state, and answer with `Opened`."""

    plan: PartitionPlan
    #: The partition that the subtask owns.
    number: int
    identity: RunIdentity
    operator_id: str
    #: The first epoch of the run.
    epoch: int
    #: Whether barriers are aligned (exactly-once), rather than tracked (at-least-once).
    aligns: bool


@dataclass(frozen=True)
class Opened:
    """From a subtask: the state is restored, from this checkpoint."""

    restored: CheckpointMetadata | None
    watermark: int | None


@dataclass(frozen=True)
class BroadcastEnd:
    """To a subtask: all rows of the broadcast side were sent."""


@dataclass(frozen=True)
class EndEpoch:
    """To a subtask: the barrier of the epoch is in its channels, behind rows that it may overtake."""

    barrier: Barrier
    #: Which timers fire at its end.
    at_end: AtEnd
    #: Whether the channels end behind the barrier.
    is_last: bool


@dataclass(frozen=True)
class Positions:
    """To a subtask: the positions of the channels at the barrier, behind the last rows that belong to it."""

    #: As `AttemptManifest.positions`.
    positions: Mapping[str, Any]


@dataclass(frozen=True)
class MoreFollow:
    """From a subtask: the next batch is not the last one with which it answers a batch or a time."""


@dataclass(frozen=True)
class Finished:
    """From a subtask: the rows of the epoch were sent, and kept state is written."""

    acknowledgement: Acknowledgement | None


@dataclass(frozen=True)
class Published:
    """To a subtask: the checkpoint of the epoch is published, so that the next epoch begins."""

    epoch: int


@dataclass(frozen=True)
class Closed:
    """From a subtask: its channels have ended, its function is closed, and its state is released."""


@dataclass(frozen=True)
class Failed:
    """From a subtask: an error has ended it."""

    #: The error; None where it cannot be pickled.
    pickled: bytes | None
    #: ``ValueError: its text``, and its traceback.
    text: str
    trace: str
