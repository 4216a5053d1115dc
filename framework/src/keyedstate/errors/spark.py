"""Errors about keyed operators in Spark jobs."""

from __future__ import annotations

from collections.abc import Sequence

from keyedstate.errors.kernel import KeyedStateError, did_you_mean


class KeyedFrameError(KeyedStateError):
    """Base class of mistakes that are found while a keyed DataFrame is being built."""


class KeyColumnError(KeyedFrameError):
    """A choice of key columns that cannot be used.

    Attributes
    ----------
    column : str or None
        The column at fault, where it is one.
    """

    def __init__(self, column: str | None, reason: str) -> None:
        self.column = column
        self.reason = reason
        super().__init__(f"the rows cannot be keyed: {reason}.")


class MissingKeyColumnError(KeyColumnError):
    """A key column that the DataFrame does not have."""

    def __init__(self, column: str, columns: Sequence[str]) -> None:
        self.columns = tuple(columns)
        hint = did_you_mean(column, columns).strip() or f"It has the columns {', '.join(columns)}"
        super().__init__(column, f"the DataFrame has no column {column!r}. {hint.rstrip('.')}")


class MissingUidError(KeyedFrameError):
    """A keyed operator in a streaming query without a uid."""

    def __init__(self) -> None:
        super().__init__(
            "a keyed operator in a streaming query needs a uid: its state is found again by it. Give it a "
            "fixed name that is unique within the checkpoint folder: keyed(df, ..., uid='page-views'), or "
            "connect(a, b, uid='page-views') for two inputs."
        )


class OutputDeclarationError(KeyedFrameError):
    """An output schema that Spark cannot read or that rows cannot be made for."""

    def __init__(self, schema: object, reason: str, side: str | None = None) -> None:
        self.schema = schema
        self.reason = reason
        of_side = "" if side is None else f" of the side output {side!r}"
        super().__init__(
            f"the output schema {schema!r}{of_side} cannot be used: {reason}. Give column names and types "
            "such as 'key string, views long', or a StructType."
        )


class SideOutputError(KeyedFrameError):
    """A DataFrame of which the outputs cannot be told apart."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"the DataFrame cannot be split into outputs: {reason}.")


class BroadcastFrameError(KeyedFrameError):
    """A second DataFrame whose rows cannot be given to every task."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"the broadcast DataFrame cannot be used: {reason}.")


class ConnectedFramesError(KeyedFrameError):
    """Two keyed DataFrames that cannot be connected.

    Attributes
    ----------
    reason : str
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"the keyed DataFrames cannot be connected: {reason}.")


class ClassicSparkRequiredError(KeyedFrameError):
    """A DataFrame of Spark Connect."""

    def __init__(self) -> None:
        super().__init__(
            "this DataFrame belongs to Spark Connect, which has no accumulators, and a keyed operator "
            "publishes its checkpoints by one. Use a classic session: SparkSession.builder.master(...) "
            "without remote(...)."
        )


class EventTimeError(KeyedFrameError):
    """A column that cannot give rows their event time, or a delay that is none.

    Attributes
    ----------
    column : str or None
    reason : str
    """

    def __init__(self, column: str | None, reason: str) -> None:
        self.column = column
        self.reason = reason
        where = "" if column is None else f" from the column {column!r}"
        super().__init__(f"the event time of the rows cannot be read{where}: {reason}.")


class HeartbeatError(KeyedFrameError):
    """An interval on which no micro-batches can come.

    Attributes
    ----------
    heartbeat : object
        What was given.
    reason : str
    """

    def __init__(self, heartbeat: object, reason: str) -> None:
        self.heartbeat = heartbeat
        self.reason = reason
        super().__init__(
            f"the heartbeat {heartbeat!r} cannot be used: {reason}. Give a length of time such as "
            "'5 seconds', a timedelta or milliseconds, or leave it out."
        )


class UnstoppableQueryError(KeyedStateError):
    """A query that cannot be stopped with a savepoint.

    Attributes
    ----------
    query_id, reason : str
    """

    def __init__(self, query_id: str, reason: str, way_out: str) -> None:
        self.query_id = query_id
        self.reason = reason
        super().__init__(
            f"the query {query_id} cannot be stopped with a savepoint, and nothing was done: {reason}. "
            f"{way_out}"
        )


class TaskContextError(KeyedStateError):
    """A keyed operator that does not run where it was made to run."""

    def __init__(self, reason: str, way_out: str) -> None:
        self.reason = reason
        super().__init__(f"the keyed operator cannot run here: {reason}. {way_out}")


class PreflightError(KeyedStateError):
    """Executors that cannot run a keyed operator.

    Attributes
    ----------
    host : str
        Where the check failed.
    check : str
        What was checked.
    reason : str
        What happened.
    """

    def __init__(self, host: str, check: str, reason: str, way_out: str) -> None:
        self.host = host
        self.check = check
        self.reason = reason
        super().__init__(
            f"the check of the executors before the first epoch failed on {host}, while {check}: {reason}. "
            f"{way_out}".rstrip()
        )


class DataSourceUnavailableError(KeyedStateError):
    """The data source on a Spark that has no data sources in Python."""

    def __init__(self, version: str) -> None:
        self.version = version
        super().__init__(
            f"reading stored state as a DataFrame needs Spark 4, and this is PySpark {version}. Upgrade it, "
            "or read the state with `keyedstate checkpoint export`."
        )


class MetricReporterError(KeyedStateError):
    """A plugin that cannot report metrics.

    Attributes
    ----------
    plugin, reason : str
    """

    def __init__(self, plugin: str, reason: str) -> None:
        self.plugin = plugin
        self.reason = reason
        super().__init__(
            f"the hook keyedstate_metric_reporter of {plugin} gave nothing to report metrics with: "
            f"{reason.rstrip('.')}. Correct spark.keyedstate.metrics.options, or leave the plugin out with "
            "spark.keyedstate.plugins.deny."
        )


class BootstrapError(KeyedStateError):
    """A savepoint that cannot be made of what it was told to be made of.

    Attributes
    ----------
    uid : str or None
        The operator at fault, where it is one.
    reason : str
    """

    def __init__(self, uid: str | None, reason: str) -> None:
        self.uid = uid
        self.reason = reason
        operator = "" if uid is None else f" for the operator {uid!r}"
        super().__init__(f"no savepoint can be written{operator}: {reason}.")


class StateFrameError(KeyedStateError):
    """A DataFrame that cannot become a state.

    Attributes
    ----------
    uid, state : str
    reason : str
    """

    def __init__(self, uid: str, state: str, reason: str) -> None:
        self.uid = uid
        self.state = state
        self.reason = reason
        super().__init__(
            f"the DataFrame cannot become the state {state!r} of the operator {uid!r}: {reason}."
        )
