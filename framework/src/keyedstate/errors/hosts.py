"""Errors about hosts, the processes that keep state between epochs."""

from __future__ import annotations

from keyedstate.errors.base import KeyedStateError


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
