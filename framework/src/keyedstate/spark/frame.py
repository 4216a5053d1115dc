"""The DataFrame API: ``keyed(df, "user_id", uid="views").process(function, schema)``."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from keyedstate.checkpoint import (
    CheckpointListener,
    CheckpointMetadata,
    CheckpointStorage,
    FailureReason,
    OperatorFolder,
    Savepoint,
)
from keyedstate.config import (
    CHECKPOINT_COMPRESSION,
    CHECKPOINT_DIR,
    CHECKPOINT_RETAINED,
    CHECKPOINT_TIMEOUT,
    HOST,
    HOSTS_PROCESSES,
    MAX_PARALLELISM,
    PARALLELISM,
    Configuration,
)
from keyedstate.durations import Duration, milliseconds
from keyedstate.keygroups import check_parallelism, default_max_parallelism
from keyedstate.plugins import Backend
from keyedstate.runtime import (
    ConnectedInputs,
    InvalidFunctionError,
    KeyedBroadcastProcessFunction,
    KeyedFunction,
    check_function,
    check_inputs,
)
from keyedstate.runtime.aggregates import Aggregate
from keyedstate.runtime.aggregates.declaration import all_aggregates
from keyedstate.runtime.joins import IntervalJoinFunction
from keyedstate.runtime.output import OutputSchema
from keyedstate.runtime.windows import Windowed, WindowedFunction, WindowOutput
from keyedstate.spark.acknowledge import acknowledgements_of
from keyedstate.spark.aggregation import aggregation_of
from keyedstate.spark.bootstrap import NO_OUTPUT
from keyedstate.spark.broadcast import broadcast_side_of, with_broadcast_rows
from keyedstate.spark.configuration import choose_backend, frozen, read_configuration
from keyedstate.spark.editing import new_savepoint
from keyedstate.spark.errors import (
    BootstrapError,
    BroadcastFrameError,
    ClassicSparkRequiredError,
    ConnectedFramesError,
    EventTimeError,
    MissingUidError,
)
from keyedstate.spark.event_time import ConnectedEventTime, EventTime
from keyedstate.spark.heartbeat import has_python_sources, heartbeat_ms, with_heartbeat
from keyedstate.spark.hosts.owners import remote_access
from keyedstate.spark.identity import epoch_on_driver, is_local
from keyedstate.spark.metrics import EpochReports
from keyedstate.spark.partition import PartitionPlan, StatePlace, pack_function
from keyedstate.spark.preflight import check_executors
from keyedstate.spark.reporters import reporters_of
from keyedstate.spark.restoring import ClaimedSavepoint, expected_owner
from keyedstate.spark.routing import KEY_GROUP_COLUMN, route, with_key_group, with_plain_names
from keyedstate.spark.schema import (
    key_columns_of,
    key_types,
    parse_output,
    source_column_of,
    time_column_of,
    to_arrow,
)
from keyedstate.spark.task import Acknowledging, OperatorPlan
from keyedstate.spark.windows import check_event_time, output_type
from keyedstate.state import MissingEventTimeError, Ttl, TtlClock, declared_operator_states, declared_states
from keyedstate.types import refuse_generic
from keyedstate.window import WindowAssigner
from keyedstate.window.definition import WindowDefinition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


#: In the pickle of a function that has an accumulator: Spark asks those of its own workers alone for updates.
_ACCUMULATOR = b"_deserialize_accumulator"


def keyed(
    df: DataFrame,
    *key_columns: str,
    uid: str | None = None,
    config: Mapping[str, object] | None = None,
    heartbeat: Duration | None = None,
) -> KeyedFrame:
    """Key the rows of a DataFrame, so that a process function sees those of one key together with its state.

    Parameters
    ----------
    df : DataFrame
        Streaming or batch.  A streaming one keeps state from epoch to epoch and over restarts; a batch one
        begins without state and keeps none.
    key_columns : str
        Names of one or more top-level columns of any type by which Spark can group, maps and arrays aside.
        A null key is a key like any other, as in ``GROUP BY``, with a key group of its own right: Spark's
        hash of null.  One column gives its value as the key, several give a tuple.
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

    Returns
    -------
    KeyedFrame

    Raises
    ------
    KeyColumnError, MissingKeyColumnError
        For key columns that cannot be used.
    HeartbeatError
        For an interval that is none.
    ClassicSparkRequiredError
        For a DataFrame of Spark Connect.

    Notes
    -----
    On the batch DataFrame of a `foreachBatch` function an operator with a uid keeps state as on a streaming
    one; without a uid it begins anew in every micro-batch.
    """
    _refuse_connect(df)
    columns = key_columns_of(df, key_columns)
    interval_ms = None if heartbeat is None else heartbeat_ms(heartbeat)
    return KeyedFrame(df, columns, uid, config, interval_ms=interval_ms)


class KeyedFrame:
    """A DataFrame whose rows have keys; made by `keyed`."""

    def __init__(
        self,
        df: DataFrame,
        key_columns: list[str],
        uid: str | None,
        config: Mapping[str, object] | None,
        broadcast: DataFrame | None = None,
        interval_ms: int | None = None,
        connected: ConnectedInputs | None = None,
    ) -> None:
        self._df = df
        self._key_columns = key_columns
        self._uid = uid
        self._config = config
        self._broadcast = broadcast
        self._interval_ms = interval_ms
        #: Where the rows are the union of two inputs.
        self._connected = connected

    def check_plain(self, which: str) -> None:
        """Refuse a frame that is to be connected and has what only an operator can have.

        Raises
        ------
        ConnectedFramesError
        """
        given = {
            "a uid": self._uid,
            "options": self._config,
            "a heartbeat": self._interval_ms,
            "a broadcast DataFrame": self._broadcast,
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
        if self._broadcast is not None:
            raise BroadcastFrameError("it is the second one; make one of both, with a column that tells them")
        return KeyedFrame(self._df, self._key_columns, self._uid, self._config, df, self._interval_ms)

    def process(
        self,
        function: KeyedFunction,
        schema: str | StructType,
        *,
        time: str | None = None,
        delay: Duration | None = None,
        inputs: str | None = None,
        idle: Duration | None = None,
    ) -> DataFrame:
        """Run a process function over the rows of each key.

        The configuration is read now: what is set in ``spark.conf`` later counts for frames built later.

        Parameters
        ----------
        function : KeyedProcessFunction or VectorizedProcessFunction
        schema : str or StructType
            Columns of the rows that the function yields: ``"app_id string, views long"``.
        time : str, optional
            Name of the column with each row's event time, a timestamp or a date: for states that expire in
            event time, and for `Context.timestamp`.
        delay : str, timedelta or int, optional
            How far behind the largest event time the watermark stays: ``"10 minutes"``.  With `time` only.
        inputs : str, optional
            Name of the column that says of which input a row is, where several were put into one DataFrame
            and some may be far behind others: the watermark is then the least of those of the inputs.  With
            `time` only.
        idle : str, timedelta or int, optional
            After how long without rows an input holds the watermark up no more, until it has rows and has
            caught up; by default never.  With `inputs` only.

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
        OutputDeclarationError
            For a schema that cannot be used.
        EventTimeError, InvalidDurationError
            For a time column or a delay that cannot be used, and for one without the other.
        MissingEventTimeError
            For a declared state that expires in event time, without `time`.
        ConfigError, PluginError
            For options and backends.
        GenericTypeForbiddenError
            For a declared state whose values are pickled, where ``types.generic`` is ``forbid``.
        InvalidParallelismError, InvalidMaxParallelismError
        MissingUidError
            For a streaming DataFrame without.
        PreflightError
            Where the executors cannot run the operator; checked for streaming only.
        CheckpointError
            Where the checkpoint folder cannot be used.
        """
        return self.run(function, schema, self._event_time(time, delay, inputs, idle))

    def run(
        self,
        function: KeyedFunction,
        schema: str | StructType,
        event_time: EventTime | ConnectedEventTime | None,
    ) -> DataFrame:
        """Run a process function, as `process` does, with event times from where it is said."""
        check_function(function)
        self._check_sides(function)
        declared, output = parse_output(self._df.sparkSession, schema)
        plan, rows = self._planned(function, output, event_time, keeps_state=True)
        return rows.mapInArrow(_task_of(plan), declared)

    def aggregate(
        self,
        aggregates: Mapping[str, Aggregate] = MappingProxyType({}),
        /,
        *,
        ttl: Ttl | None = None,
        time: str | None = None,
        delay: Duration | None = None,
        inputs: str | None = None,
        idle: Duration | None = None,
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
        time, delay, inputs, idle
            As in `process`; for a time to live in event time.
        named : Aggregate
            Aggregates by the names of their output columns: ``sales=count(), amount=sum_("amount")``.  See
            `keyedstate.runtime.aggregates`.

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
        event_time = self._event_time(time, delay, inputs, idle)
        frame, function, schema = aggregation_of(
            self._df,
            self._key_columns,
            chosen,
            ttl,
            () if event_time is None else tuple(filter(None, (event_time.column, event_time.input_column))),
        )
        pruned = KeyedFrame(
            frame, self._key_columns, self._uid, self._config, self._broadcast, self._interval_ms
        )
        return pruned.process(function, schema, time=time, delay=delay, inputs=inputs, idle=idle)

    def window(
        self,
        assigner: WindowAssigner[Any],
        *,
        time: str | None = None,
        delay: Duration | None = None,
        inputs: str | None = None,
        idle: Duration | None = None,
        missing: str = "fail",
    ) -> Windowed[DataFrame]:
        """Put the rows of each key into windows: ``window(Tumbling.of("1 h"), time="ts", delay="10 min")``.

        Parameters
        ----------
        assigner : WindowAssigner
            Of `keyedstate.window`.
        time, delay, inputs, idle
            As in `process`; the first two are needed for windows in event time.
        missing : {"fail", "drop", "side output"}, optional
            What is done with rows whose event time is null, where their windows need one.

        Returns
        -------
        Windowed
            Its methods say when windows fire, and what is made of their rows: at the end a DataFrame.

        Raises
        ------
        InvalidWindowError
        EventTimeError, InvalidDurationError
            As `process`.
        """
        definition = WindowDefinition.of(assigner)
        check_event_time(definition, time)
        event_time = self._event_time(time, delay, inputs, idle)
        time_column = None if event_time is None else event_time.column

        def finish(function: KeyedFunction, output: WindowOutput) -> DataFrame:
            schema = output_type(self._df, self._key_columns, output)
            bound = function.for_rows(to_arrow(self._df.schema), self._key_columns, time_column)
            return self.process(bound, schema, time=time, delay=delay, inputs=inputs, idle=idle)

        return Windowed(definition, missing, finish)

    def bootstrap(
        self,
        function: KeyedFunction,
        path: str | os.PathLike[str],
        *,
        time: str | None = None,
        delay: Duration | None = None,
    ) -> Savepoint:
        """Write a savepoint with the state that a process function has after the rows of a batch DataFrame.

        For several operators in one savepoint see `keyedstate.spark.new_savepoint`.

        Parameters
        ----------
        function : KeyedProcessFunction or VectorizedProcessFunction
            What it yields is dropped.
        path : str or path
            A new folder.
        time, delay
            As in `process`.

        Returns
        -------
        Savepoint

        Raises
        ------
        BootstrapError
            For a streaming DataFrame.
        MissingUidError
        SavepointTargetError
            Where there is something in the folder.

        Notes
        -----
        Other errors are those of `process`.
        """
        return new_savepoint().add(self, function, time=time, delay=delay).write(path)

    @property
    def uid(self) -> str:
        """The operator's name.

        Raises
        ------
        MissingUidError
        """
        if self._uid is None:
            raise MissingUidError()
        return self._uid

    def bootstrap_plan(
        self, function: KeyedFunction, time: str | None, delay: Duration | None
    ) -> tuple[OperatorPlan, DataFrame]:
        """Return what runs in the tasks of a bootstrap, and their rows; raises as `bootstrap`."""
        return self.plan_of_bootstrap(function, self._event_time(time, delay))

    def plan_of_bootstrap(
        self, function: KeyedFunction, event_time: EventTime | ConnectedEventTime | None
    ) -> tuple[OperatorPlan, DataFrame]:
        """Return the same with event times from where it is said."""
        self._refuse_streaming()
        check_function(function)
        self._check_sides(function)
        return self._planned(function, NO_OUTPUT, event_time, keeps_state=False)

    def bootstrap_rows(self) -> tuple[DataFrame, list[str], int, int]:
        """Return the rows, the key columns, parallelism and max parallelism of state without a function."""
        self._refuse_streaming()
        parallelism, max_parallelism = self._parallelism(
            read_configuration(self._df.sparkSession, self._config)
        )
        return self._df, self._key_columns, parallelism, max_parallelism

    def _refuse_streaming(self) -> None:
        if self._df.isStreaming:
            reason = "the DataFrame is a streaming one, which has no end; read the same source as a batch"
            raise BootstrapError(self.uid, reason)

    def _parallelism(self, config: Configuration, stored: int | None = None) -> tuple[int, int]:
        spark = self._df.sparkSession
        parallelism = config.get(PARALLELISM) or int(spark.conf.get("spark.sql.shuffle.partitions") or 200)
        max_parallelism = config.get(MAX_PARALLELISM) or stored or default_max_parallelism(parallelism)
        check_parallelism(parallelism, max_parallelism)
        return parallelism, max_parallelism

    def _planned(
        self,
        function: KeyedFunction,
        output: OutputSchema,
        event_time: EventTime | ConnectedEventTime | None,
        *,
        keeps_state: bool,
    ) -> tuple[OperatorPlan, DataFrame]:
        """Return what the tasks run, and their rows, routed to them."""
        if self._uid is None and self._df.isStreaming:
            raise MissingUidError()
        spark = self._df.sparkSession
        packed = pack_function(function)
        variables = tuple(spark.sparkContext._pickled_broadcast_vars)
        config = read_configuration(spark, self._config)
        chosen = choose_backend(config)
        _check_states(function, chosen.generic_types, event_time)
        stored = None
        storage = self._storage(spark, config) if keeps_state else None
        folder = None if storage is None else OperatorFolder(storage, self.uid)
        if storage is not None and folder is not None:
            check_executors(spark, config, chosen, storage)
            owner = folder.read_owner() or expected_owner(config, folder)
            stored = None if owner is None else owner.max_parallelism
        parallelism, max_parallelism = self._parallelism(config, stored)
        place, acknowledging = None, None
        if storage is not None and folder is not None:
            place = StatePlace(
                uid=folder.uid,
                directory=storage.uri,
                compression=config[CHECKPOINT_COMPRESSION],
                each_epoch=self._df.isStreaming,
            )
            acknowledging = _acknowledging(spark, config, folder, chosen.backend)
            # The rows of Spark's own source would look like input that is never used up.
            beats = bool(self._interval_ms) and has_python_sources()
            acknowledgements_of(spark.sparkContext).set_heartbeat(folder, beats=beats)
        partitions = PartitionPlan(
            function=packed,
            function_name=type(function).__name__,
            key_columns=tuple(
                (name, self._df.schema[name].dataType.simpleString()) for name in self._key_columns
            ),
            key_types=tuple(key_types(self._df, self._key_columns)),
            output=output,
            parallelism=parallelism,
            max_parallelism=max_parallelism,
            settings=frozen(config),
            place=place,
            event_time=event_time,
            connected=self._connected,
        )
        plan = OperatorPlan.of(
            partitions,
            columns=(*self._df.columns, KEY_GROUP_COLUMN),
            acknowledging=acknowledging,
            broadcast=None if self._broadcast is None else broadcast_side_of(self._df, self._broadcast),
            host_processes=_host_processes(spark, config, packed),
            variables=variables,
            access=None if acknowledging is None else remote_access(spark, config, acknowledging.folder),
        )
        rows = self._df
        if self._interval_ms is not None and rows.isStreaming:
            rows = with_heartbeat(rows, self._interval_ms)
        rows = with_key_group(rows, self._key_columns, max_parallelism)
        if self._broadcast is not None and self._broadcast.isStreaming:
            rows = with_broadcast_rows(rows, self._broadcast, parallelism, max_parallelism)
        else:
            rows = with_plain_names(rows)
        return plan, route(rows, parallelism, max_parallelism)

    def _event_time(
        self,
        column: str | None,
        delay: Duration | None,
        inputs: str | None = None,
        idle: Duration | None = None,
    ) -> EventTime | None:
        if column is None:
            if delay is not None or inputs is not None or idle is not None:
                given = "a delay" if delay is not None else "inputs" if inputs is not None else "an idle time"
                raise EventTimeError(None, f"there is {given} and no column; name it with time=")
            return None
        found = self.event_time(column, delay)
        if idle is not None and inputs is None:
            raise EventTimeError(
                found.column,
                "an idle time is for several inputs; name the column that tells them with inputs=",
            )
        told_by = None if inputs is None else source_column_of(self._df, inputs)
        return EventTime(found.column, found.delay_ms, told_by, self.idle_ms(found.column, idle))

    def event_time(self, column: str, delay: Duration | None) -> EventTime:
        """Return where rows have their event time from.

        Raises
        ------
        EventTimeError, InvalidDurationError
        """
        name = time_column_of(self._df, column)
        if delay is None:
            raise EventTimeError(
                name, "no delay is given; say how late rows may come, as in delay='10 minutes', or delay=0"
            )
        delay_ms = milliseconds(delay)
        if delay_ms < 0:
            raise EventTimeError(name, f"the delay {delay!r} is negative; give 0 or more")
        return EventTime(name, delay_ms)

    def idle_ms(self, column: str, idle: Duration | None) -> int | None:
        """Return after how long an input is idle, in milliseconds; None for never.

        Raises
        ------
        EventTimeError, InvalidDurationError
        """
        idle_ms = None if idle is None else milliseconds(idle)
        if idle_ms is not None and idle_ms <= 0:
            raise EventTimeError(column, f"the idle time {idle!r} is not positive; give '5 minutes' or so")
        return idle_ms

    def _check_sides(self, function: KeyedFunction) -> None:
        check_inputs(function, connected=self._connected is not None)
        name = type(function).__name__
        two_sided = isinstance(function, KeyedBroadcastProcessFunction)
        if two_sided and self._broadcast is None:
            raise InvalidFunctionError(
                name, "it has a broadcast side; give it rows with keyed(...).broadcast(rows)"
            )
        if self._broadcast is not None and not two_sided:
            raise InvalidFunctionError(
                name,
                "it has no broadcast side; derive its class from KeyedBroadcastProcessFunction, or leave out "
                ".broadcast()",
            )

    def _storage(self, spark: SparkSession, config: Configuration) -> CheckpointStorage | None:
        """Return where the folders with operators' checkpoints are; None where the operator keeps none."""
        if self._uid is None:
            return None
        if not self._df.isStreaming and epoch_on_driver(spark.sparkContext) is None:
            return None
        return CheckpointStorage.open(config[CHECKPOINT_DIR], config)


def _check_states(function: KeyedFunction, generic_types: bool, event_time: object) -> None:
    """Refuse declared states that no task could register."""
    states = declared_states(function)
    if isinstance(function, (WindowedFunction, IntervalJoinFunction)):
        states += function.states()
    for state in states:
        if not generic_types:
            refuse_generic(state.name, state.serializer)
        if event_time is None and state.ttl is not None and state.ttl.clock is TtlClock.EVENT_TIME:
            raise MissingEventTimeError(state.name)
    if not generic_types:
        for operator_state in declared_operator_states(function):
            operator_state.meta.refuse_generic()


def _refuse_connect(df: DataFrame) -> None:
    if type(df).__module__.startswith("pyspark.sql.connect"):
        raise ClassicSparkRequiredError()


class _Listener(CheckpointListener):
    """Tells a plugin what becomes of an operator's checkpoints, reports them, and lets a savepoint go."""

    def __init__(
        self, folder: OperatorFolder, backend: Backend, savepoint: ClaimedSavepoint, reports: EpochReports
    ) -> None:
        self._folder = folder
        self._backend = backend
        self._savepoint = savepoint
        self._reports = reports

    def published(self, metadata: CheckpointMetadata, publish_ms: float) -> None:
        self._reports.published(metadata, publish_ms)

    def completed(self, metadata: CheckpointMetadata) -> None:
        location = self._folder.storage.uri
        try:
            self._backend.checkpoint_completed(metadata.uid, metadata.epoch, location, metadata.data_files)
        finally:
            try:
                self._savepoint.release(metadata)
            finally:
                self._reports.completed(metadata)

    def aborted(self, epoch: int, reason: FailureReason) -> None:
        self._backend.checkpoint_aborted(self._folder.uid, epoch, reason.value)

    def subsumed(self, epoch: int) -> None:
        self._backend.checkpoint_subsumed(self._folder.uid, epoch)


def _acknowledging(
    spark: SparkSession, config: Configuration, folder: OperatorFolder, backend: Backend
) -> Acknowledging:
    acknowledgements = acknowledgements_of(spark.sparkContext)
    coordinator = acknowledgements.coordinator(folder)
    reports = EpochReports(spark.sparkContext, reporters_of(config))
    coordinator.configure(
        _Listener(folder, backend, ClaimedSavepoint(config, folder), reports),
        config[CHECKPOINT_RETAINED],
        config[CHECKPOINT_TIMEOUT],
    )
    return Acknowledging(
        operator_id=uuid.uuid4().hex[:16],
        folder=folder.storage.uri,
        accumulator=acknowledgements.accumulator,
    )


def _host_processes(spark: SparkSession, config: Configuration, packed: bytes) -> int | None:
    """Return how many hosts an executor has, 0 where its processors are to be counted; None without hosts."""
    if config[HOST] == "embedded" or _ACCUMULATOR in packed:
        return None
    cores = spark.sparkContext.getConf().get("spark.executor.cores")
    if is_local(spark.sparkContext):
        # The driver is the executor there, and this is the number in the brackets, or 1.
        cores = str(spark.sparkContext.defaultParallelism)
    return config.get(HOSTS_PROCESSES) or int(cores or 0)


def _task_of(plan: OperatorPlan) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def keyed_operator(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return plan.run(batches)

    return keyed_operator
