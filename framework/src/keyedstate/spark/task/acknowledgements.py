"""Acknowledgements of tasks: the driver receives them before Spark commits the epoch.

A task adds an entry to an accumulator after its last row.  Spark delivers it only if the task succeeds, and
before the job ends, thus before the sink and Spark's own log commit.  Spark keeps an accumulator as long as
its context, and notebooks and `foreachBatch` build operators again and again, so a context has one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from pyspark.accumulators import Accumulator, AccumulatorParam

from keyedstate.checkpoint.format.json_converter import from_json, to_json
from keyedstate.checkpoint.protocol.coordinator import Acknowledgement, CheckpointCoordinator
from keyedstate.checkpoint.protocol.operator_folder import OperatorFolder
from keyedstate.spark.task.arrow_batches import BatchLimits

if TYPE_CHECKING:
    from pyspark import SparkContext

_log = logging.getLogger(__name__)

#: By the nonce of the attempt: the URI of its operator's folder, its acknowledgement as JSON, and the bytes
#: of its rows on the average, 0 without rows.
Update = dict[str, tuple[str, dict[str, Any], float]]


class Acknowledgements:
    """The acknowledgements of one SparkContext, passed to the coordinators of operators' folders."""

    def __init__(self, context: SparkContext) -> None:
        # By folder: an operator that is built again continues with its coordinator.
        self._coordinators: dict[str, CheckpointCoordinator] = {}
        #: By operator, what makes and configures the coordinator of a folder, by a URI that only tasks know.
        #: It is called before the first acknowledgement, and after another operator has used the folder.
        self.found_by_tasks: dict[str, Callable[[str], object]] = {}
        #: By such a folder, the operator that its coordinator was configured for.
        self._configured_for: dict[str, str] = {}
        self._batch_limits = BatchLimits()
        self.accumulator: Accumulator[Update] = context.accumulator({}, _Delivery(self._receive))

    def coordinator(self, folder: OperatorFolder) -> CheckpointCoordinator:
        """Return the coordinator of a folder, the same object every time.

        A thread of PySpark passes it the acknowledgements for the folder.
        """
        with _lock:
            found = self._coordinators.get(folder.storage.uri)
            if found is None:
                found = self._coordinators[folder.storage.uri] = CheckpointCoordinator(folder)
            return found

    def drain(self, timeout: float | None = None) -> bool:
        """Wait for the background work of all coordinators; False after `timeout` seconds."""
        return all(coordinator.drain(timeout) for coordinator in list(self._coordinators.values()))

    def _prepare(self, folder: str, acknowledgement: Acknowledgement) -> None:
        operator_id, _, _ = acknowledgement.identity.nonce.partition("-")
        prepare = self.found_by_tasks.get(operator_id)
        if prepare is not None and self._configured_for.get(folder) != operator_id:
            prepare(folder)
            self._configured_for[folder] = operator_id

    def _receive(self, update: Update) -> None:
        for folder, document, row_bytes in update.values():
            try:
                acknowledgement = from_json(Acknowledgement, document)
                self._prepare(folder, acknowledgement)
                self._batch_limits.observe(acknowledgement.identity, row_bytes)
                self._coordinators[folder].acknowledge(acknowledgement)
            except Exception:
                # An error raised here would cut PySpark's connection for all accumulators, and not stop the
                # epoch. The tasks of the next epoch find the missing checkpoint, and publish it if possible.
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


def acknowledge(
    accumulator: Accumulator[Update], folder: str, acknowledgement: Acknowledgement, row_bytes: float
) -> None:
    """Add an entry in a task; the driver receives it if the task succeeds."""
    accumulator.add({acknowledgement.identity.nonce: (folder, to_json(acknowledgement), row_bytes)})


class _Delivery(AccumulatorParam[Update]):
    """Merges entries in a task, and passes them on, instead of keeping them, on the driver."""

    def __init__(self, receive: Callable[[Update], None] | None) -> None:
        self._receive = receive

    def __reduce__(self) -> tuple[type[_Delivery], tuple[None]]:
        # The driver's side must not be pickled into tasks.
        return _Delivery, (None,)

    def zero(self, value: Update) -> Update:
        return {}

    def addInPlace(self, value1: Update, value2: Update) -> Update:
        if self._receive is None:
            return {**value1, **value2}
        self._receive(value2)
        return {}
