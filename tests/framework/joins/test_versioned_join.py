"""Versioned joins: the version as of a time against a plain model, late rows, deletions, refusals."""

from __future__ import annotations

import datetime as dt
from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyedstate import local
from keyedstate.errors import InvalidJoinError, UserFunctionError
from keyedstate.joins import versioned_join
from keyedstate.testing import Harness, Input
from keyedstate.time import EventTime

LEFT = "k string, n long, at timestamp"
RIGHT = "at timestamp, k2 string, price long, gone boolean"
OUTPUT = "k string, n long, left_at timestamp, right_at timestamp, price long, gone boolean"


def at(ms):
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
    return None if ms is None else epoch + dt.timedelta(milliseconds=ms)


def joining(backend, how="left", timed=True, **arguments):
    chosen = {name: arguments.pop(name) for name in ("late", "missing", "deleted") if name in arguments}
    event_time = EventTime("at") if timed else None
    return Harness(
        versioned_join(how, **chosen),
        key="k",
        schema=LEFT,
        event_time=event_time,
        second=Input(RIGHT, "k2", event_time),
        output=OUTPUT,
        backend=backend,
        **arguments,
    )


def facts(harness, *times, key="a"):
    return prices(harness.process1_all([(key, time, at(time)) for time in times]))


def versions(harness, *times, key="a", gone=False):
    return prices(harness.process2_all([(at(time), key, 100 + time, gone) for time in times]))


def prices(rows):
    return [(row.n, row.price) for row in rows]


@pytest.mark.parametrize(("how", "without"), [("inner", []), ("left", [(5, None)])])
def test_a_row_meets_the_last_version_before_it_whatever_came_first(backend_name, how, without):
    with joining(backend_name, how) as harness:
        assert facts(harness, 35, 5, 30, 12) == []
        assert versions(harness, 30, 10, 40, 20) == []
        made = harness.advance_watermark(30)
        assert prices(made) == [*without, (12, 110), (30, 130)]
        assert made[-1] == ("a", 30, at(30), at(30), 130, False)
        assert prices(harness.advance_watermark(35)) == [(35, 130)]
        assert list(harness.state("versions", "a").keys()) == [30, 40]
        harness.advance_watermark(100)
        assert list(harness.state("versions", "a").keys()) == [40], "the rows to come have this one"
        assert facts(harness, 100, key="b") == []
        assert prices(harness.end_input()) == ([(100, None)] if without else [])


def test_the_last_of_several_versions_of_one_time_counts(one_backend):
    with joining(one_backend) as harness:
        harness.process2_all([(at(1), "a", 7, False), (at(1), "a", 8, False)])
        facts(harness, 1)
        assert prices(harness.advance_watermark(1)) == [(1, 8)]


def test_a_deleted_key_has_no_version_and_no_state(backend_name):
    with joining(backend_name, deleted="gone") as harness:
        versions(harness, 10)
        versions(harness, 20, gone=True)
        facts(harness, 15, 25)
        assert prices(harness.advance_watermark(25)) == [(15, 110), (25, None)]
        assert harness.num_entries() == 0
        versions(harness, 30)
        facts(harness, 31)
        assert prices(harness.advance_watermark(31)) == [(31, 130)]


def test_a_late_row_is_dropped_and_a_late_version_counts_for_later_rows(backend_name):
    with joining(backend_name, late="side output") as harness:
        versions(harness, 10, 30)
        harness.advance_watermark(50)
        assert facts(harness, 49) == versions(harness, 20) == []
        versions(harness, 40)
        facts(harness, 50, 55)
        assert prices(harness.advance_watermark(60)) == [(50, 140), (55, 140)]
        assert harness.side_output("late_left") == [("a", 49, at(49))]
        assert harness.side_output("late_right") == [(at(20), "a", 120, False)]
        versions(harness, 35, 45)
        facts(harness, 61)
        assert prices(harness.advance_watermark(61)) == [(61, 145)]
    with joining(backend_name) as harness:
        harness.advance_watermark(50)
        facts(harness, 49)
        assert harness.rows_dropped == {"late": 1}


def test_null_keys_match_nothing_and_missing_times_follow_the_policy(one_backend):
    for how, made in (("left", [(1, None)]), ("inner", [])):
        with joining(one_backend, how) as harness:
            versions(harness, 1, key=None)
            assert facts(harness, 1, key=None) == made
            assert harness.rows_dropped == {"null key": 2 - len(made)}
            assert harness.num_entries() == 0
    with joining(one_backend, missing="drop") as harness:
        assert facts(harness, None) == []
        harness.process2((None, "a", 1, False))
        assert harness.rows_dropped == {"timeless": 2}
    with joining(one_backend) as harness, pytest.raises(UserFunctionError, match="the left input"):
        facts(harness, None)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["fact", "version"]), st.sampled_from("ab"), st.integers(0, 20)),
        st.tuples(st.just("end"), st.sampled_from("ab"), st.integers(0, 20)),
        st.tuples(st.just("watermark"), st.just(""), st.integers(0, 20)),
        st.tuples(st.just("restart"), st.sampled_from(["heap-cow", "nested-map"]), st.integers(1, 3)),
    ),
    max_size=40,
)


@settings(max_examples=40)
@given(steps=STEPS, how=st.sampled_from(["inner", "left"]))
def test_a_versioned_join_equals_the_model_over_restarts_and_rescaling(steps, how):
    """Times are multiples of 10 and watermarks lie between them; what ends a key is not late."""
    waiting, table, expected, made, watermark = [], [], [], [], -1

    def emit():
        for fact in [fact for fact in waiting if fact[1] <= watermark]:
            waiting.remove(fact)
            key, time = fact
            known = [version for version in table if version[0] == key and version[1] <= time]
            last = max(known, key=lambda version: version[1:3], default=None)
            found = None if last is None or last[3] else last[2]
            if how == "left" or found is not None:
                expected.append((key, time, found))

    harness = joining("heap-cow", how, deleted="gone", parallelism=2)
    for number, (step, key, where) in enumerate(steps):
        time = 10 * where
        if step == "watermark":
            watermark = max(watermark, time + 5)
            made += harness.advance_watermark(watermark)
            emit()
        elif step == "restart":
            snapshot = harness.snapshot()
            harness.close()
            harness = joining(key, how, deleted="gone", parallelism=max(1, where % 4), restore=snapshot)
        elif step == "fact":
            if time > watermark:
                waiting.append((key, time))
            made += harness.process1((key, where, at(time)))
        elif step == "version" or time > watermark:
            passed = [one for one in table if one[0] == key and one[1] <= watermark]
            if not (passed and max(passed, key=lambda one: one[1:3])[3]):
                table.append((key, time, number, step == "end"))
                made += harness.process2((at(time), key, number, step == "end"))
    made += harness.end_input()
    watermark = 2**62
    emit()
    harness.close()
    found = [(row.k, 10 * row.n, row.price) for row in made]
    assert Counter(found) == Counter(expected)


def test_a_batch_joins_facts_with_the_table_as_of_their_times(backend_name):
    def times(*values):
        return pa.array(values, pa.timestamp("ms", "UTC"))

    orders = pa.table({"currency": ["EUR", "USD", "EUR", "CHF"], "at": times(30, 10, 5, 7)})
    rates = pa.table({"code": ["EUR", "EUR", "USD"], "rate": [1.1, 1.2, 1.0], "since": times(1, 20, 10)})
    made = local.connect(
        local.keyed(orders, "currency", event_time=EventTime("at", delay=0)),
        local.keyed(rates, "code", event_time=EventTime("since", delay=0)),
        config={"backend": backend_name},
    ).versioned_join("left")
    table = made.to_table()
    assert table.column_names == ["currency", "at", "rate", "since"]
    rows = sorted(zip(*table.select(["currency", "rate"]).to_pydict().values(), strict=True), key=str)
    assert rows == [("CHF", None), ("EUR", 1.1), ("EUR", 1.2), ("USD", 1.0)]


def test_what_cannot_be_declared_is_refused(one_backend):
    with pytest.raises(InvalidJoinError, match="Give 'inner' or 'left'"):
        versioned_join("full")
    with pytest.raises(InvalidJoinError, match="Give 'drop' or 'side output'"):
        versioned_join(late="keep")
    with pytest.raises(InvalidJoinError, match="Did you mean 'gone'"):
        joining(one_backend, deleted="gon")
    with pytest.raises(InvalidJoinError, match="the column has the type int64"):
        joining(one_backend, deleted="price")
    with pytest.raises(InvalidJoinError, match="no columns are named"):
        joining(one_backend, timed=False)
