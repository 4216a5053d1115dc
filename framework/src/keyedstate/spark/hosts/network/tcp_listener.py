"""Where tasks of other executors come in: a TCP port of the host, and who may pass."""

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

from keyedstate.checkpoint import HostAddress
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
from keyedstate.spark.hosts.network.tls import TlsFiles, agree, plain_end

_log = logging.getLogger(__name__)

#: How many may be about to prove who they are; when one more comes, the one that came first has to go.
MAX_STRANGERS = 32
#: Queries whose secrets a host remembers, and plans of each.
_MAX_REMEMBERED = 64
#: What an executor's environment may say of its address, in falling precedence.
_ADDRESSES = ("SPARK_LOCAL_IP", "SPARK_EXECUTOR_POD_IP")


@dataclass(frozen=True)
class Introduction:
    """What a task tells the hosts of its own executor, so that those of others find and reach them.

    Attributes
    ----------
    secret : bytes
        The query's; whoever knows it may use the partitions of the query.
    driver : str
        The address of the driver, which tells an executor that has several addresses which one to take.
    executor : str
        The executor's identity.
    """

    secret: bytes = field(repr=False)
    driver: str
    executor: str

    def to_json(self) -> dict[str, Any]:
        """Return the JSON face, for a socket that only this user can reach."""
        return {"secret": self.secret.hex(), "driver": self.driver, "executor": self.executor}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Introduction:
        """Rebuild from the JSON face.

        Raises
        ------
        HostProtocolError
        """
        try:
            read = cls(bytes.fromhex(document["secret"]), str(document["driver"]), str(document["executor"]))
        except (KeyError, TypeError, ValueError):
            # The cause might show the secret.
            raise HostProtocolError("an introduction is malformed") from None
        if len(read.secret) != SECRET_BYTES:
            raise HostProtocolError("an introduction has a secret of another length")
        return read


class Door:
    """The TCP side of a host; closed until the first introduction.

    Parameters
    ----------
    deliver : callable
        Gets each connection of a task that knows a secret, and its session; in another thread.
    """

    def __init__(self, deliver: Callable[[socket.socket, Session], None]) -> None:
        self._deliver = deliver
        self._lock = threading.Lock()
        #: Told when a stranger's thread ends.
        self._room = threading.Condition(self._lock)
        #: The secrets by key id, and the digests of the plans that belong to each.
        self._secrets: dict[bytes, bytes] = {}
        self._plans: dict[bytes, dict[str, None]] = {}
        #: Connections whose other end has not proved anything yet, as they came, and which may still do so.
        self._strangers: dict[socket.socket, bool] = {}
        self._listener: socket.socket | None = None
        self._tried = False
        self._closed = threading.Event()
        self._timeout_s = 0.0
        self._tls: TlsFiles | None = None
        #: Where tasks of other executors find the host; None where they cannot.
        self.address: HostAddress | None = None

    def introduce(
        self, introduction: Introduction, digest: str, settings: tuple[tuple[str, Any], ...]
    ) -> None:
        """Let tasks in that know a query's secret, to a plan of that query; listen, if that was not done yet.

        Where no port can be had it is logged, and other executors restore from files.

        Parameters
        ----------
        introduction : Introduction
        digest : str
            Of the plan.
        settings : tuple
            Of the plan.
        """
        name = key_id(introduction.secret)
        with self._lock:
            plans = self._plans.pop(name, {})
            plans[digest] = None
            _trim(plans)
            # The newest come last.
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
        """Let nobody in any more."""
        with self._lock:
            self._closed.set()
            self.address = None
            listener, self._listener = self._listener, None
            strangers = list(self._strangers)
        if listener is not None:
            # Wakes the thread that waits for connections.
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        for stranger in strangers:
            _turn_away(stranger)

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
            target=self._accept, args=(listener, self.address), name="keyedstate-door", daemon=True
        ).start()

    def _accept(self, listener: socket.socket, address: HostAddress) -> None:
        while not self._closed.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                # The door is closed, or there is no file descriptor left just now.
                time.sleep(0.1)
                continue
            if self._tls is not None:
                try:
                    connection = self._tls.wrap(connection, server=True)
                except OSError:
                    connection.close()
                    continue
            with self._lock:
                # Whoever is slow makes room for those who are not; and is counted until its thread has ended.
                if len(self._strangers) >= MAX_STRANGERS:
                    for stranger, stays in self._strangers.items():
                        if stays:
                            self._strangers[stranger] = False
                            _turn_away(stranger)
                            break
                # The threads of those that were turned away end at once, where the machine lets them.
                self._room.wait_for(lambda: len(self._strangers) < 2 * MAX_STRANGERS, timeout=1.0)
                if self._closed.is_set() or len(self._strangers) >= 2 * MAX_STRANGERS:
                    connection.close()
                    continue
                self._strangers[connection] = True
            threading.Thread(
                target=self._ask, args=(connection, address), name="keyedstate-stranger", daemon=True
            ).start()

    def _ask(self, connection: socket.socket, address: HostAddress) -> None:
        session = None
        try:
            deadline = time.monotonic() + self._timeout_s
            if isinstance(connection, ssl.SSLSocket):
                agree(connection, deadline)
            session = prove_host(connection, self._secrets.get, address, deadline)
            set_up(connection)
        except (OSError, HostError):
            # Nothing is told to a stranger, nor logged for each: whoever scans ports would fill the log.
            pass
        finally:
            with self._lock:
                del self._strangers[connection]
                self._room.notify()
                welcome = not self._closed.is_set()
            if welcome and session is not None:
                if isinstance(connection, ssl.SSLSocket):
                    connection = plain_end(connection)
                self._deliver(connection, session)
            else:
                connection.close()


def set_up(connection: socket.socket) -> None:
    """Let a connection wait for as long as the other side is there, and find out where it is not."""
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # A machine that has vanished says nothing; it is given up after half a minute.
    for option, value in (
        ("TCP_KEEPIDLE", 10),
        ("TCP_KEEPINTVL", 5),
        ("TCP_KEEPCNT", 4),
        ("TCP_USER_TIMEOUT", 30_000),
    ):
        if hasattr(socket, option):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def _turn_away(stranger: socket.socket) -> None:
    # Its own thread closes it.
    with contextlib.suppress(OSError):
        # Not TLS's own, by which its thread would lose what it works with.
        socket.socket.shutdown(stranger, socket.SHUT_RDWR)


def _trim(remembered: dict[str, None]) -> None:
    for old in list(remembered)[:-_MAX_REMEMBERED]:
        del remembered[old]


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
    """Return the address under which other executors reach this one."""
    if configured is not None and not configured.startswith("$"):
        return configured
    for name in _ADDRESSES if configured is None else (configured[1:],):
        if os.environ.get(name):
            return os.environ[name]
    if configured is not None:
        raise OSError(f"the environment variable {configured[1:]}, which is to hold the address, is not set")
    return _address_towards(driver)


def _address_towards(driver: str) -> str:
    """Return the address of this machine that is on the way to another one; sends nothing."""
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
