"""Stopping a query with a savepoint."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from pyspark.errors import StreamingQueryException

from keyedstate.checkpoint.protocol.operator_folder import OperatorFolder
from keyedstate.checkpoint.protocol.recovery import drain as drain_run
from keyedstate.checkpoint.savepoint.savepoint import Progress, SavepointFolder, SavepointWriter
from keyedstate.checkpoint.storage.filesystem import Location
from keyedstate.errors import ClassicSparkRequiredError, QueryNotStoppedError
from keyedstate.spark.query.built_operators import operators_of
from keyedstate.spark.query.creation import savepoint_of
from keyedstate.spark.query.location import QueryLocation
from keyedstate.time.service import EVENT_TIMERS

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

#: The watermark after all events (Flink's ``Watermark.MAX_WATERMARK``).
FINAL_WATERMARK = 2**63 - 1
_LOOK_EVERY_S = 0.02


def stop_with_savepoint(
    query: StreamingQuery,
    target: Location,
    *,
    drain: bool = False,
    progress: Progress | None = None,
    spark_checkpoint_location: Location | None = None,
) -> tuple[SavepointFolder, StreamingQueryException | None]:
    """Return the savepoint and the query's failure; see `Savepoint.stop`."""
    location = _location_of(query, spark_checkpoint_location)
    if drain and not query.isActive and query.exception() is None:
        way_out = "Take its savepoint without drain, or start it again first."
        raise QueryNotStoppedError(str(query.id), "it is to be drained and has ended", way_out)
    location.refuse_state()
    SavepointWriter(target).abort()
    # A failure ends the query too; it is reported with the savepoint.
    with contextlib.suppress(StreamingQueryException):
        if drain:
            _use_up_input(query)
        else:
            _let_batch_finish(query)
    folders = _folders_of(query)
    if not folders:
        raise QueryNotStoppedError(
            str(query.id),
            "this session has no keyed operators of it",
            "Call it in the session that has built the query, after its first micro-batch has begun.",
        )
    query.stop()
    failure = query.exception()
    drained = drain and failure is None
    savepoint = savepoint_of(
        target,
        folders,
        location,
        drained=drained,
        watermark=FINAL_WATERMARK if drained else None,
        progress=progress,
    )
    return savepoint, failure


def _use_up_input(query: StreamingQuery) -> None:
    """Wait until all input is processed, and, with heartbeats, until event-time timers have fired."""
    if not _has_heartbeat(query):
        query.processAllAvailable()
        # Before its first micro-batch its operators were unknown.
        if not _has_heartbeat(query):
            _refuse_timers(query)
            return
    # `processAllAvailable` waits for a time without new offsets, and heartbeats always have some.
    _await_batch(query, without_rows=True)
    # One operator's last rows may be the input of another.
    for folder in _folders_of(query):
        drain_run(folder, str(query.runId))
    _await_batch(query)


def _refuse_timers(query: StreamingQuery) -> None:
    """Refuse to drain a query with event-time timers, for which Spark would run no micro-batch."""
    for folder in _folders_of(query):
        epochs = folder.checkpoints()
        metadata = folder.read_metadata(max(epochs)) if epochs else None
        if metadata is None:
            continue
        timers = sum(
            entries
            for part in metadata.parts
            for name, entries in part.entries.items()
            if name.startswith(EVENT_TIMERS)
        )
        if timers:
            raise QueryNotStoppedError(
                str(query.id),
                f"it is to be drained, and {timers} event-time timers of the operator {folder.uid!r} would "
                "fire in no micro-batch, since there is no more input",
                "Give keyed(...) a heartbeat, or stop it without drain.",
            )


def _has_heartbeat(query: StreamingQuery) -> bool:
    return any(operator.beats for operator in operators_of(str(query.id)))


def _await_batch(query: StreamingQuery, *, without_rows: bool = False) -> None:
    """Wait for a micro-batch that started after this call, or for the end of the query."""
    last = query.lastProgress
    # The next one may have started before; the one after it has not.
    enough = (-1 if last is None else last["batchId"]) + 2
    while query.isActive:
        last = query.lastProgress
        if last is not None and last["batchId"] >= enough and not (without_rows and last["numInputRows"]):
            return
        time.sleep(_LOOK_EVERY_S)


def _let_batch_finish(query: StreamingQuery) -> None:
    last = query.lastProgress
    while query.isActive and query.status["isTriggerActive"]:
        now = query.lastProgress
        if now is not None and (last is None or now["batchId"] != last["batchId"]):
            # One has finished, and the next started at once.
            return
        time.sleep(_LOOK_EVERY_S)


def _location_of(query: StreamingQuery, given: Location | None) -> QueryLocation:
    execution = getattr(query, "_jsq", None)
    if execution is not None:
        return QueryLocation.open(execution.streamingQuery().resolvedCheckpointRoot())
    if given is None:
        raise ClassicSparkRequiredError(
            f"the query {query.id} runs on Spark Connect, which does not tell its checkpoint location",
            "Give it as spark_checkpoint_location=.",
        )
    location = QueryLocation.open(given)
    if location.query_id() != str(query.id):
        raise QueryNotStoppedError(
            str(query.id),
            f"{location.location} is the checkpoint location of the query {location.query_id()}",
            "Give the one of this query.",
        )
    return location


def _folders_of(query: StreamingQuery) -> list[OperatorFolder]:
    return [operator.folder for operator in operators_of(str(query.id))]
