"""Two inputs of one operator: ``connect(keyed(a, "k"), keyed(b, "k2"), uid="joined").process(...)``.

The rows of both take one way: a union, in which the key columns are shared and the other columns of an input
are one struct column, null in rows of the other input.  So one exchange brings them to their tasks, and what
follows is the operator of one input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from keyedstate.durations import Duration
from keyedstate.epoch.event_time import EventTimes
from keyedstate.errors import ConnectedFramesError, EventTimeError, MissingUidError
from keyedstate.joins import IntervalJoin, IntervalJoinFunction
from keyedstate.runtime import KeyedCoProcessFunction, KeyedFunction
from keyedstate.runtime.function_checks import check_function
from keyedstate.runtime.two_inputs import (
    FIRST_COLUMN,
    SECOND_COLUMN,
    ConnectedInput,
    ConnectedInputs,
    check_inputs,
)
from keyedstate.spark.dataframe.frame import KeyedFrame
from keyedstate.spark.dataframe.join_columns import join_output_type
from keyedstate.spark.plan.heartbeat import heartbeat_ms
from keyedstate.spark.plan.operator_plan import KeyedRows
from keyedstate.spark.schema import to_arrow
from keyedstate.spark.task.task import OperatorPlan


def connect(
    first: KeyedFrame,
    second: KeyedFrame,
    *,
    uid: str | None = None,
    config: Mapping[str, object] | None = None,
    heartbeat: Duration | None = None,
) -> ConnectedFrame:
    """Connect two keyed DataFrames, so that one function sees the rows of both with one state of each key.

    Parameters
    ----------
    first, second : KeyedFrame
        ``keyed(df, "key")``, both streaming or both batch, made without a uid, options and a heartbeat, which
        are those of the connected operator.  Both have an event time, or neither; the watermark of the
        operator is the least of both.  Key columns may have other names, not other types.  Both may be
        of one DataFrame.
    uid, config, heartbeat
        As in `keyed`.

    Returns
    -------
    ConnectedFrame

    Raises
    ------
    ConnectedFramesError
        For what are no two keyed DataFrames that fit.
    EventTimeError
        For event times of one of them only.
    HeartbeatError
    """
    for number, frame in (("first", first), ("second", second)):
        if not isinstance(frame, KeyedFrame):
            raise ConnectedFramesError(
                f"the {number} one is {type(frame).__name__} and no keyed DataFrame; give keyed(df, 'key')"
            )
        frame.check_plain(number)
    if first.rows.df.isStreaming != second.rows.df.isStreaming:
        raise ConnectedFramesError(
            "one is streaming and the other is not; Spark has no union of them, so read both as streams, or "
            "give the rows of the batch one to every task with keyed(...).broadcast(...)"
        )
    _check_keys(first, second)
    _both_event_times(first, second)
    interval_ms = None if heartbeat is None else heartbeat_ms(heartbeat)
    return ConnectedFrame(first, second, uid, config, interval_ms)


class ConnectedFrame:
    """Two keyed DataFrames that are connected; made by `connect`."""

    def __init__(
        self,
        first: KeyedFrame,
        second: KeyedFrame,
        uid: str | None,
        config: Mapping[str, object] | None,
        interval_ms: int | None,
    ) -> None:
        self._frames = (first, second)
        self._uid = uid
        self._config = config
        self._interval_ms = interval_ms

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

    @property
    def _schemas(self) -> list[StructType]:
        return [frame.rows.df.schema for frame in self._frames]

    def process(self, function: KeyedCoProcessFunction, schema: str | StructType) -> DataFrame:
        """Run a function of two inputs over the rows of each key.

        Parameters
        ----------
        function : KeyedCoProcessFunction
        schema : str or StructType
            Columns of the rows that the function yields.

        Returns
        -------
        DataFrame
            As of `KeyedFrame.process`.

        Raises
        ------
        InvalidFunctionError
            For a function of one input.

        Notes
        -----
        Other errors are those of `KeyedFrame.process`.
        """
        bound, frame = self._together(function)
        return frame.run(bound, schema, self._schemas)

    def interval_join(
        self,
        lower: Duration,
        upper: Duration,
        *,
        lower_exclusive: bool = False,
        upper_exclusive: bool = False,
        missing: str = "fail",
    ) -> IntervalJoin[DataFrame]:
        """Join rows by key and event time: ``interval_join("-1 hour", "2 hours").join()``.

        Rows of the first DataFrame, the left ones, are joined with those of the second one, the right ones,
        that have a time in ``[left time + lower, left time + upper]``: an inner join.  As in SQL rows with a
        null in their key are joined with none.

        Parameters
        ----------
        lower, upper : str, timedelta or int
            Relative to the time of the left row; either may be negative.
        lower_exclusive, upper_exclusive : bool, optional
            Whether a right row at exactly that bound is not joined.
        missing : {"fail", "drop", "side output"}, optional
            What is done with rows whose event time is null.

        Returns
        -------
        IntervalJoin
            Its methods say what is made of a pair of rows: at the end a DataFrame.

        Raises
        ------
        InvalidJoinError, InvalidDurationError
        """

        def finish(function: IntervalJoinFunction, declared: object) -> DataFrame:
            inputs = self._inputs()
            left, right = (frame.rows.df for frame in self._frames)
            schema = join_output_type(left, right, inputs, declared, by_itself=function.joins_by_itself)
            bound, frame = self._together(function)
            return frame.run(bound, schema, self._schemas)

        return IntervalJoin(
            lower,
            upper,
            lower_exclusive=lower_exclusive,
            upper_exclusive=upper_exclusive,
            missing=missing,
            finish=finish,
        )

    def bootstrap_plan(self, function: KeyedFunction) -> tuple[OperatorPlan, DataFrame]:
        """Return what runs in the tasks of a bootstrap, and their rows; raises as `SavepointEdit.add`."""
        bound, frame = self._together(function)
        return frame.bootstrap_plan(bound)

    def _together(self, function: KeyedFunction) -> tuple[KeyedFunction, KeyedFrame]:
        """Return the function for the rows of both, and their union as one keyed DataFrame."""
        check_function(function)
        check_inputs(function, connected=True)
        assert isinstance(function, KeyedCoProcessFunction), "checked"
        connected = self._inputs()
        inputs = (connected.first, connected.second)
        rows = _side(0, self._frames, inputs).union(_side(1, self._frames, inputs))
        frame = KeyedFrame(
            KeyedRows(
                rows,
                self._frames[0].rows.key_columns,
                self._uid,
                self._config,
                interval_ms=self._interval_ms,
                connected=connected,
                event_times=_both_event_times(*self._frames),
            )
        )
        return function.for_inputs(connected), frame

    def _inputs(self) -> ConnectedInputs:
        first, second = (
            ConnectedInput(
                _arrow_schema(frame.rows.df, number),
                tuple(frame.rows.key_columns),
                frame.rows.event_times[0].column if frame.rows.event_times else None,
            )
            for number, frame in zip(("first", "second"), self._frames, strict=True)
        )
        return ConnectedInputs(first, second)


def _both_event_times(first: KeyedFrame, second: KeyedFrame) -> EventTimes:
    """Return the event times of two inputs: one of each, or none.

    Raises
    ------
    EventTimeError
    """
    event_times = (*first.rows.event_times, *second.rows.event_times)
    if len(event_times) == 1:
        which = "second" if first.rows.event_times else "first"
        raise EventTimeError(
            None,
            f"the {which} of the connected inputs has none, and without one its watermark would delay "
            "that of the other for ever; give each keyed DataFrame an event_time=, or neither",
        )
    for each in event_times:
        if each.inputs is not None:
            reason = "it tells inputs of one DataFrame apart with inputs=, and two DataFrames are connected"
            raise EventTimeError(each.column, f"{reason}; leave inputs= out")
    return event_times


def _check_keys(first: KeyedFrame, second: KeyedFrame) -> None:
    ours, theirs = (
        [(name, frame.rows.df.schema[name].dataType.simpleString()) for name in frame.rows.key_columns]
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
    """Return the columns of an input as Arrow has them."""
    for field in frame.schema.fields:
        try:
            to_arrow(StructType([field]))
        except (PySparkException, TypeError) as error:
            raise ConnectedFramesError(
                f"the column {field.name!r} of the {number} one has the type "
                f"{field.dataType.simpleString()}, which has no Arrow type; cast it, for example to a string"
            ) from error
    return to_arrow(frame.schema)


def _side(number: int, frames: Sequence[KeyedFrame], inputs: Sequence[ConnectedInput]) -> DataFrame:
    """Return the rows of one of two inputs with the columns of the union."""
    frame = frames[number]
    # Two columns may have one name, and a name may have dots in it.
    rows = frame.rows.df.toDF(*(f"c{place}" for place in range(len(frame.rows.df.columns))))
    places = [inputs[number].schema.names.index(name) for name in frame.rows.key_columns]
    keys = [
        rows[f"c{place}"].alias(shared)
        for place, shared in zip(places, frames[0].rows.key_columns, strict=True)
    ]
    structs: list[Column] = []
    for other, input_ in enumerate(inputs):
        if other == number:
            structs.append(f.struct(*(rows[f"c{place}"] for place in input_.carried)))
            continue
        nothing = StructType()
        for place in input_.carried:
            nothing.add(f"c{place}", frames[other].rows.df.schema.fields[place].dataType)
        structs.append(f.lit(None).cast(nothing))
    named = [column.alias(name) for column, name in zip(structs, (FIRST_COLUMN, SECOND_COLUMN), strict=True)]
    return rows.select(*keys, *named)
