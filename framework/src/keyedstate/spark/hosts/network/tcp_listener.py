"""The TCP port of a host, for authenticated tasks of other executors."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from keyedstate.checkpoint.format.manifest import HostAddress
from keyedstate.epoch.configuration import configuration_in_task
from keyedstate.errors import HostError, HostProtocolError
from keyedstate.options import (
    HOSTS_ADVERTISED_ADDRESS,
    HOSTS_BIND_ADDRESS,
    HOSTS_CONNECT_TIMEOUT,
    HOSTS_PORTS,
    Configuration,
)
from keyedstate.spark.hosts.network.handshake import SECRET_BYTES, Session, key_id, prove_host
from keyedstate.spark.hosts.network.tls import TlsFiles, handshake, plain_socket

_log = logging.getLogger(__name__)

#: How many connections may be unauthenticated at once; one more closes the oldest of them.
MAX_PENDING = 32
#: The number of queries whose secrets a host keeps, and of plans of each.
_MAX_REMEMBERED = 64
#: Environment variables with an executor's address, by falling precedence.
_ADDRESSES = ("SPARK_LOCAL_IP", "SPARK_EXECUTOR_POD_IP")


@dataclass(frozen=True)
class Introduction:
    """What a task sends to the hosts of its own executor, so that other executors can reach them."""

    #: The query's; a process that knows it may use the query's partitions.
    secret: bytes = field(repr=False)
    #: The driver's address; an executor with several addresses advertises the one towards it.
    driver: str
    #: As `executor_id` returns it.
    executor: str

    def to_json(self) -> dict[str, Any]:
        """Return the JSON representation, for a socket that only this user can reach."""
        return {"secret": self.secret.hex(), "driver": self.driver, "executor": self.executor}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Introduction:
        """Rebuild from the JSON representation; raises `HostProtocolError`."""
        try:
            read = cls(bytes.fromhex(document["secret"]), str(document["driver"]), str(document["executor"]))
        except (KeyError, TypeError, ValueError):
            # Without the cause, which might show the secret.
            raise HostProtocolError("an introduction is malformed") from None
        if len(read.secret) != SECRET_BYTES:
            raise HostProtocolError("an introduction has a secret of another length")
        return read


class TcpListener:
    """The TCP side of a host; it listens after the first introduction.

    It delivers each authenticated connection and its session, in another thread.
    """

    def __init__(self, deliver: Callable[[socket.socket, Session], None]) -> None:
        self._deliver = deliver
        self._lock = threading.Lock()
        #: Notified when the thread of an unauthenticated connection ends.
        self._room = threading.Condition(self._lock)
        #: The secrets by key id, and the digests of the plans that belong to each.
        self._secrets: dict[bytes, bytes] = {}
        self._plans: dict[bytes, dict[str, None]] = {}
        #: Unauthenticated connections, the oldest first, and whether they were not yet shut down.
        self._pending: dict[socket.socket, bool] = {}
        self._listener: socket.socket | None = None
        self._tried = False
        self._closed = threading.Event()
        self._timeout_s = 0.0
        self._tls: TlsFiles | None = None
        #: For tasks of other executors; None while they cannot connect.
        self.address: HostAddress | None = None

    def introduce(
        self, introduction: Introduction, digest: str, settings: tuple[tuple[str, Any], ...]
    ) -> None:
        """Accept tasks that know a query's secret, for a plan of the query, and start listening.

        Without a free port a warning is logged, and other executors restore from files.
        """
        name = key_id(introduction.secret)
        with self._lock:
            plans = self._plans.pop(name, {})
            plans[digest] = None
            for forgotten in list(plans)[:-_MAX_REMEMBERED]:
                del plans[forgotten]
            # The newest are last.
            self._plans[name] = plans
            self._secrets[name] = introduction.secret
            for old in list(self._plans)[:-_MAX_REMEMBERED]:
                del self._plans[old], self._secrets[old]
            if self._tried or self._closed.is_set():
                return
            self._tried = True
            try:
                self._open(introduction, configuration_in_task(settings))
            except OSError as error:
                _log.warning(
                    "this host cannot be reached by other executors, whose tasks restore its partitions from "
                    "files: it cannot listen (%s). See the options spark.keyedstate.hosts.ports, "
                    "hosts.bind-address and hosts.advertised-address.",
                    error,
                )

    def allows(self, name: bytes, digest: str) -> bool:
        """Return whether a plan belongs to the query of a key id."""
        with self._lock:
            return digest in self._plans.get(name, ())

    def close(self) -> None:
        """Stop listening, and close all unauthenticated connections."""
        with self._lock:
            self._closed.set()
            self.address = None
            listener, self._listener = self._listener, None
            pending = list(self._pending)
        if listener is not None:
            # Wakes the thread that waits for connections.
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        for connection in pending:
            _shut_down(connection)

    def _open(self, introduction: Introduction, config: Configuration) -> None:
        advertised = _advertised(config.get(HOSTS_ADVERTISED_ADDRESS), introduction.driver)
        tls = TlsFiles.of(config)
        if tls is not None:
            tls.check()
        first, _, last = config[HOSTS_PORTS].partition("-")
        address = config.get(HOSTS_BIND_ADDRESS) or advertised
        listener = _listen(address, int(first), int(last or first))
        self._timeout_s = config[HOSTS_CONNECT_TIMEOUT] / 1000.0
        self._tls = tls
        self._listener = listener
        self.address = HostAddress(introduction.executor, advertised, listener.getsockname()[1])
        threading.Thread(
            target=self._accept, args=(listener, self.address), name="keyedstate-tcp", daemon=True
        ).start()

    def _accept(self, listener: socket.socket, address: HostAddress) -> None:
        while not self._closed.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                # It was closed, or no file descriptor is free.
                time.sleep(0.1)
                continue
            if self._tls is not None:
                try:
                    connection = self._tls.wrap(connection, server=True)
                except OSError:
                    connection.close()
                    continue
            with self._lock:
                # A slow connection makes room for a new one, and counts until its thread has ended.
                if len(self._pending) >= MAX_PENDING:
                    for oldest, is_open in self._pending.items():
                        if is_open:
                            self._pending[oldest] = False
                            _shut_down(oldest)
                            break
                # The threads of connections that were shut down end soon.
                self._room.wait_for(lambda: len(self._pending) < 2 * MAX_PENDING, timeout=1.0)
                if self._closed.is_set() or len(self._pending) >= 2 * MAX_PENDING:
                    connection.close()
                    continue
                self._pending[connection] = True
            threading.Thread(
                target=self._ask, args=(connection, address), name="keyedstate-challenge", daemon=True
            ).start()

    def _ask(self, connection: socket.socket, address: HostAddress) -> None:
        session = None
        try:
            deadline = time.monotonic() + self._timeout_s
            if isinstance(connection, ssl.SSLSocket):
                handshake(connection, deadline)
            session = prove_host(connection, self._secrets.get, address, deadline)
            set_up(connection)
        except (OSError, HostError):
            # Without an answer, and without a message: a port scan would fill the log.
            pass
        finally:
            with self._lock:
                del self._pending[connection]
                self._room.notify()
                welcome = not self._closed.is_set()
            if welcome and session is not None:
                if isinstance(connection, ssl.SSLSocket):
                    connection = plain_socket(connection)
                self._deliver(connection, session)
            else:
                connection.close()


def set_up(connection: socket.socket) -> None:
    """Let a connection wait without a timeout, but notice a machine that is gone within half a minute."""
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", 10),
        ("TCP_KEEPINTVL", 5),
        ("TCP_KEEPCNT", 4),
        ("TCP_USER_TIMEOUT", 30_000),
    ):
        if hasattr(socket, option):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def _shut_down(connection: socket.socket) -> None:
    # Its own thread closes it, and still uses TLS's objects.
    with contextlib.suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


def _listen(address: str, low: int, high: int) -> socket.socket:
    """Return a socket that listens at the first free port of a range."""
    family, _, _, _, _ = socket.getaddrinfo(address, low, type=socket.SOCK_STREAM)[0]
    for port in range(low, high + 1):
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((address, port))
            listener.listen(128)
        except OSError:
            listener.close()
            if port == high:
                raise
        else:
            return listener
    raise OSError("the range is empty")


def _advertised(configured: str | None, driver: str) -> str:
    """Return the address of this executor for other ones."""
    if configured is not None and not configured.startswith("$"):
        return configured
    for name in _ADDRESSES if configured is None else (configured[1:],):
        if os.environ.get(name):
            return os.environ[name]
    if configured is not None:
        raise OSError(
            f"the environment variable {configured[1:]}, which hosts.advertised-address names, is not set"
        )
    return _address_towards(driver)


def _address_towards(driver: str) -> str:
    """Return the address of this machine on the route to another one; sends nothing."""
    error: OSError | None = None
    for family, kind, protocol, _, target in socket.getaddrinfo(
        driver.strip("[]"), 9, type=socket.SOCK_DGRAM
    ):
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(target)
                return str(probe.getsockname()[0])
        except OSError as failure:
            error = failure
    raise error or OSError(f"{driver} has no address")
