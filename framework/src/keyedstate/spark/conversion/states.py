"""The states of Spark's operators, as the states that `keyedstate.spark.drop_in` has."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, DataType, MapType, StructType, TimestampType

from keyedstate.backend import StateKind, StateMeta
from keyedstate.durations import milliseconds
from keyedstate.runtime.grouping import key_serializer_for
from keyedstate.runtime.timers import USER_TIMERS, TimeDomain
from keyedstate.spark.conversion.spark_checkpoint import SparkCheckpoint, SparkOperator
from keyedstate.spark.dataframe.state_columns import spark_type_of
from keyedstate.spark.drop_in.group_state import group_state_descriptor, timeout_descriptor, timer_of
from keyedstate.spark.drop_in.state_values import StructValues
from keyedstate.spark.routing import quoted
from keyedstate.spark.savepoint.edit import STATE_COLUMNS, StateRows
from keyedstate.spark.schema import key_types
from keyedstate.spark.task.task import OperatorPlan
from keyedstate.state import ListState, MapState, StateDescriptor, Ttl, ValueState
from keyedstate.time.service import EVENT_TIMERS, PROCESSING_TIMERS
from keyedstate.types import INT64, VOID
from keyedstate.types.collections.ttl import plain_type

#: What the names of Spark's own variables begin with; that of timers is read in another way.
_INTERNAL = "$"
_TIME_DOMAINS = {
    "NoTime": None,
    "ProcessingTime": TimeDomain.PROCESSING_TIME,
    "EventTime": TimeDomain.EVENT_TIME,
}
_TIMEOUTS = {
    "ProcessingTimeTimeout": TimeDomain.PROCESSING_TIME,
    "EventTimeTimeout": TimeDomain.EVENT_TIME,
}


#: Reads a state of an operator with options of Spark's data source ``statestore``, the key in its columns.
ReadState: TypeAlias = "Callable[..., DataFrame]"
#: A state, and what returns its values from those of Spark: the columns of the key, and ``value``.
Conversion: TypeAlias = "tuple[StateDescriptor[Any], Callable[[ReadState], DataFrame]]"


@dataclass(frozen=True)
class ConvertedOperator:
    """The states of one operator, as rows with the columns of the key."""

    operator: SparkOperator
    #: The name by which `keyedstate.spark.drop_in` knows such an operator; None without a drop-in.
    drop_in_name: str | None
    #: Of its timers.
    time_domain: TimeDomain | None
    key_columns: list[str]
    states: list[StateRows]
    #: Returns the plan of a function with given options, and rows over which it has the state of the
    #: operator, in place of `states`.
    function: Callable[[Mapping[str, object]], tuple[OperatorPlan, DataFrame]] | None = None


class Replacement(ABC):
    """A keyed function that takes the place of one of Spark's own operators."""

    @abstractmethod
    def converted(self, checkpoint: SparkCheckpoint, operator: SparkOperator) -> ConvertedOperator:
        """Return the state of an operator as that of the function; raises `SparkStateError`."""


def converted(
    checkpoint: SparkCheckpoint,
    operator: SparkOperator,
    ttl: Mapping[str, object],
    timeout: str | None,
    conversions: Replacement | Sequence[Conversion],
) -> ConvertedOperator:
    """Return the states of an operator; raises `SparkStateError` for those that cannot be converted."""
    if isinstance(conversions, Replacement):
        return conversions.converted(checkpoint, operator)
    if conversions:
        return _of_conversions(checkpoint, operator, conversions)
    if operator.name.startswith("transformWithState"):
        return _of_transform_with_state(checkpoint, operator, ttl)
    if operator.name == "applyInPandasWithState":
        return _of_apply_in_pandas(checkpoint, operator, timeout)
    raise checkpoint.refused(
        f"{operator} is neither transformWithState nor applyInPandasWithState",
        "Say with states= which states of a function of keyedstate take its place.",
    )


def _of_conversions(
    checkpoint: SparkCheckpoint, operator: SparkOperator, conversions: Sequence[Conversion]
) -> ConvertedOperator:
    def read(**options: object) -> DataFrame:
        return keyed_state(checkpoint, operator, **options)[0]

    states, key_columns = [], list[str]()
    for descriptor, convert in conversions:
        rows = convert(read)
        names = [name for name in rows.columns if name not in ("value", "written_at")]
        if "value" not in rows.columns or (key_columns and names != key_columns):
            raise checkpoint.refused(
                f"the rows for the state {descriptor.name!r} of {operator} have the columns "
                f"{', '.join(rows.columns)}",
                "Return those of the key and 'value', for all states of an operator the same key.",
            )
        key_columns = names
        written = f.col("written_at") if "written_at" in rows.columns else None
        states.append(state_rows(rows, names, descriptor, f.col("value"), written))
    return ConvertedOperator(operator, None, None, key_columns, states)


def _of_transform_with_state(
    checkpoint: SparkCheckpoint, operator: SparkOperator, ttl: Mapping[str, object]
) -> ConvertedOperator:
    mode = operator.properties.get("timeMode")
    variables = operator.properties.get("stateVariables", [])
    if isinstance(variables, str):
        variables = _parsed(checkpoint, operator, variables)
    if mode not in _TIME_DOMAINS:
        raise checkpoint.refused(f"{operator} has the unknown time mode {mode!r}", "Upgrade keyedstate.")
    names = [variable["stateName"] for variable in variables]
    unknown = sorted(set(ttl) - {name for name in names if not name.startswith(_INTERNAL)})
    if unknown:
        raise checkpoint.refused(
            f"{operator} has no state {unknown[0]!r}; it has {', '.join(names)}",
            "Give a time to live for states that have one.",
        )
    states, key_columns = [], list[str]()
    for variable in variables:
        name = variable["stateName"]
        if name.startswith(_INTERNAL):
            continue
        ttl_ms = _ttl_of(checkpoint, operator, variable, ttl)
        rows, key_columns = keyed_state(checkpoint, operator, stateVarName=name, flattenCollectionTypes=False)
        states.append(_variable(checkpoint, rows, key_columns, variable, ttl_ms))
    domain = _TIME_DOMAINS[mode]
    if domain is not None:
        timers, key_columns = keyed_state(checkpoint, operator, readRegisteredTimers=True)
        states.append(_timers(timers, key_columns, domain, f.col("expiration_timestamp_ms")))
    if not states:
        raise checkpoint.refused(f"{operator} has no state")
    return ConvertedOperator(operator, "transform-with-state", domain, key_columns, states)


def _of_apply_in_pandas(
    checkpoint: SparkCheckpoint, operator: SparkOperator, timeout: str | None
) -> ConvertedOperator:
    rows, key_columns = keyed_state(checkpoint, operator)
    kind = rows.schema["value"].dataType
    if not isinstance(kind, StructType) or "groupState" not in kind.names:
        raise checkpoint.refused(
            f"{operator} has the first version of Spark's state format, in which values and timeouts are "
            "not distinct",
            "Run the query with spark.sql.streaming.flatMapGroupsWithState.stateFormatVersion=2, which is "
            "Spark's default, from a new location.",
        )
    values = StructValues(_struct(kind["groupState"].dataType))
    value = f.col("value").getField("groupState")
    states = [state_rows(rows.where(value.isNotNull()), key_columns, group_state_descriptor(values), value)]
    domain = None
    if "timeoutTimestamp" in kind.names:
        domain = _timeout_domain(checkpoint, operator, timeout)
        time = f.col("value").getField("timeoutTimestamp")
        timing = rows.where(time != -1)
        states.append(state_rows(timing, key_columns, timeout_descriptor(), time))
        states.append(_timers(timing, key_columns, domain, timer_of(time)))
    return ConvertedOperator(operator, "apply-in-pandas-with-state", domain, key_columns, states)


def _timeout_domain(checkpoint: SparkCheckpoint, operator: SparkOperator, timeout: str | None) -> TimeDomain:
    if timeout is not None:
        return _TIMEOUTS[timeout]
    if not checkpoint.next_watermark:
        return TimeDomain.PROCESSING_TIME
    raise checkpoint.refused(
        f"{operator} has timeouts, and Spark does not store whether they are of processing or of event time",
        "Give the timeout of the query: ProcessingTimeTimeout or EventTimeTimeout.",
    )


def _variable(
    checkpoint: SparkCheckpoint,
    rows: DataFrame,
    key_columns: Sequence[str],
    variable: Mapping[str, Any],
    ttl_ms: int | None,
) -> StateRows:
    name, kind = variable["stateName"], str(variable["stateVariableType"])
    ttl = None if ttl_ms is None else Ttl(ttl_ms)
    if kind.startswith("ValueState"):
        return _value(rows, key_columns, name, ttl)
    if kind.startswith("ListState"):
        return _list(rows, key_columns, name, ttl)
    if kind.startswith("MapState"):
        return _map(rows, key_columns, name, ttl)
    raise checkpoint.refused(f"the state {name!r} is of the unknown kind {kind}", "Upgrade keyedstate.")


def _value(rows: DataFrame, key_columns: Sequence[str], name: str, ttl: Ttl | None) -> StateRows:
    kind, value, written = rows.schema["value"].dataType, f.col("value"), None
    if ttl is not None:
        kind, written = _struct(kind)["value"].dataType, _written(value, ttl)
        value = value.getField("value")
    descriptor = ValueState(name, StructValues(_struct(kind)).value_type, ttl=ttl)
    return state_rows(rows, key_columns, descriptor, value, written)


def _list(rows: DataFrame, key_columns: Sequence[str], name: str, ttl: Ttl | None) -> StateRows:
    array = rows.schema["list_value"].dataType
    assert isinstance(array, ArrayType), "Spark's list state is an array"
    kind, value, written = array.elementType, f.col("list_value"), None
    if ttl is not None:
        kind = _struct(kind)["value"].dataType
        written = f.transform(value, lambda element: _written(element, ttl))
        value = f.transform(value, lambda element: element.getField("value"))
    descriptor = ListState(name, StructValues(_struct(kind)).value_type, ttl=ttl)
    return state_rows(rows, key_columns, descriptor, value, written)


def _map(rows: DataFrame, key_columns: Sequence[str], name: str, ttl: Ttl | None) -> StateRows:
    mapping = rows.schema["map_value"].dataType
    assert isinstance(mapping, MapType), "Spark's map state is a map"
    kind, value, written = mapping.valueType, f.col("map_value"), None
    if ttl is not None:
        kind = _struct(kind)["value"].dataType
        written = f.transform_values(value, lambda _, part: _written(part, ttl))
        value = f.transform_values(value, lambda _, part: part.getField("value"))
    map_keys = StructValues(_struct(mapping.keyType)).key_type
    descriptor = MapState(name, map_keys, StructValues(_struct(kind)).value_type, ttl=ttl)
    if written is not None:
        key_type = spark_type_of(map_keys.arrow_type)
        written = written.cast(MapType(key_type, TimestampType()))
    return state_rows(rows, key_columns, descriptor, value, written)


def state_rows(
    rows: DataFrame,
    key_columns: Sequence[str],
    descriptor: StateDescriptor[Any],
    value: Column,
    written: Column | None = None,
) -> StateRows:
    """Return a state with the values of a column, in the types in which keyedstate has them."""
    # From its snapshot, which needs no class of the program in tasks.
    serializer = descriptor.serializer.snapshot().restore_serializer()
    meta = StateMeta(descriptor.name, descriptor.kind, _key(rows, key_columns), VOID, serializer)
    own = [value.cast(spark_type_of(plain_type(serializer).arrow_type)).alias("value")]
    if written is not None:
        own.append(written.alias("written_at"))
    ttl_ms = None if descriptor.ttl is None else descriptor.ttl.ms
    return StateRows(rows.select(*_columns(rows, key_columns), *own), meta, ttl_ms)


def _timers(rows: DataFrame, key_columns: Sequence[str], domain: TimeDomain, time: Column) -> StateRows:
    prefix = EVENT_TIMERS if domain is TimeDomain.EVENT_TIME else PROCESSING_TIMERS
    meta = StateMeta(f"{prefix}{USER_TIMERS}", StateKind.VALUE, _key(rows, key_columns), INT64, VOID)
    nothing = f.lit(None).cast("string").alias("value")
    return StateRows(
        rows.select(*_columns(rows, key_columns), time.cast("long").alias("namespace"), nothing), meta, None
    )


def keyed_state(
    checkpoint: SparkCheckpoint, operator: SparkOperator, **options: object
) -> tuple[DataFrame, list[str]]:
    """Return a state with a column for each part of the key, and the names of these columns.

    Raises `SparkStateError`, also for a key with a name that the columns of states have.
    """
    rows = checkpoint.state(operator, **options)
    names = [field.name for field in _struct(rows.schema["key"].dataType).fields]
    clashing = [name for name in names if name.lower() in STATE_COLUMNS]
    if clashing:
        raise checkpoint.refused(
            f"the key of {operator} has the column {clashing[0]!r}, a name that the columns of a state have",
            "Start a new query without its state, with another name for the column.",
        )
    parts = [f.col("key").getField(name).alias(name) for name in names]
    others = [f.col(name) for name in rows.columns if name not in ("key", "partition_id")]
    return rows.select(*parts, *others), names


def _columns(rows: DataFrame, key_columns: Sequence[str]) -> list[Column]:
    return [rows[quoted(name)] for name in key_columns]


def _key(rows: DataFrame, key_columns: Sequence[str]) -> Any:
    return key_serializer_for(key_types(rows, key_columns))


def _struct(kind: DataType) -> StructType:
    assert isinstance(kind, StructType), "Spark's states are structs"
    return kind


def _written(element: Column, ttl: Ttl) -> Column:
    """Return when a value was written, of which Spark stores when it expires."""
    return f.timestamp_millis(element.getField("ttlExpirationMs") - f.lit(ttl.ms))


def _parsed(checkpoint: SparkCheckpoint, operator: SparkOperator, variables: str) -> list[dict[str, Any]]:
    try:
        found: list[dict[str, Any]] = json.loads(variables)
    except ValueError as error:
        raise checkpoint.refused(
            f"the variables of {operator} are not JSON", "Upgrade keyedstate."
        ) from error
    return found


def _ttl_of(
    checkpoint: SparkCheckpoint,
    operator: SparkOperator,
    variable: Mapping[str, Any],
    ttl: Mapping[str, object],
) -> int | None:
    name = variable["stateName"]
    if not variable.get("ttlEnabled"):
        if name in ttl:
            raise checkpoint.refused(f"the state {name!r} of {operator} has no time to live", "Give none.")
        return None
    if name not in ttl:
        raise checkpoint.refused(
            f"the state {name!r} of {operator} has a time to live, and Spark does not store how long it is",
            "Give that of the program.",
        )
    return milliseconds(ttl[name])
