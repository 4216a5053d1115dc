"""TLS between executors: both sides show a certificate of one authority, before the challenge.

A thread relays between the encrypted connection and an ordinary socket, which the other modules use.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
import time
from dataclasses import dataclass
from functools import lru_cache

from keyedstate.config import SPARK_PREFIX
from keyedstate.errors import MissingOptionError
from keyedstate.options import HOSTS_TLS_CA, HOSTS_TLS_CERTIFICATE, HOSTS_TLS_KEY, Configuration

_PIECE_BYTES = 256 << 10


@dataclass(frozen=True)
class TlsFiles:
    """The paths of PEM files on each executor."""

    #: The executor's certificate with its chain.
    certificate: str
    #: Without a password.
    key: str
    #: The certificates of the trusted authorities.
    ca: str

    @classmethod
    def of(cls, config: Configuration) -> TlsFiles | None:
        """Read the options; None without TLS, `MissingOptionError` if only some are set."""
        options = (HOSTS_TLS_CERTIFICATE, HOSTS_TLS_KEY, HOSTS_TLS_CA)
        values = [config.get(option) for option in options]
        if not any(values):
            return None
        for option, value in zip(options, values, strict=True):
            if value is None:
                raise MissingOptionError(
                    SPARK_PREFIX + option.name,
                    "TLS between executors takes a certificate, its key and an authority.",
                )
        certificate, key, ca = (str(value) for value in values)
        return cls(certificate, key, ca)

    def check(self) -> None:
        """Read the files; raises OSError if one cannot be used."""
        _context(self, True)

    def wrap(self, connection: socket.socket, *, server: bool) -> ssl.SSLSocket:
        """Return the connection, to be encrypted by `handshake`.

        Raises OSError if a file cannot be used, or the connection is lost.
        """
        return _context(self, server).wrap_socket(
            connection, server_side=server, do_handshake_on_connect=False
        )


@lru_cache(maxsize=8)
def _context(files: TlsFiles, server: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Executors have changing addresses. The challenge proves their identity.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(files.certificate, files.key, password=_no_password)
    context.load_verify_locations(files.ca)
    return context


def _no_password() -> str:
    # Without this function OpenSSL would ask at the terminal.
    raise OSError("the key of hosts.tls-key has a password")


def handshake(connection: ssl.SSLSocket, deadline: float) -> None:
    """Do TLS's handshake before a deadline, by `time.monotonic`.

    Raises `ssl.SSLError`, an OSError, if the other side shows no certificate of the authority, or does not
    use TLS.
    """
    # This timeout applies to the whole handshake.
    connection.settimeout(max(deadline - time.monotonic(), 0.001))
    connection.do_handshake()


def plain_socket(connection: ssl.SSLSocket) -> socket.socket:
    """Return a plain socket for an encrypted connection, with a thread that relays between them."""
    mine, theirs = socket.socketpair()
    connection.setblocking(False)
    theirs.setblocking(False)
    relay = _Relay(connection, theirs)
    threading.Thread(target=relay.run, name="keyedstate-tls", daemon=True).start()
    return mine


class _Relay:
    """Relays both directions until both have ended or a side is lost; buffers one piece of each."""

    def __init__(self, secured: ssl.SSLSocket, plain: socket.socket) -> None:
        self._ways = (_Way(secured, plain), _Way(plain, secured))

    def run(self) -> None:
        """Relay to the end, and close both."""
        secured, plain = self._ways[0].source, self._ways[1].source
        with secured, plain, contextlib.suppress(OSError):
            while not all(way.ended for way in self._ways):
                # Bytes that TLS has already decrypted wake no poll, so both directions are tried first.
                moved = self._ways[0].step()
                if not (self._ways[1].step() or moved):
                    self._wait()

    def _wait(self) -> None:
        events: dict[int, int] = {}
        for way in self._ways:
            if way.waits_for is not None:
                waiting, event = way.waits_for
                events[waiting.fileno()] = events.get(waiting.fileno(), 0) | event
        poller = select.poll()
        for descriptor, event in events.items():
            poller.register(descriptor, event)
        poller.poll()


class _Way:
    """One direction."""

    def __init__(self, source: socket.socket, target: socket.socket) -> None:
        self.source = source
        self.target = target
        self.ended = False
        #: The event that lets it continue.
        self.waits_for: tuple[socket.socket, int] | None = None
        self._piece = memoryview(b"")

    def step(self) -> bool:
        """Receive or send once; return whether bytes moved. OSError if a side is lost."""
        if self.ended:
            return False
        sending = len(self._piece) > 0
        try:
            if sending:
                self._piece = self._piece[self.target.send(self._piece) :]
            else:
                self._piece = memoryview(self.source.recv(_PIECE_BYTES))
                if not self._piece:
                    self.ended = True
                    # Of the connection below TLS: the other direction continues.
                    socket.socket.shutdown(self.target, socket.SHUT_WR)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            writes = isinstance(error, ssl.SSLWantWriteError) or (
                sending and isinstance(error, BlockingIOError)
            )
            side = self.target if sending else self.source
            self.waits_for = side, select.POLLOUT if writes else select.POLLIN
            return False
        self.waits_for = None
        return True
