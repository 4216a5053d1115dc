"""Hosts and tasks of two executors, without Spark: who goes where, who takes over, and who is let in."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import cloudpickle
import pyarrow as pa
import pytest
from hosted import DEADLINE_S, Counting, HostedJob, wait_until

import keyedstate
from keyedstate.checkpoint.format.json_converter import to_json
from keyedstate.checkpoint.format.manifest import HostAddress, StateOrigin, TaskIdentity
from keyedstate.epoch.configuration import frozen
from keyedstate.errors import (
    AuthenticationError,
    EpochTimeoutError,
    HostLostError,
    HostProtocolError,
    UserFunctionError,
)
from keyedstate.options import Configuration
from keyedstate.spark.hosts.network.client import HostedEpoch
from keyedstate.spark.hosts.network.handshake import Session, prove_task
from keyedstate.spark.hosts.network.protocol import PROTOCOL, Frame, FrameReader, FrameType, frame
from keyedstate.spark.hosts.network.tcp_listener import Introduction, TcpListener
from keyedstate.spark.hosts.owners import RemoteAccess, RemotePartition, moves, run_on_owner
from keyedstate.spark.session import executor_cores, is_local

HOST = StateOrigin.HOST


@pytest.mark.parametrize(
    ("master", "local", "cores"),
    [
        ("local", True, 1),
        ("local[2]", True, 2),
        ("local[3, 4]", True, 3),
        ("local[*,3]", True, 0),
        ("local-cluster[2,1,1024]", False, 5),
        ("yarn", False, 5),
    ],
)
def test_a_driver_that_is_its_own_executor_needs_no_network(master: str, local: bool, cores: int) -> None:
    settings = {"spark.master": master, "spark.executor.cores": "5"}
    session = cast(Any, SimpleNamespace(conf=settings))
    assert is_local(session) is local
    assert executor_cores(session) == cores


class Raising(Counting):
    """Raises for the key ``raise``, and never ends with the key ``loop``."""

    def process(self, row: Any, ctx: Any) -> Iterator[Any]:
        if row.key == "raise":
            raise ZeroDivisionError("on purpose")
        while row.key == "loop":
            pass
        yield from super().process(row, ctx)


class TwoExecutors:
    """A job of one partition whose tasks run on either of two executors; each test takes keys of its own."""

    def __init__(self, job: HostedJob) -> None:
        self.job = job
        self.epoch = -1
        self._executors = {"here": job.hosts, "there": job.others}

    @property
    def address(self) -> HostAddress:
        """Where the partition is kept."""
        found = self.job.part().host
        assert found is not None
        return found

    @property
    def way(self) -> tuple[bool, StateOrigin]:
        """Whether the newest epoch's rows went over the network, and where its state came from."""
        part = self.job.part()
        return part.task_executor != self.address.executor, part.state_origin

    @property
    def taken_over(self) -> bool:
        """Whether the task's executor keeps the partition now, and has read files for it."""
        goes_over_network, origin = self.way
        return not goes_over_network and origin is not HOST

    def at_owner(self) -> None:
        """Run the next tasks on the executor that keeps the partition."""
        self.job.hosts = self._executors[self.address.executor]

    def elsewhere(self) -> None:
        """Run them on the other one."""
        self.job.hosts = self._executors["there" if self.address.executor == "here" else "here"]

    def next(self, *keys: str) -> list[Any]:
        """Run an epoch."""
        out = self.job.epoch(self.epoch + 1, keys)
        self.epoch += 1
        return out

    def attempt(self, *keys: str, batches: Callable[[], Iterator[pa.RecordBatch]] | None = None) -> None:
        """Run an attempt at the next epoch whose output is not committed."""
        self.job.attempt(self.epoch + 1, keys, batches=batches)

    @property
    def owner(self) -> Any:
        """The process that keeps the partition."""
        return self.job.host(executor=self.address.executor)

    def kill_owner(self) -> None:
        """Kill it, and wait until it is gone."""
        owner = self.owner
        owner.kill(signal.SIGKILL)
        wait_until(lambda: not owner.is_alive)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostedJob]:
    """One for all tests: hosts take a while to start."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    folder = tmp_path_factory.mktemp("job")
    with HostedJob(folder, Raising(), secret=secrets.token_bytes(32)) as running:
        yield running


@pytest.fixture(scope="module")
def executors(job: HostedJob) -> TwoExecutors:
    """Both, with hosts that run; one of them keeps the partition."""
    found = TwoExecutors(job)
    found.next()
    return found


@pytest.fixture
def cluster(executors: TwoExecutors) -> TwoExecutors:
    """The two executors; tasks run on the one that does not keep the partition, which is warm."""
    executors.at_owner()
    executors.next()
    assert executors.next() == []
    assert executors.way == (False, HOST)
    executors.elsewhere()
    return executors


# -- who goes where --------------------------------------------------------------------------------


def test_a_task_uses_the_host_of_the_executor_that_keeps_its_partition(cluster: TwoExecutors) -> None:
    assert cluster.next("used", "used") == [("used", 1), ("used", 2)]
    assert cluster.way == (True, HOST)
    cluster.next()
    assert cluster.way == (True, HOST)
    cluster.at_owner()
    assert cluster.next("used") == [("used", 3)]
    assert cluster.way == (False, HOST)


def test_rows_and_results_of_any_size_go_over_the_network(cluster: TwoExecutors) -> None:
    keys = [f"{number}-{'x' * 1000}" for number in range(3000)]
    # The rows of one key are consecutive.
    assert cluster.next(*keys, *keys) == [(key, times) for key in keys for times in (1, 2)]
    assert cluster.way == (True, HOST)


def test_where_the_owner_is_gone_the_tasks_executor_takes_over(cluster: TwoExecutors) -> None:
    cluster.next("gone")
    owner = cluster.address
    cluster.kill_owner()
    assert cluster.next("gone") == [("gone", 2)]
    assert cluster.taken_over
    assert cluster.address.executor != owner.executor
    # The partition has moved: now it is the other executor's tasks that go over the network.
    cluster.elsewhere()
    assert cluster.next("gone") == [("gone", 3)]
    assert cluster.way == (True, HOST)


def test_an_owner_that_does_not_answer_is_not_waited_for(cluster: TwoExecutors) -> None:
    """As a machine that has vanished, or a process that hangs: the connection is there, and nothing comes."""
    cluster.next("hangs")
    owner, plan = cluster.owner, cluster.job.plan
    owner.kill(signal.SIGSTOP)
    # For this task alone: any other owner may take long to answer on a busy machine.
    cluster.job.plan = replace(plan, settings=frozen(Configuration({"hosts.connect-timeout": "1 s"})))
    try:
        assert cluster.next("hangs") == [("hangs", 2)]
    finally:
        cluster.job.plan = plan
        owner.kill(signal.SIGCONT)
    assert cluster.taken_over
    cluster.elsewhere()
    assert cluster.next("hangs") == [("hangs", 3)]
    assert cluster.way == (True, HOST)


def test_an_owner_at_another_version_is_not_used(cluster: TwoExecutors) -> None:
    """What it keeps is the state of an attempt whose output was not committed."""
    cluster.attempt("version", "version")
    assert cluster.next("version") == [("version", 1)]
    assert cluster.taken_over


def test_an_owner_that_does_not_know_the_plan_is_not_given_it(cluster: TwoExecutors) -> None:
    mine = cluster.job.packed
    cluster.job.packed = cloudpickle.dumps(replace(cluster.job.plan, function_name="Renamed"))
    try:
        assert cluster.next("plan") == [("plan", 1)]
        assert cluster.taken_over
    finally:
        cluster.job.packed = mine
    assert cluster.next("plan") == [("plan", 2)]


def test_a_lost_owner_fails_the_attempt_and_the_next_one_succeeds(
    cluster: TwoExecutors,
) -> None:
    def rows() -> Iterator[pa.RecordBatch]:
        yield cluster.job.batch(["lost", "lost"])
        cluster.kill_owner()
        yield cluster.job.batch(["lost"])

    with pytest.raises(HostLostError):
        cluster.attempt(batches=rows)
    assert cluster.next("lost") == [("lost", 1)]
    assert cluster.taken_over


def test_what_a_failed_attempt_has_changed_is_not_seen(cluster: TwoExecutors) -> None:
    def rows() -> Iterator[pa.RecordBatch]:
        yield cluster.job.batch(["failed", "failed"])
        raise EOFError

    with pytest.raises(EOFError):
        cluster.attempt(batches=rows)
    with pytest.raises(UserFunctionError, match=r"on purpose\. Raised in .* for the key 'raise'"):
        cluster.attempt("failed", "raise")
    assert cluster.next("failed") == [("failed", 1)]


def test_an_epoch_that_takes_too_long_ends_no_process_of_another_executor(cluster: TwoExecutors) -> None:
    owner = cluster.owner
    cluster.job.timeout_ms = 2000
    try:
        with pytest.raises(EpochTimeoutError, match=r"hosts\.epoch-timeout"):
            cluster.attempt("loop")
    finally:
        cluster.job.timeout_ms = 0
    assert owner.is_alive
    assert cluster.next("long") == [("long", 1)]


def test_a_new_run_asks_no_host_of_the_run_before(cluster: TwoExecutors) -> None:
    cluster.job.run_id = "run-2"
    assert cluster.next("run") == [("run", 1)]
    assert cluster.taken_over


def test_without_a_secret_no_address_is_known(tmp_path: Path) -> None:
    with HostedJob(tmp_path) as job:
        job.epoch(0, ["a"])
        assert (job.part().host, job.part().task_executor) == (None, None)


# -- how partitions are spread ---------------------------------------------------------------------


def test_a_partition_stays_where_executors_keep_about_as_many() -> None:
    every = [(partition, epoch) for partition in range(64) for epoch in range(64)]
    for theirs, mine in ((1, 0), (2, 1), (5, 5), (3, 9), (40, 36)):
        assert not any(moves(theirs, mine, *one) for one in every)


def test_an_executor_that_keeps_fewer_gets_its_share_a_few_partitions_at_a_time() -> None:
    every = [(partition, epoch) for partition in range(64) for epoch in range(128)]
    moved = [partition for partition, epoch in every if moves(64, 0, partition, epoch)]
    assert 0 < len(moved) < len(every) / 8
    # No partition is left out for ever.
    assert set(moved) == set(range(64))


# -- who is let in ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class End:
    """One end of a connection, and what the challenge has given; a Unix socket has none."""

    connection: socket.socket
    session: Session | None = None

    def send(self, *frames: list[Any]) -> None:
        """Send frames, as far as the other side takes them."""
        with contextlib.suppress(OSError):
            for pieces in frames:
                self.connection.sendall(b"".join(self.session.sealed(pieces) if self.session else pieces))

    def reader(self, expected: set[FrameType] | None = None) -> FrameReader:
        """Return what reads the other side's frames."""
        received = self.session.received if self.session else None
        return FrameReader(self.connection, set(FrameType) if expected is None else expected, received)


@contextlib.contextmanager
def connected(cluster: TwoExecutors, secret: bytes | None = None) -> Iterator[End]:
    """Connect to the owner as a task that knows a secret: by default the query's."""
    address = cluster.address.address, cluster.address.port
    with socket.create_connection(address, timeout=DEADLINE_S) as connection:
        deadline = time.monotonic() + DEADLINE_S
        session = prove_task(connection, secret or known(cluster), cluster.address, deadline)
        connection.settimeout(DEADLINE_S)
        yield End(connection, session)


def known(cluster: TwoExecutors) -> bytes:
    """Return the query's secret."""
    assert cluster.job.secret is not None
    return cluster.job.secret


def hello(version: str = keyedstate.__version__) -> list[Any]:
    """Return the first frame of a task."""
    return frame(FrameType.HELLO, {"protocol": PROTOCOL, "keyedstate": version})


def begin(cluster: TwoExecutors, packed: bytes, **more: object) -> list[Any]:
    """Return a frame that asks for the next epoch by a plan, at the version that is there."""
    return frame(
        FrameType.BEGIN,
        {
            "digest": hashlib.sha256(packed).hexdigest(),
            "identity": to_json(cluster.job.identity(cluster.epoch + 1)),
            "version": cluster.job.part().identity.nonce,
            **more,
        },
    )


def answers(end: End, *frames: list[Any]) -> list[Frame]:
    """Send frames and return what the host answers before it hangs up."""
    end.send(*frames)
    reader = end.reader()
    found = []
    with contextlib.suppress(ConnectionError):
        while (received := reader.read()) is not None:
            found.append(received)
    return found


def test_a_task_with_another_secret_is_refused_and_takes_over(cluster: TwoExecutors) -> None:
    with pytest.raises(AuthenticationError, match="does not know"), connected(cluster, bytes(32)):
        pass
    mine, cluster.job.secret = cluster.job.secret, bytes(32)
    try:
        assert cluster.next("secret") == [("secret", 1)]
        assert cluster.taken_over
    finally:
        cluster.job.secret = mine


def test_the_secret_of_one_query_opens_no_plan_of_another(cluster: TwoExecutors) -> None:
    other = secrets.token_bytes(32)
    job = cluster.job
    cluster.at_owner()
    # Another query's task has been to the same host.
    mine = job.packed, job.secret
    job.packed, job.secret = cloudpickle.dumps(replace(job.plan, function_name="Another")), other
    cluster.attempt()
    job.packed, job.secret = mine
    cluster.next()
    with connected(cluster, other) as connection:
        kinds = [found.type for found in answers(connection, hello(), begin(cluster, job.packed))]
        assert kinds == [FrameType.HELLO, FrameType.NOT_KEPT]
    with connected(cluster) as connection:
        connection.send(hello(), begin(cluster, job.packed))
        reader = connection.reader()
        frames = [reader.read() for _ in range(2)]
        assert [one and one.type for one in frames] == [FrameType.HELLO, FrameType.READY]


def test_a_task_of_another_version_is_refused(cluster: TwoExecutors) -> None:
    with connected(cluster) as connection:
        assert "'keyedstate': '0.0.1'" in answers(connection, hello("0.0.1"))[-1].json()["message"]


class Planted:
    """Makes a folder where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self._path),)


def test_no_plan_is_taken_from_the_network(cluster: TwoExecutors, tmp_path: Path) -> None:
    pickled = cloudpickle.dumps(Planted(tmp_path / "planted"))
    plan = frame(FrameType.PLAN, pickled)
    imports = frame(FrameType.IMPORTS, {"sys_path": [str(tmp_path)]})
    with connected(cluster) as connection:
        found = answers(connection, hello(), begin(cluster, pickled), imports, plan)
        assert [one.type for one in found] == [FrameType.HELLO, FrameType.NOT_KEPT]
    for frames in ([hello(), plan], [plan], [hello(), imports]):
        with connected(cluster) as connection:
            assert "came where" in answers(connection, *frames)[-1].json()["message"]
    assert not (tmp_path / "planted").exists()
    assert cluster.next("planted") == [("planted", 1)]
    assert cluster.way == (True, HOST)


def test_a_frame_longer_than_it_may_be_is_refused_by_its_length(cluster: TwoExecutors) -> None:
    with connected(cluster) as connection:
        header = struct.pack(">IB", FrameType.HELLO.limit + 1, FrameType.HELLO)
        assert "above the limit" in answers(connection, [header])[-1].json()["message"]


class FakeHost:
    """Listens like an owner, notes what it receives, and keeps nothing."""

    def __init__(self, secret: bytes) -> None:
        self.begun: list[dict[str, Any]] = []
        self._listener = TcpListener(lambda *accepted: self.answer(End(*accepted), FrameType.NOT_KEPT))
        settings = (("hosts.connect-timeout", DEADLINE_S * 1000),)
        self._listener.introduce(Introduction(secret, "127.0.0.1", "owner"), "digest", settings)

    @property
    def address(self) -> HostAddress:
        """Where it is."""
        assert self._listener.address is not None
        return self._listener.address

    def close(self) -> None:
        """Refuse all further connections."""
        self._listener.close()

    def answer(self, end: End, kind: FrameType) -> None:
        """Read what a task says first, and answer with a kind of frame."""

        def run() -> None:
            with end.connection:
                reader = end.reader({FrameType.HELLO, FrameType.BEGIN})
                frames = [reader.read() for _ in range(2)]
                assert frames[1] is not None
                self.begun.append(frames[1].json())
                end.send(frame(FrameType.HELLO, {"process": "1-1"}), frame(kind))

        threading.Thread(target=run).start()

    def connect(self) -> socket.socket:
        """Connect to it as to a host of the task's own executor."""
        mine, theirs = socket.socketpair()
        self.answer(End(theirs), FrameType.DONE)
        return mine


def not_embedded(identity: TaskIdentity) -> Generator[pa.RecordBatch, None, str]:
    """Stand for the epoch in the task, where a host can be had."""
    raise AssertionError("the epoch runs in the task")


def test_a_task_that_takes_over_is_another_attempt_and_keeps_the_secret(
    cluster: TwoExecutors,
) -> None:
    """The owner may have begun with the attempt, and what both write must not have one name."""
    job, secret = cluster.job, known(cluster)
    owner = FakeHost(secret)
    identity = job.identity(7)
    epoch = HostedEpoch(identity, job.packed, lambda _: ((), iter(())), 0, introduction=job.me)
    kept = RemotePartition(owner.address, "version", secret, DEADLINE_S)
    with pytest.raises(HostProtocolError):
        # Its own executor's host is no real one either.
        list(run_on_owner(epoch, kept, owner.connect, not_embedded))
    owner.close()
    asked, took_over = owner.begun
    assert (asked["version"], asked["executor"]) == ("version", job.me and job.me.executor)
    assert secret.hex() not in json.dumps(asked)
    assert secret.hex() == took_over["introduction"]["secret"]
    first, second = asked["identity"], took_over["identity"]
    assert first.pop("nonce") == identity.nonce != second.pop("nonce")
    assert first == second


def test_the_secret_is_written_nowhere(cluster: TwoExecutors) -> None:
    cluster.next("written")
    secret = known(cluster)
    process = Path("/proc", str(cluster.owner.pid))
    texts = [(process / name).read_bytes() for name in ("cmdline", "environ")]
    # Clean-up deletes folders and files of earlier epochs meanwhile, which os.walk passes over.
    for folder, _, names in os.walk(cluster.job.folder):
        for name in names:
            with contextlib.suppress(OSError):
                texts.append(Path(folder, name).read_bytes())
    texts += [repr(one).encode() for one in (RemoteAccess(secret, "driver"), cluster.job.me)]
    assert len(texts) > 8
    for form in (secret, secret.hex().encode(), repr(secret)[2:-1].encode()):
        assert not any(form in text for text in texts)


def test_a_malformed_introduction_is_refused_without_showing_it(cluster: TwoExecutors) -> None:
    cluster.at_owner()
    for wrong in ({}, {"secret": "5ec7e7"}, {"secret": "zz", "driver": "", "executor": ""}, 5):
        with cluster.job.hosts.connect(0) as connection:
            recorded = begin(cluster, cluster.job.packed, introduction=wrong)
            found = answers(End(connection), hello(), recorded)
            assert "introduction" in found[-1].json()["message"]
            assert b"5ec7e7" not in found[-1].content
    assert cluster.next("introduced") == [("introduced", 1)]


def test_two_tasks_at_once_do_not_share_a_partition(cluster: TwoExecutors) -> None:
    """A speculative attempt on another executor, while the first one is in the middle of its rows."""
    began, resume = threading.Event(), threading.Event()
    failed: list[BaseException] = []

    def slowly() -> Iterator[pa.RecordBatch]:
        yield cluster.job.batch(["twice"])
        began.set()
        assert resume.wait(DEADLINE_S)

    def run() -> None:
        try:
            cluster.attempt(batches=slowly)
        except BaseException as error:
            failed.append(error)

    first = threading.Thread(target=run)
    first.start()
    assert began.wait(DEADLINE_S)
    assert cluster.next("twice") == [("twice", 1)]
    resume.set()
    first.join()
    assert failed == []
    assert cluster.next("twice") == [("twice", 2)]
