"""`from_spark`: a savepoint of a query that has run on Spark's own stateful operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from pyspark.sql import SparkSession

from keyedstate.checkpoint.format.manifest import CheckpointMetadata
from keyedstate.checkpoint.savepoint.savepoint import SavepointWriter, SparkPosition
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage, Location
from keyedstate.durations import Duration, milliseconds
from keyedstate.epoch.configuration import choose_max_parallelism
from keyedstate.options import PARALLELISM
from keyedstate.spark.conversion.spark_checkpoint import SparkCheckpoint
from keyedstate.spark.conversion.states import Conversion, ConvertedOperator, Replacement, converted
from keyedstate.spark.plan.configuration import read_configuration
from keyedstate.spark.savepoint.bootstrap import run_bootstrap
from keyedstate.spark.savepoint.edit import check_columns, empty_operator, with_state
from keyedstate.spark.savepoint.savepoint import Savepoint

Timeout = Literal["ProcessingTimeTimeout", "EventTimeTimeout"]


def from_spark(
    checkpoint: str,
    target: Location,
    *,
    uids: str | Mapping[int, str] | None = None,
    epoch: int | None = None,
    ttl: Mapping[str, Duration] | None = None,
    timeout: Timeout | None = None,
    watermark_delay: Duration | None = None,
    states: Mapping[int, Replacement | Sequence[Conversion]] | None = None,
    config: Mapping[str, object] | None = None,
    spark: SparkSession | None = None,
) -> Savepoint:
    """Make a savepoint of a stopped query with Spark's own state, which continues on keyedstate.

    Its operators are ``transformWithState``, also in pandas, and ``applyInPandasWithState``.  A fork of the
    savepoint continues with the same program and `keyedstate.spark.drop_in`: with the next
    micro-batch, from the same offsets.  The query's location is only read.

    Parameters
    ----------
    checkpoint : str
        The ``checkpointLocation`` of the query.
    target : str or path
        The new savepoint.
    uids : str or mapping of int to str, optional
        The uid of the only operator, or of each by Spark's number; by default those of the drop-in.
    epoch : int, optional
        A committed micro-batch of which Spark still has the state; by default the newest.
    ttl : mapping of str to duration, optional
        The time to live of each state that has one, which Spark does not store.
    timeout : {"ProcessingTimeTimeout", "EventTimeTimeout"}, optional
        That of ``applyInPandasWithState``, which Spark does not store; needed with timeouts and a watermark.
    watermark_delay : duration, optional
        The delay of ``withWatermark``, which Spark does not store; needed where the watermark moves after
        the micro-batch.
    states : mapping of int to Replacement or sequence of tuple, optional
        By Spark's number of an operator, what takes its place: `aggregate_states`, `deduplicate_states` or
        `join_states`.  Or the states of a keyed function: each the declaration and a function.  That gets one
        which reads Spark's state, with options of the data source ``statestore``, and returns rows with the
        columns of the key and ``value``.  Such an operator needs a uid.
    config : mapping, optional
        Options of keyedstate, such as ``parallelism``, by default the number of Spark's state partitions.
    spark : SparkSession, optional
        By default the active one.

    Raises
    ------
    SparkStateError
        For other operators, for what is not given and is needed, and for a key with the column ``value``,
        ``namespace`` or ``written_at``.
    SparkLocationError, UnknownEpochError, TargetExistsError
    StateFrameError
        For values that are null.
    """
    session = spark or SparkSession.active()
    found = SparkCheckpoint.open(session, str(checkpoint), epoch)
    operators = [
        converted(found, operator, ttl or {}, timeout, (states or {}).get(operator.number, ()))
        for operator in found.operators()
    ]
    named = _named(found, operators, uids)
    largest = _largest_event_time(found, watermark_delay)
    configuration = read_configuration(session, config)
    with SavepointWriter(CheckpointStorage.at(target)) as writer:
        for uid, operator in named.items():
            parallelism = configuration.get(PARALLELISM) or operator.operator.partitions
            max_parallelism = choose_max_parallelism(configuration, parallelism, None)
            if operator.function is not None:
                options = {**(config or {}), "parallelism": parallelism, "max-parallelism": max_parallelism}
                metadata = run_bootstrap(*operator.function(options), writer.root, uid)
                writer.add_operator(_at(metadata, found, largest))
                continue
            storage = writer.storage(uid)
            rows, key_columns = operator.states[0].rows, operator.key_columns
            metadata = empty_operator(uid, rows, key_columns, parallelism, max_parallelism)
            for state in operator.states:
                check_columns(uid, state.meta, metadata, state.rows)
                metadata = with_state(uid, metadata, storage, storage, state)
            writer.add_operator(_at(metadata, found, largest))
        beating = sum(operator.time_domain is not None for operator in operators)
        for path, data in _files(found, beating).items():
            writer.add_spark_file(path, data)
        made = writer.finish(spark=SparkPosition(found.location.query_id(), found.epoch))
    return Savepoint.open(made.root)


def _named(
    checkpoint: SparkCheckpoint, operators: list[ConvertedOperator], uids: str | Mapping[int, str] | None
) -> dict[str, ConvertedOperator]:
    """Return the operators by uid."""
    if isinstance(uids, str):
        if len(operators) > 1:
            raise checkpoint.refused(
                f"it has {len(operators)} operators, {_list_of(operators)}, and one uid is given",
                "Give that of each number.",
            )
        uids = {operators[0].operator.number: uids}
    given = dict(uids or {})
    named: dict[str, ConvertedOperator] = {}
    # Spark counts from the sink, and the drop-in from the sources.
    for place, operator in enumerate(reversed(operators)):
        name, number = operator.drop_in_name, operator.operator.number
        if name is None and number not in given:
            raise checkpoint.refused(f"{operator.operator} has no uid", "Give that of the keyed operator.")
        uid = given.pop(number, f"{name}-{place}")
        if uid in named:
            raise checkpoint.refused(f"two operators have the uid {uid!r}", "Give each its own.")
        named[uid] = operator
    if given:
        raise checkpoint.refused(
            f"it has no operator {min(given)}, but {_list_of(operators)}", "Give a uid for one of these."
        )
    return named


def _list_of(operators: list[ConvertedOperator]) -> str:
    return ", ".join(str(operator.operator) for operator in operators)


def _largest_event_time(checkpoint: SparkCheckpoint, delay: Duration | None) -> int | None:
    """Return the event time from which the next watermark follows; None where it stays."""
    if checkpoint.watermark == checkpoint.next_watermark:
        return None
    if delay is None:
        raise checkpoint.refused(
            f"the watermark moves after micro-batch {checkpoint.epoch}, from {checkpoint.watermark} to "
            f"{checkpoint.next_watermark}, and Spark does not store its delay",
            "Give the delay that withWatermark has.",
        )
    return checkpoint.next_watermark + milliseconds(delay)


def _at(metadata: CheckpointMetadata, checkpoint: SparkCheckpoint, largest: int | None) -> CheckpointMetadata:
    """Return the metadata of an operator after the micro-batch, with the event time of the query."""
    query_id = checkpoint.location.query_id()
    watermark = checkpoint.watermark if checkpoint.next_watermark else None
    parts = [
        replace(
            part,
            identity=replace(part.identity, query_id=query_id, epoch=checkpoint.epoch),
            watermark=watermark,
            largest_event_time=largest,
        )
        for part in metadata.parts
    ]
    return CheckpointMetadata.of(parts)


def _files(checkpoint: SparkCheckpoint, beating: int) -> dict[str, bytes]:
    """Return Spark's files, with offsets for the sources that operators with timers add to the query."""
    files = checkpoint.location.files_without_state(checkpoint.epoch)
    return {
        path: data + b"\n-" * beating if path.startswith("offsets/") else data for path, data in files.items()
    }
