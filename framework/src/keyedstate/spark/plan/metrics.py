"""The metrics of epochs on the driver: kept for a while, found by Spark's progress events, logged.

They are there before Spark commits the epoch's micro-batch, so a listener that hears of its progress finds
them.  What must happen for that while Spark waits is one assignment; the metrics are computed when they are
first asked for, which is in the background where nobody is quicker.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from pyspark import SparkContext
from pyspark.sql.streaming.listener import StreamingQueryListener
from pyspark.sql.streaming.query import StreamingQuery

from keyedstate.checkpoint import CheckpointMetadata, metrics_of_checkpoint
from keyedstate.metrics import EpochMetrics
from keyedstate.spark.plan.reporters import Reporter

_log = logging.getLogger(__name__)

#: The logger in Spark's own log, for its log4j configuration.
LOGGER = "keyedstate.EpochMetrics"
#: How many epochs of an operator are kept, and how many operators of queries.
EPOCHS_KEPT = 100
OPERATORS_KEPT = 200


def epoch_metrics(query: StreamingQuery | str, uid: str | None = None) -> tuple[EpochMetrics, ...]:
    """Return the metrics of a query's last epochs, the oldest first.

    Parameters
    ----------
    query : StreamingQuery or str
        The query or its id, also one that has ended; on the driver that ran it.
    uid : str, optional
        Of one operator; by default of all, those of an epoch by uid.

    Returns
    -------
    tuple of EpochMetrics
        Of at most the last 100 epochs of each operator.
    """
    query_id = query if isinstance(query, str) else str(query.id)
    return tuple(found for found in _recent.of_query(query_id) if uid in (None, found.uid))


def metrics_of(progress: Any) -> tuple[EpochMetrics, ...]:
    """Return the metrics of the keyed operators in the micro-batch that Spark reports the progress of.

    Parameters
    ----------
    progress : StreamingQueryProgress or mapping
        ``event.progress`` of a `StreamingQueryListener`, ``query.lastProgress`` or one of
        ``query.recentProgress``.

    Returns
    -------
    tuple of EpochMetrics
        By uid; empty for a query without keyed operators, and for one that ran too long ago.
    """
    query_id, run_id, epoch = (
        progress[name] if isinstance(progress, Mapping) else getattr(progress, name)
        for name in ("id", "runId", "batchId")
    )
    found = _recent.of_query(str(query_id), epoch)
    return tuple(metrics for metrics in found if metrics.run_id == str(run_id))


class EpochListener(StreamingQueryListener):
    """A `StreamingQueryListener` that is told the metrics of each epoch of each keyed operator.

    Derive a class from it, write `onEpoch`, and give an instance to ``spark.streams.addListener``.  The
    other methods are Spark's and may be overridden too; one that overrides `onQueryProgress` calls
    `metrics_of` itself.
    """

    def onEpoch(self, metrics: EpochMetrics) -> None:
        """Take the metrics of one epoch of one operator."""

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


class EpochReports:
    """Takes the published checkpoints of operators and reports the metrics of their epochs.

    Parameters
    ----------
    context : SparkContext
        Whose log they are written to.
    reporters : iterable of Reporter
    """

    def __init__(self, context: SparkContext, reporters: Iterable[Reporter]) -> None:
        self._context = context
        self._reporters = tuple(reporters)

    def published(self, metadata: CheckpointMetadata, publish_ms: float) -> None:
        """Make the metrics of an epoch available, at once and without computing them."""
        _recent.add(_Epoch(metadata, publish_ms))

    def completed(self, metadata: CheckpointMetadata) -> None:
        """Report the metrics of an epoch, once in a run of the query; in the background."""
        metrics = _recent.metrics_to_report(metadata)
        if metrics is None:
            return
        _log_in_spark(self._context, metrics)
        for reporter in self._reporters:
            reporter.report(metrics)


class _Epoch:
    """The metrics of one epoch, computed when they are first asked for."""

    def __init__(self, metadata: CheckpointMetadata, publish_ms: float | None) -> None:
        self.operator = (metadata.query_id, metadata.uid)
        self.number = metadata.epoch
        self.run_id = metadata.run_id
        #: Whether its metrics were reported in this run; written under the lock of `_Recent`.
        self.reported = False
        self._time_ms = time.time_ns() // 1_000_000
        self._publish_ms = publish_ms
        self._metadata: CheckpointMetadata | None = metadata
        self._metrics: EpochMetrics | None = None
        self._lock = threading.Lock()

    def metrics(self) -> EpochMetrics:
        with self._lock:
            if self._metrics is None:
                assert self._metadata is not None
                self._metrics = metrics_of_checkpoint(self._metadata, self._time_ms, self._publish_ms)
                # Manifests are large where there are many partitions.
                self._metadata = None
            return self._metrics


class _Recent:
    """The last epochs of the operators that had one last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._operators: OrderedDict[tuple[str, str], OrderedDict[int, _Epoch]] = OrderedDict()

    def add(self, epoch: _Epoch) -> None:
        with self._lock:
            self._add(epoch)

    def _add(self, epoch: _Epoch) -> None:
        epochs = self._operators.setdefault(epoch.operator, OrderedDict())
        before = epochs.get(epoch.number)
        epoch.reported = before is not None and before.run_id == epoch.run_id and before.reported
        self._operators.move_to_end(epoch.operator)
        epochs[epoch.number] = epoch
        epochs.move_to_end(epoch.number)
        if len(epochs) > EPOCHS_KEPT:
            epochs.popitem(last=False)
        if len(self._operators) > OPERATORS_KEPT:
            self._operators.popitem(last=False)

    def metrics_to_report(self, metadata: CheckpointMetadata) -> EpochMetrics | None:
        """Return the metrics of a completed checkpoint, which are new where tasks have published it.

        None where they were reported: a micro-batch that is evaluated more than once publishes each time.
        """
        with self._lock:
            epochs = self._operators.get((metadata.query_id, metadata.uid))
            epoch = None if epochs is None else epochs.get(metadata.epoch)
            if epoch is None or epoch.run_id != metadata.run_id:
                epoch = _Epoch(metadata, None)
                self._add(epoch)
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
