"""Errors about keyed operators in Spark jobs."""

from __future__ import annotations

from collections.abc import Sequence

from keyedstate.errors.base import KeyedStateError, did_you_mean


class KeyedFrameError(KeyedStateError):
    """Base class of mistakes that are found while a keyed DataFrame is being built."""


class KeyColumnError(KeyedFrameError):
    """A choice of key columns that cannot be used."""

    column: str | None  # The column at fault, where it is one
    reason: str
    message = "the rows cannot be keyed: {reason}."


class MissingKeyColumnError(KeyColumnError):
    """A key column that the DataFrame does not have."""

    reason: str = ""
    columns: Sequence[str] = ()

    def _message(self) -> str:
        hint = (
            did_you_mean(self.column or "", self.columns) or f" It has the columns {', '.join(self.columns)}"
        )
        self.reason = f"the DataFrame has no column {self.column!r}.{hint.rstrip('.')}"
        return super()._message()


class MissingUidError(KeyedFrameError):
    """A keyed operator in a streaming query without a uid."""

    message = (
        "a keyed operator in a streaming query needs a uid: its state is found again by it. Give it a fixed "
        "name that is unique within the checkpoint folder: keyed(df, ..., uid='page-views'), or connect(a, "
        "b, uid='page-views') for two inputs."
    )


class OutputDeclarationError(KeyedFrameError):
    """An output schema that Spark cannot read or that rows cannot be made for."""

    schema: object
    reason: str
    side: str | None = None
    message = (
        "the output schema {schema!r}{side:? of the side output {side!r}} cannot be used: {reason}. Give "
        "column names and types such as 'key string, views long', or a StructType."
    )


class SideOutputError(KeyedFrameError):
    """A DataFrame of which the outputs cannot be told apart."""

    reason: str
    message = "the DataFrame cannot be split into outputs: {reason}."


class BroadcastFrameError(KeyedFrameError):
    """A second DataFrame whose rows cannot be given to every task."""

    reason: str
    message = "the broadcast DataFrame cannot be used: {reason}."


class ConnectedFramesError(KeyedFrameError):
    """Two keyed DataFrames that cannot be connected."""

    reason: str
    message = "the keyed DataFrames cannot be connected: {reason}."


class ClassicSparkRequiredError(KeyedFrameError):
    """A DataFrame of Spark Connect."""

    message = (
        "this DataFrame belongs to Spark Connect, which has no accumulators, and a keyed operator publishes "
        "its checkpoints by one. Use a classic session: SparkSession.builder.master(...) without remote(...)."
    )


class EventTimeError(KeyedFrameError):
    """A column that cannot give rows their event time, or a delay that is none."""

    column: str | None
    reason: str
    message = "the event time of the rows cannot be read{column:? from the column {column!r}}: {reason}."


class HeartbeatError(KeyedFrameError):
    """An interval on which no micro-batches can come."""

    heartbeat: object  # What was given
    reason: str
    message = (
        "the heartbeat {heartbeat!r} cannot be used: {reason}. Give a length of time such as '5 seconds', a "
        "timedelta or milliseconds, or leave it out."
    )


class UnstoppableQueryError(KeyedStateError):
    """A query that cannot be stopped with a savepoint."""

    query_id: str
    reason: str
    way_out: str
    message = (
        "the query {query_id} cannot be stopped with a savepoint, and nothing was done: {reason}. {way_out}"
    )


class TaskContextError(KeyedStateError):
    """A keyed operator that does not run where it was made to run."""

    reason: str
    way_out: str
    message = "the keyed operator cannot run here: {reason}. {way_out}"


class PreflightError(KeyedStateError):
    """Executors that cannot run a keyed operator."""

    host: str  # Where the check failed
    check: str  # What was checked
    reason: str  # What happened
    way_out: str
    message = (
        "the check of the executors before the first epoch failed on {host}, while {check}: "
        "{reason}.{way_out:? {way_out}}"
    )


class DataSourceUnavailableError(KeyedStateError):
    """The data source on a Spark that has no data sources in Python."""

    version: str
    message = (
        "reading stored state as a DataFrame needs Spark 4, and this is PySpark {version}. Upgrade it, or "
        "read the state with `keyedstate checkpoint export`."
    )


class MetricReporterError(KeyedStateError):
    """A plugin that cannot report metrics."""

    plugin: str
    reason: str
    message = (
        "the hook keyedstate_metric_reporter of {plugin} gave nothing to report metrics with: {reason}. "
        "Correct spark.keyedstate.metrics.options, or leave the plugin out with "
        "spark.keyedstate.plugins.deny."
    )


class BootstrapError(KeyedStateError):
    """A savepoint that cannot be made of what it was told to be made of."""

    uid: str | None  # The operator at fault, where it is one
    reason: str
    message = "no savepoint can be written{uid:? for the operator {uid!r}}: {reason}."


class StateFrameError(KeyedStateError):
    """A DataFrame that cannot become a state."""

    uid: str
    state: str
    reason: str
    message = "the DataFrame cannot become the state {state!r} of the operator {uid!r}: {reason}."


class ExactlyOnceWarning(UserWarning):
    """A job in which a row may count twice, or not at all, after a failure or a restart."""
