"""A request to stop a query with a savepoint: a file in an operator's folder that its driver answers.

The driver renews a request that it has taken for as long as it works on it.  So the process that waits for
the answer notices a driver that has died.  It does not compare the clocks of two machines: the file counts
the renewals, and the waiting process measures how long the count stays the same.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

from keyedstate.checkpoint.format.json_document import decode_as, encode_document
from keyedstate.checkpoint.protocol.operator_folder import OperatorFolder
from keyedstate.errors import MissingFileError, QueryNotStoppedError

_log = logging.getLogger(__name__)

#: How often a driver renews a request, and after how long without a renewal it counts as dead.
RENEWAL_SECONDS = 5.0
LAPSE_SECONDS = 60.0

_FILE = "_stop"
_KIND = "stop request"
_VERSION = 1
_LOOK_EVERY_SECONDS = 0.2
#: A driver that takes a request at its last moment is not missed.
_MARGIN_SECONDS = 2.0


@dataclass(frozen=True)
class StopRequest:
    """What the driver is asked for, and its answer."""

    id: str
    #: The new savepoint, as the driver is to open it.
    savepoint: str
    drain: bool
    #: A driver that finds it later, in milliseconds since 1970 UTC, does nothing.
    expires_ms: int
    #: ``asked``, ``taken`` by the driver, ``done`` or ``failed``.
    status: str = "asked"
    #: Why it failed; of a done one, why the query had failed before it was stopped, or nothing.
    answer: str = ""
    #: How often the driver has renewed a taken one.
    renewals: int = 0

    @classmethod
    def new(cls, savepoint: str, *, drain: bool, seconds: float) -> StopRequest:
        """Return a request that expires after so many seconds; it is not written yet."""
        return cls(uuid.uuid4().hex, savepoint, drain, _now_ms() + int(seconds * 1000))

    @classmethod
    def read(cls, folder: OperatorFolder) -> StopRequest | None:
        """Return the request in a folder, or None.

        Raises `CorruptFileError`, `FormatVersionError` and `StorageError`.
        """
        try:
            data = folder.storage.read(_FILE)
        except MissingFileError:
            return None
        return decode_as(cls, folder.storage.location(_FILE), _KIND, _VERSION, data)

    @property
    def is_open(self) -> bool:
        """Whether a driver is to take it now."""
        return self.status == "asked" and _now_ms() <= self.expires_ms

    def write(self, folder: OperatorFolder) -> None:
        """Write it, in place of an earlier one."""
        folder.storage.write_atomic(_FILE, encode_document(_KIND, _VERSION, asdict(self)))

    def delete(self, folder: OperatorFolder) -> None:
        """Delete it, unless the folder has another one."""
        if self._found(folder) is not None:
            folder.storage.delete_file(_FILE)

    # -- the driver --------------------------------------------------------------------------------

    @contextlib.contextmanager
    def taken(self, folder: OperatorFolder, every: float = RENEWAL_SECONDS) -> Iterator[None]:
        """Take the request, and renew it in the background until the block ends."""
        replace(self, status="taken").write(folder)
        ended = threading.Event()

        def renew() -> None:
            while not ended.wait(every):
                try:
                    found = self._found(folder)
                    if found is None:
                        return
                    replace(found, renewals=found.renewals + 1).write(folder)
                except Exception as error:
                    _log.warning("the request to stop %s was not renewed: %s", folder.location, error)

        thread = threading.Thread(target=renew, name="keyedstate-stop-renewals", daemon=True)
        thread.start()
        try:
            yield
        finally:
            # No renewal may overwrite the answer.
            ended.set()
            thread.join()

    def answered(self, folder: OperatorFolder, status: str, answer: str = "") -> None:
        """Write it with the driver's answer, unless the process that asked has deleted or replaced it."""
        if self._found(folder) is not None:
            replace(self, status=status, answer=answer).write(folder)

    # -- the process that asks ---------------------------------------------------------------------

    def await_answer(
        self, folder: OperatorFolder, timeout: float, lapse: float = LAPSE_SECONDS
    ) -> StopRequest:
        """Return the answered request; raises as `read`.

        Raises `QueryNotStoppedError` where no driver takes the request in `timeout` seconds, where a driver
        that took it has not renewed it for `lapse` seconds and so counts as dead, and where another request
        replaces this one.  A driver that renews the request may work for as long as it needs.
        """
        began = changed = time.monotonic()
        last: StopRequest | None = None
        reason = way_out = ""
        ended = "`keyedstate savepoint create` makes a savepoint of its checkpoints"
        while True:
            # Before the read: what it returns is at least as new.
            now = time.monotonic()
            found = self._found(folder)
            if found is None:
                reason, way_out = "another request replaced this one", "Ask again."
            elif found.status in ("done", "failed"):
                return found
            elif found != last:
                last, changed = found, time.monotonic()
            elif found.status == "taken" and now - changed > lapse:
                reason = f"its driver took the request, and has not renewed it for {lapse:g} seconds"
                died = "The driver has died or cannot reach the folder."
                way_out = f"{died} If the query has ended, {ended}; else ask again."
            elif found.status == "asked" and now - began > timeout + _MARGIN_SECONDS:
                reason = f"no driver has taken the request within {timeout:g} seconds"
                way_out = f"Check that the query runs. If it has ended, {ended}."
            if reason:
                raise QueryNotStoppedError(f"of {folder.location}", reason, way_out)
            time.sleep(_LOOK_EVERY_SECONDS)

    def _found(self, folder: OperatorFolder) -> StopRequest | None:
        """Return this request as it is in the folder; None where the folder has none or another one."""
        found = StopRequest.read(folder)
        return found if found is not None and found.id == self.id else None


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
