"""Windows of all rows of a DataFrame: ``window_all(df, Tumbling.of("1 hour")).aggregate(n=count())``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Literal

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructField, StructType

from keyedstate.aggregates import Aggregate
from keyedstate.aggregates.declaration import all_aggregates, over_columns
from keyedstate.durations import Duration
from keyedstate.errors import EventTimeError, InvalidAggregateError, InvalidWindowError
from keyedstate.options import PARALLELISM
from keyedstate.runtime.event_time import DROP, FAIL
from keyedstate.spark.dataframe.frame import KeyedFrame
from keyedstate.spark.dataframe.state_columns import spark_type_of
from keyedstate.spark.dataframe.time_columns import event_time_of
from keyedstate.spark.plan.end_of_input import end_file_for
from keyedstate.spark.plan.heartbeat import heartbeat_ms
from keyedstate.spark.plan.operator_plan import KeyedRows
from keyedstate.spark.routing import quoted
from keyedstate.spark.schema import to_arrow, without_arrow_type
from keyedstate.spark.session import refuse_old_connect
from keyedstate.time import EventTime
from keyedstate.windows import WINDOW_END, WINDOW_START, Sliding, Tumbling, WindowAssigner
from keyedstate.windows.columnar.split import KEY, TIME, GlobalPart, LocalPart
from keyedstate.windows.declaration.definition import WindowDefinition


def window_all(
    df: DataFrame,
    assigner: WindowAssigner[Any],
    *,
    uid: str | None = None,
    config: Mapping[str, object] | None = None,
    heartbeat: Duration | None = None,
    event_time: EventTime | None = None,
    end: Literal["fire"] | None = None,
    missing: str = "fail",
) -> WindowedRows:
    """Put all rows of a DataFrame into windows, whatever their keys are (Flink's ``windowAll``).

    Each task of the input reduces its rows to one accumulator for each window, and only these go to the one
    task that has the windows.  There is no other: the option ``parallelism`` is 1 by default.

    Parameters
    ----------
    df : DataFrame
        Streaming or batch.
    assigner : WindowAssigner
        Tumbling or sliding windows in event time.
    uid, config, heartbeat, event_time, end
        As in `keyed`.
    missing : {"fail", "drop"}, optional
        What happens to rows without an event time.

    Raises
    ------
    InvalidWindowError
        For other windows, and for rows without an event time.
    EventTimeError, HeartbeatError, EndOfInputError, ClassicSparkRequiredError
    """
    refuse_old_connect(df)
    definition = WindowDefinition.of(assigner)
    if type(assigner) not in (Tumbling, Sliding) or not assigner.is_event_time:
        raise InvalidWindowError(
            repr(assigner),
            "the windows of all rows are tumbling or sliding ones in event time",
            "For others, give all rows one key: keyed(df, lit(0).alias('all')).window(...).",
        )
    if missing not in (FAIL, DROP):
        raise InvalidWindowError(f"missing={missing!r}", "it is no choice", "Give 'fail' or 'drop'.")
    found = event_time_of(df, event_time)
    definition.check_event_time(known=found is not None)
    assert found is not None, "checked"
    if found.inputs is not None:
        raise EventTimeError(found.column, "the windows of all rows know no inputs; leave inputs= out")
    rows = KeyedRows(
        df,
        [KEY],
        uid,
        {PARALLELISM.name: 1, **(config or {})},
        interval_ms=None if heartbeat is None else heartbeat_ms(heartbeat),
        event_times=(found,),
        end_file=end_file_for(df, end),
    )
    return WindowedRows(rows, definition, missing)


class WindowedRows:
    """The windows of all rows of a DataFrame; made by `window_all`."""

    def __init__(self, rows: KeyedRows, definition: WindowDefinition, missing: str) -> None:
        self._rows = rows
        self._definition = definition
        self._missing = missing

    def allowed_lateness(self, lateness: Duration) -> WindowedRows:
        """Keep windows for a while after their end, and fire them again for late rows."""
        definition = self._definition.with_allowed_lateness(lateness)
        return WindowedRows(self._rows, definition, self._missing)

    def aggregate(
        self, aggregates: Mapping[str, Aggregate] = MappingProxyType({}), /, **named: Aggregate
    ) -> DataFrame:
        """Compute declared aggregates of the rows of a window: ``aggregate(n=count(), late=mean("delay"))``.

        Parameters
        ----------
        aggregates : mapping, optional
            As `named`, for names that are no Python identifiers.
        named : Aggregate
            Aggregates of `keyedstate.aggregates` by the names of their output columns.

        Returns
        -------
        DataFrame
            The window's start and end, then the aggregates.

        Raises
        ------
        InvalidAggregateError
            For no aggregate, and for a column or name that cannot be used; other errors as
            `KeyedFrame.process`.
        """
        df, (event_time,) = self._rows.df, self._rows.event_times
        chosen = over_columns(all_aggregates(aggregates, named), df.columns)
        for name in chosen:
            if name in (WINDOW_START, WINDOW_END):
                raise InvalidAggregateError(name, "the window's bounds are named so; give it another name")
        read = [column for aggregate in chosen.values() for column in aggregate.read]
        needed = list(dict.fromkeys([event_time.column, *read]))
        fields = [df.schema[name] for name in needed]
        fault = without_arrow_type(fields)
        if fault is not None:
            raise InvalidAggregateError(None, fault)
        types = dict(zip(needed, to_arrow(StructType(fields)).types, strict=True))
        local = LocalPart(self._definition, types, chosen, event_time.column, self._missing)

        def reduced(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return local(batch.rename_columns(needed) for batch in batches)

        chosen_columns = df.select(*(df[quoted(name)] for name in needed)).toDF(*map(str, range(len(needed))))
        accumulators = chosen_columns.mapInArrow(reduced, _spark_columns(local.output))
        time = replace(event_time, column=TIME)
        function = GlobalPart(self._definition, types, chosen)
        frame = KeyedFrame(replace(self._rows, df=accumulators, event_times=(time,)))
        return frame.process(function, _spark_columns(function.output))


def _spark_columns(schema: pa.Schema) -> StructType:
    return StructType(
        [StructField(field.name, spark_type_of(field.type), field.nullable) for field in schema]
    )
