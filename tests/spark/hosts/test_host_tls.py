"""TLS between executors: who is let in by certificate, and what goes over it."""

from __future__ import annotations

import contextlib
import logging
import queue
import shutil
import socket
import ssl
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hosted import DEADLINE_S, HostedJob, certificates

from keyedstate.checkpoint.format.manifest import HostAddress, StateOrigin
from keyedstate.errors import MissingOptionError
from keyedstate.options import Configuration
from keyedstate.spark.hosts.network.handshake import MARK, key_id, prove_task
from keyedstate.spark.hosts.network.tcp_listener import Introduction, TcpListener, set_up
from keyedstate.spark.hosts.network.tls import TlsFiles, handshake, plain_socket

SECRET = bytes(range(32))
pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="makes certificates with openssl")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    """Certificate, key and authority of the executors."""
    return certificates(tmp_path_factory.mktemp("tls") / "mine")


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    """The same of strangers."""
    return certificates(tmp_path_factory.mktemp("tls") / "others")


def options(files: TlsFiles) -> dict[str, object]:
    """Return the options that say it."""
    return {
        "hosts.tls-certificate": files.certificate,
        "hosts.tls-key": files.key,
        "hosts.tls-ca": files.ca,
    }


class Entrance:
    """A listener and the connections that it has delivered."""

    def __init__(self, settings: dict[str, object]) -> None:
        self.came: queue.Queue[socket.socket] = queue.Queue()
        self.listener = TcpListener(lambda connection, session: self.came.put(connection))
        settings = {"hosts.connect-timeout": DEADLINE_S * 1000, **settings}
        self.listener.introduce(Introduction(SECRET, "127.0.0.1", "here"), "digest", tuple(settings.items()))

    def stranger(self) -> socket.socket:
        """Connect, and prove nothing."""
        return socket.create_connection((self.address.address, self.address.port), timeout=DEADLINE_S)

    @property
    def address(self) -> HostAddress:
        """Where it is."""
        assert self.listener.address is not None
        return self.listener.address

    def task(self, files: TlsFiles) -> socket.socket:
        """Come in as a task does."""
        connection = files.wrap(self.stranger(), server=False)
        try:
            handshake(connection, time.monotonic() + DEADLINE_S)
            prove_task(connection, SECRET, self.address, time.monotonic() + DEADLINE_S)
        except BaseException:
            connection.close()
            raise
        set_up(connection)
        return plain_socket(connection)


@pytest.fixture
def entrance(files: TlsFiles) -> Iterator[Entrance]:
    """A listener with TLS."""
    found = Entrance(options(files))
    yield found
    found.listener.close()


@pytest.fixture
def ends(entrance: Entrance, files: TlsFiles) -> Iterator[tuple[socket.socket, socket.socket]]:
    """The task's and the host's end of a connection."""
    with entrance.task(files) as mine, entrance.came.get(timeout=DEADLINE_S) as theirs:
        mine.settimeout(DEADLINE_S)
        theirs.settimeout(DEADLINE_S)
        yield mine, theirs


def receive(connection: socket.socket, length: int) -> bytes:
    """Return so many bytes, or as many as come."""
    received = bytearray()
    while len(received) < length and (piece := connection.recv(length - len(received))):
        received += piece
    return bytes(received)


# -- who is let in ---------------------------------------------------------------------------------


def test_a_task_with_a_certificate_of_the_authority_comes_in(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    ends[0].sendall(b"rows")
    assert receive(ends[1], 4) == b"rows"


def test_a_host_of_another_authority_is_given_no_proof(entrance: Entrance, others: TlsFiles) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        entrance.task(others)
    assert entrance.came.empty()


@pytest.mark.parametrize("which", ["another authority's", "none"])
def test_a_task_without_a_certificate_of_the_authority_is_refused(
    entrance: Entrance, files: TlsFiles, others: TlsFiles, which: str
) -> None:
    """It trusts the host, and knows the secret."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(files.ca)
    if which != "none":
        context.load_cert_chain(others.certificate, others.key)
    with (
        entrance.stranger() as stranger,
        # By the version of TLS it is known in the handshake, or when the host answers.
        pytest.raises(OSError),
        context.wrap_socket(stranger) as connection,
    ):
        prove_task(connection, SECRET, entrance.address, time.monotonic() + DEADLINE_S)
    assert entrance.came.empty()


def test_a_task_without_tls_gets_no_challenge(entrance: Entrance) -> None:
    with entrance.stranger() as connection, contextlib.suppress(OSError):
        connection.sendall(MARK + key_id(SECRET) + bytes(32))
        # TLS may say that this is none; a challenge is longer.
        assert len(connection.recv(100)) < 64
    assert entrance.came.empty()


def test_a_task_with_tls_gives_no_proof_to_a_host_without(files: TlsFiles) -> None:
    plain = Entrance({})
    with pytest.raises(OSError):
        plain.task(files)
    assert plain.came.empty()
    plain.listener.close()


def test_a_silent_connection_is_closed_when_the_listener_closes(entrance: Entrance) -> None:
    with entrance.stranger() as waiting:
        waiting.sendall(b"\x16")
        entrance.listener.close()
        with contextlib.suppress(ConnectionError):
            assert len(waiting.recv(100)) < 64


@pytest.mark.parametrize("missing", ["certificate", "key", "ca"])
def test_all_of_the_options_are_needed(files: TlsFiles, missing: str) -> None:
    given = options(files)
    del given[f"hosts.tls-{missing}"]
    with pytest.raises(MissingOptionError, match=f"hosts.tls-{missing}"):
        TlsFiles.of(Configuration(given))


def test_a_file_that_is_not_there_costs_the_address_and_nothing_else(
    files: TlsFiles, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        found = Entrance({**options(files), "hosts.tls-key": "/nowhere/key.pem"})
    assert found.listener.address is None
    assert "other executors" in caplog.text


# -- what goes over it -----------------------------------------------------------------------------


def test_both_directions_work_at_once_and_neither_waits(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    data = bytes(range(256)) * (8 << 12)
    with ThreadPoolExecutor(4) as threads:
        sending = [threads.submit(end.sendall, data) for end in ends]
        receiving = [threads.submit(receive, end, len(data)) for end in ends]
        assert [one.result() for one in sending] == [None, None]
        assert [one.result() == data for one in receiving] == [True, True]


def test_last_words_arrive_though_the_other_side_is_still_sending(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    """As where a function fails in the middle of the rows."""
    task, host = ends

    def hang_up() -> None:
        host.sendall(b"last words")
        host.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionError):
            while host.recv(1 << 16):
                pass

    with ThreadPoolExecutor(2) as threads:
        sending = threads.submit(task.sendall, bytes(64 << 20))
        ended = threads.submit(hang_up)
        assert receive(task, 10) == b"last words"
        with contextlib.suppress(ConnectionError):
            assert task.recv(1) == b""
        task.shutdown(socket.SHUT_RDWR)
        sending.exception(DEADLINE_S)
        ended.result(DEADLINE_S)


def test_an_end_that_is_gone_is_known_at_the_other(ends: tuple[socket.socket, socket.socket]) -> None:
    ends[0].close()
    assert ends[1].recv(1) == b""
    with pytest.raises(ConnectionError):
        ends[1].sendall(bytes(64 << 20))


def test_an_epoch_runs_at_the_host_of_another_executor(tmp_path: Path, files: TlsFiles) -> None:
    with HostedJob(tmp_path, secret=SECRET, **options(files)) as job:
        job.epoch(0, ["a"])
        job.hosts = job.others
        keys = [f"{number}-{'x' * 1000}" for number in range(3000)]
        assert job.epoch(1, ["a", *keys]) == [("a", 2), *((key, 1) for key in keys)]
        part = job.part()
        assert part.host is not None
        assert (part.task_executor, part.host.executor) == ("there", "here")
        assert part.state_origin is StateOrigin.HOST
