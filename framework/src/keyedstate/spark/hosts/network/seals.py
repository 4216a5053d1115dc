"""Seals of frames: only the two ends of a connection can make them.

A seal is a keyed BLAKE2b of 16 bytes over the frame and its number in its direction.  Each direction of each
connection has its own key, so a frame that another process has changed, repeated, omitted or sent back has
the wrong seal.  Seals do not encrypt: TLS does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

SEAL_BYTES = 16


class Seals:
    """The seals of the frames of one direction, under a key of up to 64 bytes."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._frames = 0

    def next(self, pieces: Iterable[Any]) -> bytes:
        """Return the seal of the next frame, of the given bytes."""
        seal = hashlib.blake2b(self._frames.to_bytes(8, "big"), key=self._key, digest_size=SEAL_BYTES)
        for piece in pieces:
            seal.update(piece)
        self._frames += 1
        return seal.digest()
