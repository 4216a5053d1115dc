"""The API: ``keyed(rows, "user", uid="views").process(function, schema)``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from keyedstate.aggregates import Aggregate, RunningAggregation
from keyedstate.aggregates.changes import aggregation
from keyedstate.aggregates.declaration import over_columns
from keyedstate.columns.declared import output_schema
from keyedstate.columns.keyed import KeyedColumns
from keyedstate.columns.operators import DeclaredOperators
from keyedstate.columns.spark_types import schema_as_spark_reads
from keyedstate.errors import (
    BroadcastFrameError,
    KeyColumnError,
    LocalRunError,
)
from keyedstate.joins import BroadcastJoinFunction
from keyedstate.joins.columns import joined_schema
from keyedstate.local.run.plan import Input, OperatorInputs, OperatorPlan
from keyedstate.local.sources.choice import source_of
from keyedstate.local.streams.result import ResultStream
from keyedstate.ranking.deduplication import RowsFunction
from keyedstate.runtime import KeyedFunction
from keyedstate.state import Ttl
from keyedstate.time import EventTime
from keyedstate.windows import WINDOW_END, WINDOW_START, WindowOutput


def keyed(
    rows: object,
    *keys: str | Sequence[str],
    uid: str | None = None,
    config: Mapping[str, object] | None = None,
    event_time: EventTime | None = None,
    row_kind: str | None = None,
) -> KeyedStream:
    """Key rows, so that a process function sees those of one key together with its state.

    Parameters
    ----------
    rows : object
        An Arrow table, batch or reader; a `pyarrow.dataset`; a frame of pandas, polars or another library
        that exports Arrow streams; an iterable of dicts; a `Source`; or the `ResultStream` of another one.
        Columns get the types that Spark would give them: unsigned numbers become wider, times microseconds.
    keys : str or list of str
        Names of columns, or of fields of structs as ``"place.city"``.  Null is a key.  Several make a tuple.
    uid : str, optional
        Name of the operator, under which its state is kept in the folder of the option ``checkpoint.dir``.
        A run with it is like a streaming query that processes what is available: the watermark moves with the
        rows, and a later run continues from the last checkpoint.  A run without it is like one over a batch
        DataFrame: it begins without state, no row is late, and all timers fire at its end.
    config : mapping, optional
        Options by name without ``spark.keyedstate.``.  They override the environment.
    event_time : EventTime, optional
        Event time and watermark of the rows: ``EventTime("ts", delay="10 minutes")``.
    row_kind : str, optional
        The column of strings that says what each row does to a result that changes: ``+I`` and ``+U`` add it,
        ``-U`` and ``-D`` take an equal one back.  `aggregate` and joins by key understand it; a process
        function sees a column like any other.

    Raises
    ------
    SourceError, KeyColumnError, EventTimeError, RowKindError
    LocalRunError
        For a result that is drained before the last operator.
    """
    names: Any = keys[0] if len(keys) == 1 and isinstance(keys[0], (list, tuple)) else keys
    if not names:
        raise KeyColumnError(None, "no key column was given; name at least one: keyed(rows, 'user_id')")
    source = rows if isinstance(rows, ResultStream) else source_of(rows)
    if isinstance(source, ResultStream) and source.drains:
        raise LocalRunError(
            "a drained result that another operator reads",
            "the last operator decides about all of them",
            "Call drain() on the last result.",
        )
    columns = KeyedColumns(schema_as_spark_reads(source.schema), names, event_time, row_kind)
    return KeyedStream(OperatorInputs((Input(source, columns),), uid, config))


class KeyedStream(DeclaredOperators[ResultStream]):
    """Rows that have keys; made by `keyed`."""

    def __init__(self, read: OperatorInputs) -> None:
        self._read = read

    def broadcast(self, rows: object) -> KeyedStream:
        """Give every row of a second, small input to the function, before the first row of a key.

        Parameters
        ----------
        rows : object
            As `keyed` takes them, with an end.  Each run processes them once.

        Returns
        -------
        KeyedStream
            For a `keyedstate.runtime.KeyedBroadcastProcessFunction`.

        Raises
        ------
        SourceError
        BroadcastFrameError
            For a second broadcast input.
        """
        if self._read.broadcast is not None:
            raise BroadcastFrameError(
                "it is the second one; union both, with a column that distinguishes them"
            )
        if isinstance(rows, ResultStream):
            raise BroadcastFrameError("it is the result of an operator; run that one first, with to_table()")
        return KeyedStream(replace(self._read, broadcast=source_of(rows)))

    def process(self, function: KeyedFunction, schema: object) -> ResultStream:
        """Run a process function over the rows of each key; nothing runs until the result is read.

        Parameters
        ----------
        function : KeyedProcessFunction or VectorizedProcessFunction
            The same as on Spark; it runs in this process, or in those that the option ``parallelism`` starts.
        schema : str, mapping, pyarrow.Schema or StructType
            Columns of the rows that the function yields: ``"app_id string, views long"``.

        Raises
        ------
        InvalidFunctionError, FunctionTransportError
            For a function with other inputs than the rows, or one that could not be sent to tasks.
        OutputSchemaError, EventTimeError
        MissingEventTimeError
            For a state that expires in event time, if the rows have none.
        ConfigError, PluginError
        GenericTypeForbiddenError
            For a state whose values are pickled, if ``types.generic`` is ``forbid``.
        InvalidParallelismError
        CheckpointError
            If the checkpoint folder cannot be used.
        """
        return ResultStream(OperatorPlan.of(self._read, function, schema))

    @property
    def _columns(self) -> KeyedColumns:
        return self._read.inputs[0].columns

    @property
    def _row_kind(self) -> str | None:
        return self._columns.row_kind

    @property
    def _time_column(self) -> str | None:
        return self._columns.time_column

    def _aggregated(
        self, chosen: Mapping[str, Aggregate], ttl: Ttl | None, row_kind: str | None
    ) -> ResultStream:
        columns = self._columns
        chosen = over_columns(chosen, columns.schema.names)
        types = dict(zip(columns.schema.names, columns.schema.types, strict=True))
        function = aggregation(columns.key_columns, types, chosen, ttl, (columns.row_kind, row_kind))
        return self.process(function, function.output)

    def _running(self, chosen: Mapping[str, Aggregate], ttl: Ttl | None) -> ResultStream:
        columns = self._columns
        chosen = over_columns(chosen, columns.schema.names)
        function = RunningAggregation(columns.schema, columns.key_columns, chosen, ttl)
        return self.process(function, function.output)

    def _windowed(self, function: KeyedFunction, output: WindowOutput) -> ResultStream:
        columns = self._columns
        bound = function.for_rows(columns.schema, columns.key_columns, columns.time_column)
        return self.process(bound, _window_columns(columns, output))

    def _ranked(self, function: RowsFunction) -> ResultStream:
        self._refuse_row_kinds("deduplicate() or top_n()")
        columns = self._columns
        bound = function.for_rows(columns.schema, columns.key_columns, columns.time_column)
        return self.process(bound, bound.output)

    def _broadcast_joined(self, function: BroadcastJoinFunction, rows: object) -> ResultStream:
        self._refuse_row_kinds("broadcast_join()")
        left, stream = self._columns, self.broadcast(rows)
        assert stream._read.broadcast is not None, "just given"
        right = schema_as_spark_reads(stream._read.broadcast.schema)
        bound = function.for_rows(left.schema, left.key_columns, left.time_column).for_broadcast(right)
        made = bound.output_columns(lambda name: name)
        return stream.process(bound, joined_schema([left.schema, right], made))


def _window_columns(columns: KeyedColumns, output: WindowOutput) -> pa.Schema:
    """Return the columns of the rows that a windowed function yields."""
    fields = {field.name: field for field in columns.schema}
    results = [field for name, field in fields.items() if name not in columns.key_columns]
    if callable(output.schema):
        results = list(output.schema(columns.schema, columns.key_columns))
    elif output.schema is not None or not output.with_window:
        results = list(output_schema(output.schema).schema)
    if not output.with_window:
        return pa.schema(results)
    instant = pa.timestamp("us", "UTC")
    bounds = [pa.field(name, instant) for name in (WINDOW_START, WINDOW_END)] if output.bounded else []
    return pa.schema([*(fields[name] for name in columns.key_columns), *bounds, *results])
