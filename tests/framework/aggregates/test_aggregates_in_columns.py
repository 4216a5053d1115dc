"""Aggregates over a table of columns against the same over a table of objects, to the last bit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.backends import backend_of

from keyedstate.aggregates import (
    Aggregation,
    all_,
    any_,
    collect,
    count,
    max_,
    mean,
    min_,
    stddev,
    sum_,
    variance,
)
from keyedstate.errors import AggregateOverflowError, UserFunctionError
from keyedstate.keygroups import KeyGroupRange
from keyedstate.murmur3 import key_groups
from keyedstate.runtime.grouping import key_serializer_for
from keyedstate.runtime.output import OutputSchema
from keyedstate.runtime.runners import OperatorSpec, keyed_operator
from keyedstate.state import Ttl
from keyedstate.state.registry.chosen_backend import KeySpace
from keyedstate.state.registry.keyed_backend import KeyedStateBackend
from keyedstate.testing.contract.parts import TablePart

GROUPS = 8
GROUP_COLUMN = "__group"
COLUMNS, OBJECTS = ("heap-cow", "auto"), ("heap-cow", "never")
NUMBERS = pa.schema(
    [
        ("key", pa.string()),
        ("other", pa.float64()),
        ("whole", pa.int64()),
        ("short", pa.int16()),
        ("real", pa.float64()),
        ("small", pa.float32()),
        ("truth", pa.bool_()),
        ("day", pa.date32()),
        ("time", pa.timestamp("us", "UTC")),
        ("span", pa.duration("us")),
        ("pair", pa.struct([("x", pa.int64()), ("y", pa.string())])),
    ]
)
AGGREGATES = {
    "n": count(),
    "values": count("real"),
    **{f"sum {name}": sum_(name) for name in ("whole", "short", "real", "small")},
    **{f"mean {name}": mean(name) for name in ("whole", "real", "small")},
    **{f"variance {name}": variance(name) for name in ("whole", "real")},
    "stddev": stddev("real", population=True),
    **{
        f"min {name}": min_(name)
        for name in ("whole", "short", "real", "small", "truth", "day", "time", "span")
    },
    **{
        f"max {name}": max_(name)
        for name in ("whole", "short", "real", "small", "truth", "day", "time", "span")
    },
    "any": any_("truth"),
    "all": all_("truth"),
}


class Job:
    """Epochs of one aggregation over one instance of heap-cow."""

    def __init__(
        self,
        form: tuple[str, str],
        keys: Sequence[str],
        handles: Any = (),
        ttl: Ttl | None = None,
        **kept: Any,
    ) -> None:
        chosen = backend_of(form[0], {"heap-cow.compiled": form[1]})
        self.keys = list(keys)
        types = dict(zip(NUMBERS.names, NUMBERS.types, strict=True))
        self.function = Aggregation(self.keys, types, kept or AGGREGATES, ttl)
        self.backend = KeyedStateBackend.open(
            chosen,
            KeySpace(key_serializer_for([types[key] for key in keys]), KeyGroupRange(0, GROUPS - 1), GROUPS),
            track_changes=True,
        )
        self.epoch = 0

    def run(self, *batches: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Run an epoch and return its output as texts that show every bit."""
        self.epoch += 1
        self.backend.begin_epoch(self.epoch)
        operator = keyed_operator(
            self.function,
            self.backend,
            OperatorSpec(
                key_columns=self.keys,
                key_group_column=GROUP_COLUMN,
                output=OutputSchema(self.function.output),
                epoch=self.epoch,
            ),
        )
        operator.open()
        out = list(operator.process(self.batch(rows) for rows in batches if rows))
        operator.close()
        return [
            tuple(map(repr, row)) for batch in out for row in zip(*batch.to_pydict().values(), strict=True)
        ]

    def batch(self, rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
        arrays = [
            pa.array(column, type_)
            for column, type_ in zip(zip(*rows, strict=True), NUMBERS.types, strict=True)
        ]
        batch = pa.record_batch(arrays, schema=NUMBERS)
        groups = key_groups([batch.column(name) for name in self.keys], GROUPS)
        return batch.append_column(GROUP_COLUMN, pa.array(groups))

    def stored(self) -> dict[str, str]:
        """Return the accumulators by key."""
        handle = self.function.accumulators
        keys = list(self.backend.get_keys("aggregate"))
        return dict(zip(map(repr, keys), map(repr, handle.get_many(keys)), strict=True))

    def changed(self) -> set[tuple[str, str]]:
        """Return what the epoch has changed."""
        (changes,) = self.backend.changes_since(self.epoch - 1).values()
        return {
            (repr(key), repr(value))
            for group in self.backend.key_groups
            for batch in changes.written(group, 3)
            for key, value in zip(batch.keys, batch.values, strict=True)
        }


@pytest.fixture(autouse=True)
def _in_columns(tmp_path: Path) -> None:
    if not TablePart.COLUMNS.is_in("heap-cow", {}, tmp_path):
        pytest.skip("heap-cow is not compiled here")


REALS = st.sampled_from(
    [0.0, -0.0, 1.5, 0.1, -1e300, 1e300, 1e9 + 1, 5e-324, math.nan, math.inf, -math.inf]
) | st.floats(-1e4, 1e4)
WHOLE = st.sampled_from([0, 1, -1, 2**53 + 1, -(2**53) - 1, 2**60, -(2**60)]) | st.integers(-9, 9)
ROWS = st.tuples(
    st.sampled_from(["a", "b", "", None, "a longer key"]),
    st.sampled_from([None, 0.0, -0.0, math.nan, 1.5]),
    st.none() | WHOLE,
    st.none() | st.integers(-(2**15), 2**15 - 1),
    st.none() | REALS,
    st.none() | st.floats(width=32),
    st.none() | st.booleans(),
    st.none() | st.dates(date(1900, 1, 1), date(2200, 1, 1)),
    st.none() | st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1), timezones=st.just(timezone.utc)),
    st.none() | st.timedeltas(timedelta(-99), timedelta(99)),
    st.none(),
)
EPOCHS = st.lists(st.lists(st.lists(ROWS, max_size=8), max_size=2), min_size=1, max_size=3)


@pytest.mark.parametrize("keys", [["key"], ["other"], ["key", "other"]], ids="-".join)
@given(epochs=EPOCHS)
@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@pytest.mark.slow
def test_columns_and_objects_hold_and_give_the_same_to_the_last_bit(keys: list[str], epochs: Any) -> None:
    columns, objects = Job(COLUMNS, keys), Job(OBJECTS, keys)
    for batches in epochs:
        assert columns.run(*batches) == objects.run(*batches)
        assert columns.stored() == objects.stored()
        assert columns.changed() == objects.changed()
    assert columns.function.accumulators.column_table is not None, "or nothing was compared"
    assert objects.function.accumulators.column_table is None
    columns.backend.close()
    objects.backend.close()


def row(key: str, **values: Any) -> tuple[Any, ...]:
    return tuple(values.get(name) if name != "key" else key for name in NUMBERS.names)


@pytest.mark.parametrize("form", [COLUMNS, OBJECTS], ids=["columns", "objects"])
def test_a_sum_beyond_a_long_changes_nothing_in_columns_and_names_the_key(form: tuple[str, str]) -> None:
    for first, second in ((2**62, 2**62), (-(2**63), -1), (0, 2**63 - 1)):
        job = Job(form, ["key"], n=count(), total=sum_("whole"))
        job.run([row("a", whole=first), row("b", whole=1)])
        rows = [row("b", whole=1), row("new", whole=1), row("a", whole=second)]
        if first == 0:
            rows.append(row("a", whole=2**63 - 1))  # beyond in the batch alone
        with pytest.raises(UserFunctionError) as caught:
            job.run(rows)
        error = caught.value.__cause__
        assert isinstance(error, AggregateOverflowError)
        assert (error.name, error.type, error.key) == ("sum(whole)", "INT64", "a")
        if form == COLUMNS:
            assert job.stored() == {"'a'": repr((1, first)), "'b'": "(1, 1)"}
        job.backend.close()


@pytest.mark.parametrize("form", [COLUMNS, OBJECTS], ids=["columns", "objects"])
def test_a_batch_whose_sum_is_beyond_a_long_is_added_exactly(form: tuple[str, str]) -> None:
    job = Job(form, ["key"], total=sum_("whole"))
    job.run([row("a", whole=-(2**63)), row("b", whole=None)])
    largest = 2**63 - 1
    given_rows = [row("a", whole=largest), row("a", whole=largest), row("b", whole=largest)]
    assert job.run(given_rows) == [("'a'", repr(2 * largest - 2**63)), ("'b'", repr(largest))]
    job.backend.close()


def test_state_with_a_time_to_live_and_accumulators_that_are_no_numbers_stay_objects() -> None:
    living = Job(COLUMNS, ["key"], ttl=Ttl.of(timedelta(hours=1)), n=count())
    collected = Job(COLUMNS, ["key"], n=count(), all=collect("whole"))
    for job in (living, collected):
        job.run([row("a", whole=1)])
        assert job.run([row("a", whole=2)])[0][:2] == ("'a'", "2")
        assert job.function.accumulators.column_table is None
        job.backend.close()


def test_a_key_of_one_struct_column_may_be_null_or_hold_nulls() -> None:
    jobs = [Job(form, ["pair"], n=count(), total=sum_("whole")) for form in (COLUMNS, OBJECTS)]
    keys = (None, {"x": None, "y": None}, {"x": 1, "y": None}, None, {"x": 1, "y": None}, {"x": 1, "y": ""})
    for job in jobs:
        for _ in range(2):
            out = job.run([row("a", pair=key, whole=1) for key in keys])
        assert [line[1] for line in out] == ["4", "2", "4", "2"]
    assert jobs[0].stored() == jobs[1].stored()
    for job in jobs:
        job.backend.close()


def test_a_large_batch_over_many_keys_is_the_same_in_columns() -> None:
    random = np.random.default_rng(7)
    columns, objects = (
        Job(COLUMNS, ["key"], n=count(), s=sum_("real")),
        Job(OBJECTS, ["key"], n=count(), s=sum_("real")),
    )
    for _ in range(3):
        rows = [
            row(f"key-{number}", real=float(value))
            for number, value in zip(
                random.integers(0, 5_000, 20_000), random.normal(size=20_000), strict=True
            )
        ]
        assert columns.run(rows) == objects.run(rows)
    assert columns.stored() == objects.stored()
    columns.backend.close()
    objects.backend.close()
