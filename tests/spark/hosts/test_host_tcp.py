"""The TCP side of a host alone: the challenge, ports and addresses, and strangers of all kinds."""

from __future__ import annotations

import contextlib
import logging
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from hosted import DEADLINE_S, wait_until
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import keyedstate
from keyedstate.checkpoint.format.manifest import HostAddress
from keyedstate.errors import AuthenticationError, InvalidOptionError
from keyedstate.options import HOSTS_PORTS, Configuration
from keyedstate.spark.hosts.network.handshake import MARK, Session, key_id, prove_host, prove_task
from keyedstate.spark.hosts.network.protocol import PROTOCOL, FrameType, frame
from keyedstate.spark.hosts.network.tcp_listener import MAX_PENDING, Introduction, TcpListener

SECRET = bytes(range(32))
ADDRESS = HostAddress("here", "127.0.0.1", 7077)
#: What each message is long.
ASKED, CHALLENGE, PROOF = 56, 64, 32


class Entrance:
    """A listener and the connections that it has delivered."""

    def __init__(self, options: dict[str, object]) -> None:
        self.came: queue.Queue[tuple[socket.socket, Session]] = queue.Queue()
        self.listener = TcpListener(lambda connection, session: self.came.put((connection, session)))
        settings = {"hosts.connect-timeout": DEADLINE_S * 1000, **options}
        self.listener.introduce(Introduction(SECRET, "127.0.0.1", "here"), "digest", tuple(settings.items()))

    @property
    def address(self) -> HostAddress:
        """Where it is."""
        assert self.listener.address is not None
        return self.listener.address

    def stranger(self) -> socket.socket:
        """Connect, and prove nothing."""
        return socket.create_connection((self.address.address, self.address.port), timeout=DEADLINE_S)

    def task(self, secret: bytes = SECRET) -> bytes:
        """Come in as a task does; returns the key id that the host has found."""
        with self.stranger() as connection:
            prove_task(connection, secret, self.address, time.monotonic() + DEADLINE_S)
            arrived, session = self.came.get(timeout=DEADLINE_S)
            arrived.close()
            return session.name


@pytest.fixture
def enter() -> Iterator[Callable[..., Entrance]]:
    """Make listeners with options; all are closed when the test ends."""
    with contextlib.ExitStack() as listeners:

        def make(options: dict[str, object] | None = None) -> Entrance:
            entrance = Entrance(options or {})
            listeners.callback(entrance.listener.close)
            return entrance

        yield make


def silence(connection: socket.socket) -> bytes:
    """Return what a host says until it hangs up."""
    said = b""
    with contextlib.suppress(ConnectionError):
        while piece := connection.recv(4096):
            said += piece
    return said


# -- the challenge ---------------------------------------------------------------------------------


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection."""
    one, other = socket.socketpair()
    with one, other:
        yield one, other


class Side(threading.Thread):
    """One side of a challenge in a thread of its own, and what came of it."""

    def __init__(self, run: Callable[[], object]) -> None:
        super().__init__()
        self._run = run
        self._came: list[object] = []
        self.start()

    def run(self) -> None:
        """Run it."""
        try:
            self._came.append(self._run())
        except Exception as error:
            self._came.append(error)

    @property
    def came(self) -> object:
        """What it has returned or raised."""
        self.join()
        return self._came[0]


def host(connection: socket.socket) -> Side:
    """Do the host's side."""
    return Side(
        lambda: prove_host(connection, {key_id(SECRET): SECRET}.get, ADDRESS, time.monotonic() + DEADLINE_S)
    )


def task(connection: socket.socket) -> Side:
    """Do the task's side."""
    return Side(lambda: prove_task(connection, SECRET, ADDRESS, time.monotonic() + DEADLINE_S))


def test_both_sides_know_each_other_by_the_secret(pair: tuple[socket.socket, socket.socket]) -> None:
    sides = task(pair[0]), host(pair[1])
    assert [came_in(side) for side in sides] == [True, True]


def came_in(side: Side) -> bool:
    """Return whether a side has found that the other one knows the secret."""
    return isinstance(side.came, Session) and side.came.name == key_id(SECRET)


def test_a_recorded_proof_is_worth_nothing_the_next_time() -> None:
    """The same bytes again, of a conversation that was listened to."""
    one, left = socket.socketpair()
    right, other = socket.socketpair()
    with one, left, right, other:
        sides = task(one), host(other)
        recorded = []
        for source, target, length in ((left, right, ASKED), (right, left, CHALLENGE), (left, right, PROOF)):
            recorded.append(source.recv(length, socket.MSG_WAITALL))
            target.sendall(recorded[-1])
        assert [came_in(side) for side in sides] == [True, True]
    mine, other = socket.socketpair()
    with mine, other:
        side = host(other)
        mine.sendall(recorded[0])
        assert mine.recv(CHALLENGE, socket.MSG_WAITALL) != recorded[1]
        mine.sendall(recorded[2])
        assert isinstance(side.came, AuthenticationError)
    mine, other = socket.socketpair()
    with mine, other:
        side = task(other)
        mine.recv(ASKED, socket.MSG_WAITALL)
        mine.sendall(recorded[1])
        assert isinstance(side.came, AuthenticationError)


def test_a_proof_that_is_sent_back_is_worth_nothing(pair: tuple[socket.socket, socket.socket]) -> None:
    side = host(pair[1])
    pair[0].sendall(MARK + key_id(SECRET) + bytes(32))
    challenge = pair[0].recv(CHALLENGE, socket.MSG_WAITALL)
    pair[0].sendall(challenge[-PROOF:])
    assert isinstance(side.came, AuthenticationError)


def test_a_host_without_the_secret_is_given_no_proof(pair: tuple[socket.socket, socket.socket]) -> None:
    """It asks with the task's own nonce, and sends bytes of the task's as its proof."""
    side = task(pair[0])
    asked = pair[1].recv(ASKED, socket.MSG_WAITALL)
    pair[1].sendall(asked[-32:] + asked[-32:])
    assert isinstance(side.came, AuthenticationError)
    pair[1].setblocking(False)
    with pytest.raises(BlockingIOError):
        pair[1].recv(1)


def test_two_tasks_cannot_prove_anything_to_each_other(pair: tuple[socket.socket, socket.socket]) -> None:
    """Each takes the other's first message for half of a challenge."""
    sides = task(pair[0]), task(pair[1])
    pair[0].sendall(bytes(8))
    pair[1].sendall(bytes(8))
    assert all(isinstance(side.came, AuthenticationError) for side in sides)


# -- strangers -------------------------------------------------------------------------------------


def test_an_unknown_key_is_answered_like_any_other(enter: Callable[..., Entrance]) -> None:
    entrance = enter()
    with entrance.stranger() as connection:
        connection.sendall(MARK + key_id(bytes(32)) + bytes(32))
        assert len(connection.recv(CHALLENGE, socket.MSG_WAITALL)) == CHALLENGE
        connection.sendall(bytes(PROOF))
        assert silence(connection) == b""
    assert entrance.came.empty()


def test_nothing_is_read_of_whom_has_not_proved_anything(enter: Callable[..., Entrance]) -> None:
    """A fuzz: any bytes, the first message with any bytes, and frames in place of the challenge."""
    entrance = enter()
    hello = frame(FrameType.HELLO, {"protocol": PROTOCOL, "keyedstate": keyedstate.__version__})
    noise = st.one_of(
        st.binary(max_size=300),
        st.binary(max_size=300).map(lambda tail: MARK + tail),
        st.binary(min_size=80, max_size=80).map(lambda tail: MARK + key_id(SECRET) + tail),
        st.sampled_from([kind for kind in FrameType if kind.limit]).map(
            lambda kind: b"".join([*hello, *frame(kind, {})])
        ),
    )

    @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(noise)
    def send(data: bytes) -> None:
        with entrance.stranger() as connection:
            # It may have hung up by then.
            with contextlib.suppress(OSError):
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
            said = silence(connection)
            # A whole first message is answered with a challenge, whatever it names. Nothing else is answered.
            asked = len(data) >= ASKED and data.startswith(MARK)
            assert len(said) in ((0, CHALLENGE) if asked else (0,))

    send()
    assert entrance.came.empty()
    assert entrance.task() == key_id(SECRET)


def test_a_silent_client_does_not_block_others(enter: Callable[..., Entrance]) -> None:
    entrance = enter()
    before = threading.active_count()
    with contextlib.ExitStack() as crowd:
        silent = [crowd.enter_context(entrance.stranger()) for _ in range(3 * MAX_PENDING)]
        for connection in silent:
            with contextlib.suppress(OSError):
                connection.sendall(MARK[:3])
        assert entrance.task() == key_id(SECRET)
        # Those that came first had to go, and each has a thread at most; one that goes ends a little later.
        assert silence(silent[0]) == b""
        wait_until(lambda: threading.active_count() - before <= 2 * MAX_PENDING)
        entrance.listener.close()
        assert [silence(connection) for connection in silent] == [b""] * len(silent)
    wait_until(lambda: threading.active_count() <= before)


def test_a_byte_at_a_time_gains_no_time(enter: Callable[..., Entrance]) -> None:
    entrance = enter({"hosts.connect-timeout": 2_000})
    message = MARK + key_id(SECRET) + bytes(32)
    with entrance.stranger() as connection:
        # All of it would take six times as long as a client may.
        connection.settimeout(0.2)
        sent = 0
        with contextlib.suppress(ConnectionError):
            for byte in message:
                connection.sendall(bytes([byte]))
                sent += 1
                with contextlib.suppress(TimeoutError):
                    if not connection.recv(1):
                        break
        assert sent < len(message)


def test_a_closed_listener_accepts_no_client(enter: Callable[..., Entrance]) -> None:
    entrance = enter()
    address = entrance.address
    with entrance.stranger() as waiting:
        waiting.sendall(MARK)
        entrance.listener.close()
        assert silence(waiting) == b""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((address.address, address.port), timeout=DEADLINE_S)
    assert (entrance.listener.address, entrance.came.empty()) == (None, True)


def test_the_plans_of_a_query_are_its_own(enter: Callable[..., Entrance]) -> None:
    entrance = enter()
    other = Introduction(bytes(32), "127.0.0.1", "here")
    entrance.listener.introduce(other, "other digest", ())
    mine, theirs = key_id(SECRET), key_id(other.secret)
    allowed = [entrance.listener.allows(*one) for one in ((mine, "digest"), (theirs, "other digest"))]
    assert allowed == [True, True]
    refused = [entrance.listener.allows(*one) for one in ((mine, "other digest"), (theirs, "digest"))]
    assert refused == [False, False]
    assert entrance.task(other.secret) == theirs


# -- ports and addresses ---------------------------------------------------------------------------


def test_a_port_that_is_taken_costs_the_address_and_nothing_else(
    enter: Callable[..., Entrance], caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, caplog.at_level(logging.WARNING):
        entrance = enter({"hosts.ports": str(taken.getsockname()[1])})
    assert entrance.listener.address is None
    assert "spark.keyedstate.hosts.ports" in caplog.text
    assert SECRET.hex() not in caplog.text


def test_the_next_port_of_the_range_is_taken(enter: Callable[..., Entrance]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = min(taken.getsockname()[1], 65_000)
        entrance = enter({"hosts.ports": f"{port}-{port + 500}"})
    assert port < entrance.address.port <= port + 500
    assert entrance.task() == key_id(SECRET)


def test_an_executor_has_its_address_from_an_environment_variable(
    enter: Callable[..., Entrance], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"hosts.advertised-address": "$MY_ADDRESS", "hosts.bind-address": "127.0.0.1"}
    with caplog.at_level(logging.WARNING):
        assert enter(options).listener.address is None
    assert "MY_ADDRESS" in caplog.text
    monkeypatch.setenv("MY_ADDRESS", "localhost")
    assert enter(options).address.address == "localhost"
    # Without the option: what Spark's own variables say, then the way to the driver.
    assert enter().address.address == "127.0.0.1"
    monkeypatch.setenv("SPARK_LOCAL_IP", "localhost")
    entrance = enter()
    assert entrance.address.address == "localhost"
    assert entrance.task() == key_id(SECRET)


@pytest.mark.parametrize("value", ["-1", "70000", "5-4", "0-5", "1-2-3", "many", ""])
def test_ports_that_are_none_are_refused(value: str) -> None:
    with pytest.raises(InvalidOptionError, match="40000-40099"):
        Configuration({"hosts.ports": value})[HOSTS_PORTS]


@pytest.mark.parametrize("value", ["0", 7, "7-9", "7-7"])
def test_ports_are_one_or_a_range(value: object) -> None:
    assert Configuration({"hosts.ports": value})[HOSTS_PORTS] == str(value)
