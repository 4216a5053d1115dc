"""Several inputs of one operator: ``connect(keyed(a, "k"), keyed(b, "k2"), uid="joined").process(...)``.

The operator runs over the union of all.  The inputs share the key columns there; the other columns of an
input are one struct column, which is null in rows of the other inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any, Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from keyedstate.durations import Duration
from keyedstate.epoch.event_time import EventTimes
from keyedstate.errors import ConnectedFramesError, EventTimeError
from keyedstate.joins import JoinFunction
from keyedstate.joins.inputs import JoinableInputs
from keyedstate.runtime import KeyedCoProcessFunction, KeyedFunction
from keyedstate.runtime.functions.checks import check_function
from keyedstate.runtime.functions.connected_inputs import (
    ConnectedInput,
    ConnectedInputs,
    check_inputs,
    ordinal,
    struct_column,
)
from keyedstate.spark.dataframe.frame import KeyedFrame, run_function
from keyedstate.spark.dataframe.output_columns import join_output_type
from keyedstate.spark.plan.end_of_input import end_file_for
from keyedstate.spark.plan.heartbeat import heartbeat_ms
from keyedstate.spark.plan.operator_plan import KeyedRows
from keyedstate.spark.schema import to_arrow, without_arrow_type


def connect(
    first: KeyedFrame,
    second: KeyedFrame,
    *further: KeyedFrame,
    uid: str | None = None,
    config: Mapping[str, object] | None = None,
    heartbeat: Duration | None = None,
    end: Literal["fire"] | None = None,
) -> ConnectedFrame:
    """Connect keyed DataFrames, so that one function sees the rows of all with one state of each key.

    Parameters
    ----------
    first, second, *further : KeyedFrame
        ``keyed(df, "key")``, all streaming or all batch, without a uid, options or a heartbeat.  All have
        an event time, or none; the operator's watermark is their minimum.  The names of the key columns may
        differ, not their types.
    uid, config, heartbeat, end
        As in `keyed`.

    Raises
    ------
    ConnectedFramesError
        For other values than keyed DataFrames that match.
    EventTimeError
        If only some of them have an event time.
    HeartbeatError, EndOfInputError, ClassicSparkRequiredError
    """
    for number, frame in enumerate((first, second, *further)):
        if not isinstance(frame, KeyedFrame):
            raise ConnectedFramesError(
                f"the {ordinal(number)} one is {type(frame).__name__} and no keyed DataFrame; give "
                "keyed(df, 'key')"
            )
        _check_plain(ordinal(number), frame._rows)
    sides = tuple(frame._rows for frame in (first, second, *further))
    if len({side.df.isStreaming for side in sides}) > 1:
        raise ConnectedFramesError(
            "one is streaming and another one is not; Spark has no union of them, so read all as streams, or "
            "give the rows of the batch one to every task with keyed(...).broadcast(...)"
        )
    for number, side in enumerate(sides):
        _check_keys(sides[0], side, ordinal(number))
    event_times = _all_event_times(sides)
    interval_ms = None if heartbeat is None else heartbeat_ms(heartbeat)
    operator = replace(
        sides[0],
        uid=uid,
        config=config,
        interval_ms=interval_ms,
        event_times=event_times,
        end_file=end_file_for(sides[0].df, end),
    )
    return ConnectedFrame(operator, sides)


class ConnectedFrame(JoinableInputs[DataFrame]):
    """Keyed DataFrames that are connected; made by `connect`."""

    def __init__(self, operator: KeyedRows, sides: tuple[KeyedRows, ...]) -> None:
        #: With the rows of the first side, until `_bound` makes the union.
        self._operator = operator
        self._sides = sides

    def process(self, function: KeyedCoProcessFunction, schema: str | StructType) -> DataFrame:
        """Run a function of as many inputs over the rows of each key.

        Parameters
        ----------
        function : KeyedCoProcessFunction
        schema : str or StructType
            Columns of the rows that the function yields.

        Raises
        ------
        InvalidFunctionError
            For a function of another number of inputs; other errors as `KeyedFrame.process`.
        """
        bound, rows = self._bound(function)
        return run_function(rows, bound, schema, [side.df.schema for side in self._sides])

    @property
    def _keeps_state(self) -> bool:
        return self._operator.df.isStreaming or self._operator.uid is not None

    @property
    def _count(self) -> int:
        return len(self._sides)

    @property
    def _row_kinds(self) -> list[str | None]:
        return [side.row_kind for side in self._sides]

    def _run_join(self, function: JoinFunction, declared: object) -> DataFrame:
        frames = [side.df for side in self._sides]
        return self.process(function, join_output_type(frames, self._inputs(), declared, function))

    def _bound(self, function: KeyedFunction) -> tuple[KeyedFunction, KeyedRows]:
        """Return the function for the rows of all inputs, and the union of these rows."""
        check_function(function)
        check_inputs(function, len(self._sides))
        assert isinstance(function, KeyedCoProcessFunction), "checked"
        connected = self._inputs()
        parts = [_side(number, self._sides, connected.inputs) for number in range(len(self._sides))]
        rows = reduce(DataFrame.union, parts)
        return function.for_inputs(connected), replace(self._operator, df=rows, connected=connected)

    def _inputs(self) -> ConnectedInputs:
        return ConnectedInputs(
            tuple(
                ConnectedInput(
                    _arrow_schema(side.df, ordinal(number)),
                    tuple(side.key_columns),
                    side.event_times[0].column if side.event_times else None,
                    side.row_kind,
                )
                for number, side in enumerate(self._sides)
            )
        )


def _check_plain(which: str, rows: KeyedRows) -> None:
    """Refuse a keyed DataFrame with properties that only an operator can have."""
    given = {
        "a uid": rows.uid,
        "options": rows.config,
        "a heartbeat": rows.interval_ms,
        "an end": rows.end_file,
        "a broadcast DataFrame": rows.broadcast,
    }
    for what, value in given.items():
        if value is not None:
            way_out = "leave it out" if value is rows.broadcast else "give it to connect()"
            raise ConnectedFramesError(f"the {which} one has {what} of its own; {way_out}")


def _all_event_times(sides: Sequence[KeyedRows]) -> EventTimes:
    """Return the event times of the inputs: one of each, or none."""
    event_times = tuple(each for side in sides for each in side.event_times)
    lacking = [number for number, side in enumerate(sides) if not side.event_times]
    if event_times and lacking:
        raise EventTimeError(
            None,
            f"the {ordinal(lacking[0])} of the connected inputs has none, and would hold back the watermark "
            "forever; give each keyed DataFrame an event_time=, or none",
        )
    for each in event_times:
        if each.inputs is not None:
            reason = "inputs= distinguishes inputs of one DataFrame, and several DataFrames are connected"
            raise EventTimeError(each.column, f"{reason}; leave inputs= out")
    return event_times


def _check_keys(first: KeyedRows, other: KeyedRows, which: str) -> None:
    ours, theirs = (
        [(name, frame.df.schema[name].dataType.simpleString()) for name in frame.key_columns]
        for frame in (first, other)
    )
    if len(ours) != len(theirs):
        raise ConnectedFramesError(
            f"the key of the first one has {len(ours)} columns, that of the {which} one {len(theirs)}; key "
            "all by the same number of columns, in the same order"
        )
    for (name, kind), (other_name, other_kind) in zip(ours, theirs, strict=True):
        if kind != other_kind:
            raise ConnectedFramesError(
                f"the key column {name!r} of the first one has the type {kind} and {other_name!r} of the "
                f"{which} one {other_kind}, so equal values would be other keys; cast one, for example with "
                f"withColumn({other_name!r}, col({other_name!r}).cast({kind!r}))"
            )


def _arrow_schema(frame: DataFrame, number: str) -> Any:
    fault = without_arrow_type(frame.schema.fields)
    if fault is not None:
        raise ConnectedFramesError(f"in the {number} one, {fault}")
    return to_arrow(frame.schema)


def _side(number: int, frames: Sequence[KeyedRows], inputs: Sequence[ConnectedInput]) -> DataFrame:
    """Return the rows of one of the inputs with the columns of the union."""
    frame = frames[number]
    # Two columns may have one name, and a name may have dots in it.
    rows = frame.df.toDF(*(f"c{place}" for place in range(len(frame.df.columns))))
    places = [inputs[number].schema.names.index(name) for name in frame.key_columns]
    keys = [
        rows[f"c{place}"].alias(shared) for place, shared in zip(places, frames[0].key_columns, strict=True)
    ]
    structs: list[Column] = []
    for other, input_ in enumerate(inputs):
        if other == number:
            structs.append(f.struct(*(rows[f"c{place}"] for place in input_.carried)))
            continue
        nothing = StructType()
        for place in input_.carried:
            nothing.add(f"c{place}", frames[other].df.schema.fields[place].dataType)
        structs.append(f.lit(None).cast(nothing))
    named = [column.alias(struct_column(place)) for place, column in enumerate(structs)]
    return rows.select(*keys, *named)
