"""A mutual challenge, before anything else is read from a TCP connection.

It has three messages of fixed sizes, in which nothing is parsed::

    task                                             host
    mark (8), key id (16), nonce (32)            →
                                                 ←   nonce (32), MAC of the host (32)
    MAC of the task (32)                         →

A MAC is HMAC-SHA256, under the query's secret, of the role of its sender, the key id, both nonces, the host's
address and the TLS session.  So a message proves nothing when it is reflected or replayed.  Nor does it when
a process relays it: either the task has connected to another address than the host's, or the TLS sessions on
both sides of the relay differ.  The host proves itself first, so a task sends no proof to a process that does
not know the secret.

Both sides derive the keys of their frames' seals from the same values.  A process on the network path that
forwards the challenge has no key, and cannot change frames.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import socket
import ssl
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from keyedstate.checkpoint.format.manifest import HostAddress
from keyedstate.errors import AuthenticationError
from keyedstate.spark.hosts.network.seals import Seals

SECRET_BYTES = 32
#: The version of this challenge and of the seals; another one is refused.
MARK = b"keyedst\x02"
_KEY_ID_BYTES = 16
_NONCE_BYTES = 32
_MAC_BYTES = 32
_HOST, _TASK = b"keyedstate host", b"keyedstate task"
_HOST_SEALS, _TASK_SEALS = b"seals of a host", b"seals of a task"


@dataclass(frozen=True)
class Session:
    """A connection whose ends have proved that they know the same secret.

    Attributes
    ----------
    name : bytes
        The key id of the secret.
    sent, received : Seals or None
        Of the frames that this side sends and receives; None with TLS.
    """

    name: bytes
    sent: Seals | None = field(repr=False)
    received: Seals | None = field(repr=False)

    def sealed(self, pieces: Iterable[Any]) -> list[Any]:
        """Return the pieces of the next frame to send, with its seal."""
        pieces = list(pieces)
        return pieces if self.sent is None else [*pieces, self.sent.next(pieces)]


def key_id(secret: bytes) -> bytes:
    """Return the public name of a secret."""
    return hmac.digest(secret, b"keyedstate key id", hashlib.sha256)[:_KEY_ID_BYTES]


def prove_task(connection: socket.socket, secret: bytes, address: HostAddress, deadline: float) -> Session:
    """Do the task's side of the challenge, at a connection to an address of a host.

    With TLS, the connection is an `ssl.SSLSocket` after its handshake. The deadline is by `time.monotonic`.
    Raises `AuthenticationError` if the other side does not know the secret, or is not the host of this
    address, and OSError if the connection is lost or the deadline has passed.
    """
    name, nonce = key_id(secret), secrets.token_bytes(_NONCE_BYTES)
    _send(connection, MARK + name + nonce, deadline)
    answer = _receive(connection, _NONCE_BYTES + _MAC_BYTES, deadline)
    bound = name + nonce + answer[:_NONCE_BYTES] + _channel(connection, address)
    if not hmac.compare_digest(answer[_NONCE_BYTES:], _mac(secret, _HOST, bound)):
        raise AuthenticationError(
            "the host does not know the query's secret, or is another one than that of "
            f"{address.address}:{address.port}"
        )
    _send(connection, _mac(secret, _TASK, bound), deadline)
    return Session(name, *_seals(connection, secret, bound, _TASK_SEALS, _HOST_SEALS))


def prove_host(
    connection: socket.socket,
    secret_of: Callable[[bytes], bytes | None],
    address: HostAddress,
    deadline: float,
) -> Session:
    """Do the host's side of the challenge, as `prove_task`; `secret_of` returns the secret of a key id."""
    if _receive(connection, len(MARK), deadline) != MARK:
        raise AuthenticationError("it is no task of this version of keyedstate")
    asked = _receive(connection, _KEY_ID_BYTES + _NONCE_BYTES, deadline)
    name, nonce = asked[:_KEY_ID_BYTES], secrets.token_bytes(_NONCE_BYTES)
    # An unknown key id gets the same kind of answer, so it reveals nothing.
    secret = secret_of(name) or secrets.token_bytes(SECRET_BYTES)
    bound = asked + nonce + _channel(connection, address)
    _send(connection, nonce + _mac(secret, _HOST, bound), deadline)
    proof = _receive(connection, _MAC_BYTES, deadline)
    if not hmac.compare_digest(proof, _mac(secret, _TASK, bound)):
        raise AuthenticationError("the task does not know the query's secret")
    return Session(name, *_seals(connection, secret, bound, _HOST_SEALS, _TASK_SEALS))


def _channel(connection: socket.socket, address: HostAddress) -> bytes:
    """Return the channel of a proof: the host and, with TLS, its session."""
    session = ""
    if isinstance(connection, ssl.SSLSocket):
        # With TLS 1.3 too: the client's Finished message, which depends on the keys of the session.
        unique = connection.get_channel_binding("tls-unique")
        if not unique:
            raise AuthenticationError("this version of TLS does not identify its session")
        session = unique.hex()
    return json.dumps([address.executor, address.address, address.port, session]).encode()


def _mac(secret: bytes, role: bytes, bound: bytes) -> bytes:
    return hmac.digest(secret, MARK + role + bound, hashlib.sha256)


def _seals(
    connection: socket.socket, secret: bytes, bound: bytes, sent: bytes, received: bytes
) -> tuple[Seals | None, Seals | None]:
    if isinstance(connection, ssl.SSLSocket):
        return None, None
    return Seals(_mac(secret, sent, bound)), Seals(_mac(secret, received, bound))


def _send(connection: socket.socket, data: bytes, deadline: float) -> None:
    connection.settimeout(_left(deadline))
    connection.sendall(data)


def _receive(connection: socket.socket, length: int, deadline: float) -> bytes:
    received = b""
    while len(received) < length:
        # All bytes share the deadline, so sending one at a time gains nothing.
        connection.settimeout(_left(deadline))
        piece = connection.recv(length - len(received))
        if not piece:
            raise ConnectionResetError("the connection ended in the challenge")
        received += piece
    return received


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0.0:
        raise TimeoutError("the challenge took too long")
    return left
