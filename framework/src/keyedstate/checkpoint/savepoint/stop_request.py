"""A request to stop a query with a savepoint: a file in an operator's folder that its driver answers."""

from __future__ import annotations

import time
import uuid
from dataclasses import asdict, dataclass, replace

from keyedstate.checkpoint.format.json_document import decode_as, encode_document
from keyedstate.checkpoint.protocol.operator_folder import OperatorFolder
from keyedstate.errors import MissingFileError

_FILE = "_stop"
_KIND = "stop request"
_VERSION = 1


@dataclass(frozen=True)
class StopRequest:
    """What is asked of the driver, and what it has answered.

    Attributes
    ----------
    id : str
    savepoint : str
        The new savepoint, as the driver is to open it.
    drain : bool
    expires_ms : int
        A driver that finds it later, in milliseconds since 1970 UTC, does nothing.
    status : str
        ``asked``, ``taken`` by the driver, ``done`` or ``failed``.
    answer : str
        Why it failed; of a done one, why the query had failed before it was stopped, or nothing.
    """

    id: str
    savepoint: str
    drain: bool
    expires_ms: int
    status: str = "asked"
    answer: str = ""

    @classmethod
    def new(cls, savepoint: str, *, drain: bool, seconds: float) -> StopRequest:
        """Return a request that has not been written yet and is good for so many seconds."""
        return cls(uuid.uuid4().hex, savepoint, drain, _now_ms() + int(seconds * 1000))

    @classmethod
    def read(cls, folder: OperatorFolder) -> StopRequest | None:
        """Return the request in a folder, or None.

        Raises
        ------
        CorruptManifestError, FormatVersionError, StorageError
        """
        try:
            data = folder.storage.read(_FILE)
        except MissingFileError:
            return None
        location = folder.storage.location(_FILE)
        return decode_as(cls, location, _KIND, _VERSION, data)

    @property
    def is_open(self) -> bool:
        """Whether a driver is to take it now."""
        return self.status == "asked" and _now_ms() <= self.expires_ms

    def write(self, folder: OperatorFolder) -> None:
        """Write it, in place of an earlier one."""
        folder.storage.write_atomic(_FILE, encode_document(_KIND, _VERSION, asdict(self)))

    def answered(self, folder: OperatorFolder, status: str, answer: str = "") -> None:
        """Write it with another status."""
        replace(self, status=status, answer=answer).write(folder)

    def delete(self, folder: OperatorFolder) -> None:
        """Delete it, unless another one is in its place."""
        found = StopRequest.read(folder)
        if found is not None and found.id == self.id:
            folder.storage.delete_file(_FILE)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
