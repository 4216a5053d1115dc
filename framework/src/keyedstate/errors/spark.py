"""Errors about keyed operators in Spark jobs, and the hosts that keep state between their epochs."""

from __future__ import annotations

from collections.abc import Sequence

from keyedstate.errors.base import KeyedStateError


class KeyedFrameError(KeyedStateError):
    """Base class of mistakes that are found while a keyed DataFrame is being built."""


class KeyColumnError(KeyedFrameError):
    """A choice of key columns that cannot be used."""

    column: str | None  # The column at fault, where it is one
    reason: str
    message = "the rows cannot be keyed: {reason}."


class MissingUidError(KeyedFrameError):
    """A keyed operator in a streaming query without a uid."""

    message = (
        "a keyed operator in a streaming query needs a uid, by which its state is found again. Give it a "
        "fixed name that is unique within the checkpoint folder: keyed(df, ..., uid='page-views'), or "
        "connect(a, b, uid='page-views') for two inputs."
    )


class SideOutputError(KeyedFrameError):
    """A DataFrame whose outputs cannot be distinguished."""

    reason: str
    message = "the DataFrame cannot be split into outputs: {reason}."


class BroadcastFrameError(KeyedFrameError):
    """A second DataFrame whose rows cannot be given to every task."""

    reason: str
    message = "the broadcast DataFrame cannot be used: {reason}."


class ConnectedFramesError(KeyedFrameError):
    """Two keyed DataFrames that cannot be connected."""

    reason: str
    message = "the keyed DataFrames cannot be connected: {reason}."


class ClassicSparkRequiredError(KeyedFrameError):
    """Something that Spark Connect cannot do, because the client has no part in the server's queries."""

    reason: str
    way_out: str
    message = (
        "{reason}. {way_out} A classic session can do it, too: SparkSession.builder.master(...) without "
        "remote(...)."
    )


class EventTimeError(KeyedFrameError):
    """A column that cannot give rows their event time, or an invalid delay."""

    column: str | None
    reason: str
    message = "the event time of the rows cannot be read{column:? from the column {column!r}}: {reason}."


class HeartbeatError(KeyedFrameError):
    """An interval at which no micro-batches can be started."""

    heartbeat: object  # What was given
    reason: str
    message = (
        "the heartbeat {heartbeat!r} cannot be used: {reason}. Give a length of time such as '5 seconds', a "
        "timedelta or milliseconds, or leave it out."
    )


class EndOfInputError(KeyedFrameError):
    """A choice of what happens after all input that cannot be used."""

    end: object  # What was given
    reason: str
    way_out: str
    message = "end={end!r} cannot be used: {reason}. {way_out}"


class TaskContextError(KeyedStateError):
    """A keyed operator that runs outside the Spark task it was built for."""

    reason: str
    way_out: str
    message = "the keyed operator cannot run here: {reason}. {way_out}"


class PreflightError(KeyedStateError):
    """Executors that cannot run a keyed operator."""

    host: str  # Where the check failed
    check: str  # What was checked
    reason: str  # What happened
    way_out: str
    message = (
        "the check of the executors before the first epoch failed on {host}, while {check}: "
        "{reason}.{way_out:? {way_out}}"
    )


class DataSourceUnavailableError(KeyedStateError):
    """The data source on a version of Spark that has no Python data sources."""

    version: str
    message = (
        "reading stored state as a DataFrame needs Spark 4, and this is PySpark {version}. Upgrade it, or "
        "read the state with `keyedstate checkpoint export`."
    )


class BootstrapError(KeyedStateError):
    """A savepoint that cannot be made of the given DataFrames and operators."""

    uid: str | None  # The operator at fault, where it is one
    reason: str
    message = "no savepoint can be written{uid:? for the operator {uid!r}}: {reason}."


class StateFrameError(KeyedStateError):
    """A DataFrame that cannot become a state."""

    uid: str
    state: str
    reason: str
    message = "the DataFrame cannot become the state {state!r} of the operator {uid!r}: {reason}."


class ExactlyOnceWarning(UserWarning):
    """A job in which a row may count twice, or not at all, after a failure or a restart."""


# -- epoch ----------------------------------------------------------------------------------------


class FunctionTransportError(KeyedStateError):
    """A process function that cannot be sent to the tasks."""

    function: str  # Its class
    step: str  # ``pack`` (on the driver) or ``unpack`` (in a task)
    error: str

    def _message(self) -> str:
        if self.step == "pack":
            return (
                f"the function {self.function} cannot be sent to Spark's tasks: {self.error}. Make in open() "
                "what cannot be pickled (connections, locks, sessions), instead of keeping it on the "
                "instance."
            )
        return (
            f"the function {self.function} cannot be loaded in a Spark task: {self.error}. Install its "
            "modules on the executors, or send them along with --py-files or SparkContext.addPyFile."
        )


class MisroutedRowsError(KeyedStateError):
    """Rows that did not arrive in the partition that owns their key groups."""

    uid: str | None
    partition: int  # The partition as Spark counts it in the stage
    parallelism: int
    key_group: int  # The first one that another partition owns
    owner: int  # The partition of the operator that owns it
    message = (
        "partition {partition} of the stage got a row of key group {key_group}, which belongs to partition "
        "{owner} of the {parallelism} of the keyed operator {uid!r}: the rows were partitioned again, or the "
        "result shares a stage with others. A keyed result may not be coalesced, and in a union it must come "
        "first or after keyed results of the same parallelism: swap the sides, or put .repartition(n) behind "
        "the keyed result."
    )


class DuplicateUidError(KeyedStateError):
    """Two keyed operators of one uid in one streaming query."""

    uid: str
    message = (
        "two keyed operators of this query have the uid {uid!r}, and each would take the other's state for "
        "its own. Give each its own uid."
    )


class TooManyFailedSnapshotsError(KeyedStateError):
    """Too many consecutive full snapshots failed in the background."""

    uid: str
    failures: int  # Consecutive epochs with such a failure
    last: str  # The error of the last one
    message = (
        "the full snapshot of the operator {uid!r} failed {failures} times in a row; the last time: {last}. "
        "Nothing was lost: the deltas were written. Repair the storage and start the query again, or raise "
        "spark.keyedstate.checkpoint.tolerable-failures."
    )


class KeyColumnsChangedError(KeyedStateError):
    """State that was written with key columns of another order or of other types."""

    uid: str
    before: Sequence[str]  # Each as ``'name' of type string``, or its name alone
    now: Sequence[str]
    message = (
        "the state of the keyed operator {uid!r} was written with the key columns {before}, and now they are "
        "{now}: no key would be found again. Name them in the former order, and cast them to their former "
        "types before keyed(), or give the operator another uid to start without state."
    )


class InitialStateError(KeyedStateError):
    """An initial state that a processor cannot begin with."""

    reason: str
    message = "the initial state of transformWithState cannot be used: {reason}."


# -- hosts -----------------------------------------------------------------------------------------


class HostError(KeyedStateError):
    """Base class of errors between a task and its host."""

    _embedded = "Set spark.keyedstate.host to embedded to run without hosts."


class HostUnavailableError(HostError):
    """A host that cannot be started or reached."""

    reason: str
    message = (
        "no host is available for this partition: {reason}. The output of the process is in the executor's "
        "log. {_embedded}"
    )


class HostFolderError(HostUnavailableError):
    """A folder for the sockets of hosts that cannot be used, or that another user could change.

    The task tries the next folder, and without one it runs the epoch itself.
    """

    message = (
        "the sockets of hosts have no safe folder: {reason}. Set TMPDIR on the executors, or "
        "spark.local.dir, to a folder that only the user of the executors can change. {_embedded}"
    )


class HostFolderLockedError(HostError):
    """A folder for the sockets of hosts whose lock another process holds for too long."""

    folder: str
    seconds: float
    message = (
        "the folder {folder} with the sockets of hosts was locked for more than {seconds:g} seconds. Another "
        "process of this user holds the lock, and may be stopped: `fuser {folder}` names it. End it, or set "
        "TMPDIR on the executors to another folder. {_embedded}"
    )


class HostLostError(HostError):
    """A host that ended while it ran an epoch."""

    uid: str
    partition: int
    epoch: int
    pid: int
    message = (
        "the host of partition {partition} of the operator {uid!r} (process {pid}) ended in epoch "
        "{epoch}. It was killed, or the function ended it: by os._exit(), or by a crash in native code, "
        "whose traceback is in the executor's log. This attempt is discarded; the next one restores "
        "the partition from its files."
    )


class EpochTimeoutError(HostError):
    """An epoch that took longer than the option ``hosts.epoch-timeout`` allows, aborted with its host."""

    uid: str
    partition: int
    epoch: int
    timeout_ms: int
    message = (
        "partition {partition} of the operator {uid!r} has not ended epoch {epoch} after {timeout_ms} ms, "
        "and was aborted with its host. This attempt is discarded. If the function is not stuck, "
        "raise spark.keyedstate.hosts.epoch-timeout."
    )


class HostMemoryError(HostError):
    """A host that has grown beyond the option ``hosts.memory``."""

    used_bytes: int
    limit_bytes: int
    message = (
        "the host uses {used_bytes} bytes of memory, and {limit_bytes} is the limit. It aborts this "
        "partition, and a new host replaces it. Raise spark.keyedstate.hosts.memory, spread the state over "
        "more executors, or choose a backend that keeps it on disk."
    )


class HostProtocolError(HostError):
    """Bytes on a connection that are not what the other side may send there."""

    reason: str
    message = (
        "the connection between a task and its host is broken: {reason}. Both must run the same version of "
        "keyedstate."
    )


class AuthenticationError(HostError):
    """A process at the other end of a TCP connection that could not prove that it belongs to the query."""

    reason: str
    message = "a connection between executors was refused: {reason}. {_embedded}"


class HostedEpochError(HostError):
    """An error inside a host that is none of keyedstate's own."""

    kind: str  # Its class
    text: str
    message = "{kind}: {text}."
