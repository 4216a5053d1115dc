"""Two inputs of one operator: ``connect(keyed(a, "k"), keyed(b, "k2"), uid="joined").process(...)``.

The operator runs over the union of both.  The inputs share the key columns there; the other columns of an
input are one struct column, which is null in rows of the other input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
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
from keyedstate.runtime.functions.two_inputs import (
    FIRST_COLUMN,
    SECOND_COLUMN,
    ConnectedInput,
    ConnectedInputs,
    check_inputs,
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
    *,
    uid: str | None = None,
    config: Mapping[str, object] | None = None,
    heartbeat: Duration | None = None,
    end: Literal["fire"] | None = None,
) -> ConnectedFrame:
    """Connect two keyed DataFrames, so that one function sees the rows of both with one state of each key.

    Parameters
    ----------
    first, second : KeyedFrame
        ``keyed(df, "key")``, both streaming or both batch, without a uid, options or a heartbeat.  Both have
        an event time, or neither; the operator's watermark is the minimum of both.  The names of the key
        columns may differ, not their types.
    uid, config, heartbeat, end
        As in `keyed`.

    Raises
    ------
    ConnectedFramesError
        For other values than two keyed DataFrames that match.
    EventTimeError
        If only one of them has an event time.
    HeartbeatError, EndOfInputError, ClassicSparkRequiredError
    """
    for number, frame in (("first", first), ("second", second)):
        if not isinstance(frame, KeyedFrame):
            raise ConnectedFramesError(
                f"the {number} one is {type(frame).__name__} and no keyed DataFrame; give keyed(df, 'key')"
            )
        _check_plain(number, frame._rows)
    sides = first._rows, second._rows
    if sides[0].df.isStreaming != sides[1].df.isStreaming:
        raise ConnectedFramesError(
            "one is streaming and the other is not; Spark has no union of them, so read both as streams, or "
            "give the rows of the batch one to every task with keyed(...).broadcast(...)"
        )
    _check_keys(*sides)
    event_times = _both_event_times(*sides)
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
    """Two keyed DataFrames that are connected; made by `connect`."""

    def __init__(self, operator: KeyedRows, sides: tuple[KeyedRows, KeyedRows]) -> None:
        #: With the rows of the first side, until `_bound` makes the union.
        self._operator = operator
        self._sides = sides

    def process(self, function: KeyedCoProcessFunction, schema: str | StructType) -> DataFrame:
        """Run a function of two inputs over the rows of each key.

        Parameters
        ----------
        function : KeyedCoProcessFunction
        schema : str or StructType
            Columns of the rows that the function yields.

        Raises
        ------
        InvalidFunctionError
            For a function of one input; other errors as `KeyedFrame.process`.
        """
        bound, rows = self._bound(function)
        return run_function(rows, bound, schema, [side.df.schema for side in self._sides])

    @property
    def _keeps_state(self) -> bool:
        return self._operator.df.isStreaming or self._operator.uid is not None

    def _joined(self, function: JoinFunction, declared: object) -> DataFrame:
        left, right = (side.df for side in self._sides)
        return self.process(function, join_output_type(left, right, self._inputs(), declared, function))

    def _bound(self, function: KeyedFunction) -> tuple[KeyedFunction, KeyedRows]:
        """Return the function for the rows of both inputs, and the union of these rows."""
        check_function(function)
        check_inputs(function, connected=True)
        assert isinstance(function, KeyedCoProcessFunction), "checked"
        connected = self._inputs()
        inputs = (connected.first, connected.second)
        rows = _side(0, self._sides, inputs).union(_side(1, self._sides, inputs))
        return function.for_inputs(connected), replace(self._operator, df=rows, connected=connected)

    def _inputs(self) -> ConnectedInputs:
        first, second = (
            ConnectedInput(
                _arrow_schema(side.df, number),
                tuple(side.key_columns),
                side.event_times[0].column if side.event_times else None,
            )
            for number, side in zip(("first", "second"), self._sides, strict=True)
        )
        return ConnectedInputs(first, second)


def _check_plain(which: str, rows: KeyedRows) -> None:
    """Refuse a keyed DataFrame with properties that only an operator can have."""
    given = {
        "a uid": rows.uid,
        "options": rows.config,
        "a heartbeat": rows.interval_ms,
        "an end": rows.end_file,
        "a broadcast DataFrame": rows.broadcast,
        "row kinds": rows.row_kind,
    }
    for what, value in given.items():
        if value is not None:
            of_rows = value is rows.broadcast or value is rows.row_kind
            way_out = "leave it out" if of_rows else "give it to connect()"
            raise ConnectedFramesError(f"the {which} one has {what} of its own; {way_out}")


def _both_event_times(first: KeyedRows, second: KeyedRows) -> EventTimes:
    """Return the event times of two inputs: one of each, or none."""
    event_times = (*first.event_times, *second.event_times)
    if len(event_times) == 1:
        which = "second" if first.event_times else "first"
        raise EventTimeError(
            None,
            f"the {which} of the connected inputs has none, and would hold back the watermark forever; give "
            "each keyed DataFrame an event_time=, or neither",
        )
    for each in event_times:
        if each.inputs is not None:
            reason = "inputs= distinguishes inputs of one DataFrame, and two DataFrames are connected"
            raise EventTimeError(each.column, f"{reason}; leave inputs= out")
    return event_times


def _check_keys(first: KeyedRows, second: KeyedRows) -> None:
    ours, theirs = (
        [(name, frame.df.schema[name].dataType.simpleString()) for name in frame.key_columns]
        for frame in (first, second)
    )
    if len(ours) != len(theirs):
        raise ConnectedFramesError(
            f"the key of the first one has {len(ours)} columns, that of the second one {len(theirs)}; key "
            "both by the same number of columns, in the same order"
        )
    for (name, kind), (other_name, other_kind) in zip(ours, theirs, strict=True):
        if kind != other_kind:
            raise ConnectedFramesError(
                f"the key column {name!r} of the first one has the type {kind} and {other_name!r} of the "
                f"second one {other_kind}, so equal values would be other keys; cast one, for example with "
                f"withColumn({other_name!r}, col({other_name!r}).cast({kind!r}))"
            )


def _arrow_schema(frame: DataFrame, number: str) -> Any:
    fault = without_arrow_type(frame.schema.fields)
    if fault is not None:
        raise ConnectedFramesError(f"in the {number} one, {fault}")
    return to_arrow(frame.schema)


def _side(number: int, frames: Sequence[KeyedRows], inputs: Sequence[ConnectedInput]) -> DataFrame:
    """Return the rows of one of two inputs with the columns of the union."""
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
    named = [column.alias(name) for column, name in zip(structs, (FIRST_COLUMN, SECOND_COLUMN), strict=True)]
    return rows.select(*keys, *named)
