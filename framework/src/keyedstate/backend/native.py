"""Full snapshots of a backend's own files; consecutive checkpoints share the unchanged ones.

A backend with immutable files captures them at once, by hard links.  The framework uploads those that no
completed checkpoint contains, several at a time, and records all of them.  A restore returns the files.  A
backend that opens them in place gives the origin of each in its next snapshot, so that only new ones are
uploaded.  No checkpoint contains files of failed attempts, so no snapshot refers to them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keyedstate.backend.changes import EntryChange
from keyedstate.backend.restore import StateHandle
from keyedstate.backend.snapshot import SnapshotStrategy
from keyedstate.backend.table import AnyStateTable


@dataclass(frozen=True)
class NativeFile:
    """One file of a native snapshot.

    Attributes
    ----------
    name : str
        The name in the snapshot's folder, without a subfolder.
    bytes : int
    origin : str or None
        Where a checkpoint contains this very file, as `NativeSnapshot.stored` or `NativeHandle.fetch` gave
        it; None for a file to upload in any case.
    """

    name: str
    bytes: int
    origin: str | None = None


class NativeSnapshot(ABC):
    """What the synchronous part captured: files that never change.

    Attributes
    ----------
    folder : Path
    files : sequence of NativeFile
    entries : mapping of str to int
        The number of entries of each state.
    details : mapping
        JSON values that the backend needs to read the files.
    """

    folder: Path
    files: Sequence[NativeFile]
    entries: Mapping[str, int]
    details: Mapping[str, Any]

    @abstractmethod
    def stored(self, origins: Mapping[str, str]) -> None:
        """Receive the origin of each file by its name; may be called in another thread."""

    @abstractmethod
    def release(self) -> None:
        """Delete the folder, after success, failure or cancel; calling it again does nothing."""


class NativeSnapshotStrategy(SnapshotStrategy):
    """A strategy that also takes snapshots of native files."""

    @abstractmethod
    def prepare_native(
        self, checkpoint_id: int, tables: Mapping[str, AnyStateTable]
    ) -> NativeSnapshot | None:
        """Capture the files of all tables; runs in the owner's thread, so it must be short.

        Returns None where the user does not want native files: then `prepare` is called.
        """


class NativeHandle(StateHandle):
    """A full snapshot of native files, possibly with the changes of later epochs.

    `entries` reads it like any other handle.  A backend that knows the files gets them with `fetch` and then
    applies `changes`; `states` includes states that occur in changes only.

    Attributes
    ----------
    backend : str
        The backend that wrote the files.
    files : sequence of NativeFile
    native_entries, all_entries : mapping of str to int
        The number of entries of each state in the files, and after the changes.
    details : mapping
        As in `NativeSnapshot`.
    """

    backend: str
    files: Sequence[NativeFile]
    native_entries: Mapping[str, int]
    all_entries: Mapping[str, int]
    details: Mapping[str, Any]

    @abstractmethod
    def fetch(self, folder: Path) -> None:
        """Copy all files into a new folder and verify every byte.

        Raises `CheckpointError` where a file is missing or was changed, with its name; the folder is removed
        then.
        """

    @abstractmethod
    def changes(self) -> Iterator[EntryChange]:
        """Yield the changes of later epochs, in their order."""
