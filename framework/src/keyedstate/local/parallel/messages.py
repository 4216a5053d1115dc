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
    """To a subtask: open the state of the partition `number`, and answer with `Opened`.

    `epoch` is the first one of the run. Barriers are aligned (exactly-once) or tracked (at-least-once).
    """

    plan: PartitionPlan
    number: int
    identity: RunIdentity
    operator_id: str
    epoch: int
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
    """To a subtask: the barrier of the epoch is in its channels, behind rows that it may overtake.

    At the end of the last epoch the channels end behind the barrier. The positions are those of
    `AttemptManifest`.
    """

    barrier: Barrier
    at_end: AtEnd
    is_last: bool
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
    """From a subtask: its channels have ended, and its function is closed."""


@dataclass(frozen=True)
class Failed:
    """From a subtask: an error has ended it; `pickled` is None where it cannot be pickled."""

    pickled: bytes | None
    text: str
    trace: str
