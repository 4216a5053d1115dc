"""A job without Spark: tasks that run epochs of one operator in real host processes."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

import cloudpickle
import pyarrow as pa

from keyedstate.checkpoint.format.manifest import AttemptManifest, CheckpointMetadata, TaskIdentity
from keyedstate.checkpoint.protocol.coordinator import Acknowledgement, CheckpointCoordinator
from keyedstate.checkpoint.protocol.operator_folder import OperatorFolder
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.epoch.configuration import frozen
from keyedstate.epoch.function_transport import pack_function
from keyedstate.epoch.partition_plan import PartitionPlan, StateLocation
from keyedstate.errors import HostLostError
from keyedstate.keygroups import KEY_GROUP_COLUMN
from keyedstate.options import Configuration
from keyedstate.runtime import KeyedProcessFunction
from keyedstate.runtime.output import OutputSchema
from keyedstate.spark.hosts.launch import Hosts, HostSettings
from keyedstate.spark.hosts.network.client import HostedEpoch
from keyedstate.spark.hosts.network.tcp_listener import Introduction
from keyedstate.spark.hosts.network.tls import TlsFiles
from keyedstate.spark.hosts.owners import remote_partition, run_on_owner
from keyedstate.spark.hosts.processes import Process, process_of
from keyedstate.spark.task.task import run_in_task
from keyedstate.state import ValueState
from keyedstate.types import INT64

MAX_PARALLELISM = 8
#: For what must happen, however busy the machine is.
DEADLINE_S = 600
OUTPUT = pa.schema([("key", pa.string()), ("count", pa.int64())])


class Counting(KeyedProcessFunction):
    """Counts the rows of each key; tells what happens to it in a file, if it is given one."""

    count = ValueState("count", INT64, default=0)

    def __init__(self, recorded: str = "") -> None:
        self.recorded = recorded

    def tell(self, what: str) -> None:
        if self.recorded:
            with open(self.recorded, "a") as file:
                file.write(f"{what}\n")

    def open(self, ctx: Any) -> None:
        self.tell("open")

    def process(self, row: Any, ctx: Any) -> Iterator[Any]:
        self.count.update(self.count.value() + 1)
        yield row.key, self.count.value()

    def close(self) -> None:
        self.tell("close")


def wait_until(true: Callable[[], object], seconds: float = DEADLINE_S) -> None:
    """Wait for a condition without an event."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def command_line(process: Path) -> str:
    """Return the command line of a process by its folder in /proc.

    A process that was just started has none for some milliseconds; this waits if it is a child.
    """
    while not (line := (process / "cmdline").read_text()):
        state, parent = (process / "stat").read_text().rpartition(")")[2].split()[:2]
        if int(parent) != os.getpid() or state in "ZX":
            break
        time.sleep(0.01)
    return line


def openssl(folder: Path, *words: str) -> None:
    """Run a command of openssl."""
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)


def certificates(folder: Path) -> TlsFiles:
    """Create an authority in a new folder, and an executor's certificate."""
    folder.mkdir()
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    openssl(
        folder, "req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=ca"
    )
    openssl(folder, "req", *key, "-keyout", "key.pem", "-out", "request", "-subj", "/CN=executor")
    authority = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial")
    openssl(folder, "x509", "-req", "-in", "request", *authority, "-out", "certificate.pem", "-days", "2")
    return TlsFiles(*(str(folder / name) for name in ("certificate.pem", "key.pem", "ca.pem")))


class HostedJob:
    """One operator of which each partition has a host of its own.

    Parameters
    ----------
    folder : Path
        A new one.
    function : KeyedProcessFunction
    parallelism : int
    idle_ms, memory_bytes, timeout_ms : int
    secret : bytes, optional
        Of the query, where executors use each other's hosts over TCP.
    options : mapping of str to object
        Of the operator.
    """

    def __init__(
        self,
        folder: Path,
        function: KeyedProcessFunction | None = None,
        *,
        parallelism: int = 1,
        idle_ms: int = 600_000,
        memory_bytes: int = 0,
        timeout_ms: int = 0,
        secret: bytes | None = None,
        **options: object,
    ) -> None:
        cloudpickle.register_pickle_by_value(sys.modules[__name__])
        self.folder = folder
        self.recorded = folder / "recorded"
        # Pytest's own folders have paths that are too long for sockets.
        self._short = tempfile.TemporaryDirectory(prefix="ks-")
        self.sockets = Path(self._short.name, "here")
        self.parallelism = parallelism
        self.timeout_ms = timeout_ms
        self.secret = secret
        self.run_id = "run-1"
        # A busy machine answers late, and a host of another executor that did would not be used.
        limits = {
            "hosts.idle-time": idle_ms,
            "hosts.memory": memory_bytes,
            "hosts.connect-timeout": DEADLINE_S * 1000,
        }
        config = Configuration({"checkpoint.delta-min-bytes": 0, **limits, **options})
        self.state = OperatorFolder(CheckpointStorage.open(str(folder / "state"), config), "counts")
        self.coordinator = CheckpointCoordinator(self.state)
        self.plan = PartitionPlan(
            function=pack_function(Counting() if function is None else function),
            function_name="Counting",
            key_columns=(("key", "string"),),
            key_types=(pa.string(),),
            output=OutputSchema(OUTPUT),
            parallelism=parallelism,
            max_parallelism=MAX_PARALLELISM,
            settings=frozen(config),
            location=StateLocation("counts", str(folder / "state"), "zstd", True),
            event_times=(),
        )
        self.packed = cloudpickle.dumps(self.plan)
        self._settings = HostSettings.of(config)
        # Stands for Spark's daemon: what it ends with, its hosts end with.
        self.parent = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        found = process_of(self.parent.pid)
        assert found is not None
        self.anchor: Process = found
        there = Path(self._short.name, "there")
        for place in (self.sockets, there):
            place.mkdir()
        self.hosts = Hosts([found], self._settings, [self.sockets])
        self.others = Hosts([found], self._settings, [there])

    def __enter__(self) -> HostedJob:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.parent.kill()
        self.parent.communicate()
        wait_until(lambda: not self.processes())
        self.coordinator.drain()
        self._short.cleanup()

    def processes(self) -> list[Process]:
        """Return the job's host processes."""
        return [host for host, _ in self._found()]

    def host(self, number: int = 0, executor: str = "here") -> Process:
        """Return one of them."""
        marks = f'"number": {number},', f'/{executor}"'
        [found] = [host for host, line in self._found() if all(mark in line for mark in marks)]
        return found

    def _found(self) -> Iterator[tuple[Process, str]]:
        for folder in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                process = process_of(int(folder.name))
                if process is not None and f'"{self.anchor.name}"' in (line := command_line(folder)):
                    yield process, line

    def identity(self, epoch: int, partition: int = 0) -> TaskIdentity:
        """Return the identity of a new attempt."""
        nonce = f"op-{uuid.uuid4().hex}"
        return TaskIdentity(
            "counts", "query", self.run_id, epoch, partition, self.parallelism, MAX_PARALLELISM, 1, nonce
        )

    @property
    def me(self) -> Introduction | None:
        """How a task introduces itself that runs now: its executor is that of `hosts`."""
        executor = "there" if self.hosts is self.others else "here"
        return None if self.secret is None else Introduction(self.secret, "127.0.0.1", executor)

    def results(
        self, epoch: int, batches: Callable[[], Iterator[pa.RecordBatch]]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the output of an attempt as it comes."""
        hosted = HostedEpoch(self.identity(epoch), self.packed, lambda _: ((), batches()), self.timeout_ms)
        yield from hosted.run(lambda: self.hosts.connect(0))

    def abandon(self, epoch: int, keys: Iterable[str]) -> None:
        """Begin an attempt, and hang up when the function has recorded that it has begun."""
        sockets: list[socket.socket] = []

        def connect() -> Any:
            sockets.append(self.hosts.connect(0))
            return sockets[-1]

        def hang_up() -> None:
            wait_until(lambda: self.recorded.exists() and "begun" in self.recorded.read_text())
            sockets[-1].shutdown(socket.SHUT_RDWR)

        hosted = HostedEpoch(self.identity(epoch), self.packed, lambda _: ((), iter([self.batch(keys)])), 0)
        with ThreadPoolExecutor(1) as pool:
            gone = pool.submit(hang_up)
            with contextlib.suppress(OSError, HostLostError):
                list(hosted.run(connect))
            gone.result()

    def attempt(
        self,
        epoch: int,
        keys: Iterable[str] = (),
        partition: int = 0,
        batches: Callable[[], Iterator[pa.RecordBatch]] | None = None,
    ) -> tuple[list[tuple[Any, ...]], Acknowledgement]:
        """Run one attempt at an epoch; return its output, and what it would tell the driver."""
        identity = self.identity(epoch, partition)
        rows = batches or (lambda: iter([self.batch(keys, partition)]))
        kept = None
        if self.me is not None:
            assert self.plan.location is not None
            kept = remote_partition(self.me, self.plan.settings, self.plan.location, identity)
        hosted = HostedEpoch(
            identity, self.packed, lambda _: ((), rows()), self.timeout_ms, introduction=self.me
        )
        run = run_on_owner(
            hosted,
            kept,
            lambda: self.hosts.connect(partition),
            lambda identity: run_in_task(self.plan, identity, hosted.sides),
        )
        out: list[tuple[Any, ...]] = []
        while True:
            try:
                batch = next(run)
            except StopIteration as end:
                return out, end.value
            out += [tuple(row.values()) for row in batch.to_pylist()]

    def epoch(self, epoch: int, keys: Iterable[str] = ()) -> list[tuple[Any, ...]]:
        """Run an epoch of all partitions and publish it; the keys are those of partition 0."""
        found = []
        for partition in range(self.parallelism):
            out, acknowledgement = self.attempt(epoch, keys if partition == 0 else (), partition)
            found += out
            self.coordinator.acknowledge(acknowledgement)
        return found

    def batch(self, keys: Iterable[str], partition: int = 0) -> pa.RecordBatch:
        """Return rows of the first key group of a partition."""
        rows = list(keys)
        key_group = self.plan.key_groups(partition).start
        return pa.record_batch(
            {
                "key": pa.array(rows, pa.string()),
                KEY_GROUP_COLUMN: pa.array([key_group] * len(rows), pa.int32()),
            }
        )

    def checkpoint(self) -> CheckpointMetadata:
        """Return the newest checkpoint."""
        found = self.state.read_metadata(max(self.state.checkpoints()))
        assert found is not None
        return found

    def part(self, partition: int = 0) -> AttemptManifest:
        """Return a partition's manifest in the newest checkpoint."""
        return self.checkpoint().parts[partition]
