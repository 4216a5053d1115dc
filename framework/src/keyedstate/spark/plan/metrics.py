"""Metrics of epochs on the driver: kept for a while, found by Spark's progress events, logged and reported.

An epoch's metrics exist before Spark commits its micro-batch, so a listener of the query's progress finds
them.  Spark waits meanwhile, so only the metadata is stored then; the first reader computes the metrics.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from pyspark.sql.streaming.listener import StreamingQueryListener
from pyspark.sql.streaming.query import StreamingQuery

from keyedstate.checkpoint.format.manifest import CheckpointMetadata
from keyedstate.checkpoint.protocol.metrics import metrics_of_checkpoint
from keyedstate.checkpoint.protocol.operator_folder import metadata_path
from keyedstate.epoch.notification.reporters import Reporter
from keyedstate.metrics import EpochMetrics
from keyedstate.spark.query.built_operators import operators_of, tasks_publish

if TYPE_CHECKING:
    from pyspark import SparkContext

_log = logging.getLogger(__name__)

#: The logger in Spark's own log, for its log4j configuration.
LOGGER = "keyedstate.EpochMetrics"
#: How many epochs of an operator are kept, and how many operators of queries.
EPOCHS_KEPT = 100
OPERATORS_KEPT = 200


def epoch_metrics(query: StreamingQuery | str, uid: str | None = None) -> tuple[EpochMetrics, ...]:
    """Return the metrics of the last 100 epochs of each operator of a query, the oldest first.

    Parameters
    ----------
    query : StreamingQuery or str
        The query or its id, running or ended; on the driver that ran it.
    uid : str, optional
        Of one operator; by default of all, ordered by uid within an epoch.
    """
    query_id = query if isinstance(query, str) else str(query.id)
    _find_published_by_tasks(query_id)
    return tuple(found for found in _recent.of_query(query_id) if uid in (None, found.uid))


def metrics_of(progress: Any) -> tuple[EpochMetrics, ...]:
    """Return the metrics of the keyed operators in the micro-batch of a progress event, by uid.

    Parameters
    ----------
    progress : StreamingQueryProgress or mapping
        ``event.progress`` of a `StreamingQueryListener`, ``query.lastProgress`` or one of
        ``query.recentProgress``.

    Returns
    -------
    tuple of EpochMetrics
        Empty for a query without keyed operators, and for an epoch that is no longer kept.
    """
    query_id, run_id, epoch = (
        progress[name] if isinstance(progress, Mapping) else getattr(progress, name)
        for name in ("id", "runId", "batchId")
    )
    _find_published_by_tasks(str(query_id))
    found = _recent.of_query(str(query_id), epoch)
    return tuple(metrics for metrics in found if metrics.run_id == str(run_id))


class EpochListener(StreamingQueryListener):
    """A `StreamingQueryListener` that receives the metrics of each epoch of each keyed operator.

    Derive a class, write `onEpoch`, and give an instance to ``spark.streams.addListener``.  A class that
    overrides `onQueryProgress` calls `metrics_of` itself.
    """

    def onEpoch(self, metrics: EpochMetrics) -> None:
        """Receive the metrics of one epoch of one operator."""

    def onQueryStarted(self, event: Any) -> None:
        """Do nothing."""

    def onQueryProgress(self, event: Any) -> None:
        """Call `onEpoch` for each keyed operator of the micro-batch."""
        for metrics in metrics_of(event.progress):
            self.onEpoch(metrics)

    def onQueryIdle(self, event: Any) -> None:
        """Do nothing."""

    def onQueryTerminated(self, event: Any) -> None:
        """Do nothing."""


def record_epoch(metadata: CheckpointMetadata, publish_ms: float) -> None:
    """Make the metrics of an epoch available, without computing them."""
    _recent.add(_Epoch(metadata, publish_ms))


def report_epoch(context: SparkContext, metadata: CheckpointMetadata, reporters: Iterable[Reporter]) -> None:
    """Write the metrics of an epoch to Spark's log and to the reporters, once in a run of the query."""
    metrics = _recent.metrics_to_report(metadata)
    if metrics is not None:
        _log_in_spark(context, metrics)
        for reporter in reporters:
            reporter.report(metrics)


def _find_published_by_tasks(query_id: str) -> None:
    """Read the checkpoints of a query on Spark Connect, which no driver publishes."""
    if not tasks_publish():
        return
    for operator in operators_of(query_id):
        folder = operator.folder
        for epoch in folder.checkpoints() if operator.published_by_tasks else ():
            metadata = folder.read_metadata(epoch)
            if metadata is not None and not _recent.has(metadata):
                _recent.add(_Epoch(metadata, None, folder.storage.modified_ms(metadata_path(epoch))))


class _Epoch:
    """The metrics of one epoch, computed when they are first read."""

    def __init__(
        self, metadata: CheckpointMetadata, publish_ms: float | None, time_ms: int | None = None
    ) -> None:
        self.operator = (metadata.query_id, metadata.uid)
        self.number = metadata.epoch
        self.run_id = metadata.run_id
        #: Whether they were reported in this run; written under the lock of `_Recent`.
        self.reported = False
        self._time_ms = time.time_ns() // 1_000_000 if time_ms is None else time_ms
        self._publish_ms = publish_ms
        self._metadata: CheckpointMetadata | None = metadata
        self._metrics: EpochMetrics | None = None
        self._lock = threading.Lock()

    def metrics(self) -> EpochMetrics:
        with self._lock:
            if self._metrics is None:
                assert self._metadata is not None
                self._metrics = metrics_of_checkpoint(self._metadata, self._time_ms, self._publish_ms)
                # Frees the manifests, which are large with many partitions.
                self._metadata = None
            return self._metrics


class _Recent:
    """The last epochs of the operators that were active last."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._operators: OrderedDict[tuple[str, str], OrderedDict[int, _Epoch]] = OrderedDict()

    def add(self, epoch: _Epoch) -> None:
        with self._lock:
            epochs = self._operators.setdefault(epoch.operator, OrderedDict())
            before = epochs.pop(epoch.number, None)
            epoch.reported = before is not None and before.run_id == epoch.run_id and before.reported
            epochs[epoch.number] = epoch
            self._operators.move_to_end(epoch.operator)
            if len(epochs) > EPOCHS_KEPT:
                epochs.popitem(last=False)
            if len(self._operators) > OPERATORS_KEPT:
                self._operators.popitem(last=False)

    def has(self, metadata: CheckpointMetadata) -> bool:
        with self._lock:
            epochs = self._operators.get((metadata.query_id, metadata.uid))
            epoch = None if epochs is None else epochs.get(metadata.epoch)
            return epoch is not None and epoch.run_id == metadata.run_id

    def metrics_to_report(self, metadata: CheckpointMetadata) -> EpochMetrics | None:
        """Return the metrics of a completed checkpoint, also of one that tasks of the next epoch published.

        None if they were reported: a micro-batch that is evaluated twice publishes twice.
        """
        with self._lock:
            epochs = self._operators.get((metadata.query_id, metadata.uid))
            epoch = None if epochs is None else epochs.get(metadata.epoch)
            if epoch is None or epoch.run_id != metadata.run_id:
                epoch = _Epoch(metadata, None)
                self.add(epoch)
            if epoch.reported:
                return None
            epoch.reported = True
        return epoch.metrics()

    def of_query(self, query_id: str, number: int | None = None) -> list[EpochMetrics]:
        with self._lock:
            epochs = [
                epoch
                for (query, _), kept in self._operators.items()
                for epoch in (kept.values() if number is None else filter(None, [kept.get(number)]))
                if query == query_id
            ]
        found = [epoch.metrics() for epoch in epochs]
        return sorted(found, key=lambda metrics: (metrics.epoch, metrics.uid))


_recent = _Recent()
_loggers: WeakKeyDictionary[SparkContext, Any] = WeakKeyDictionary()


def _log_in_spark(context: SparkContext, metrics: EpochMetrics) -> None:
    """Write one line to Spark's log, at the level INFO."""
    try:
        logger = _loggers.get(context)
        if logger is None:
            jvm: Any = context._jvm
            logger = _loggers[context] = jvm.org.apache.logging.log4j.LogManager.getLogger(LOGGER)
        if logger.isInfoEnabled():
            logger.info(f"epoch {metrics.epoch} of {metrics.uid}: {json.dumps(metrics.to_json())}")
    except Exception:  # the session may have ended, and its JVM with it
        _log.debug("the metrics of epoch %d of %r are not in Spark's log", metrics.epoch, metrics.uid)
