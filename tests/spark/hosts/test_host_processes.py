"""Hosts as real processes, without Spark: what they keep, what they refuse, and how they end."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import cloudpickle
import pyarrow as pa
import pytest
from hosted import DEADLINE_S, Counting, HostedJob, wait_until
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark import broadcast

import keyedstate
from keyedstate.checkpoint.format.json_converter import to_json
from keyedstate.checkpoint.format.manifest import StateOrigin
from keyedstate.errors import (
    EpochTimeoutError,
    FunctionTransportError,
    HostLostError,
    HostMemoryError,
    OutputTypeError,
    UserFunctionError,
)
from keyedstate.runtime import KeyedProcessFunction
from keyedstate.spark.hosts.launch import Hosts, HostSettings
from keyedstate.spark.hosts.network.client import HostedEpoch
from keyedstate.spark.hosts.network.protocol import (
    BATCH_BYTES,
    PROTOCOL,
    BatchDecoder,
    BatchEncoder,
    Frame,
    FrameReader,
    FrameType,
    frame,
)
from keyedstate.spark.hosts.processes import Process, process_of

FILES, HOST, HOST_AND_DELTAS = StateOrigin.FILES, StateOrigin.HOST, StateOrigin.HOST_AND_DELTAS


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., HostedJob]]:
    """Start jobs, each with hosts of its own; all have ended when the test has."""
    with contextlib.ExitStack() as running:

        def begin(function: KeyedProcessFunction | None = None, **how: Any) -> HostedJob:
            folder = tmp_path / f"job-{len(list(tmp_path.iterdir()))}"
            folder.mkdir()
            return running.enter_context(HostedJob(folder, function, **how))

        yield begin


# -- what is kept ----------------------------------------------------------------------------------


def test_every_epoch_after_the_first_of_a_run_restores_nothing(
    start: Callable[..., HostedJob], backend_name: str
) -> None:
    job = start(backend=backend_name)
    origins = []
    for epoch in range(4):
        assert job.epoch(epoch, ["a", "a"]) == [("a", 2 * epoch + 1), ("a", 2 * epoch + 2)]
        origins.append(job.part().state_origin)
    assert origins == [FILES, HOST, HOST, HOST]


def test_the_function_stays_open_between_epochs(start: Callable[..., HostedJob], tmp_path: Path) -> None:
    recorded = tmp_path / "job-0" / "recorded"
    job = start(Counting(str(recorded)))
    for epoch in range(3):
        job.epoch(epoch, ["a"])
    assert recorded.read_text().split() == ["open"]
    job.parent.kill()
    wait_until(lambda: recorded.read_text().split() == ["open", "close"])


def test_hosts_end_with_their_parent_where_the_system_has_no_handles_of_processes(
    start: Callable[..., HostedJob], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "sitecustomize.py").write_text(
        f"import os\ndel os.pidfd_open\nopen({str(tmp_path / 'started')!r}, 'w').close()\n"
    )
    monkeypatch.syspath_prepend(str(modules))
    job = start()
    for epoch in range(2):
        job.epoch(epoch, ["a"])
    assert (tmp_path / "started").exists()
    assert job.processes()
    job.parent.kill()
    job.parent.wait()
    wait_until(lambda: not job.processes())


class SlowToClose(Counting):
    """Needs some time to close, as a function does that has a connection to end."""

    def close(self) -> None:
        time.sleep(1)
        super().close()


def test_an_unused_host_ends_when_its_functions_are_closed(
    start: Callable[..., HostedJob], tmp_path: Path
) -> None:
    recorded = tmp_path / "job-0" / "recorded"
    job = start(SlowToClose(str(recorded)), idle_ms=200)
    job.epoch(0, ["a"])
    wait_until(lambda: not job.processes())
    assert recorded.read_text().split() == ["open", "close"]


def test_a_killed_host_costs_one_restore_of_its_partitions_only(start: Callable[..., HostedJob]) -> None:
    job = start(parallelism=2)
    for epoch in range(2):
        job.epoch(epoch, ["a"])
    victim = job.host(0)
    victim.kill(signal.SIGKILL)
    wait_until(lambda: not victim.is_alive)
    assert job.epoch(2, ["a"]) == [("a", 3)]
    assert [part.state_origin for part in job.checkpoint().parts] == [FILES, HOST]
    job.epoch(3, ["a"])
    assert [part.state_origin for part in job.checkpoint().parts] == [HOST, HOST]


def test_a_new_run_begins_from_files(start: Callable[..., HostedJob]) -> None:
    job = start()
    job.epoch(0, ["a"])
    job.run_id = "run-2"
    assert job.epoch(1, ["a"]) == [("a", 2)]
    assert job.part().state_origin is FILES


def test_an_epoch_that_runs_again_begins_from_files(start: Callable[..., HostedJob]) -> None:
    """The kept state is that of the first attempt, whose output was not committed."""
    job = start()
    job.epoch(0, ["a"])
    job.attempt(1, ["a", "a"])
    out, acknowledgement = job.attempt(1, ["a"])
    assert out == [("a", 2)]
    job.coordinator.acknowledge(acknowledgement)
    assert job.part().state_origin is FILES
    # Of the two, the one that was acknowledged counts; the other's state is not used.
    assert job.epoch(2, ["a"]) == [("a", 3)]
    assert job.part().state_origin is HOST


def test_what_a_failed_attempt_has_changed_is_not_seen(start: Callable[..., HostedJob]) -> None:
    job = start()
    job.epoch(0, ["a"])
    with pytest.raises(ZeroDivisionError):
        job.attempt(1, batches=lambda: failing(job.batch(["a", "a"])))
    assert job.epoch(1, ["a"]) == [("a", 2)]
    assert job.part().state_origin is FILES


def failing(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    yield batch
    raise ZeroDivisionError


def test_what_a_zombie_gives_back_is_not_kept(start: Callable[..., HostedJob]) -> None:
    """An attempt that began before another one of its partition ends after it."""
    job = start()
    job.epoch(0, ["a"])
    resume, began = threading.Event(), threading.Event()

    def slowly() -> Iterator[pa.RecordBatch]:
        yield job.batch(["a", "a", "a"])
        began.set()
        assert resume.wait(DEADLINE_S)

    zombie = threading.Thread(target=lambda: job.attempt(1, batches=slowly))
    zombie.start()
    assert began.wait(DEADLINE_S)
    assert job.epoch(1, ["a"]) == [("a", 2)]
    resume.set()
    zombie.join()
    assert job.epoch(2, ["a"]) == [("a", 3)]
    assert job.part().state_origin is HOST


def test_a_host_that_has_missed_epochs_reads_what_they_changed(
    start: Callable[..., HostedJob], backend_name: str
) -> None:
    """As where the partition's tasks ran on another executor meanwhile."""
    job = start(backend=backend_name)
    job.epoch(0, [f"k{number}" for number in range(3000)])
    job.epoch(1, ["k0"])
    here, job.hosts = job.hosts, job.others
    assert job.epoch(2, ["k0", "k1"]) == [("k0", 3), ("k1", 2)]
    job.epoch(3, ["k1"])
    job.hosts = here
    assert job.epoch(4, ["k0", "k1", "k2"]) == [("k0", 4), ("k1", 4), ("k2", 2)]
    assert job.part().state_origin is HOST_AND_DELTAS
    assert job.epoch(5, ["k3"]) == [("k3", 2)]
    assert job.part().state_origin is HOST


def test_another_plan_does_not_get_the_state_of_the_one_before(start: Callable[..., HostedJob]) -> None:
    job = start()
    job.epoch(0, ["a"])
    job.packed = cloudpickle.dumps(replace(job.plan, function_name="Renamed"))
    assert job.epoch(1, ["a"]) == [("a", 2)]
    assert job.part().state_origin is FILES


def test_samples_of_an_epoch_are_reported_once(start: Callable[..., HostedJob]) -> None:
    """MET-01."""
    job = start(**{"metrics.latency": True, "metrics.latency-interval": 1})
    job.epoch(0, ["a", "a"])
    assert {name: len(found) for name, found in job.part().latencies["count"].items()} == {
        "value": 4,
        "update": 2,
    }
    job.epoch(1)
    assert job.part().state_origin is HOST
    assert job.part().latencies == {"count": {}}
    job.epoch(2, ["a"])
    assert {name: len(found) for name, found in job.part().latencies["count"].items()} == {
        "value": 2,
        "update": 1,
    }


class Reading(Counting):
    """Reads a broadcast variable, and tells what it is, at the rows that want it."""

    def __init__(self, recorded: str, variable: Any) -> None:
        super().__init__(recorded)
        self.variable = variable

    def process(self, row: Any, ctx: Any) -> Iterator[Any]:
        if row.key == "reads":
            self.tell(self.variable.value)
        yield from super().process(row, ctx)


class _Variable:
    """A broadcast variable as Spark pickles it: by its number."""

    def __reduce__(self) -> Any:
        return broadcast._from_id, (4711,)


def test_a_broadcast_variable_is_read_where_it_is_now(
    start: Callable[..., HostedJob], tmp_path: Path
) -> None:
    """Spark deletes the file of one that it has no memory for, and writes another one when it is needed."""
    files = [tmp_path / "first", tmp_path / "second"]
    job = start(Reading(str(tmp_path / "said"), _Variable()))
    with pytest.MonkeyPatch.context() as patch:
        for epoch, file in enumerate(files):
            file.write_bytes(pickle.dumps("a word"))
            patch.setitem(broadcast._broadcastRegistry, 4711, broadcast.Broadcast(path=str(file)))
            job.epoch(epoch, ["a"] if epoch == 0 else ["reads"])
            file.unlink()
    assert job.part().state_origin is HOST
    assert (tmp_path / "said").read_text().split("\n")[1:] == ["a word", ""]


def test_a_query_whose_limits_have_no_effect_is_warned(
    start: Callable[..., HostedJob], capfd: pytest.CaptureFixture[str]
) -> None:
    """Queries share the hosts of an executor, which live as the first of them wants it."""
    first, second = start(), start(idle_ms=5_000, memory_bytes=1 << 40)
    second.hosts = first.hosts
    first.epoch(0, ["a"])
    second.epoch(0, ["a"])
    second.epoch(1, ["a"])
    said = capfd.readouterr().err
    assert said.count("have no effect") == 1
    assert "hosts.idle-time=5000 ms and hosts.memory=1099511627776 bytes of the operator 'counts'" in said
    assert "600000 ms and 0 bytes" in said


def test_epochs_that_change_nothing_write_no_state_and_make_no_full_snapshot_due(
    start: Callable[..., HostedJob],
) -> None:
    job = start(**{"checkpoint.max-deltas": 2})
    job.epoch(0, [f"k{number}" for number in range(3000)])
    job.epoch(1, ["k0"])
    before = job.part()
    for epoch in range(2, 8):
        job.epoch(epoch)
        assert (job.part().segments, job.part().deltas) == (before.segments, before.deltas)
        assert job.part().bytes == 0
    assert len(before.deltas) == 1
    assert job.epoch(8, ["k0"]) == [("k0", 3)]


def test_a_full_snapshot_spans_epochs_and_delays_none_of_them(
    start: Callable[..., HostedJob],
) -> None:
    job = start(**{"checkpoint.max-deltas": 2})
    keys = [f"k{number}" for number in range(3000)]
    job.epoch(0, keys)
    unfinished, epoch = [], 1
    while not unfinished or job.part().unfinished is not None:
        job.epoch(epoch, ["k0"])
        if job.part().unfinished is not None:
            unfinished.append(job.part().unfinished)
        epoch += 1
        assert epoch < 200
    assert len(set(unfinished)) == 1
    [segment] = job.part().segments
    assert segment.path == unfinished[0]
    assert [full.background for full in job.part().full_snapshots] == [True]
    # A task that restores it reads the full snapshot and the deltas that came meanwhile.
    job.run_id = "run-2"
    assert job.epoch(epoch, ["k0", "k7"]) == [("k0", epoch + 1), ("k7", 2)]


def test_neither_side_holds_a_whole_partition(start: Callable[..., HostedJob]) -> None:
    """Output flows back while input flows in: the task never has much more to send than to receive."""
    job = start(Echoing())
    text = "x" * 10_000
    sent = 0

    def endless() -> Iterator[pa.RecordBatch]:
        nonlocal sent
        for _ in range(100):
            sent += 1
            yield job.batch([text] * 100)

    ahead = received = 0
    for made in job.results(0, endless):
        received += made.num_rows // 100
        ahead = max(ahead, sent - received)
    assert sent == 100
    assert ahead <= 12


class Echoing(KeyedProcessFunction):
    """Yields each row."""

    def process(self, row: Any, ctx: Any) -> Iterator[Any]:
        yield row.key, 1


# -- what functions do -----------------------------------------------------------------------------


class Acting(KeyedProcessFunction):
    """Does what the key says."""

    def process(self, row: Any, ctx: Any) -> Iterator[Any]:
        if row.key == "raise":
            raise ZeroDivisionError("on purpose")
        if row.key == "exit":
            sys.exit(3)
        if row.key == "os._exit":
            os._exit(3)
        if row.key == "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        if row.key == "loop":
            while True:
                pass
        if row.key == "wrong type":
            yield row.key, "no number"
        yield row.key, 1


@pytest.mark.parametrize(
    ("key", "error", "words"),
    [
        ("raise", UserFunctionError, r"^ZeroDivisionError: on purpose\. Raised in .* for the key 'raise'"),
        ("exit", UserFunctionError, r"^SystemExit: 3\. Raised in .* for the key 'exit'"),
        ("os._exit", HostLostError, r"host of partition 0 of the operator 'counts' .* in epoch 0.*os\._exit"),
        ("segfault", HostLostError, "crash in native code"),
        ("wrong type", OutputTypeError, "no number"),
    ],
)
def test_what_a_function_does_wrong_is_one_clear_error(
    start: Callable[..., HostedJob], key: str, error: type[Exception], words: str
) -> None:
    job = start(Acting())
    with pytest.raises(error, match=words) as caught:
        job.attempt(0, ["fine", key])
    if error is UserFunctionError:
        # The user's own lines.
        assert isinstance(caught.value, UserFunctionError) and "in process" in caught.value.trace
    assert job.epoch(0, ["fine"]) == [("fine", 1)]


@pytest.mark.long
def test_an_epoch_that_takes_too_long_ends_its_host(start: Callable[..., HostedJob]) -> None:
    job = start(Acting())
    job.epoch(0, ["fine"])
    host = job.host()
    # Only for the epoch that never ends: any other may take that long on a busy machine.
    job.timeout_ms = 5000
    with pytest.raises(EpochTimeoutError, match=r"hosts\.epoch-timeout"):
        job.attempt(1, ["loop"])
    job.timeout_ms = 0
    wait_until(lambda: not host.is_alive)
    assert job.epoch(1, ["fine"]) == [("fine", 1)]


class Stuck(Counting):
    """Never ends with the first row of the key ``loop``."""

    def process(self, row: Any, ctx: Any) -> Iterator[Any]:
        if row.key == "loop":
            self.tell("begun")
            try:
                while True:
                    pass
            except BaseException as error:
                self.tell(type(error).__name__)
                raise
        if row.key == "sleep":
            self.tell("begun")
            time.sleep(2 * DEADLINE_S)
        yield from super().process(row, ctx)


@pytest.mark.long
def test_what_cannot_be_interrupted_ends_a_host_after_the_epochs_of_others(
    start: Callable[..., HostedJob], tmp_path: Path
) -> None:
    job = start(Stuck(str(tmp_path / "job-0" / "recorded")), parallelism=2)

    def rows() -> Iterator[pa.RecordBatch]:
        yield job.batch(["a"], 1)
        # Until the host has no patience any more with the task that is gone: no further task finds it.
        wait_until(lambda: job.recorded.exists() and not list(job.sockets.rglob("*.sock")))
        yield job.batch(["a"], 1)

    def other() -> int:
        hosted = HostedEpoch(job.identity(0, 1), job.packed, lambda _: ((), rows()), 0)
        return sum(batch.num_rows for batch in hosted.run(lambda: job.hosts.connect(0)))

    with ThreadPoolExecutor(1) as pool:
        counted = pool.submit(other)
        job.abandon(0, ["sleep"])
        assert counted.result() == 2
    wait_until(lambda: not job.processes())


def test_a_loop_whose_task_is_gone_is_interrupted(start: Callable[..., HostedJob], tmp_path: Path) -> None:
    job = start(Stuck(str(tmp_path / "job-0" / "recorded")))
    job.epoch(0, ["a"])
    host = job.host()
    job.abandon(1, ["loop"])
    # A later attempt is not kept waiting.
    assert job.epoch(1, ["a"]) == [("a", 2)]
    wait_until(lambda: "_Cancelled" in job.recorded.read_text())
    assert job.epoch(2, ["a"]) == [("a", 3)]
    assert host.is_alive


def test_a_host_writes_a_manifest_that_is_too_large_to_travel(start: Callable[..., HostedJob]) -> None:
    latency = {"metrics.latency": True, "metrics.latency-interval": 1, "metrics.latency-history": 10_000}
    job = start(**latency)
    _, acknowledgement = job.attempt(0, ["a"])
    assert acknowledgement.content is not None
    job.coordinator.acknowledge(acknowledgement)
    _, acknowledgement = job.attempt(1, ["a"] * 10_000)
    assert acknowledgement.content is None
    job.coordinator.acknowledge(acknowledgement)
    assert job.epoch(2, ["a"]) == [("a", 10_002)]


def test_a_host_that_grows_too_large_says_so_and_makes_place(start: Callable[..., HostedJob]) -> None:
    job = start(memory_bytes=10 << 20)
    with pytest.raises(HostMemoryError, match=r"spark\.keyedstate\.hosts\.memory"):
        job.attempt(0, ["a"])
    with pytest.raises(HostMemoryError):
        job.attempt(0, ["a"])
    wait_until(lambda: not job.processes())


class Unloadable(KeyedProcessFunction):
    """Cannot be unpickled."""

    def __reduce__(self) -> Any:
        return eval, ("1 / 0",)


def test_a_function_that_cannot_be_loaded_is_one_clear_error(start: Callable[..., HostedJob]) -> None:
    with pytest.raises(FunctionTransportError, match="cannot be loaded in a Spark task"):
        start(Unloadable()).attempt(0, ["a"])


# -- who is let in ---------------------------------------------------------------------------------


def hello(**changed: object) -> list[Any]:
    """Return the first frame of a task."""
    return frame(FrameType.HELLO, {"protocol": PROTOCOL, "keyedstate": keyedstate.__version__, **changed})


def answer(connection: socket.socket) -> str:
    """Return what a host says before it hangs up; empty where it says nothing."""
    reader = FrameReader(connection, set(FrameType))
    said = []
    with contextlib.suppress(ConnectionError):
        while (received := reader.read()) is not None:
            if received.type is FrameType.FAILED:
                said.append(received.json()["kind"] + ": " + received.json()["message"])
    return " ".join(said)


def test_a_task_of_another_version_is_refused_by_name(start: Callable[..., HostedJob]) -> None:
    job = start()
    with job.hosts.connect(0) as connection:
        connection.sendall(b"".join(hello(keyedstate="0.0.1")))
        assert "'keyedstate': '0.0.1'" in answer(connection)
    assert job.epoch(0, ["a"]) == [("a", 1)]


def test_a_plan_that_is_not_the_one_announced_is_refused(start: Callable[..., HostedJob]) -> None:
    job = start()
    begin = frame(FrameType.BEGIN, {"digest": "0" * 64, "identity": to_json(job.identity(0))})
    plan = frame(FrameType.PLAN, b"cos\nabort\n(tR.")
    with job.hosts.connect(0) as connection:
        connection.sendall(b"".join([*hello(), *begin, *frame(FrameType.IMPORTS, {}), *plan]))
        assert "not the one that was announced" in answer(connection)
    assert job.epoch(0, ["a"]) == [("a", 1)]


@pytest.mark.parametrize("kind", [FrameType.HELLO, FrameType.BEGIN])
def test_a_frame_above_its_limit_is_refused_by_its_length(
    start: Callable[..., HostedJob], kind: FrameType
) -> None:
    job = start()
    with job.hosts.connect(0) as connection:
        before = [] if kind is FrameType.HELLO else hello()
        connection.sendall(b"".join([*before, struct.pack(">IB", kind.limit + 1, kind)]))
        assert f"{kind.name} frame of {kind.limit + 1} bytes is above the limit" in answer(connection)


def test_a_connection_that_ends_half_way_is_forgotten(start: Callable[..., HostedJob]) -> None:
    job = start()
    whole = b"".join([*hello(), *frame(FrameType.BEGIN, {"digest": "", "identity": {}})])
    for length in range(0, len(whole), 7):
        with job.hosts.connect(0) as connection:
            connection.sendall(whole[:length])
            connection.shutdown(socket.SHUT_WR)
            answer(connection)
    assert job.epoch(0, ["a"]) == [("a", 1)]


def test_garbage_changes_nothing(start: Callable[..., HostedJob]) -> None:
    """A small fuzz: any bytes, and well-formed frames with any content in any order."""
    job = start()
    job.epoch(0, ["a"])
    host = job.host()
    identity = to_json(job.identity(1))
    contents = st.one_of(
        st.binary(max_size=200),
        st.just({"digest": "0" * 64, "identity": identity}),
        st.fixed_dictionaries({"digest": st.text(), "identity": st.dictionaries(st.text(), st.integers())}),
        st.dictionaries(st.sampled_from(sorted(identity)), st.one_of(st.integers(), st.text())).map(
            lambda changed: {"digest": "", "identity": {**identity, **changed}}
        ),
    )
    kinds = st.sampled_from([kind for kind in FrameType if kind.limit])
    frames = st.lists(st.tuples(kinds, contents), max_size=4)
    noise = st.one_of(st.binary(max_size=400), frames)

    @settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(noise, st.booleans())
    def send(noise: Any, greets: bool) -> None:
        data = b"".join(hello()) if greets else b""
        if isinstance(noise, bytes):
            data += noise
        else:
            data += b"".join(piece for kind, content in noise for piece in frame(kind, content))
        with job.hosts.connect(0) as connection:
            with contextlib.suppress(ConnectionError):
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
            answer(connection)

    send()
    assert job.host() == host
    assert job.epoch(1, ["a"]) == [("a", 2)]
    assert job.part().state_origin is HOST


def test_a_large_batch_goes_in_parts_and_none_is_lost() -> None:
    text = pa.array([str(number) * 100 for number in range(100_000)])
    batch = pa.record_batch({"text": text, "number": pa.array(range(100_000))})
    assert batch.nbytes > 2 * BATCH_BYTES
    decoder = BatchDecoder()
    found = []
    for _, *pieces in BatchEncoder().frames(batch):
        content = bytearray().join(pieces)
        kind = FrameType.BATCH if found else FrameType.SCHEMA
        found.append(decoder.batch(Frame(kind, content)))
    parts = [part for part in found if part is not None]
    assert len(parts) > 2
    assert pa.Table.from_batches(parts).combine_chunks() == pa.Table.from_batches([batch]).combine_chunks()
    [empty] = [decoder.batch(Frame(FrameType.BATCH, bytearray(batch.slice(0, 0).serialize())))]
    assert empty is not None and empty.num_rows == 0


def test_damaged_rows_are_an_error_and_not_state(start: Callable[..., HostedJob]) -> None:
    job = start()
    job.epoch(0, ["a"])
    begin = frame(
        FrameType.BEGIN,
        {"digest": hashlib.sha256(job.packed).hexdigest(), "identity": to_json(job.identity(1))},
    )
    schema = frame(FrameType.SCHEMA, job.batch([]).schema.serialize())
    batch = bytearray(job.batch(["a", "b"]).serialize())
    batch[8:40] = bytes(32)
    with job.hosts.connect(0) as connection:
        rows = [*frame(FrameType.KEYED), *schema, *frame(FrameType.BATCH, batch)]
        connection.sendall(b"".join([*hello(), *begin, *rows, *frame(FrameType.END)]))
        assert "HostProtocolError: the connection" in answer(connection)
    assert job.epoch(1, ["a"]) == [("a", 2)]


# -- how they end: more of it in test_host_soak.py ---------------------------------------------------


def left_behind(job: HostedJob) -> list[str]:
    """Return what there is below the folder of a job's sockets."""
    return [str(path) for path in job.sockets.rglob("*")]


def test_what_a_killed_host_leaves_is_cleared_away_by_the_next(start: Callable[..., HostedJob]) -> None:
    job, other = start(), start()
    other.hosts = Hosts([other.anchor], HostSettings(DEADLINE_S * 1000, 0), [job.sockets])
    job.epoch(0, ["a"])
    host = job.host()
    host.kill(signal.SIGKILL)
    wait_until(lambda: not host.is_alive)
    job.parent.kill()
    job.parent.wait()
    assert job.anchor.name in " ".join(left_behind(job))
    # Other threads of a killed process may keep its socket open a moment longer than its first one lives.
    [path] = job.sockets.rglob("0.sock")
    wait_until(lambda: is_refused(path))
    other.epoch(0, ["a"])
    assert job.anchor.name not in " ".join(left_behind(job))


#: How long a process lives that a function has started: longer than anything waits for it.
LONG_S = 2 * DEADLINE_S


class Fathering(Counting):
    """Starts a process that does not end with its host, and tells the numbers of both."""

    def __init__(self, recorded: str, forks: bool) -> None:
        super().__init__(recorded)
        self.forks = forks

    def open(self, ctx: Any) -> None:
        if not self.forks:
            child = subprocess.Popen(["sleep", str(LONG_S)], close_fds=False, start_new_session=True).pid
        elif (child := os.fork()) == 0:
            time.sleep(LONG_S)
            os._exit(0)
        self.tell(f"{os.getpid()} {child}")


@contextlib.contextmanager
def without_orphans(recorded: Path) -> Iterator[None]:
    """Kill, at the end, the children of which a function has recorded."""
    try:
        yield
    finally:
        for line in recorded.read_text().splitlines():
            os.kill(int(line.split()[1]), signal.SIGKILL)


def is_refused(path: Path) -> bool:
    """Return whether no process listens at a socket."""
    with socket.socket(socket.AF_UNIX) as task:
        task.settimeout(1)
        try:
            task.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError:
            # So many have connected that the next one would have to wait.
            return False
    return False


@pytest.mark.long
@pytest.mark.parametrize("forks", [False, True], ids=["another program", "a copy of the host"])
def test_what_a_function_has_started_does_not_take_the_place_of_a_dead_host(
    start: Callable[..., HostedJob], tmp_path: Path, forks: bool
) -> None:
    """Else tasks would connect to it, and wait for an answer for ever."""
    recorded = tmp_path / "recorded"
    job = start(Fathering(str(recorded), forks))
    with without_orphans(recorded):
        job.epoch(0, ["a"])
        host, child = map(int, recorded.read_text().split())
        [path] = job.sockets.rglob("0.sock")
        os.kill(host, signal.SIGKILL)
        # Its threads may end a little later than itself.
        wait_until(lambda: is_refused(path))
        assert process_of(child) is not None
        assert job.epoch(1, ["a"]) == [("a", 2)]


def test_a_task_hears_of_the_death_of_a_host_whose_child_lives(
    start: Callable[..., HostedJob], tmp_path: Path
) -> None:
    recorded = tmp_path / "recorded"
    job = start(Fathering(str(recorded), True), timeout_ms=DEADLINE_S * 1000)

    def rows() -> Iterator[pa.RecordBatch]:
        yield job.batch(["a"])
        wait_until(lambda: recorded.exists() and recorded.read_text())
        os.kill(int(recorded.read_text().split()[0]), signal.SIGKILL)

    with pytest.raises(HostLostError), without_orphans(recorded):
        list(job.results(0, rows))


@pytest.mark.long
def test_the_databases_of_a_killed_host_are_deleted_by_the_next(
    start: Callable[..., HostedJob], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = tmp_path / "job-0"
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(local))
    job = start(backend="rocksdb", parallelism=2)
    job.epoch(0, ["a"])
    killed, other = job.host(0), job.host(1)
    killed.kill(signal.SIGKILL)
    wait_until(lambda: not killed.is_alive)
    assert sorted(owners_of_databases(local)) == sorted([killed.pid, other.pid])
    assert job.epoch(1, ["a"]) == [("a", 2)]
    assert sorted(owners_of_databases(local)) == sorted([job.host(0).pid, other.pid])
    job.parent.kill()
    job.parent.wait()
    wait_until(lambda: not job.processes() and not list(local.glob("keyedstate-*")))


def owners_of_databases(local: Path) -> list[int]:
    marks = [path.with_name(".keyedstate-work") for path in local.glob("keyedstate-work-*/db")]
    return [json.loads(mark.read_text())["pid"] for mark in marks]


def test_the_databases_of_a_killed_executor_are_deleted_by_a_host_of_the_next(
    start: Callable[..., HostedJob], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the standalone cluster has it: each executor has folders of its own, which its JVM deletes."""
    first, second = (tmp_path / f"spark-{n}" / f"executor-{n}" / f"blockmgr-{n}" for n in range(2))
    for folder in (first, second):
        folder.mkdir(parents=True)
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(first))
    job = start(backend="rocksdb")
    job.epoch(0, ["a"])
    host = job.host(0)
    host.kill(signal.SIGKILL)
    job.parent.kill()
    wait_until(lambda: not host.is_alive)
    assert owners_of_databases(first) == [host.pid]
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(second))
    job = start(backend="rocksdb")
    job.epoch(0, ["a"])
    assert owners_of_databases(first) == [] and owners_of_databases(second) == [job.host(0).pid]


def test_tasks_that_come_at_once_start_one_host(start: Callable[..., HostedJob]) -> None:
    job = start()
    with ThreadPoolExecutor(8) as pool:
        connections = list(pool.map(lambda _: job.hosts.connect(0), range(16)))
    for connection in connections:
        connection.close()
    assert len(job.processes()) == 1


def test_a_number_that_another_process_has_now_is_not_taken_for_the_one_before() -> None:
    me = process_of(os.getpid())
    assert me is not None and me.is_alive
    former = Process(me.pid, "1")
    assert not former.is_alive
    former.kill(signal.SIGKILL)
    assert Process.named(me.name) == me
    assert Process.named("12") is None
