"""Errors about hosts."""

from __future__ import annotations

from keyedstate.errors.base import KeyedStateError


class HostError(KeyedStateError):
    """Base class of what goes wrong between a task and its host."""

    _embedded = "Set spark.keyedstate.host to embedded to run without hosts."


class HostUnavailableError(HostError):
    """A host that cannot be started or reached."""

    reason: str
    message = (
        "no host can be had for this partition: {reason}. What the process itself said is in the executor's "
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


class HostLostError(HostError):
    """A host that went away while it ran an epoch."""

    uid: str
    partition: int
    epoch: int
    pid: int
    message = (
        "the host of partition {partition} of the operator {uid!r} (process {pid}) went away in epoch "
        "{epoch}. It was killed, or the function ended it: by os._exit(), or by a crash in native code, "
        "whose traceback is in the executor's log. Nothing of this attempt is kept; the next one restores "
        "the partition from its files."
    )


class EpochTimeoutError(HostError):
    """An epoch that took longer than the option ``hosts.epoch-timeout`` allows, given up with its host."""

    uid: str
    partition: int
    epoch: int
    timeout_ms: int
    message = (
        "partition {partition} of the operator {uid!r} has not ended epoch {epoch} after {timeout_ms} ms, "
        "and was given up with its host. Nothing of this attempt is kept. Where the function is not stuck, "
        "raise spark.keyedstate.hosts.epoch-timeout."
    )


class HostMemoryError(HostError):
    """A host that has grown beyond the option ``hosts.memory``."""

    used_bytes: int
    limit_bytes: int
    message = (
        "the host takes {used_bytes} bytes of memory and may take {limit_bytes}. It gives up this partition "
        "and makes place for a new host. Raise spark.keyedstate.hosts.memory, spread the state over more "
        "executors, or choose a backend that keeps it on disk."
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
