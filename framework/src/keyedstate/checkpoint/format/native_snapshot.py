"""The description of a full snapshot in a backend's own files.

A native file is named after the attempt that uploaded it, ``data/<nonce>.<number>.native`` or, in the
background, ``data/<nonce>.base.<number>.native``.  Later full snapshots may reference it too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from keyedstate.keygroups import KeyGroupRange

_NUMBER = re.compile(r"\.[0-9]+\.native$")


@dataclass(frozen=True)
class StoredNativeFile:
    """A native file in the storage."""

    #: Of the file as the backend knows it.
    name: str
    #: Relative to the operator's folder.
    path: str
    bytes: int
    #: Hexadecimal.
    sha256: str


@dataclass(frozen=True)
class NativeFullSnapshot:
    """The keyed state of some key groups in a backend's own files."""

    backend: str
    key_groups: KeyGroupRange
    max_parallelism: int
    files: tuple[StoredNativeFile, ...]
    entries: Mapping[str, int]
    #: What the backend needs at a restore.
    details: Mapping[str, Any]

    @property
    def bytes(self) -> int:
        """The size of all files."""
        return sum(file.bytes for file in self.files)


def owner_path(path: str) -> str:
    """Return the segment file that a native file replaces, whose name identifies the attempt."""
    return _NUMBER.sub(".seg", path)
