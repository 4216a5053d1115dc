"""Manifests of attempts and metadata of checkpoints: identity, key groups, files, full snapshots, metrics.

`keyedstate.checkpoint.protocol.operator_folder` writes them as JSON.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from keyedstate.checkpoint.format.operator_state import OperatorStateFile
from keyedstate.checkpoint.format.segment_format import SegmentFile
from keyedstate.errors import IncompleteEpochError, UnsafeNameError
from keyedstate.keygroups import KeyGroupRange

# What file names carry between dots; Spark's ids are UUIDs.
_SAFE_ID = re.compile(r"[A-Za-z0-9_-]{1,200}")
#: What all attempts of a checkpoint have in common.
_COMMON = ("uid", "query_id", "run_id", "epoch", "parallelism", "max_parallelism")
#: A native file is named after the attempt that uploaded it, ``data/<nonce>.<number>.native`` or, in the
#: background, ``data/<nonce>.base.<number>.native``.  Later full snapshots may reference it too.
_NATIVE_NUMBER = re.compile(r"\.[0-9]+\.native$")


@dataclass(frozen=True)
class TaskIdentity:
    """One attempt of one task: one partition of one epoch of one operator."""

    #: The operator.
    uid: str
    #: Spark's query id, the same after a restart.
    query_id: str
    #: Spark's run id, another one after every restart.
    run_id: str
    #: Spark's micro-batch id.
    epoch: int
    partition: int
    parallelism: int
    #: Number of key groups of the operator.
    max_parallelism: int
    #: Spark's ``taskAttemptId``, unique within one Spark application.
    attempt: int
    #: Random and unique, such as ``uuid.uuid4().hex``: two processes that run one attempt differ in it. The
    #: attempt's data file is named after it.
    nonce: str

    def __post_init__(self) -> None:
        for what, name in (("run id", self.run_id), ("nonce of an attempt", self.nonce)):
            if not _SAFE_ID.fullmatch(name):
                raise UnsafeNameError(what, name, "1 to 200 letters, digits, '_' and '-'")


class StateOrigin(enum.Enum):
    """The origin of the state that an attempt began with."""

    #: Or no state existed.
    FILES = "files"
    #: A process that had kept it since the epoch before.
    HOST = "host"
    #: Such a process, that had missed epochs and read what they changed.
    HOST_AND_DELTAS = "host and deltas"


@dataclass(frozen=True)
class HostAddress:
    """The address of the process that keeps the state of a partition for the next epoch."""

    #: The executor that it belongs to.
    executor: str
    #: The IP address or name that other executors use.
    address: str
    port: int


class FailureReason(enum.Enum):
    """Why a checkpoint, or a full snapshot in the background, failed.

    Logs and hooks get the value.
    """

    IO = "the storage failed"
    ASYNCHRONOUS = "writing it in the background failed"
    EXPIRED = "it was not finished within its time"
    FINALIZATION = "it could not be published"
    SUBSUMED = "a newer one took its place"
    SUPERSEDED_RUN = "a newer run of the query has begun"
    CANCELLED = "it was cancelled"

    @property
    def counts(self) -> bool:
        """Whether it counts for the tolerated number of failures; the others occur in normal operation."""
        return self not in (FailureReason.SUBSUMED, FailureReason.SUPERSEDED_RUN, FailureReason.CANCELLED)


@dataclass(frozen=True)
class FullSnapshotReport:
    """The outcome of one full snapshot."""

    #: It has the state after this epoch.
    epoch: int
    #: Whether it was written in the background.
    background: bool
    #: Why it failed; None where it was completed.
    failure: FailureReason | None
    #: The error in words; empty where it was completed.
    error: str
    #: How long it blocked the task; how long writing took afterwards.
    sync_ms: float
    async_ms: float
    #: Of what was written; 0 where it failed.
    bytes: int
    entries: int
    #: When, in milliseconds since 1970 UTC, by the clock of the task.
    ended_ms: int

    @property
    def failed(self) -> bool:
        """Whether it was not completed."""
        return self.failure is not None


@dataclass(frozen=True)
class StoredNativeFile:
    """A native file in the storage."""

    #: Of the file as the backend knows it.
    name: str
    #: Relative to the operator's folder.
    path: str
    bytes: int
    #: Hexadecimal.
    sha256: str


@dataclass(frozen=True)
class NativeFullSnapshot:
    """The keyed state of some key groups in a backend's own files."""

    backend: str
    key_groups: KeyGroupRange
    max_parallelism: int
    files: tuple[StoredNativeFile, ...]
    entries: Mapping[str, int]
    #: What the backend needs at a restore.
    details: Mapping[str, Any]

    @property
    def bytes(self) -> int:
        """The size of all files."""
        return sum(file.bytes for file in self.files)


def owner_path(path: str) -> str:
    """Return the segment file that a native file replaces, whose name identifies the attempt."""
    return _NATIVE_NUMBER.sub(".seg", path)


@dataclass(frozen=True)
class AttemptManifest:
    """What one finished attempt has written: the state of its key groups after its epoch."""

    identity: TaskIdentity
    key_groups: KeyGroupRange
    #: What wrote the segments.
    backend: str
    backend_version: str
    #: `StateMeta.to_json` of every state.
    states: tuple[Mapping[str, Any], ...]
    #: The full snapshot's files: written by this attempt or, where there are deltas, by an earlier one. Empty
    #: where the full snapshot is native.
    segments: tuple[SegmentFile, ...]
    #: Entries per state.
    entries: Mapping[str, int]
    rows_in: int
    rows_out: int
    #: Milliseconds since 1970 UTC, over the rows of this epoch; None where there is no event time.
    largest_event_time: int | None
    #: Time of the snapshot's synchronous part, of writing it, of restoring, and of the rows.
    sync_ms: float
    write_ms: float
    restore_ms: float
    process_ms: float
    #: Size of what this attempt has written.
    bytes: int
    #: Names and types of the key columns, as the operator was given them.
    key_columns: tuple[tuple[str, str], ...] = ()
    #: None where the operator has no operator state.
    operator_state: OperatorStateFile | None = None
    #: The watermark when the epoch began, or when it ended where it moved within the epoch (`positions`);
    #: also where its own rows had no event time.  None where unknown.
    watermark: int | None = None
    #: The time of the epoch's processing-time timers, in milliseconds since 1970 UTC.
    processing_time: int | None = None
    #: By input, where there are several, over all epochs: the largest event time, and the processing time
    #: of the last epoch in which this task had a row of it.
    inputs: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    #: The `rows_in` of each of two connected inputs; empty for one input.
    rows_by_input: Mapping[str, int] = field(default_factory=dict)
    #: The changes since, in their order; the last file is this attempt's own where it changed anything.
    deltas: tuple[SegmentFile, ...] = ()
    #: The time to live of each state that has one, as the program set it: for readers without the program.
    #: A program that continues with the state has its own.
    ttl_ms: Mapping[str, int] = field(default_factory=dict)
    #: The last full snapshot that was completed, and those that failed since.
    full_snapshots: tuple[FullSnapshotReport, ...] = field(default=(), metadata={"json": "bases"})
    #: The file of a full snapshot that is being written in the background, or that native files which are
    #: being uploaded replace; this checkpoint does not need it.
    unfinished: str | None = None
    state_origin: StateOrigin = StateOrigin.FILES
    #: The host that keeps the state for the next epoch; None without one that other executors can reach.
    host: HostAddress | None = None
    #: The executor of the task, where known.  If it is not the host's, the rows were sent over the network.
    task_executor: str | None = None
    #: The full snapshot, where it is of the backend's own files.
    native: NativeFullSnapshot | None = None
    #: By state and operation the nanoseconds of sampled accesses; empty where none are sampled.
    latencies: Mapping[str, Mapping[str, Sequence[int]]] = field(default_factory=dict)
    #: What the backend's own engine reports.
    metrics: Mapping[str, int] = field(default_factory=dict, metadata={"json": "figures"})
    #: By reason, as `EpochMetrics.rows_dropped`.
    rows_dropped: Mapping[str, int] = field(default_factory=dict)
    #: How far the clock of the task's machine was ahead of that of the storage; negative where behind.
    clock_skew_ms: int = 0
    #: How far the channels of the operator's inputs were read, by input and channel, where keyedstate reads
    #: them itself.  None where Spark does, and stores the offsets in its own checkpoint location.
    positions: Mapping[str, Any] | None = field(default=None, metadata={"json_omits_default": True})

    def has_types_of(self, states: Iterable[Mapping[str, Any]]) -> bool:
        """Return whether these states, of `StateMeta.to_json`, have the same types here.

        One type reads all files of a chain; new states may be added.
        """
        mine = {state["name"]: state for state in self.states}
        return all(mine.get(state["name"], state) == state for state in states)

    @property
    def kept_files(self) -> set[str]:
        """The paths of all files that must not be deleted, also of an unfinished full snapshot."""
        return self.data_files if self.unfinished is None else self.data_files | {self.unfinished}

    @property
    def data_files(self) -> set[str]:
        """The paths of all files of the state."""
        return {file.path for file in self.all_files}

    @property
    def all_files(self) -> tuple[SegmentFile | StoredNativeFile, ...]:
        """All files of the state."""
        return self.files if self.native is None else (*self.files, *self.native.files)

    @property
    def files(self) -> tuple[SegmentFile, ...]:
        """All segment files of the state."""
        operator_state = () if self.operator_state is None else (self.operator_state.segment,)
        return (*self.segments, *self.deltas, *operator_state)


@dataclass(frozen=True)
class CheckpointMetadata:
    """A complete checkpoint: the state of one operator after one epoch.

    It is a function of the manifests of its attempts, so the coordinator and the tasks of the next epoch
    publish the same bytes. Raises `IncompleteEpochError` where the parts do not belong together, or do not
    cover every partition and key group exactly once.
    """

    uid: str
    query_id: str
    run_id: str
    epoch: int
    parallelism: int
    max_parallelism: int
    key_columns: tuple[tuple[str, str], ...]
    #: One per partition, in their order.
    parts: tuple[AttemptManifest, ...]

    @classmethod
    def of(cls, manifests: Sequence[AttemptManifest]) -> CheckpointMetadata:
        """Return the checkpoint of at least one manifest, given in any order."""
        parts = tuple(sorted(manifests, key=lambda part: part.identity.partition))
        first = parts[0].identity
        common = {name: getattr(first, name) for name in _COMMON}
        return cls(**common, key_columns=parts[0].key_columns, parts=parts)

    @property
    def data_files(self) -> frozenset[str]:
        """The paths of all files of the state."""
        return frozenset().union(*(part.data_files for part in self.parts))

    @property
    def processing_time(self) -> int | None:
        """The latest processing time of the epoch's tasks; None where it is not known."""
        return _latest(part.processing_time for part in self.parts)

    @property
    def watermark(self) -> int | None:
        """The watermark of all tasks; None where it is not known.

        It is the least one: in an unaligned checkpoint a task may be behind others, with rows in flight.
        """
        known = [part.watermark for part in self.parts if part.watermark is not None]
        return min(known) if len(known) == len(self.parts) else None

    @property
    def largest_event_time(self) -> int | None:
        """The largest event time of the epoch's rows; None where none had any."""
        return _latest(part.largest_event_time for part in self.parts)

    @property
    def positions(self) -> Mapping[str, Any] | None:
        """The positions in the inputs, as in `AttemptManifest.positions`: each task has all of them."""
        return self.parts[0].positions

    @property
    def inputs(self) -> dict[str, tuple[int, int]]:
        """The largest event time of each input, and the processing time of its last row, over all epochs."""
        return latest_inputs(times for part in self.parts for times in part.inputs.items())

    def __post_init__(self) -> None:
        for part in self.parts:
            partition = part.identity.partition
            for name in _COMMON:
                ours, theirs = getattr(self, name), getattr(part.identity, name)
                if ours != theirs:
                    self._refuse(f"partition {partition} ran with {name} {theirs!r}, others with {ours!r}")
            if part.key_columns != self.key_columns:
                self._refuse(f"partition {partition} ran with the key columns {part.key_columns}")
        partitions = [part.identity.partition for part in self.parts]
        if partitions != list(range(self.parallelism)):
            self._refuse(f"the parts are those of the partitions {partitions}, of {self.parallelism}")
        following = 0
        for part in sorted(self.parts, key=lambda part: part.key_groups.start):
            if part.key_groups:
                if part.key_groups.start != following:
                    self._refuse(f"a part begins at {part.key_groups} where {following} should follow")
                following = part.key_groups.end + 1
        if following != self.max_parallelism:
            self._refuse(f"the parts end at key group {following - 1}, of {self.max_parallelism}")

    def _refuse(self, details: str) -> None:
        raise IncompleteEpochError(self.uid, self.epoch, details)


@dataclass(frozen=True)
class SavepointOrigin:
    """The savepoint that the first epoch of a query begins from."""

    #: Its address without passwords.
    location: str
    id: str
    #: The uids of all operators in it.
    operators: tuple[str, ...]
    #: Whether the query deletes it when it does not need it any more.
    claimed: bool


@dataclass(frozen=True)
class Owner:
    """The owner of a state folder."""

    query_id: str
    uid: str
    max_parallelism: int
    #: The first epoch that ran over this folder: a later one must find a checkpoint.
    first_epoch: int
    #: The newest runs of the query in the order in which they began; only the last one may write.
    runs: tuple[str, ...]
    #: The savepoint that the query began from.
    savepoint: SavepointOrigin | None = None
    #: The run whose input has ended: its event-time timers all fire.
    drained_run: str | None = None

    def position(self, run_id: str) -> int:
        """Return the position of a run in the order in which runs began; -1 where it is not remembered."""
        return self.runs.index(run_id) if run_id in self.runs else -1

    def superseded_by(self, run_id: str) -> str | None:
        """Return the run that superseded `run_id`, or None."""
        return self.runs[-1] if run_id in self.runs[:-1] else None


def _latest(times: Iterable[int | None]) -> int | None:
    return max((time for time in times if time is not None), default=None)


def latest_inputs(inputs: Iterable[tuple[str, tuple[int, int]]]) -> dict[str, tuple[int, int]]:
    """Return the latest times of each input, as in `AttemptManifest.inputs`."""
    found: dict[str, tuple[int, int]] = {}
    for name, (event_time, seen) in inputs:
        known = found.get(name, (event_time, seen))
        found[name] = max(known[0], event_time), max(known[1], seen)
    return found
