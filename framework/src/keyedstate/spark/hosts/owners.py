"""Which host a task goes to: that of the executor which keeps its partition, or one of its own executor."""

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

from keyedstate.checkpoint import AttemptManifest, HostAddress, OperatorFolder, TaskIdentity
from keyedstate.epoch.configuration import configuration_in_task, storage_in_task
from keyedstate.epoch.partition_plan import StateLocation
from keyedstate.errors import HostFolderError, KeyedStateError
from keyedstate.options import HOST, HOSTS_CONNECT_TIMEOUT, HOSTS_TCP, Configuration
from keyedstate.spark.hosts.network.client import HostedEpoch
from keyedstate.spark.hosts.network.handshake import SECRET_BYTES, prove_task
from keyedstate.spark.hosts.network.tcp_listener import Introduction, set_up
from keyedstate.spark.hosts.network.tls import TlsFiles, agree, plain_end
from keyedstate.spark.hosts.task_identity import is_local

_log = logging.getLogger(__name__)

#: Of the difference between two executors, one in so many partitions moves in an epoch.
MOVING_SHARE = 16
#: A difference of one in so many partitions is none.
TOLERATED = 8
#: What makes Spark encrypt what goes between its processes.
_ENCRYPTION = ("spark.network.crypto.enabled", "spark.ssl.enabled", "spark.ssl.rpc.enabled")
_secrets: dict[tuple[str, str], bytes] = {}
_secrets_lock = threading.Lock()


@dataclass(frozen=True)
class RemoteAccess:
    """What the tasks of a query need to reach each other's hosts; travels in their function alone.

    Attributes
    ----------
    secret : bytes
        Random; it is in no file, log or metadata that keyedstate writes.
    driver : str
        The driver's address.
    """

    secret: bytes = field(repr=False)
    driver: str

    def introduction(self) -> Introduction:
        """Return what a task of this executor tells the executor's hosts."""
        return Introduction(self.secret, self.driver, executor_id())


@dataclass(frozen=True)
class Kept:
    """A partition that a host of another executor keeps.

    Attributes
    ----------
    address : HostAddress
    version : str
        The `Partition.version` that it has, if it still has it.
    secret : bytes
    timeout_s : float
        For its answer.
    tls : TlsFiles or None
    """

    address: HostAddress
    version: str
    secret: bytes = field(repr=False)
    timeout_s: float
    tls: TlsFiles | None = None

    def run(self, epoch: HostedEpoch) -> tuple[socket.socket, Generator[pa.RecordBatch, None, str]] | None:
        """Ask for an epoch to be run there; None, and no rows are used up, where that cannot be had."""
        deadline = time.monotonic() + self.timeout_s
        target = (self.address.address, self.address.port)
        connection = None
        try:
            connection = socket.create_connection(target, timeout=self.timeout_s)
            if self.tls is not None:
                connection = secured = self.tls.wrap(connection, server=False)
                agree(secured, deadline)
            session = prove_task(connection, self.secret, self.address, deadline)
            set_up(connection)
            if isinstance(connection, ssl.SSLSocket):
                connection = plain_end(connection)
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


def run_where_kept(
    epoch: HostedEpoch,
    kept: Kept | None,
    connect: Callable[[], socket.socket],
    embedded: Callable[[TaskIdentity], Generator[pa.RecordBatch, None, str]],
) -> Generator[pa.RecordBatch, None, tuple[TaskIdentity, str]]:
    """Run an epoch at the host that keeps the partition, or where that cannot be had, on this executor.

    There it runs in a host, and where no folder is safe for the sockets of hosts, in the task.

    Parameters
    ----------
    epoch : HostedEpoch
    kept : Kept or None
        None for a partition that no other executor keeps.
    connect : callable
        As in `HostedEpoch.run`: connects to a host of this executor.
    embedded : callable
        Runs the epoch in the task, under an identity; otherwise as `HostedEpoch.run`.

    Returns
    -------
    generator
        Of the output; returns the identity under which the epoch has run, and the path of its manifest.

    Raises
    ------
    KeyedStateError
        As `HostedEpoch.run`, also where a host is lost after it has taken rows.
    """
    if kept is not None:
        taken = kept.run(epoch)
        if taken is not None:
            connection, running = taken
            with connection:
                path = yield from running
            return epoch.identity, path
        # That host may have begun: two processes that run one attempt must differ.
        operator, _, _ = epoch.identity.nonce.partition("-")
        identity = replace(epoch.identity, nonce=f"{operator}-{uuid.uuid4().hex}")
        epoch = replace(epoch, identity=identity)
    try:
        return epoch.identity, (yield from epoch.run(connect))
    except HostFolderError as error:
        # Raised before the epoch has used any row.
        _warn_of_embedded(epoch.identity.uid, str(error))
    return epoch.identity, (yield from embedded(epoch.identity))


@lru_cache(maxsize=64)
def _warn_of_embedded(uid: str, reason: str) -> None:
    # Once in each worker.
    _log.warning(
        "the epochs of the operator %r run in tasks, which restore the state each time: %s", uid, reason
    )


def remote_access(spark: SparkSession, config: Configuration, folder: str) -> RemoteAccess | None:
    """Return what lets the executors of a query use each other's hosts; None where they shall not.

    Parameters
    ----------
    spark : SparkSession
    config : Configuration
    folder : str
        The operator's own.  One that is built in each epoch, inside ``foreachBatch``, has the same secret
        each time: else no host would know it.

    Raises
    ------
    MissingOptionError
    """
    conf = spark.sparkContext.getConf()
    # Also where it is not used: half of it is a mistake.
    chosen, tls = config[HOSTS_TCP], TlsFiles.of(config)
    if chosen == "auto":
        encrypts = any(str(conf.get(name)).lower() == "true" for name in _ENCRYPTION)
        if (encrypts and tls is None) or is_local(spark.sparkContext):
            return None
    if chosen == "off" or config[HOST] == "embedded":
        return None
    with _secrets_lock:
        key = (str(spark.sparkContext.applicationId), folder)
        secret = _secrets.setdefault(key, secrets.token_bytes(SECRET_BYTES))
    return RemoteAccess(secret, conf.get("spark.driver.host") or socket.gethostname())


def kept_elsewhere(
    me: Introduction, settings: tuple[tuple[str, Any], ...], place: StateLocation, identity: TaskIdentity
) -> Kept | None:
    """Return who keeps the partition of a task, by the newest checkpoint; None where it is to run here.

    A hint and no more: the host that gets the task finds the restore point by the rules, and a task that
    finds no host restores from files.
    """
    try:
        parts = _newest_parts(settings, place, identity.run_id, identity.epoch)
    except (KeyedStateError, OSError):
        return None
    if len(parts) != identity.parallelism:
        return None
    part = parts[identity.partition]
    if part.host is None:
        return None
    owner = part.host.executor
    kept = Counter(one.host.executor for one in parts if one.host is not None)
    if owner == me.executor or moves(kept[owner], kept[me.executor], identity.partition, identity.epoch):
        return None
    config = configuration_in_task(settings)
    timeout_s = config[HOSTS_CONNECT_TIMEOUT] / 1000.0
    return Kept(part.host, part.identity.nonce, me.secret, timeout_s, TlsFiles.of(config))


def moves(theirs: int, mine: int, partition: int, epoch: int) -> bool:
    """Return whether a task takes its partition over from an executor that could run the epoch.

    It does where its own executor keeps clearly fewer: so executors that have come later get their share.  In
    one epoch only a small part of the difference moves, and which partitions is a matter of their numbers, so
    that tasks need not agree and do not overshoot.

    Parameters
    ----------
    theirs, mine : int
        How many partitions of the operator each executor keeps.
    partition, epoch : int
    """
    if theirs - mine <= 1 + theirs // TOLERATED:
        return False
    return zlib.crc32(f"{epoch}/{partition}".encode()) % (MOVING_SHARE * theirs) < theirs - mine


@lru_cache(maxsize=1)
def executor_id() -> str:
    """Return what tells the executor of this Python worker from all others."""
    for folder in filter(None, os.environ.get("SPARK_LOCAL_DIRS", "").split(",")):
        for name in reversed(Path(folder).parts):
            if name.startswith("blockmgr-"):
                return name
        with suppress(OSError):
            found = [name for name in os.listdir(folder) if name.startswith("blockmgr-")]
            if len(found) == 1:
                return found[0]
    # Spark's Python daemon, of which an executor has one.
    return f"{socket.gethostname()}-{os.getppid()}"


@lru_cache(maxsize=2)
def _newest_parts(
    settings: tuple[tuple[str, Any], ...], place: StateLocation, run_id: str, epoch: int
) -> tuple[AttemptManifest, ...]:
    """Return the parts of the newest checkpoint before an epoch, read once by all its tasks in this worker.

    Empty where there is none, or it is of another run: no host goes on from that.
    """
    folder = OperatorFolder(storage_in_task(place.directory, settings), place.uid)
    before = [number for number in folder.checkpoints() if number < epoch]
    metadata = folder.read_metadata(max(before)) if before else None
    return () if metadata is None or metadata.run_id != run_id else metadata.parts
