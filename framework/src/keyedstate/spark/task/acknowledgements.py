"""Acknowledgements: how the driver hears, before Spark commits an epoch, which attempts have succeeded.

A task adds one entry to an accumulator when its last row was taken.  Spark hands it to the driver only if
the task succeeded, and does so before the job ends and thus before the sink and Spark's own log commit.
There is one accumulator for a SparkContext: Spark keeps each one for the context's life, and frames are
built again and again in notebooks and in `foreachBatch`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from pyspark import Accumulator, AccumulatorParam, SparkContext

from keyedstate.checkpoint import Acknowledgement, CheckpointCoordinator, OperatorFolder, from_json, to_json

_log = logging.getLogger(__name__)

#: The JSON faces of acknowledgements, by the nonce of their attempt and with the folder that they are about.
Update = dict[str, tuple[str, dict[str, Any]]]


class Acknowledgements:
    """The acknowledgements of one SparkContext, handed to the coordinators of the state folders."""

    def __init__(self, context: SparkContext) -> None:
        # By folder, so that an operator that is built anew goes on where its predecessor is.
        self._coordinators: dict[str, CheckpointCoordinator] = {}
        #: The folders of operators whose query makes micro-batches without input.
        self._with_heartbeat: set[str] = set()
        self.accumulator: Accumulator[Update] = context.accumulator({}, _Delivery(self._receive))

    def coordinator(self, folder: OperatorFolder) -> CheckpointCoordinator:
        """Return the coordinator of a folder, the same object every time.

        It is told what tasks acknowledge about the folder, in a thread of PySpark.
        """
        with _lock:
            found = self._coordinators.get(folder.storage.uri)
            if found is None:
                found = self._coordinators[folder.storage.uri] = CheckpointCoordinator(folder)
            return found

    def set_heartbeat(self, folder: OperatorFolder, *, beats: bool) -> None:
        """Note whether the query of an operator makes micro-batches without input."""
        (self._with_heartbeat.add if beats else self._with_heartbeat.discard)(folder.storage.uri)

    def has_heartbeat(self, folder: OperatorFolder) -> bool:
        """Return whether the query of an operator makes micro-batches without input."""
        return folder.storage.uri in self._with_heartbeat

    def drain(self, timeout: float | None = None) -> bool:
        """Wait for what coordinators do in the background; False where `timeout` seconds are too short."""
        return all(coordinator.drain(timeout) for coordinator in list(self._coordinators.values()))

    def folders(self) -> list[OperatorFolder]:
        """Return the folders of all operators that were built, of whichever query."""
        return [coordinator.folder for coordinator in list(self._coordinators.values())]

    def _receive(self, update: Update) -> None:
        for folder, document in update.values():
            try:
                self._coordinators[folder].acknowledge(from_json(Acknowledgement, document))
            except Exception:
                # Raised from here, an error would cut PySpark's connection for all accumulators and still not
                # stop the epoch. What was not published now is found, and made up for where that is possible,
                # by the tasks of the next epoch.
                _log.exception(
                    "the acknowledged attempt %s was not published as a checkpoint; the next epoch will "
                    "publish it or stop the query",
                    document.get("manifest"),
                )


def acknowledgements_of(context: SparkContext) -> Acknowledgements:
    """Return the acknowledgements of a context, the same object every time."""
    with _lock:
        found = _of_context.get(context)
        if found is None:
            found = _of_context[context] = Acknowledgements(context)
        return found


_of_context: WeakKeyDictionary[SparkContext, Acknowledgements] = WeakKeyDictionary()
_lock = threading.Lock()


def acknowledge(accumulator: Accumulator[Update], folder: str, acknowledgement: Acknowledgement) -> None:
    """Add an entry in a task; the driver gets it if the task succeeds."""
    accumulator.add({acknowledgement.identity.nonce: (folder, to_json(acknowledgement))})


class _Delivery(AccumulatorParam[Update]):
    """Merges dicts in a task, and on the driver passes them on instead of keeping them."""

    def __init__(self, receive: Callable[[Update], None] | None) -> None:
        self._receive = receive

    def __reduce__(self) -> tuple[type[_Delivery], tuple[None]]:
        # What travels to the tasks must not carry the driver's side along.
        return _Delivery, (None,)

    def zero(self, value: Update) -> Update:
        return {}

    def addInPlace(self, value1: Update, value2: Update) -> Update:
        if self._receive is None:
            return {**value1, **value2}
        self._receive(value2)
        return {}
