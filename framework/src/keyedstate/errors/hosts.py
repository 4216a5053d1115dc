"""Errors about hosts."""

from __future__ import annotations

from keyedstate.errors.kernel import KeyedStateError

_EMBEDDED = "Set spark.keyedstate.host to embedded to run without hosts."


class HostError(KeyedStateError):
    """Base class of what goes wrong between a task and its host."""


class HostUnavailableError(HostError):
    """A host that cannot be started or reached.

    Attributes
    ----------
    reason : str
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"no host can be had for this partition: {reason}. What the process itself said is in the "
            f"executor's log. {_EMBEDDED}"
        )


class HostFolderError(HostUnavailableError):
    """A folder for the sockets of hosts that cannot be used, or that another user could change.

    The task tries the next folder, and without one it runs the epoch itself.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        KeyedStateError.__init__(
            self,
            f"the sockets of hosts have no safe folder: {reason}. Set TMPDIR on the executors, or "
            f"spark.local.dir, to a folder that only the user of the executors can change. {_EMBEDDED}",
        )


class HostLostError(HostError):
    """A host that went away while it ran an epoch.

    Attributes
    ----------
    uid : str
    partition, epoch : int
    pid : int
    """

    def __init__(self, uid: str, partition: int, epoch: int, pid: int) -> None:
        self.uid = uid
        self.partition = partition
        self.epoch = epoch
        self.pid = pid
        super().__init__(
            f"the host of partition {partition} of the operator {uid!r} (process {pid}) went away in epoch "
            f"{epoch}. It was killed, or the function ended it: by os._exit(), or by a crash in native code, "
            "whose traceback is in the executor's log. Nothing of this attempt is kept; the next one "
            "restores the partition from its files."
        )


class EpochTimeoutError(HostError):
    """An epoch that took longer than the option ``hosts.epoch-timeout`` allows, given up with its host.

    Attributes
    ----------
    uid : str
    partition, epoch, timeout_ms : int
    """

    def __init__(self, uid: str, partition: int, epoch: int, timeout_ms: int) -> None:
        self.uid = uid
        self.partition = partition
        self.epoch = epoch
        self.timeout_ms = timeout_ms
        super().__init__(
            f"partition {partition} of the operator {uid!r} has not ended epoch {epoch} after {timeout_ms} "
            "ms, and was given up with its host. Nothing of this attempt is kept. Where the function is not "
            "stuck, raise spark.keyedstate.hosts.epoch-timeout."
        )


class HostMemoryError(HostError):
    """A host that has grown beyond the option ``hosts.memory``.

    Attributes
    ----------
    used_bytes, limit_bytes : int
    """

    def __init__(self, used_bytes: int, limit_bytes: int) -> None:
        self.used_bytes = used_bytes
        self.limit_bytes = limit_bytes
        super().__init__(
            f"the host takes {used_bytes} bytes of memory and may take {limit_bytes}. It gives up this "
            "partition and makes place for a new host. Raise spark.keyedstate.hosts.memory, spread the state "
            "over more executors, or choose a backend that keeps it on disk."
        )


class HostProtocolError(HostError):
    """Bytes on a connection that are not what the other side may send there.

    Attributes
    ----------
    reason : str
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"the connection between a task and its host is broken: {reason}. Both must run the same version "
            "of keyedstate."
        )


class AuthenticationError(HostError):
    """A process at the other end of a TCP connection that could not prove that it belongs to the query.

    Attributes
    ----------
    reason : str
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"a connection between executors was refused: {reason}. {_EMBEDDED}")


class HostedEpochError(HostError):
    """An error inside a host that is none of keyedstate's own.

    Attributes
    ----------
    kind : str
        Its class.
    """

    def __init__(self, kind: str, message: str) -> None:
        self.kind = kind
        super().__init__(f"{kind}: {message}.")
