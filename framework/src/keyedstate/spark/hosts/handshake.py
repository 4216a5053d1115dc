"""Who is at the other end of a TCP connection: a mutual challenge, before anything else is read.

Three messages of fixed sizes, in which nothing is parsed::

    task                                             host
    mark (8), key id (16), nonce (32)            →
                                                 ←   nonce (32), MAC of the host (32)
    MAC of the task (32)                         →

A MAC is HMAC-SHA256, under the query's secret, of the role of who sends it, the key id and both nonces: what
one side has sent proves nothing when it is sent back or sent again.  The host proves itself first, so that a
task gives its own proof to nobody who does not know the secret.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import socket
import time
from collections.abc import Callable

from keyedstate.spark.hosts.errors import AuthenticationError

SECRET_BYTES = 32
#: The version of this challenge; another one is refused.
MARK = b"keyedst\x01"
_KEY_ID_BYTES = 16
_NONCE_BYTES = 32
_MAC_BYTES = 32
_HOST, _TASK = b"keyedstate host", b"keyedstate task"


def key_id(secret: bytes) -> bytes:
    """Return the name under which a secret is asked for; it does not give the secret away."""
    return hmac.digest(secret, b"keyedstate key id", hashlib.sha256)[:_KEY_ID_BYTES]


def prove_task(connection: socket.socket, secret: bytes, deadline: float) -> None:
    """Do the task's side of the challenge.

    Parameters
    ----------
    connection : socket.socket
    secret : bytes
    deadline : float
        By `time.monotonic`.

    Raises
    ------
    AuthenticationError
        Where the other side does not know the secret.
    OSError
        Where the connection is lost or the time is up.
    """
    name, nonce = key_id(secret), secrets.token_bytes(_NONCE_BYTES)
    _send(connection, MARK + name + nonce, deadline)
    answer = _receive(connection, _NONCE_BYTES + _MAC_BYTES, deadline)
    nonces = nonce + answer[:_NONCE_BYTES]
    if not hmac.compare_digest(answer[_NONCE_BYTES:], _mac(secret, _HOST, name, nonces)):
        raise AuthenticationError("the host does not know the query's secret")
    _send(connection, _mac(secret, _TASK, name, nonces), deadline)


def prove_host(
    connection: socket.socket, secret_of: Callable[[bytes], bytes | None], deadline: float
) -> bytes:
    """Do the host's side of the challenge; returns the key id of the secret that the task knows.

    Parameters
    ----------
    connection : socket.socket
    secret_of : callable
        Returns the secret of a key id, or None.
    deadline : float
        By `time.monotonic`.

    Raises
    ------
    AuthenticationError, OSError
        As `prove_task`.
    """
    if _receive(connection, len(MARK), deadline) != MARK:
        raise AuthenticationError("it is no task of this version of keyedstate")
    asked = _receive(connection, _KEY_ID_BYTES + _NONCE_BYTES, deadline)
    name, nonce = asked[:_KEY_ID_BYTES], secrets.token_bytes(_NONCE_BYTES)
    # A key id that nobody has is answered like any other: who asks learns nothing by it.
    secret = secret_of(name) or secrets.token_bytes(SECRET_BYTES)
    nonces = asked[_KEY_ID_BYTES:] + nonce
    _send(connection, nonce + _mac(secret, _HOST, name, nonces), deadline)
    proof = _receive(connection, _MAC_BYTES, deadline)
    if not hmac.compare_digest(proof, _mac(secret, _TASK, name, nonces)):
        raise AuthenticationError("the task does not know the query's secret")
    return name


def _mac(secret: bytes, role: bytes, name: bytes, nonces: bytes) -> bytes:
    return hmac.digest(secret, MARK + role + name + nonces, hashlib.sha256)


def _send(connection: socket.socket, data: bytes, deadline: float) -> None:
    connection.settimeout(_left(deadline))
    connection.sendall(data)


def _receive(connection: socket.socket, length: int, deadline: float) -> bytes:
    received = b""
    while len(received) < length:
        # Each byte has what is left of the time, so that nobody gains any by sending one at a time.
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
