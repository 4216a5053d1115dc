"""The plan of a keyed operator: checks, options, routing, and what its tasks run."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import cloudpickle
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from keyedstate.checkpoint.format.manifest import CheckpointMetadata
from keyedstate.checkpoint.protocol.coordinator import CheckpointCoordinator
from keyedstate.checkpoint.protocol.operator_folder import OperatorFolder
from keyedstate.checkpoint.savepoint.offset_log import OffsetLog
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.epoch.configuration import (
    choose_backend,
    choose_max_parallelism,
    configuration_in_task,
    frozen,
    storage_in_task,
)
from keyedstate.epoch.event_time import (
    EventTimes,
    FollowedOperator,
    FollowedOperators,
    watermark_after,
)
from keyedstate.epoch.function_transport import pack_function
from keyedstate.epoch.notification.plugin_listener import PluginListener
from keyedstate.epoch.notification.reporters import reporters_of
from keyedstate.epoch.operator_checks import check_sides, check_states
from keyedstate.epoch.partition_plan import PartitionPlan, StateLocation
from keyedstate.errors import (
    BootstrapError,
    ClassicSparkRequiredError,
    EventTimeError,
    MissingUidError,
)
from keyedstate.keygroups import KEY_GROUP_COLUMN
from keyedstate.options import (
    CHECKPOINT_COMPRESSION,
    CHECKPOINT_DIR,
    CHECKPOINT_RETAINED,
    CHECKPOINT_TIMEOUT,
    HOST,
    HOSTS_PROCESSES,
    PARALLELISM,
    Configuration,
)
from keyedstate.runtime import KeyedFunction
from keyedstate.runtime.functions.checks import BROADCAST, ROWS, check_function, check_row_classes
from keyedstate.runtime.functions.connected_inputs import ConnectedInputs
from keyedstate.runtime.output import OutputSchema
from keyedstate.spark.checkpoint_location import offsets_of_query
from keyedstate.spark.hosts.owners import RemoteAccess, remote_access
from keyedstate.spark.hosts.task_identity import is_in_micro_batch
from keyedstate.spark.plan.configuration import read_configuration
from keyedstate.spark.plan.exactly_once import warn_of_random_rows, warn_of_temporary_location
from keyedstate.spark.plan.heartbeat import has_python_sources, with_heartbeat, with_watermark_beats
from keyedstate.spark.plan.metrics import record_epoch, report_epoch
from keyedstate.spark.plan.no_output import NO_OUTPUT
from keyedstate.spark.plan.preflight import check_executors
from keyedstate.spark.plan.source_files import write_watermark
from keyedstate.spark.query.built_operators import BuiltOperator, followed_operators, remember
from keyedstate.spark.query.stop_watcher import watch_for_requests
from keyedstate.spark.routing import route, with_key_group, with_plain_names
from keyedstate.spark.schema import key_types, to_arrow
from keyedstate.spark.session import (
    executor_cores,
    is_connect,
    is_in_foreach_batch_of_connect,
    on_executor,
    speculates,
)
from keyedstate.spark.task.acknowledgements import acknowledgements_of
from keyedstate.spark.task.broadcast import broadcast_side_of, with_broadcast_rows
from keyedstate.spark.task.first_rows import FirstRows, first_rows_of
from keyedstate.spark.task.task import Acknowledging, OperatorPlan
from keyedstate.state.clock import BEFORE_TIME

#: Where Spark speculates, it kills the attempt whose output it does not need, and the Python worker after
#: ``spark.python.task.killTimeout``, by default 2 s.
_TIME_TO_BE_KILLED_S = 5.0
#: In the pickle of a function with an accumulator; Spark collects updates from its own workers only.
_ACCUMULATOR = b"_deserialize_accumulator"


@dataclass(frozen=True)
class KeyedRows:
    """The rows of an operator and its settings."""

    df: DataFrame
    key_columns: list[str]
    uid: str | None
    config: Mapping[str, object] | None
    broadcast: DataFrame | None = None
    #: The interval of the heartbeat.
    interval_ms: int | None = None
    #: The inputs that `df` is the union of.
    connected: ConnectedInputs | None = None
    #: One, or one of each connected input; empty without event time.
    event_times: EventTimes = ()
    #: The column of row kinds, where rows may take earlier ones back.
    row_kind: str | None = None
    #: Whether the state of a streaming DataFrame is stored at the checkpoint location of the query.
    location_of_query: bool = False
    #: Whether processing time is that of the micro-batch, which Spark keeps at that location.
    time_of_query: bool = False
    #: The file whose existence ends a query that has fired its timers after all input.
    end_file: str | None = None
    #: Where the source of micro-batches after a new watermark finds it.
    watermark_file: str | None = None
    #: Rows of a batch DataFrame for the first epoch of a query, with the columns of `df`.
    first_rows: DataFrame | None = None

    def required_uid(self) -> str:
        """Return the operator's name; raises `MissingUidError`."""
        if self.uid is None:
            raise MissingUidError()
        return self.uid

    def parallelism(self, config: Configuration, folder: OperatorFolder | None = None) -> tuple[int, int]:
        """Return parallelism and max parallelism; raises as `choose_max_parallelism`."""
        spark = self.df.sparkSession
        parallelism = config.get(PARALLELISM) or int(spark.conf.get("spark.sql.shuffle.partitions") or 200)
        if folder is None or not is_connect(spark):
            return parallelism, choose_max_parallelism(config, parallelism, folder)
        settings, directory, uid = frozen(config), folder.directory_uri, folder.uid

        def chosen() -> int:
            folder = OperatorFolder(storage_in_task(directory, settings), uid)
            return choose_max_parallelism(configuration_in_task(settings), parallelism, folder)

        return parallelism, on_executor(spark, chosen)

    def check_sides(self, function: KeyedFunction) -> None:
        """Raise `InvalidFunctionError` for a function with other inputs than the rows have."""
        inputs = 1 if self.connected is None else len(self.connected.inputs)
        check_sides(function, inputs=inputs, broadcast=self.broadcast is not None)

    def refuse_streaming(self) -> None:
        """Raise `BootstrapError` for a streaming DataFrame."""
        if self.df.isStreaming:
            reason = "the DataFrame is a streaming one, which has no end; read the same source as a batch"
            raise BootstrapError(self.required_uid(), reason)

    def bootstrap_plan(self, function: KeyedFunction) -> tuple[OperatorPlan, DataFrame]:
        """Return what the tasks of a bootstrap run, and their rows; raises as `SavepointEdit.add`."""
        self.refuse_streaming()
        check_function(function)
        self.check_sides(function)
        sides = dict.fromkeys(function.side_outputs, NO_OUTPUT)
        return self.planned(function, NO_OUTPUT, sides, keeps_state=False)

    def planned(
        self,
        function: KeyedFunction,
        output: OutputSchema,
        side_outputs: Mapping[str, OutputSchema],
        *,
        keeps_state: bool,
    ) -> tuple[OperatorPlan, DataFrame]:
        """Return what the tasks run, and the rows, routed to them."""
        if self.df.isStreaming:
            self.required_uid()
        if self.connected is None:
            _check_idle_time(self.event_times)
        check_row_classes(function, self._columns_of)
        spark = self.df.sparkSession
        pickled = pack_function(function)
        connect = is_connect(spark)
        variables = () if connect else tuple(spark.sparkContext._pickled_broadcast_vars)
        config = read_configuration(spark, self.config)
        chosen = choose_backend(config)
        check_states(function, generic_types=chosen.generic_types, event_times=self.event_times)
        folder, location, acknowledging = None, None, None
        followed: FollowedOperators = ()
        storage = self._storage(spark, config) if keeps_state else None
        if storage is not None:
            folder = OperatorFolder(storage, self.required_uid())
            check_executors(spark, config, chosen, storage)
        parallelism, max_parallelism = self.parallelism(config, folder)
        if storage is not None and folder is not None:
            location = StateLocation(
                uid=folder.uid,
                directory=storage.uri,
                compression=config[CHECKPOINT_COMPRESSION],
                each_epoch=self.df.isStreaming,
                offsets=None if self.end_file is None else "",
                fires_at_end=self.end_file is not None,
                published_by_tasks=connect,
                time_to_be_killed_s=_TIME_TO_BE_KILLED_S if speculates(spark) else 0.0,
            )
            acknowledging = _acknowledging(spark, config, folder, self.end_file)
            # Spark's own rate source would look like input without end.
            beats = bool(self.interval_ms) and has_python_sources()
            followed = followed_operators(self.event_times, folder.uid, storage.uri)
            followable = None
            if self.event_times:
                followable = FollowedOperator(
                    folder.uid, storage.uri, frozen(config), max_parallelism, self.event_times, followed
                )
            remember(BuiltOperator(folder, beats, published_by_tasks=connect, followable=followable))
            if not connect:
                warn_of_random_rows(self.df, folder.uid)
                watch_for_requests(spark, folder)
        elif self.location_of_query and self.df.isStreaming:
            location = StateLocation(
                uid=self.required_uid(),
                directory="",
                compression=config[CHECKPOINT_COMPRESSION],
                each_epoch=True,
                offsets="" if self.time_of_query else None,
                time_of_query=self.time_of_query,
                published_by_tasks=connect,
                time_to_be_killed_s=_TIME_TO_BE_KILLED_S if speculates(spark) else 0.0,
            )
            acknowledging = self._acknowledging_from_tasks(spark, config)
        partitions = PartitionPlan(
            function=pickled,
            function_name=type(function).__name__,
            key_columns=tuple(
                (name, self.df.schema[name].dataType.simpleString()) for name in self.key_columns
            ),
            key_types=tuple(key_types(self.df, self.key_columns)),
            output=output,
            side_outputs=side_outputs,
            parallelism=parallelism,
            max_parallelism=max_parallelism,
            settings=frozen(config),
            location=location,
            event_times=self.event_times,
            connected=self.connected,
            followed=followed,
        )
        plan = OperatorPlan(
            packed=cloudpickle.dumps(partitions),
            columns=(*self.df.columns, KEY_GROUP_COLUMN),
            acknowledging=acknowledging,
            broadcast=None if self.broadcast is None else broadcast_side_of(self.df, self.broadcast),
            host_processes=_host_processes(spark, config, pickled),
            variables=variables,
            access=None if acknowledging is None else _access(spark, config, acknowledging),
            first_rows=self._first_rows(max_parallelism),
        )
        rows = self.df
        if (self.interval_ms is not None or self.end_file is not None) and rows.isStreaming:
            rows = with_heartbeat(rows, self.interval_ms or 0, self.end_file)
        if self.watermark_file is not None and rows.isStreaming:
            rows = with_watermark_beats(rows, self.watermark_file)
        rows = with_key_group(rows, self.key_columns, max_parallelism)
        if self.broadcast is not None and self.broadcast.isStreaming:
            rows = with_broadcast_rows(rows, self.broadcast, parallelism, max_parallelism)
        else:
            rows = with_plain_names(rows)
        return plan, route(rows, parallelism, max_parallelism)

    def _first_rows(self, max_parallelism: int) -> FirstRows | None:
        if self.first_rows is None:
            return None
        return first_rows_of(self.first_rows, self.key_columns, max_parallelism)

    def _columns_of(self, sort: str) -> pa.Schema:
        """Return the columns of a kind of rows, as `check_row_classes` asks for them."""
        if sort == ROWS:
            return to_arrow(self.df.schema)
        if sort == BROADCAST:
            assert self.broadcast is not None, "checked"
            return to_arrow(self.broadcast.schema)
        assert self.connected is not None, "checked"
        return self.connected.inputs[self.connected.names.index(sort)].schema

    def _acknowledging_from_tasks(self, spark: SparkSession, config: Configuration) -> Acknowledging:
        """Return how tasks acknowledge attempts, where only they know the operator's folder."""
        operator_id = uuid.uuid4().hex[:16]
        if is_connect(spark):
            return Acknowledging(operator_id=operator_id, folder="", accumulator=None)
        acknowledgements = acknowledgements_of(spark.sparkContext)
        event_times, watermark_file = self.event_times, self.watermark_file
        beats = bool(self.interval_ms)

        def prepare(folder_uri: str) -> None:
            directory, _, uid = folder_uri.rpartition("/")
            folder = OperatorFolder(CheckpointStorage.open(directory, config), uid)
            listener = _Listener(spark, folder, config)
            if watermark_file is not None:
                listener = _WatermarkListener(spark, folder, config, event_times, watermark_file)
            remember(BuiltOperator(folder, beats, published_by_tasks=False))
            watch_for_requests(spark, folder)
            _configure(acknowledgements.coordinator(folder), listener, config)

        acknowledgements.found_by_tasks[operator_id] = prepare
        return Acknowledging(operator_id=operator_id, folder="", accumulator=acknowledgements.accumulator)

    def _storage(self, spark: SparkSession, config: Configuration) -> CheckpointStorage | None:
        """Return the storage of the operator's checkpoints; None for an operator that keeps no state."""
        if self.uid is None or self.location_of_query:
            return None
        if not self.df.isStreaming and not self._is_in_micro_batch(spark):
            return None
        return CheckpointStorage.open(config[CHECKPOINT_DIR], config)

    def _is_in_micro_batch(self, spark: SparkSession) -> bool:
        """Return whether a `foreachBatch` function builds the operator."""
        if not is_connect(spark):
            return is_in_micro_batch(spark.sparkContext)
        if is_in_foreach_batch_of_connect():
            raise ClassicSparkRequiredError(
                f"the operator {self.uid!r} is built in a foreachBatch function, and Spark Connect does not "
                "tell its tasks which micro-batch they belong to, so it cannot keep state",
                "Build it on the streaming DataFrame.",
            )
        return False


def _check_idle_time(event_times: EventTimes) -> None:
    for each in event_times:
        if each.idle is not None and each.inputs is None:
            raise EventTimeError(
                each.column,
                "an idle time is for several inputs; name the column that distinguishes them with inputs=",
            )


class _Listener(PluginListener):
    """Notifies plugins of an operator's checkpoints, reports metrics, and releases a claimed savepoint."""

    def __init__(self, spark: SparkSession, folder: OperatorFolder, config: Configuration) -> None:
        super().__init__(folder, config)
        self._spark = spark
        self._reporters = reporters_of(config)

    def published(self, metadata: CheckpointMetadata, publish_ms: float) -> None:
        record_epoch(metadata, publish_ms)
        warn_of_temporary_location(self._spark, metadata.uid, metadata.query_id)

    def completed(self, metadata: CheckpointMetadata) -> None:
        try:
            super().completed(metadata)
        finally:
            report_epoch(self._spark.sparkContext, metadata, self._reporters)


class _WatermarkListener(_Listener):
    """Writes each new watermark into the file of the source of micro-batches, too."""

    def __init__(
        self,
        spark: SparkSession,
        folder: OperatorFolder,
        config: Configuration,
        event_times: EventTimes,
        file: str,
    ) -> None:
        super().__init__(spark, folder, config)
        self._event_times = event_times
        self._file = file

    def published(self, metadata: CheckpointMetadata, publish_ms: float) -> None:
        before = BEFORE_TIME if metadata.watermark is None else metadata.watermark
        # Spark's watermark begins with 0.
        write_watermark(self._file, max(0, watermark_after(self._event_times, metadata, before)))
        super().published(metadata, publish_ms)


class _EndListener(_Listener):
    """Ends the query, by a file, after the micro-batch in which its timers have fired."""

    def __init__(
        self, spark: SparkSession, folder: OperatorFolder, config: Configuration, end_file: str
    ) -> None:
        super().__init__(spark, folder, config)
        self._config = config
        self._end_file = Path(end_file)

    def published(self, metadata: CheckpointMetadata, publish_ms: float) -> None:
        log = OffsetLog(CheckpointStorage.open(offsets_of_query(metadata.query_id), self._config))
        if log.ends_input(metadata.epoch):
            self._end_file.touch()
        else:
            # An earlier run of the same DataFrame has made it.
            self._end_file.unlink(missing_ok=True)
        super().published(metadata, publish_ms)


def _configure(coordinator: CheckpointCoordinator, listener: _Listener, config: Configuration) -> None:
    coordinator.configure(listener, config[CHECKPOINT_RETAINED], config[CHECKPOINT_TIMEOUT])


def _acknowledging(
    spark: SparkSession, config: Configuration, folder: OperatorFolder, end_file: str | None
) -> Acknowledging:
    accumulator = None
    if not is_connect(spark):
        acknowledgements = acknowledgements_of(spark.sparkContext)
        listener = _Listener(spark, folder, config)
        if end_file is not None:
            listener = _EndListener(spark, folder, config, end_file)
        _configure(acknowledgements.coordinator(folder), listener, config)
        accumulator = acknowledgements.accumulator
    return Acknowledging(
        operator_id=uuid.uuid4().hex[:16], folder=folder.storage.uri, accumulator=accumulator
    )


def _access(spark: SparkSession, config: Configuration, acknowledging: Acknowledging) -> RemoteAccess | None:
    return remote_access(spark, config, acknowledging.folder or acknowledging.operator_id)


def _host_processes(spark: SparkSession, config: Configuration, function: bytes) -> int | None:
    """Return the number of hosts per executor, 0 for one per processor; None without hosts."""
    if config[HOST] == "embedded" or _ACCUMULATOR in function:
        return None
    return config.get(HOSTS_PROCESSES) or executor_cores(spark)


def task_of(
    plan: OperatorPlan, name: str = "keyed_operator"
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function of a plan for `mapInArrow`, under the name that Spark shows."""

    def keyed_operator(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return plan.run(batches)

    keyed_operator.__name__ = name
    return keyed_operator
