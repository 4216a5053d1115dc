"""The DataFrame API: ``keyed(df, "user_id", uid="views").process(function, schema)``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from keyedstate.aggregates import Aggregate
from keyedstate.columns.operators import DeclaredOperators
from keyedstate.durations import Duration
from keyedstate.errors import BroadcastFrameError
from keyedstate.joins import BroadcastJoinFunction
from keyedstate.ranking.deduplication import RowsFunction
from keyedstate.runtime import KeyedFunction
from keyedstate.runtime.functions.checks import check_function
from keyedstate.runtime.row_kinds import check_row_kind
from keyedstate.spark.dataframe.aggregate_columns import aggregation_of, running_of
from keyedstate.spark.dataframe.keys import KeyColumns, with_key_columns
from keyedstate.spark.dataframe.output_columns import joined_type, ranked_output_type, window_output_type
from keyedstate.spark.dataframe.side_outputs import declared_outputs
from keyedstate.spark.dataframe.time_columns import event_time_of
from keyedstate.spark.plan.end_of_input import end_file_for
from keyedstate.spark.plan.heartbeat import heartbeat_ms
from keyedstate.spark.plan.operator_plan import KeyedRows, task_of
from keyedstate.spark.schema import fields_by_name, folded, to_arrow
from keyedstate.spark.session import refuse_old_connect
from keyedstate.state import Ttl
from keyedstate.time import EventTime
from keyedstate.windows import WindowOutput


def keyed(
    df: DataFrame,
    *keys: KeyColumns,
    uid: str | None = None,
    config: Mapping[str, object] | None = None,
    heartbeat: Duration | None = None,
    event_time: EventTime | None = None,
    row_kind: str | None = None,
    end: Literal["fire"] | None = None,
) -> KeyedFrame:
    """Key the rows of a DataFrame, so that a process function sees those of one key together with its state.

    Parameters
    ----------
    df : DataFrame
        Streaming or batch.  A streaming one keeps state across epochs and restarts; a batch one starts
        without state and keeps none.
    keys : str, Column or list of these
        As `DataFrame.groupBy` takes them: names, ``col("user_id")``, expressions such as
        ``lower("name").alias("name_in_lower_case")``, or one list.  Any type that Spark can group by, except
        maps and arrays.  An expression becomes a column of the rows, under its alias or the name that
        ``groupBy`` would give it.  Null is a key, as in ``GROUP BY``.  Several columns make a tuple.
    uid : str, optional
        Name of the operator, under which its state is stored; required for a streaming DataFrame that is not
        connected with another one.  Letters, digits, ``.``, ``_`` and ``-``.
    config : mapping, optional
        Options by name without ``spark.keyedstate.``.  They override Spark's configuration and the
        environment.
    heartbeat : str, timedelta or int, optional
        Interval of micro-batches that run even if no row arrives: ``"5 seconds"``, or milliseconds.  It is a
        source of the query, so it cannot be added to a query or removed later; 0 keeps it without beats.
        Ignored for a batch DataFrame.
    event_time : EventTime, optional
        Event time and watermark of the rows: ``EventTime("ts", delay="10 minutes")``.  By default those of
        ``df.withWatermark(...)``; a batch DataFrame needs an `EventTime`, because Spark drops its watermark.
    row_kind : str, optional
        The column of strings that says what each row does to a result that changes: ``+I`` and ``+U`` add it,
        ``-U`` and ``-D`` take an equal one back.  `aggregate` and joins by key understand it; a process
        function sees a column like any other.
    end : {"fire"}, optional
        What happens after all input of ``trigger(availableNow=True)``: with ``"fire"`` all windows and timers
        of event time fire in a further micro-batch, as at the end of Flink's bounded sources.  By default
        they wait for rows of a later run.  It needs Spark 4.2, and adds the source of a heartbeat to the
        query.  Ignored with other triggers, and for a batch DataFrame, at whose end all fire.

    Raises
    ------
    KeyColumnError, HeartbeatError, EventTimeError, RowKindError
    EndOfInputError
        For another `end`, and before Spark 4.2.
    ClassicSparkRequiredError
        For a DataFrame of Spark Connect before PySpark 4, and for `end` on Spark Connect.

    Notes
    -----
    On the batch DataFrame of a `foreachBatch` function an operator with a uid keeps state as on a streaming
    one; without a uid it starts empty in every micro-batch.
    """
    refuse_old_connect(df)
    rows, key_columns = with_key_columns(df, keys)
    if row_kind is not None:
        row_kind = _name_in(rows, row_kind)
        check_row_kind(row_kind, dict(rows.dtypes))
    interval_ms = None if heartbeat is None else heartbeat_ms(heartbeat)
    found = event_time_of(rows, event_time)
    event_times = () if found is None else (found,)
    return KeyedFrame(
        KeyedRows(
            rows,
            key_columns,
            uid,
            config,
            interval_ms=interval_ms,
            event_times=event_times,
            row_kind=row_kind,
            end_file=end_file_for(rows, end),
        )
    )


class KeyedFrame(DeclaredOperators[DataFrame]):
    """A DataFrame whose rows have keys; made by `keyed`."""

    def __init__(self, rows: KeyedRows) -> None:
        self._rows = rows

    def broadcast(self, df: DataFrame) -> KeyedFrame:
        """Send every row of a second, small DataFrame to every task (Flink's broadcast stream).

        Parameters
        ----------
        df : DataFrame
            A batch one is read when `process` is called; each run of a query processes its rows once, before
            the first row of a key.  The rows of a streaming one are processed before the keyed rows of the
            same micro-batch.

        Returns
        -------
        KeyedFrame
            For a `keyedstate.runtime.KeyedBroadcastProcessFunction`.

        Raises
        ------
        BroadcastFrameError
            For a value that is no DataFrame, and for a second broadcast DataFrame.
        """
        refuse_old_connect(df)
        if not isinstance(df, DataFrame):
            raise BroadcastFrameError(f"it is a {type(df).__name__}; make a DataFrame with createDataFrame()")
        if self._rows.broadcast is not None:
            raise BroadcastFrameError(
                "it is the second one; union both, with a column that distinguishes them"
            )
        return KeyedFrame(replace(self._rows, broadcast=df))

    def process(self, function: KeyedFunction, schema: str | StructType) -> DataFrame:
        """Run a process function over the rows of each key.

        The configuration is read now; later changes of ``spark.conf`` do not affect the result.

        Parameters
        ----------
        function : KeyedProcessFunction or VectorizedProcessFunction
        schema : str or StructType
            Columns of the rows that the function yields: ``"app_id string, views long"``.

        Returns
        -------
        DataFrame
            Streaming if the input is.  Each micro-batch must evaluate it completely.  It may not be
            coalesced; in a union it comes first or after keyed results of the same parallelism.

        Raises
        ------
        InvalidFunctionError, FunctionTransportError
            For a function with other inputs than the rows, or one that cannot be sent to tasks.
        OutputSchemaError, BroadcastFrameError, EventTimeError
        MissingEventTimeError
            For a state that expires in event time, if the rows have none.
        ConfigError, PluginError
        GenericTypeForbiddenError
            For a state whose values are pickled, if ``types.generic`` is ``forbid``.
        InvalidParallelismError
        MissingUidError
            For a streaming DataFrame without a uid.
        PreflightError
            If the executors cannot run the operator; checked for streaming only.
        CheckpointError
            If the checkpoint folder cannot be used.
        """
        return run_function(self._rows, function, schema, [self._rows.df.schema])

    @property
    def _row_kind(self) -> str | None:
        return self._rows.row_kind

    @property
    def _time_column(self) -> str | None:
        return self._rows.event_times[0].column if self._rows.event_times else None

    def _aggregated(
        self, chosen: Mapping[str, Aggregate], ttl: Ttl | None, row_kind: str | None
    ) -> DataFrame:
        rows = self._rows
        time_columns = tuple(name for each in rows.event_times for name in (each.column, each.inputs) if name)
        kinds = (rows.row_kind, row_kind)
        frame, function, schema = aggregation_of(rows.df, rows.key_columns, chosen, ttl, time_columns, kinds)
        return KeyedFrame(replace(rows, df=frame)).process(function, schema)

    def _running(self, chosen: Mapping[str, Aggregate], ttl: Ttl | None) -> DataFrame:
        function, schema = running_of(self._rows.df, self._rows.key_columns, chosen, ttl)
        return self.process(function, schema)

    def _windowed(self, function: KeyedFunction, output: WindowOutput) -> DataFrame:
        rows = self._rows
        bound = function.for_rows(to_arrow(rows.df.schema), rows.key_columns, self._time_column)
        return self.process(bound, window_output_type(rows.df, rows.key_columns, output))

    def _ranked(self, function: RowsFunction) -> DataFrame:
        self._refuse_row_kinds("deduplicate() or top_n()")
        rows = self._rows
        bound = function.for_rows(to_arrow(rows.df.schema), rows.key_columns, self._time_column)
        return self.process(bound, ranked_output_type(rows.df, bound.output))

    def _broadcast_joined(self, function: BroadcastJoinFunction, rows: DataFrame) -> DataFrame:
        self._refuse_row_kinds("broadcast_join()")
        left = self._rows
        frame = self.broadcast(rows)
        named = function.with_names(partial(_name_in, left.df), partial(_name_in, rows))
        bound = named.for_rows(to_arrow(left.df.schema), left.key_columns, self._time_column)
        bound = bound.for_broadcast(to_arrow(rows.schema))
        made = bound.output_columns(partial(folded, left.df))
        return frame.process(bound, joined_type([left.df, rows], made))

    def _bound(self, function: KeyedFunction) -> tuple[KeyedFunction, KeyedRows]:
        return function, self._rows


def _name_in(frame: DataFrame, name: str) -> str:
    """Return the name of the only column that Spark finds by a name; the name itself for none or several."""
    found = fields_by_name(frame).get(folded(frame, name), [])
    return found[0].name if len(found) == 1 else name


def run_function(
    rows: KeyedRows, function: KeyedFunction, schema: str | StructType, inputs: Sequence[StructType]
) -> DataFrame:
    """Run a process function over keyed rows that are one input, or the union of two; see `process`."""
    check_function(function)
    rows.check_sides(function)
    declared, output, sides = declared_outputs(rows.df, schema, function, inputs)
    plan, routed = rows.planned(function, output, sides, keeps_state=True)
    return routed.mapInArrow(task_of(plan), declared)
