"""The host of a task: that of the executor which keeps its partition, or one of the task's executor."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import ssl
import threading
import time
import uuid
import zlib
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from keyedstate.checkpoint.format.manifest import AttemptManifest, HostAddress, TaskIdentity
from keyedstate.checkpoint.protocol.coordinator import Acknowledgement
from keyedstate.checkpoint.protocol.operator_folder import OperatorFolder
from keyedstate.epoch.configuration import configuration_in_task, storage_in_task
from keyedstate.epoch.partition_plan import StateLocation
from keyedstate.errors import HostFolderError, KeyedStateError
from keyedstate.options import HOST, HOSTS_CONNECT_TIMEOUT, HOSTS_TCP, Configuration
from keyedstate.spark.hosts.network.client import HostedEpoch
from keyedstate.spark.hosts.network.handshake import SECRET_BYTES, prove_task
from keyedstate.spark.hosts.network.tcp_listener import Introduction, set_up
from keyedstate.spark.hosts.network.tls import TlsFiles, handshake, plain_socket
from keyedstate.spark.session import application_id, is_local, setting

_log = logging.getLogger(__name__)

#: One of so many partitions of the difference between two executors moves in an epoch.
MOVING_SHARE = 16
#: A difference of one of so many partitions is tolerated.
TOLERATED = 8
#: The options by which Spark encrypts its own connections.
_ENCRYPTION = ("spark.network.crypto.enabled", "spark.ssl.enabled", "spark.ssl.rpc.enabled")
_secrets: dict[tuple[str, str], bytes] = {}
_secrets_lock = threading.Lock()


@dataclass(frozen=True)
class RemoteAccess:
    """The query's secret and the driver's address; only the function of its tasks carries them."""

    secret: bytes = field(repr=False)
    driver: str

    def introduction(self) -> Introduction:
        """Return what a task of this executor sends to the executor's hosts."""
        return Introduction(self.secret, self.driver, executor_id())


@dataclass(frozen=True)
class RemotePartition:
    """A partition that a host of another executor keeps, or has kept, at a `Partition.version`."""

    address: HostAddress
    version: str
    secret: bytes = field(repr=False)
    #: Until the host has answered.
    timeout_s: float
    tls: TlsFiles | None = None

    def run(
        self, epoch: HostedEpoch
    ) -> tuple[socket.socket, Generator[pa.RecordBatch, None, Acknowledgement]] | None:
        """Run an epoch there: return the connection and the output; None, before any row, if that fails."""
        deadline = time.monotonic() + self.timeout_s
        target = (self.address.address, self.address.port)
        connection = None
        try:
            connection = socket.create_connection(target, timeout=self.timeout_s)
            if self.tls is not None:
                connection = secured = self.tls.wrap(connection, server=False)
                handshake(secured, deadline)
            session = prove_task(connection, self.secret, self.address, deadline)
            set_up(connection)
            if isinstance(connection, ssl.SSLSocket):
                connection = plain_socket(connection)
            running = epoch.offer(connection, session, self.version, deadline)
            if running is not None:
                return connection, running
            reason = "it does not keep this version any more"
        except (OSError, KeyedStateError) as error:
            reason = str(error)
        if connection is not None:
            connection.close()
        _log.info(
            "partition %d of the operator %r is taken over in epoch %d from the host at %s:%d: %s",
            epoch.identity.partition,
            epoch.identity.uid,
            epoch.identity.epoch,
            *target,
            reason,
        )
        return None


def run_on_owner(
    epoch: HostedEpoch,
    remote: RemotePartition | None,
    connect: Callable[[], socket.socket],
    embedded: Callable[[TaskIdentity], Generator[pa.RecordBatch, None, Acknowledgement]],
) -> Generator[pa.RecordBatch, None, Acknowledgement]:
    """Run an epoch at the host that keeps the partition, else in a host of this executor.

    If no folder is safe for the sockets of hosts, the epoch runs in the task, by `embedded`. Yields the
    output; returns the acknowledgement, with the identity under which the epoch has run. Raises as
    `HostedEpoch.run`.
    """
    if remote is not None:
        taken = remote.run(epoch)
        if taken is not None:
            connection, running = taken
            with connection:
                return (yield from running)
        # That host may have started: two processes must not run the same attempt.
        operator, _, _ = epoch.identity.nonce.partition("-")
        identity = replace(epoch.identity, nonce=f"{operator}-{uuid.uuid4().hex}")
        epoch = replace(epoch, identity=identity)
    try:
        return (yield from epoch.run(connect))
    except HostFolderError as error:
        # Before the first row.
        _warn_of_embedded(epoch.identity.uid, str(error))
    return (yield from embedded(epoch.identity))


@lru_cache(maxsize=64)
def _warn_of_embedded(uid: str, reason: str) -> None:
    _log.warning(
        "the epochs of the operator %r run in tasks, which restore the state each time: %s", uid, reason
    )


def remote_access(spark: SparkSession, config: Configuration, folder: str) -> RemoteAccess | None:
    """Return the access of a query's executors to each other's hosts; None if the options forbid it.

    An operator that ``foreachBatch`` builds in each epoch keeps its secret, by the URI of its folder.
    Raises `MissingOptionError`.
    """
    # Checked in any case: an incomplete set of options is a mistake.
    chosen, tls = config[HOSTS_TCP], TlsFiles.of(config)
    if chosen == "auto":
        encrypts = any(str(setting(spark, name)).lower() == "true" for name in _ENCRYPTION)
        if (encrypts and tls is None) or is_local(spark):
            return None
    if chosen == "off" or config[HOST] == "embedded":
        return None
    with _secrets_lock:
        key = (application_id(spark), folder)
        secret = _secrets.setdefault(key, secrets.token_bytes(SECRET_BYTES))
    return RemoteAccess(secret, setting(spark, "spark.driver.host") or socket.gethostname())


def remote_partition(
    me: Introduction, settings: tuple[tuple[str, Any], ...], location: StateLocation, identity: TaskIdentity
) -> RemotePartition | None:
    """Return the partition of a task at the host of the newest checkpoint; None if this executor runs it.

    This is only a hint: any host finds the restore point itself, and without a host the task does.
    """
    try:
        parts = _newest_parts(settings, location, identity.run_id, identity.epoch)
    except (KeyedStateError, OSError):
        return None
    if len(parts) != identity.parallelism:
        return None
    part = parts[identity.partition]
    if part.host is None:
        return None
    owner = part.host.executor
    counts = Counter(one.host.executor for one in parts if one.host is not None)
    if owner == me.executor or moves(counts[owner], counts[me.executor], identity.partition, identity.epoch):
        return None
    config = configuration_in_task(settings)
    timeout_s = config[HOSTS_CONNECT_TIMEOUT] / 1000.0
    return RemotePartition(part.host, part.identity.nonce, me.secret, timeout_s, TlsFiles.of(config))


def moves(theirs: int, mine: int, partition: int, epoch: int) -> bool:
    """Return whether a task takes its partition over from another executor, which keeps clearly more.

    The executors keep `theirs` and `mine` of the operator's partitions. So executors that join later get a
    share. A hash of epoch and partition chooses a small part of the difference in each epoch: tasks need not
    communicate, and do not overshoot.
    """
    if theirs - mine <= 1 + theirs // TOLERATED:
        return False
    return zlib.crc32(f"{epoch}/{partition}".encode()) % (MOVING_SHARE * theirs) < theirs - mine


@lru_cache(maxsize=1)
def executor_id() -> str:
    """Return a unique name of the executor of this Python worker."""
    for folder in filter(None, os.environ.get("SPARK_LOCAL_DIRS", "").split(",")):
        for name in reversed(Path(folder).parts):
            if name.startswith("blockmgr-"):
                return name
        with suppress(OSError):
            found = [name for name in os.listdir(folder) if name.startswith("blockmgr-")]
            if len(found) == 1:
                return found[0]
    # The pid of Spark's Python daemon, one per executor.
    return f"{socket.gethostname()}-{os.getppid()}"


@lru_cache(maxsize=2)
def _newest_parts(
    settings: tuple[tuple[str, Any], ...], location: StateLocation, run_id: str, epoch: int
) -> tuple[AttemptManifest, ...]:
    """Return the parts of the newest checkpoint before an epoch; none if it is of another run."""
    folder = OperatorFolder(storage_in_task(location.directory, settings), location.uid)
    metadata = folder.newest_before(epoch)
    return () if metadata is None or metadata.run_id != run_id else metadata.parts
