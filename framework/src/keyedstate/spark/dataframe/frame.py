"""The DataFrame API: ``keyed(df, "user_id", uid="views").process(function, schema)``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from keyedstate.aggregates import Aggregate
from keyedstate.aggregates.declaration import all_aggregates
from keyedstate.durations import Duration
from keyedstate.errors import (
    BootstrapError,
    BroadcastFrameError,
    ClassicSparkRequiredError,
    ConnectedFramesError,
)
from keyedstate.runtime import KeyedFunction
from keyedstate.runtime.function_checks import check_function
from keyedstate.spark.dataframe.aggregate_columns import aggregation_of
from keyedstate.spark.dataframe.keys import KeyColumns, with_key_columns
from keyedstate.spark.dataframe.side_outputs import declared_outputs
from keyedstate.spark.dataframe.time_columns import event_time_of
from keyedstate.spark.dataframe.window_columns import check_event_time, output_type
from keyedstate.spark.plan.configuration import read_configuration
from keyedstate.spark.plan.heartbeat import heartbeat_ms
from keyedstate.spark.plan.no_output import NO_OUTPUT
from keyedstate.spark.plan.operator_plan import KeyedRows, task_of
from keyedstate.spark.schema import to_arrow
from keyedstate.spark.task.task import OperatorPlan
from keyedstate.state import Ttl
from keyedstate.time import EventTime
from keyedstate.windows import WindowAssigner, Windowed, WindowOutput
from keyedstate.windows.declaration.definition import WindowDefinition


def keyed(
    df: DataFrame,
    *keys: KeyColumns,
    uid: str | None = None,
    config: Mapping[str, object] | None = None,
    heartbeat: Duration | None = None,
    event_time: EventTime | None = None,
) -> KeyedFrame:
    """Key the rows of a DataFrame, so that a process function sees those of one key together with its state.

    Parameters
    ----------
    df : DataFrame
        Streaming or batch.  A streaming one keeps state from epoch to epoch and over restarts; a batch one
        begins without state and keeps none.
    keys : str, Column or list of these
        One or more, as ``groupBy`` takes them: names, ``col("user_id")``, expressions such as
        ``lower("name").alias("name_in_lower_case")``, or one list.  Any type by which Spark can group, maps
        and arrays aside.  What is no column yet becomes one of the rows, under its alias, or the name that
        ``groupBy`` would give it.  A null key is a key like any other, as in ``GROUP BY``, with a key group
        of its own right: Spark's hash of null.  One gives its value as the key, several give a tuple.
    uid : str, optional
        Name of the operator, by which its state is found again; needed for a streaming DataFrame, unless it
        is connected with another one.  Letters, digits, ``.``, ``_`` and ``-``.
    config : mapping, optional
        Options by name without ``spark.keyedstate.``, which win over Spark's configuration and the
        environment.
    heartbeat : str, timedelta or int, optional
        The interval on which micro-batches come also where no row comes: ``"5 seconds"``, or milliseconds.
        It is a source of the query, so a query that has one keeps it for life; with 0 it is there and does
        not beat.  Not used for a batch DataFrame.
    event_time : EventTime, optional
        The event time of the rows and their watermark: ``EventTime("ts", delay="10 minutes")``; for windows
        and timers in event time, states that expire in it, and `Context.timestamp`.  By default the column
        and the delay of ``df.withWatermark(...)``, where it was called.  Spark drops the watermark of a batch
        DataFrame, which needs an `EventTime`.

    Returns
    -------
    KeyedFrame

    Raises
    ------
    KeyColumnError
        For key columns that cannot be used.
    HeartbeatError
        For an interval that is none.
    EventTimeError
        For an event time whose columns or delay cannot be used.
    ClassicSparkRequiredError
        For a DataFrame of Spark Connect.

    Notes
    -----
    On the batch DataFrame of a `foreachBatch` function an operator with a uid keeps state as on a streaming
    one; without a uid it begins anew in every micro-batch.
    """
    _refuse_connect(df)
    rows, key_columns = with_key_columns(df, keys)
    interval_ms = None if heartbeat is None else heartbeat_ms(heartbeat)
    found = event_time_of(rows, event_time)
    event_times = () if found is None else (found,)
    return KeyedFrame(
        KeyedRows(rows, key_columns, uid, config, interval_ms=interval_ms, event_times=event_times)
    )


class KeyedFrame:
    """A DataFrame whose rows have keys; made by `keyed`."""

    def __init__(self, rows: KeyedRows) -> None:
        self.rows = rows

    def check_plain(self, which: str) -> None:
        """Refuse a frame that is to be connected and has what only an operator can have.

        Raises
        ------
        ConnectedFramesError
        """
        given = {
            "a uid": self.rows.uid,
            "options": self.rows.config,
            "a heartbeat": self.rows.interval_ms,
            "a broadcast DataFrame": self.rows.broadcast,
        }
        for what, value in given.items():
            if value is not None:
                way_out = "leave it out" if what.startswith("a broad") else "give it to connect()"
                raise ConnectedFramesError(f"the {which} one has {what} of its own; {way_out}")

    def broadcast(self, df: DataFrame) -> KeyedFrame:
        """Give every task each row of a second, small DataFrame (Flink connects a broadcast stream).

        Parameters
        ----------
        df : DataFrame
            A batch one is read when `process` is called, and its rows are processed before the first row of a
            key: once in each run of a streaming query.  Of a streaming one, the rows of a micro-batch are
            processed before the micro-batch's rows of keys.

        Returns
        -------
        KeyedFrame
            For a `keyedstate.runtime.KeyedBroadcastProcessFunction`.

        Raises
        ------
        BroadcastFrameError
            For what is no DataFrame, and where there is a broadcast DataFrame already.
        ClassicSparkRequiredError
            For a DataFrame of Spark Connect.
        """
        _refuse_connect(df)
        if not isinstance(df, DataFrame):
            raise BroadcastFrameError(f"it is a {type(df).__name__}; make a DataFrame with createDataFrame()")
        if self.rows.broadcast is not None:
            raise BroadcastFrameError("it is the second one; make one of both, with a column for which")
        return KeyedFrame(replace(self.rows, broadcast=df))

    def process(self, function: KeyedFunction, schema: str | StructType) -> DataFrame:
        """Run a process function over the rows of each key.

        The configuration is read now: what is set in ``spark.conf`` later counts for frames built later.

        Parameters
        ----------
        function : KeyedProcessFunction or VectorizedProcessFunction
        schema : str or StructType
            Columns of the rows that the function yields: ``"app_id string, views long"``.  Those of its side
            outputs are in its `side_outputs`.

        Returns
        -------
        DataFrame
            An ordinary one, streaming where the input is.  Each micro-batch must evaluate it to its end; it
            may not be coalesced, and in a union it comes first or behind keyed results of one parallelism.

        Raises
        ------
        InvalidFunctionError, FunctionTransportError
            For a function that is none, has a broadcast side where the frame has none or the other way round,
            or cannot be sent to tasks.
        BroadcastFrameError
            For a broadcast DataFrame that cannot be used.
        OutputSchemaError
            For a schema that cannot be used.
        EventTimeError
            For an idle time without inputs.
        MissingEventTimeError
            For a declared state that expires in event time, where the rows have none.
        ConfigError, PluginError
            For options and backends.
        GenericTypeForbiddenError
            For a declared state whose values are pickled, where ``types.generic`` is ``forbid``.
        InvalidParallelismError
        MissingUidError
            For a streaming DataFrame without.
        PreflightError
            Where the executors cannot run the operator; checked for streaming only.
        CheckpointError
            Where the checkpoint folder cannot be used.
        """
        return self.run(function, schema, [self.rows.df.schema])

    def run(
        self, function: KeyedFunction, schema: str | StructType, inputs: Sequence[StructType]
    ) -> DataFrame:
        """Run a process function over rows that are of these inputs: one, or the union of two."""
        check_function(function)
        self.rows.check_sides(function)
        df = self.rows.df
        declared, output, sides = declared_outputs(df, schema, function, inputs)
        plan, rows = self.rows.planned(function, output, sides, keeps_state=True)
        return rows.mapInArrow(task_of(plan), declared)

    def aggregate(
        self,
        aggregates: Mapping[str, Aggregate] = MappingProxyType({}),
        /,
        *,
        ttl: Ttl | None = None,
        **named: Aggregate,
    ) -> DataFrame:
        """Compute aggregates over all rows of each key, by columns.

        Parameters
        ----------
        aggregates : mapping, optional
            Aggregates by the names of their output columns, for names that are no Python identifiers or are
            parameters of this method.
        ttl : Ttl, optional
            How long the aggregates of a key live after its last row; for ever without.
        named : Aggregate
            Aggregates by the names of their output columns: ``sales=count(), amount=sum_("amount")``.  See
            `keyedstate.aggregates`.

        Returns
        -------
        DataFrame
            The key columns, then the aggregates.  A micro-batch puts out one row for each key that it has
            rows of, with the results over all rows of the key so far (Spark's output mode ``update``).

        Raises
        ------
        InvalidAggregateError
            For an aggregate that is none, is of a column that is not there or has another type than it needs,
            or has the name of a key column; also where there is none.

        Notes
        -----
        Other errors are those of `process`.  Aggregates may be added, changed and left out when a query is
        restarted: one that is new begins with the first micro-batch that knows it.
        """
        chosen = all_aggregates(aggregates, named)
        read = [name for each in self.rows.event_times for name in (each.column, each.inputs) if name]
        frame, function, schema = aggregation_of(
            self.rows.df, self.rows.key_columns, chosen, ttl, tuple(read)
        )
        return KeyedFrame(replace(self.rows, df=frame)).process(function, schema)

    def window(
        self,
        assigner: WindowAssigner[Any],
        *,
        missing: str = "fail",
    ) -> Windowed[DataFrame]:
        """Put the rows of each key into windows: ``window(Tumbling.of("1 h")).aggregate(n=count())``.

        Parameters
        ----------
        assigner : WindowAssigner
            Of `keyedstate.windows`.
        missing : {"fail", "drop", "side output"}, optional
            What is done with rows whose event time is null, where their windows need one.

        Returns
        -------
        Windowed
            Its methods say when windows fire, and what is made of their rows: at the end a DataFrame.

        Raises
        ------
        InvalidWindowError
            Also for windows in event time over rows that have none.
        """
        definition = WindowDefinition.of(assigner)
        event_times = self.rows.event_times
        check_event_time(definition, known=bool(event_times))
        time_column = event_times[0].column if event_times else None

        def finish(function: KeyedFunction, output: WindowOutput) -> DataFrame:
            schema = output_type(self.rows.df, self.rows.key_columns, output)
            bound = function.for_rows(to_arrow(self.rows.df.schema), self.rows.key_columns, time_column)
            return self.process(bound, schema)

        return Windowed(definition, missing, finish)

    @property
    def uid(self) -> str:
        """The operator's name.

        Raises
        ------
        MissingUidError
        """
        return self.rows.required_uid()

    def bootstrap_plan(self, function: KeyedFunction) -> tuple[OperatorPlan, DataFrame]:
        """Return what runs in the tasks of a bootstrap, and their rows; raises as `SavepointEdit.add`."""
        self._refuse_streaming()
        check_function(function)
        self.rows.check_sides(function)
        sides = dict.fromkeys(function.side_outputs, NO_OUTPUT)
        return self.rows.planned(function, NO_OUTPUT, sides, keeps_state=False)

    def bootstrap_rows(self) -> tuple[DataFrame, list[str], int, int]:
        """Return the rows, the key columns, parallelism and max parallelism of state without a function."""
        self._refuse_streaming()
        config = read_configuration(self.rows.df.sparkSession, self.rows.config)
        parallelism, max_parallelism = self.rows.parallelism(config)
        return self.rows.df, self.rows.key_columns, parallelism, max_parallelism

    def _refuse_streaming(self) -> None:
        if self.rows.df.isStreaming:
            reason = "the DataFrame is a streaming one, which has no end; read the same source as a batch"
            raise BootstrapError(self.uid, reason)


def _refuse_connect(df: DataFrame) -> None:
    if type(df).__module__.startswith("pyspark.sql.connect"):
        raise ClassicSparkRequiredError()
