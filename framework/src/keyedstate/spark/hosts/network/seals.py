"""Seals of frames: only the two ends of a connection can make what the other end accepts.

A seal is a keyed BLAKE2b of 16 bytes over the frame and its number in its direction.  Each direction of each
connection has a key of its own, so a frame that another process has changed, repeated, left out or sent back
has the wrong seal.  Seals hide nothing: TLS does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

SEAL_BYTES = 16


class Seals:
    """The seals of the frames of one direction, in their order.

    Parameters
    ----------
    key : bytes
        Of this direction of this connection alone; up to 64 bytes.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._frames = 0

    def next(self, pieces: Iterable[Any]) -> bytes:
        """Return the seal of the next frame, given its bytes in pieces."""
        seal = hashlib.blake2b(self._frames.to_bytes(8, "big"), key=self._key, digest_size=SEAL_BYTES)
        for piece in pieces:
            seal.update(piece)
        self._frames += 1
        return seal.digest()
