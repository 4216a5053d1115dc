"""Full snapshots of a backend's own files; a checkpoint shares the unchanged ones with the one before.

A backend that has immutable files captures them at once (by hard links) and hands them over; the framework
uploads those that no completed checkpoint has, several at once, and writes down all of them.  A restore gives
the files back; a backend that opens them in place tells where each is from in its next snapshot, and only new
ones are uploaded again.  Files of attempts that came to nothing are in no checkpoint, so nothing goes on from
them.
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
        In the snapshot's folder; without a folder of its own.
    bytes : int
    origin : str or None
        Where a checkpoint has this very file, as `NativeSnapshot.stored` or `NativeHandle.fetch` said; None
        for one that is to be uploaded in any case.
    """

    name: str
    bytes: int
    origin: str | None = None


class NativeSnapshot(ABC):
    """What the synchronous part captured: files that nobody changes.

    Attributes
    ----------
    folder : Path
    files : sequence of NativeFile
    entries : mapping of str to int
        Entries by state.
    details : mapping
        JSON values that the backend needs to read the files.
    """

    folder: Path
    files: Sequence[NativeFile]
    entries: Mapping[str, int]
    details: Mapping[str, Any]

    @abstractmethod
    def stored(self, origins: Mapping[str, str]) -> None:
        """Learn where each file, by its name, is stored; it may be called in another thread."""

    @abstractmethod
    def release(self) -> None:
        """Delete the folder, after success, failure or cancel; calling it again does nothing."""


class NativeSnapshotStrategy(SnapshotStrategy):
    """A strategy that also has snapshots of native files."""

    @abstractmethod
    def prepare_native(
        self, checkpoint_id: int, tables: Mapping[str, AnyStateTable]
    ) -> NativeSnapshot | None:
        """Capture the files of all tables; runs in the owner's thread, so it must be short.

        Returns None where the user does not want native files: then `prepare` is called.
        """


class NativeHandle(StateHandle):
    """A full snapshot of native files, perhaps with the changes of later epochs.

    `entries` reads it like any other.  A backend that knows the files takes them with `fetch`, and then
    applies `changes`; `states` has also those that only changes have.

    Attributes
    ----------
    backend : str
        Whose files they are.
    files : sequence of NativeFile
    native_entries, all_entries : mapping of str to int
        Entries by state in the files, and after the changes.
    details : mapping
        What the snapshot said.
    """

    backend: str
    files: Sequence[NativeFile]
    native_entries: Mapping[str, int]
    all_entries: Mapping[str, int]
    details: Mapping[str, Any]

    @abstractmethod
    def fetch(self, folder: Path) -> None:
        """Copy all files into a folder, which is made; each byte is compared with what was written.

        Raises
        ------
        CheckpointError
            Where a file, which is named, is missing or is another one; nothing is left then.
        """

    @abstractmethod
    def changes(self) -> Iterator[EntryChange]:
        """Yield what later epochs changed, in their order."""
