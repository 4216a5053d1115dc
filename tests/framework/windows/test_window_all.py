"""Windows without a key, in a local and a global part, against the same windows of one key."""

from __future__ import annotations

import datetime as dt
import random

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keyedstate.aggregates import (
    any_,
    collect_set,
    count,
    count_distinct,
    max_,
    max_by,
    mean,
    min_,
    sum_,
    top_k,
)
from keyedstate.errors import AggregateOverflowError, MissingTimestampError
from keyedstate.testing import Harness
from keyedstate.time import EventTime
from keyedstate.windows import Sliding, Tumbling, windowed
from keyedstate.windows.columnar.split import KEY, TIME, GlobalPart, LocalPart
from keyedstate.windows.declaration.definition import WindowDefinition

BACKENDS = ("heap-cow", "nested-map", "rocksdb")
NOON = dt.datetime(2026, 7, 1, 12, tzinfo=dt.timezone.utc)
TYPES = {"v": pa.int64(), "flag": pa.bool_(), "ts": pa.timestamp("us", "UTC"), "name": pa.string()}
NUMBERS = {
    "n": count(),
    "flagged": count(where="flag"),
    "total": sum_("v"),
    "average": mean("v"),
    "low": min_("v"),
    "high": max_("v", where="flag"),
    "any": any_("flag"),
}
OTHERS = {
    "names": count_distinct("name"),
    "first": min_("name"),
    "top": top_k("v", 2),
    "best": max_by("v", by="v"),
}

row = st.tuples(
    st.none() | st.integers(-9, 9),
    st.none() | st.booleans(),
    st.integers(0, 2000).map(lambda second: NOON + dt.timedelta(seconds=second)),
    st.none() | st.sampled_from("abc"),
)
# Epochs of input partitions of batches of rows.
epochs = st.lists(st.lists(st.lists(st.lists(row, max_size=4), max_size=3), max_size=3), max_size=4)
assigners = st.sampled_from(
    [Tumbling.of("5 min"), Sliding.of("6 min", "4 min"), Tumbling.of("1 hour", offset="7 min")]
)


def batch_of(rows):
    columns = list(zip(*rows, strict=True)) or [[]] * len(TYPES)
    arrays = [pa.array(column, type) for column, type in zip(columns, TYPES.values(), strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=list(TYPES))


def definition_of(assigner, lateness="0 s"):
    return WindowDefinition.of(assigner).with_allowed_lateness(lateness)


def in_two_parts(definition, aggregates, epochs, delay, backends):
    local = LocalPart(definition, TYPES, aggregates, "ts", "fail")
    function = GlobalPart(definition, TYPES, aggregates)
    found, snapshot, dropped = [], None, 0
    for number, partitions in enumerate(epochs):
        accumulators = [
            row for rows in partitions for batch in local(map(batch_of, rows)) for row in batch.to_pylist()
        ]
        random.Random(number).shuffle(accumulators)
        with Harness(
            function,
            key=KEY,
            schema=local.output,
            output=function.output,
            event_time=EventTime(TIME, delay=delay),
            backend=backends[number % len(backends)],
            restore=snapshot,
        ) as harness:
            fired = harness.process_all(accumulators) + harness.end_epoch()
            dropped += harness.rows_dropped.get("late", 0)
            found.append(sorted(map(repr, map(tuple, fired))))
            snapshot = harness.snapshot()
    return found, dropped


def of_one_key(assigner, lateness, aggregates, epochs, delay):
    function = windowed(assigner).allowed_lateness(lateness).aggregate(aggregates)
    output = GlobalPart(definition_of(assigner, lateness), TYPES, aggregates).output
    schema = pa.schema([("k", pa.int32()), *TYPES.items()])
    with Harness(
        function,
        key="k",
        schema=schema,
        output=pa.schema([("k", pa.int32()), *output]),
        event_time=EventTime("ts", delay=delay),
    ) as harness:
        found = []
        for partitions in epochs:
            rows = [(0, *row) for batches in partitions for batch in batches for row in batch]
            fired = harness.process_all(rows) + harness.end_epoch()
            found.append(sorted(repr(tuple(row)[1:]) for row in fired))
        return found, harness.rows_dropped.get("late", 0)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    epochs,
    assigners,
    st.sampled_from(["0 s", "10 min"]),
    st.sampled_from(["0 s", "5 min"]),
    st.booleans(),
    st.permutations(BACKENDS),
)
def test_results_and_late_rows_are_those_of_one_key(epochs, assigner, lateness, delay, numbers, backends):
    # Numbers alone may be columns in the state.
    aggregates = NUMBERS if numbers else NUMBERS | OTHERS
    definition = definition_of(assigner, lateness)
    in_parts = in_two_parts(definition, aggregates, epochs, delay, backends)
    assert in_parts == of_one_key(assigner, lateness, aggregates, epochs, delay)


def test_a_partition_makes_one_accumulator_for_each_pane():
    rows = [(second, True, NOON + dt.timedelta(seconds=second), "a") for second in range(600)]
    local = LocalPart(
        definition_of(Sliding.of("6 min", "4 min")), TYPES, {"names": collect_set("name")}, "ts", "fail"
    )
    [made] = local([batch_of(rows[:250]), batch_of([]), batch_of(rows[250:])])
    assert made.num_rows == 5, "two minutes divide six and four"
    assert list(local([batch_of([])])) == []


def test_rows_without_a_time_fail_or_are_dropped():
    rows = [(1, True, None, "a"), (2, True, NOON, "a")]
    definition = definition_of(Tumbling.of("5 min"))
    with pytest.raises(MissingTimestampError):
        list(LocalPart(definition, TYPES, NUMBERS, "ts", "fail")([batch_of(rows)]))
    [made] = LocalPart(definition, TYPES, NUMBERS, "ts", "drop")([batch_of(rows)])
    assert made.column("part_0").to_pylist() == [1]


def test_a_sum_beyond_its_type_is_an_error_in_either_part():
    definition = definition_of(Tumbling.of("5 min"))
    local = LocalPart(definition, TYPES, {"total": sum_("v")}, "ts", "fail")
    with pytest.raises(AggregateOverflowError, match=r"sum\(v\)"):
        list(local([batch_of([(2**62, True, NOON, "a")] * 2)]))
