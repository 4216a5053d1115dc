"""Keyed functions that take the place of Spark's aggregations, deduplications and inner joins of streams.

An aggregation becomes the accumulators of `.aggregate`: Spark stores the same numbers.  For the others the
function itself runs over the rows that Spark has kept, and has its state then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from types import MappingProxyType

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import StructField, StructType

from keyedstate.aggregates import Aggregate
from keyedstate.aggregates.declaration import all_aggregates
from keyedstate.durations import Duration, milliseconds
from keyedstate.errors import SparkStateError
from keyedstate.joins import IntervalJoinFunction, JoinFunction, JoinType, RegularJoinFunction
from keyedstate.ranking.builder import deduplicate
from keyedstate.spark.conversion.spark_checkpoint import SparkCheckpoint, SparkOperator
from keyedstate.spark.conversion.states import ConvertedOperator, Replacement, keyed_state, state_rows
from keyedstate.spark.dataframe.aggregate_columns import aggregation_of
from keyedstate.spark.dataframe.connected import ConnectedFrame
from keyedstate.spark.dataframe.frame import KeyedFrame
from keyedstate.spark.dataframe.state_columns import spark_type_of
from keyedstate.spark.plan.operator_plan import KeyedRows
from keyedstate.spark.routing import quoted
from keyedstate.spark.schema import to_arrow
from keyedstate.spark.task.task import OperatorPlan
from keyedstate.state import Ttl


def aggregate_states(
    frame: KeyedFrame,
    aggregates: Mapping[str, Aggregate] = MappingProxyType({}),
    /,
    *,
    ttl: Ttl | None = None,
    **named: Aggregate,
) -> Replacement:
    """Let ``.aggregate(...)`` take the place of ``groupBy(...).agg(...)``, for `from_spark`.

    Parameters
    ----------
    frame : KeyedFrame
        That of the new program, with the key columns in the order of ``groupBy``.
    aggregates, ttl, named
        As `KeyedFrame.aggregate` takes them, in the order of Spark's.  They may be ``count``, ``sum_``,
        ``mean``, ``min_``, ``max_``, ``variance`` and ``stddev``.
    """
    return _Aggregation(frame._rows, all_aggregates(aggregates, named), ttl)


def deduplicate_states(
    frame: KeyedFrame, *, within: Duration | None = None, ttl: Ttl | None = None
) -> Replacement:
    """Let ``.deduplicate(...)`` take the place of ``dropDuplicates``, for `from_spark`.

    Parameters
    ----------
    frame : KeyedFrame
        That of the new program; its keys are the columns of ``dropDuplicates``.
    within : duration, optional
        For ``dropDuplicatesWithinWatermark``, the delay of its watermark.
    ttl : Ttl, optional
        As `KeyedFrame.deduplicate` takes it.
    """
    return _Deduplication(frame._rows, within, ttl)


def join_states(frame: ConnectedFrame, function: JoinFunction) -> Replacement:
    """Let an inner join of two inputs take the place of Spark's inner join of streams, for `from_spark`.

    Parameters
    ----------
    frame : ConnectedFrame
        That of the new program; the columns of its inputs are those that Spark keeps of them.
    function : JoinFunction
        ``ks.joins.join(ttl=...)`` or ``ks.joins.interval_join(lower, upper).join()``.
    """
    return _Join(frame, function)


class _Aggregation(Replacement):
    def __init__(self, rows: KeyedRows, aggregates: Mapping[str, Aggregate], ttl: Ttl | None) -> None:
        self._rows = rows
        self._aggregates = aggregates
        self._ttl = ttl

    def converted(self, checkpoint: SparkCheckpoint, operator: SparkOperator) -> ConvertedOperator:
        _require(checkpoint, operator, "stateStoreSave")
        rows, spark_keys = keyed_state(checkpoint, operator)
        buffers = rows.schema["value"].dataType
        assert isinstance(buffers, StructType), "Spark's states are structs"
        _, function, _ = aggregation_of(
            self._rows.df, self._rows.key_columns, self._aggregates, self._ttl, (), (None, None)
        )
        # Several buffers may have one name.
        numbered = StructType(
            [StructField(f"c{place}", field.dataType) for place, field in enumerate(buffers.fields)]
        )
        rows = rows.withColumn("value", f.col("value").cast(numbered))
        names = iter(enumerate(buffers.names))
        parts: dict[str, Column] = {}
        for name, bound in function.aggregates.items():
            kind = self._aggregates[name].function
            if kind == "sum" and pa.types.is_decimal(bound.result_type):
                kind = "sum of decimals"
            wanted, parts_of = _BUFFERS.get(kind, ((), _same))
            taken = list(islice(names, len(wanted)))
            if not wanted or tuple(buffer for _, buffer in taken) != wanted:
                raise self._other(checkpoint, operator, buffers.names)
            values = parts_of(*(f.col("value").getField(f"c{place}") for place, _ in taken))
            for part, value in zip(bound.parts, values, strict=True):
                parts[f"{bound.name}.{part}" if part else bound.name] = value
        if next(names, None) is not None:
            raise self._other(checkpoint, operator, buffers.names)
        stored = spark_type_of(function.accumulator_type.arrow_type)
        assert isinstance(stored, StructType), "accumulators are fields of a row"
        value = f.struct(*(parts[name].alias(name) for name in stored.names))
        keys = self._rows.key_columns
        rows = rows.select(
            *_keys_of(checkpoint, operator, rows, spark_keys, self._rows), value.alias("value")
        )
        state = state_rows(rows, keys, function.accumulators, f.col("value"))
        return ConvertedOperator(operator, None, None, keys, [state])

    def _other(
        self, checkpoint: SparkCheckpoint, operator: SparkOperator, names: Sequence[str]
    ) -> SparkStateError:
        given = ", ".join(map(str, self._aggregates.values()))
        return checkpoint.refused(
            f"{operator} has the buffers {', '.join(names)}, which are not those of {given}",
            "Give the aggregates of the query in its order; some have other states on Spark.",
        )


def _mean(total: Column, count: Column) -> tuple[Column, ...]:
    return count, f.when(count > 0, total)


def _moments(count: Column, mean: Column, squares: Column) -> tuple[Column, ...]:
    return count.cast("long"), f.when(count > 0, mean), f.when(count > 0, squares)


def _decimal_sum(total: Column, is_empty: Column) -> tuple[Column, ...]:
    return (f.when(~is_empty, total),)


def _same(value: Column) -> tuple[Column, ...]:
    return (value,)


#: By our function the buffers of Spark's, and what returns the parts of our accumulator of them.
_BUFFERS: dict[str, tuple[tuple[str, ...], Callable[..., tuple[Column, ...]]]] = {
    "count": (("count",), _same),
    "sum": (("sum",), _same),
    "sum of decimals": (("sum", "isEmpty"), _decimal_sum),
    "mean": (("sum", "count"), _mean),
    "min": (("min",), _same),
    "max": (("max",), _same),
    "variance": (("n", "avg", "m2"), _moments),
    "stddev": (("n", "avg", "m2"), _moments),
}


class _Deduplication(Replacement):
    def __init__(self, rows: KeyedRows, within: Duration | None, ttl: Ttl | None) -> None:
        self._rows = rows
        self._within = within
        self._ttl = ttl

    def converted(self, checkpoint: SparkCheckpoint, operator: SparkOperator) -> ConvertedOperator:
        wanted = "dedupe" if self._within is None else "dedupeWithinWatermark"
        _require(checkpoint, operator, wanted)
        rows, spark_keys = keyed_state(checkpoint, operator)
        given = self._rows
        values = {name: f.col(quoted(name)) for name in given.key_columns}
        rows = rows.select(*_keys_of(checkpoint, operator, rows, spark_keys, given), "value")
        time_column = given.event_times[0].column if given.event_times else None
        if self._within is not None and time_column is not None:
            expires = f.col("value").getField("expiresAtMicros")
            values[time_column] = f.timestamp_micros(expires - f.lit(milliseconds(self._within) * 1000))
        columns = [
            values.get(field.name, f.lit(None)).cast(field.dataType).alias(field.name)
            for field in given.df.schema.fields
        ]
        made = deduplicate(within=self._within, ttl=self._ttl)
        function = made.for_rows(to_arrow(given.df.schema), given.key_columns, time_column)
        frame = rows.select(*columns)

        def planned(options: Mapping[str, object]) -> tuple[OperatorPlan, DataFrame]:
            return replace(given, df=frame, uid=None, config=options).bootstrap_plan(function)

        return ConvertedOperator(operator, None, None, given.key_columns, [], planned)


class _Join(Replacement):
    def __init__(self, frame: ConnectedFrame, function: JoinFunction) -> None:
        self._frame = frame
        self._function = function

    def converted(self, checkpoint: SparkCheckpoint, operator: SparkOperator) -> ConvertedOperator:
        _require(checkpoint, operator, "symmetricHashJoin")
        function = self._function
        inner = isinstance(function, RegularJoinFunction) and function.how is JoinType.INNER
        if not inner and not isinstance(function, IntervalJoinFunction):
            raise checkpoint.refused(
                f"{operator} can become an inner join by key or by interval: Spark's data source does not "
                "say which rows have found a match",
                "Give ks.joins.join() or ks.joins.interval_join(...).join(), or start without its state.",
            )
        first, second = (
            replace(given, df=self._rows(checkpoint, operator, given.df, side))
            for given, side in zip(self._frame._sides, ("left", "right"), strict=True)
        )
        connected = ConnectedFrame(replace(self._frame._operator, df=first.df), (first, second))

        def planned(options: Mapping[str, object]) -> tuple[OperatorPlan, DataFrame]:
            bound, rows = connected._bound(function)
            return replace(rows, config=options).bootstrap_plan(bound)

        return ConvertedOperator(operator, None, None, first.key_columns, [], planned)

    def _rows(
        self, checkpoint: SparkCheckpoint, operator: SparkOperator, given: DataFrame, side: str
    ) -> DataFrame:
        """Return the rows that Spark has kept of an input, with its columns."""
        state = checkpoint.state(operator, joinSide=side)
        kept = {field.name: field.dataType for field in state.schema["value"].dataType.fields}  # type: ignore[attr-defined]
        for field in given.schema.fields:
            if kept.get(field.name) != field.dataType:
                raise checkpoint.refused(
                    f"the {side} rows of {operator} have no column {field.name!r} of the type "
                    f"{field.dataType.simpleString()}, but {', '.join(kept)}",
                    "Select the columns that the query needs before ks.keyed.",
                )
        return state.select(*(f.col("value").getField(name).alias(name) for name in given.columns))


def _require(checkpoint: SparkCheckpoint, operator: SparkOperator, name: str) -> None:
    if operator.name != name:
        raise checkpoint.refused(
            f"{operator} is given states for {name}", "Give those of its own kind, or others with states=."
        )


def _keys_of(
    checkpoint: SparkCheckpoint,
    operator: SparkOperator,
    rows: DataFrame,
    names: Sequence[str],
    given: KeyedRows,
) -> list[Column]:
    """Return the columns of Spark's key under the names of the keyed frame."""
    of_spark = [rows.schema[name].dataType.simpleString() for name in names]
    ours = [given.df.schema[name].dataType.simpleString() for name in given.key_columns]
    if of_spark != ours:
        raise checkpoint.refused(
            f"the key of {operator} has the types {', '.join(of_spark)}, and that of the keyed frame "
            f"{', '.join(ours)}",
            "Key the frame by the same columns in the same order.",
        )
    return [f.col(quoted(name)).alias(own) for name, own in zip(names, given.key_columns, strict=True)]
