"""A process between a task and a host that relays their challenge: what it gains by that.

Each test lets real bytes go through a real relay over TCP.  The relay is either at an address of its own, to
which a task was led, or in the place of the host, as a process on the network path is.
"""

from __future__ import annotations

import contextlib
import errno
import queue
import shutil
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hosted import DEADLINE_S, HostedJob, certificates

from keyedstate.checkpoint.format.manifest import HostAddress, StateOrigin
from keyedstate.errors import AuthenticationError, HostLostError, HostProtocolError
from keyedstate.spark.hosts.network.client import HostedEpoch
from keyedstate.spark.hosts.network.handshake import Session, prove_host, prove_task
from keyedstate.spark.hosts.network.protocol import FrameReader, FrameType, frame
from keyedstate.spark.hosts.network.seals import Seals
from keyedstate.spark.hosts.network.tcp_listener import Introduction, TcpListener
from keyedstate.spark.hosts.network.tls import TlsFiles, handshake, plain_socket
from keyedstate.spark.hosts.owners import RemotePartition

SECRET = bytes(range(32))
#: A host's, in the place of which a relay listens.
ADDRESSES = {"hosts.advertised-address": "127.0.0.1", "hosts.bind-address": "127.0.0.2"}
#: How many bytes each side sends in the challenge.
CHALLENGE = {"task": 88, "host": 64}


class Relay:
    """Accepts tasks at an address and connects each to a host; knows no secret.

    Parameters
    ----------
    target : (str, int)
        Where the host listens.
    listener : socket.socket, optional
        By default one at a free port of its own.
    wrap : callable, optional
        Makes TLS of the connection with the task, and of that with the host; returns a plain socket.
    tamper : callable, optional
        Gets what comes from which side, after the challenge, and returns what is passed on.
    """

    def __init__(
        self,
        target: tuple[str, int],
        listener: socket.socket | None = None,
        wrap: Callable[[socket.socket, bool], socket.socket] = lambda connection, server: connection,
        tamper: Callable[[str, bytes], bytes] = lambda side, data: data,
    ) -> None:
        self._target = target
        self._wrap = wrap
        self._tamper = tamper
        self._listener = listener or socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        #: Bytes that went through, by the side that has sent them.
        self.passed = {"task": bytearray(), "host": bytearray()}
        self._open: list[socket.socket] = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *error: object) -> None:
        for connection in self._open:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(connection, socket.SHUT_RDWR)
            connection.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                task = self._wrap(self._listener.accept()[0], True)
                host = self._wrap(socket.create_connection(self._target), False)
                self._open += [task, host]
                for side, source, sink in (("task", task, host), ("host", host, task)):
                    threading.Thread(target=self._carry, args=(side, source, sink), daemon=True).start()

    def _carry(self, side: str, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                before = CHALLENGE[side] - len(self.passed[side])
                self.passed[side] += data
                clear = max(min(before, len(data)), 0)
                behind = self._tamper(side, data[clear:]) if clear < len(data) else b""
                sink.sendall(data[:clear] + behind)
            socket.socket.shutdown(sink, socket.SHUT_WR)


class Entrance:
    """The TCP side of a host, and what came through it."""

    def __init__(self, **options: object) -> None:
        self.came: queue.Queue[tuple[socket.socket, Session]] = queue.Queue()
        self.listener = TcpListener(lambda *accepted: self.came.put(accepted))
        settings = {"hosts.connect-timeout": DEADLINE_S * 1000, **options}
        self.listener.introduce(Introduction(SECRET, "127.0.0.1", "here"), "digest", tuple(settings.items()))

    @property
    def address(self) -> HostAddress:
        """Where tasks find it."""
        assert self.listener.address is not None
        return self.listener.address


@pytest.fixture
def enter() -> Iterator[Callable[..., Entrance]]:
    """Make hosts' TCP sides; all are closed when the test ends."""
    with contextlib.ExitStack() as listeners:

        def make(**options: object) -> Entrance:
            entrance = Entrance(**options)
            listeners.callback(entrance.listener.close)
            return entrance

        yield make


def led_to(relay: Relay) -> HostAddress:
    """Return the address of a relay as a task takes it for the host's."""
    return HostAddress("here", "127.0.0.1", relay.port)


def prove(address: HostAddress, files: TlsFiles | None = None) -> Session:
    """Connect to an address as a task does, and do its side of the challenge."""
    deadline = time.monotonic() + DEADLINE_S
    connection = socket.create_connection((address.address, address.port), timeout=DEADLINE_S)
    with contextlib.ExitStack() as ends:
        if files is not None:
            connection = secured = files.wrap(connection, server=False)
            ends.enter_context(connection)
            handshake(secured, deadline)
        else:
            ends.enter_context(connection)
        return prove_task(connection, SECRET, address, deadline)


def test_a_challenge_relayed_from_another_address_fails(enter: Callable[..., Entrance]) -> None:
    entrance = enter()
    with Relay((entrance.address.address, entrance.address.port)) as relay:
        with pytest.raises(AuthenticationError, match=f"another one than that of 127.0.0.1:{relay.port}"):
            prove(led_to(relay))
        # The task's proof, which would open the host, was never sent.
        assert len(relay.passed["task"]) == 56
        assert len(relay.passed["host"]) == 64
    assert entrance.came.empty()
    prove(entrance.address)


def test_a_challenge_relayed_from_another_executor_fails(enter: Callable[..., Entrance]) -> None:
    """The address was that of an executor that has ended, and another one has it now."""
    entrance = enter()
    address = entrance.address
    with pytest.raises(AuthenticationError):
        prove(HostAddress("there", address.address, address.port))
    assert entrance.came.empty()


def test_an_epoch_is_taken_over_from_a_relay(tmp_path: Path) -> None:
    """The task asks at the relay's address, and then runs the epoch on its own executor."""
    with HostedJob(tmp_path, secret=SECRET) as job:
        job.epoch(0, ["a"])
        owner = job.part().host
        assert owner is not None
        with Relay((owner.address, owner.port)) as relay:
            epoch = HostedEpoch(
                job.identity(1), job.packed, lambda _: ((), iter([job.batch(["a"])])), 0, introduction=job.me
            )
            kept = RemotePartition(led_to(relay), job.part().identity.nonce, SECRET, DEADLINE_S)
            assert kept.run(epoch) is None
            # Neither a frame nor a row has reached it.
            assert bytes(relay.passed["task"]).count(b"HELLO") == 0
            assert len(relay.passed["task"]) == 56
        job.hosts = job.others
        assert job.epoch(1, ["a"]) == [("a", 2)]
        assert job.part().state_origin is StateOrigin.HOST


# -- in the place of the host: on the network path ----------------------------------------------------


@contextlib.contextmanager
def on_the_path(**how: Any) -> Iterator[tuple[Relay, dict[str, object]]]:
    """Put a relay where tasks will find a host; yield it, and the options of that host.

    The host listens at the same port of another address.
    """
    while True:
        listener = socket.create_server(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        try:
            socket.create_server(("127.0.0.2", port)).close()
        except OSError as error:
            listener.close()
            # A port that is free at one address may be in use at the other.
            if error.errno != errno.EADDRINUSE:
                raise
        else:
            break
    with Relay(("127.0.0.2", port), listener, **how) as relay:
        yield relay, {**ADDRESSES, "hosts.ports": port}


def test_a_frame_changed_on_the_path_is_refused(enter: Callable[..., Entrance]) -> None:
    def flip(side: str, data: bytes) -> bytes:
        return data.replace(b"rows", b"lies")

    with contextlib.ExitStack() as ends:
        _, options = ends.enter_context(on_the_path(tamper=flip))
        entrance = enter(**options)
        target = (entrance.address.address, entrance.address.port)
        mine = ends.enter_context(socket.create_connection(target, timeout=DEADLINE_S))
        session = prove_task(mine, SECRET, entrance.address, time.monotonic() + DEADLINE_S)
        theirs, other = entrance.came.get(timeout=DEADLINE_S)
        with theirs:
            theirs.settimeout(DEADLINE_S)
            mine.settimeout(DEADLINE_S)
            for connection, sender, reader in (
                (mine, session, FrameReader(theirs, set(FrameType), other.received)),
                (theirs, other, FrameReader(mine, set(FrameType), session.received)),
            ):
                connection.sendall(b"".join(sender.sealed(frame(FrameType.HELLO, b"hello"))))
                received = reader.read()
                assert received is not None and received.content == b"hello"
                connection.sendall(b"".join(sender.sealed(frame(FrameType.HELLO, b"rows"))))
                with pytest.raises(HostProtocolError, match="wrong seal"):
                    reader.read()


def test_frames_of_another_place_have_the_wrong_seal() -> None:
    """Repeated, left out, or sent back."""
    one, two = frame(FrameType.HELLO, b"one"), frame(FrameType.HELLO, b"two")
    task, host = bytes(32), bytes(31) + b"h"

    def sealed(key: bytes, *frames: list[Any]) -> list[bytes]:
        seals = Seals(key)
        return [b"".join([*pieces, seals.next(pieces)]) for pieces in frames]

    first, second = sealed(task, one, two)
    for sent in ([first, first], [second], [sealed(host, one)[0]], [sealed(task, two)[0][:-1] + b"x"]):
        mine, theirs = socket.socketpair()
        with mine, theirs:
            mine.sendall(b"".join(sent))
            reader = FrameReader(theirs, set(FrameType), Seals(task))
            for right in sent[:-1]:
                received = reader.read()
                assert received is not None and received.content in right
            with pytest.raises(HostProtocolError, match="wrong seal"):
                reader.read()


@pytest.mark.parametrize("side", ["task", "host"])
def test_an_epoch_whose_rows_are_changed_on_the_path_fails(tmp_path: Path, side: str) -> None:
    def tamper(which: str, data: bytes) -> bytes:
        return data.replace(b"honest-key", b"forged-key") if which == side else data

    with contextlib.ExitStack() as ends:
        relay, options = ends.enter_context(on_the_path(tamper=tamper))
        job = ends.enter_context(HostedJob(tmp_path, secret=SECRET, **options))
        job.epoch(0, ["honest-key"])
        job.hosts = job.others
        with pytest.raises((HostProtocolError, HostLostError)):
            job.attempt(1, ["honest-key"])
        assert b"honest-key" in relay.passed[side]
        # The next attempt restores from files, and nothing of the forged one is there.
        assert job.epoch(1, ["honest-key"]) == [("honest-key", 2)]


needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="makes certificates with openssl")


def up_to(version: ssl.TLSVersion, files: TlsFiles, server: bool) -> ssl.SSLContext:
    """Return what speaks TLS up to a version, with the executors' own files."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.maximum_version = version
    context.load_cert_chain(files.certificate, files.key)
    context.load_verify_locations(files.ca)
    return context


@needs_openssl
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_relay_with_a_certificate_of_the_authority_fails(
    tmp_path: Path, enter: Callable[..., Entrance], version: ssl.TLSVersion
) -> None:
    """It has even the executors' own key, and is in the place of the host."""
    files = certificates(tmp_path / "tls")

    def wrap(connection: socket.socket, server: bool) -> socket.socket:
        secured = up_to(version, files, server).wrap_socket(connection, server_side=server)
        # Two threads that use one TLS connection at once, as those of the relay, break its records.
        return plain_socket(secured)

    tls = {
        "hosts.tls-certificate": files.certificate,
        "hosts.tls-key": files.key,
        "hosts.tls-ca": files.ca,
    }
    with on_the_path(wrap=wrap) as (relay, options):
        entrance = enter(**options, **tls)
        with pytest.raises(AuthenticationError):
            prove(entrance.address, files)
        assert len(relay.passed["task"]) == 56
        assert len(relay.passed["host"]) == 64
        assert entrance.came.empty()


@needs_openssl
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_both_ends_of_a_tls_session_agree_on_it(tmp_path: Path, version: ssl.TLSVersion) -> None:
    files = certificates(tmp_path / "tls")
    address = HostAddress("here", "127.0.0.1", 1)
    deadline = time.monotonic() + DEADLINE_S
    with socket.create_server(("127.0.0.1", 0)) as listener:
        plain = socket.create_connection(listener.getsockname(), timeout=DEADLINE_S)
        with files.wrap(listener.accept()[0], server=True) as host:
            came: list[Session] = []

            def serve() -> None:
                handshake(host, deadline)
                came.append(prove_host(host, lambda _: SECRET, address, deadline))

            serving = threading.Thread(target=serve)
            serving.start()
            with up_to(version, files, False).wrap_socket(plain) as task:
                session = prove_task(task, SECRET, address, deadline)
                serving.join()
                assert task.version() == {771: "TLSv1.2", 772: "TLSv1.3"}[version]
    assert came == [session]
    assert session.sent is None
