"""Functions over local rows: the results, and the errors before anything runs."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter

import pyarrow as pa
import pytest
from tests.framework.local.functions import (
    COUNTS,
    Count,
    Matched,
    Rated,
    Silence,
    Split,
    events,
    minute,
    plain,
)

from keyedstate.aggregates import count, sum_
from keyedstate.errors import (
    BroadcastFrameError,
    ConnectedFramesError,
    EventTimeError,
    InvalidAggregateError,
    InvalidFunctionError,
    InvalidWindowError,
    KeyColumnError,
    LocalRunError,
    MissingOptionError,
    OutputSchemaError,
    OutputTypeError,
    SourceError,
    UnknownOptionError,
    UserFunctionError,
)
from keyedstate.local import connect, keyed
from keyedstate.runtime import KeyedProcessFunction
from keyedstate.runtime.side_outputs import MAIN
from keyedstate.time import EventTime
from keyedstate.windows import Tumbling

BY_MINUTE = EventTime("ts", delay="0 s")


def test_a_function_counts_the_rows_of_each_key():
    found = keyed(events("abacab"), "user").process(Count(), COUNTS)
    assert plain(found) == [("a", 1), ("a", 2), ("a", 3), ("b", 1), ("b", 2), ("c", 1)]


def test_null_is_a_key_like_any_other():
    rows = [{"user": None}, {"user": "a"}, {"user": None}]
    found = keyed(rows, "user").process(Count(), COUNTS).to_table().to_pylist()
    assert Counter(row["user"] for row in found) == {None: 2, "a": 1}
    assert max(row["n"] for row in found if row["user"] is None) == 2


def test_several_columns_and_a_field_of_a_struct_make_the_key():
    rows = [{"user": "a", "place": {"city": "Bonn"}}, {"user": "a", "place": {"city": "Ulm"}}]

    class Keys(KeyedProcessFunction):
        def process(self, row, ctx):
            yield ctx.key

    found = keyed(rows, ["user", "place.city"]).process(Keys(), "user string, city string")
    assert plain(found) == [("a", "Bonn"), ("a", "Ulm")]


@pytest.mark.parametrize("rows", [100, 200_000])
def test_rows_of_one_key_keep_their_order_over_batches(rows: int):
    table = pa.table({"user": pa.array(["a", "b"] * (rows // 2)), "v": range(rows)})

    class Ordered(KeyedProcessFunction):
        def open(self, ctx):
            self.last = {}

        def process(self, row, ctx):
            if row.v < self.last.get(ctx.key, -1):
                yield ctx.key, row.v
            self.last[ctx.key] = row.v

    assert list(keyed(table, "user").process(Ordered(), "user string, v long")) == []


def test_a_run_without_a_uid_fires_all_timers_at_its_end():
    stream = keyed(events("aab", [0, 5, 1]), "user", event_time=BY_MINUTE)
    found = stream.process(Silence(), "user string, at long")
    assert plain(found) == [("a", _ms(6)), ("b", _ms(2))]


def test_windows_are_aggregated_by_columns():
    stream = keyed(events("aaab", [0, 1, 6, 1]), "user", event_time=BY_MINUTE)
    found = stream.window(Tumbling.of("5 minutes")).aggregate(n=count(), total=sum_("v")).to_table()
    assert found.schema.names == ["user", "window_start", "window_end", "n", "total"]
    assert plain(row.values() for row in found.to_pylist()) == [
        ("a", minute(0), minute(5), 2, 1),
        ("a", minute(5), minute(10), 1, 2),
        ("b", minute(0), minute(5), 1, 3),
    ]


def test_reduced_windows_yield_the_other_columns_of_the_rows():
    stream = keyed(events("aab", [0, 1, 1]), "user", event_time=BY_MINUTE)
    found = stream.window(Tumbling.of("5 minutes")).reduce(lambda a, b: a._replace(v=a.v + b.v)).to_table()
    assert found.schema.names == ["user", "window_start", "window_end", "v", "ts"]
    assert sorted(found["v"].to_pylist()) == [1, 2]


def test_the_inputs_of_one_table_hold_back_the_watermark_of_each_other(tmp_path):
    class Rows:
        """Two inputs in one channel: the watermark is that of the slower one."""

        schema = events("a").schema.append(pa.field("sensor", pa.string()))

        def channels(self):
            return [_Once([("slow", 0), ("fast", 60), ("slow", 2), ("slow", 20)])]

    class _Once:
        name = "0"

        def __init__(self, rows):
            self._rows = rows

        def read(self):
            if not self._rows:
                return None
            sensor, number = self._rows.pop(0)
            row = {"user": "a", "v": number, "ts": minute(number), "sensor": sensor}
            return pa.RecordBatch.from_pylist([row], Rows.schema)

        def offset(self):
            return 0

    event_time = EventTime("ts", delay="0 s", inputs="sensor")
    config = {"checkpoint.dir": str(tmp_path)}
    stream = keyed(Rows(), "user", uid="sensors", config=config, event_time=event_time)
    found = stream.window(Tumbling.of("5 minutes")).aggregate(n=count())
    assert plain(found)[:1] == [("a", minute(0), minute(5), 2)]


def test_declared_aggregates_are_emitted_once_for_each_key():
    found = keyed(events("aba"), "user").aggregate(n=count(), total=sum_("v"))
    assert plain(found) == [("a", 2, 2), ("b", 1, 1)]


def test_broadcast_rows_are_processed_before_the_first_keyed_row():
    amounts = [{"user": "a", "currency": "EUR", "amount": 2.0}]
    rates = [{"currency": "EUR", "rate": 1.5}]
    found = keyed(amounts, "user").broadcast(rates).process(Rated(), "user string, amount double")
    assert plain(found) == [("a", 3.0)]


def test_two_inputs_share_the_state_of_a_key():
    orders = [{"id": 1, "item": "book"}, {"id": 2, "item": "pen"}]
    payments = [{"order": 2, "amount": 5}, {"order": 1, "amount": 7}, {"order": 3, "amount": 9}]
    both = connect(keyed(orders, "id"), keyed(payments, "order"))
    assert plain(both.process(Matched(), "id long, item string, amount long")) == [
        (1, "book", 7),
        (2, "pen", 5),
    ]


def test_an_interval_join_pairs_rows_by_key_and_time():
    left = keyed(events("ab", [0, 10]), "user", event_time=BY_MINUTE)
    right = keyed(events("aab", [1, 30, 10]), "user", event_time=BY_MINUTE)
    joined = connect(left, right).interval_join("-5 minutes", "5 minutes").join().to_table()
    assert joined.schema.names == ["user", "left_v", "left_ts", "right_v", "right_ts"]
    pairs = zip(joined["user"].to_pylist(), joined["right_v"].to_pylist(), strict=True)
    assert sorted(pairs) == [("a", 0), ("b", 2)]


def test_side_outputs_come_as_tables_of_their_own():
    found = keyed(events("aab"), "user").process(Split(), "user string, v long").to_tables()
    assert {name: plain(row.values() for row in table.to_pylist()) for name, table in found.items()} == {
        MAIN: [("a", 0), ("b", 2)],
        "odd": [("a", 1)],
        "as it came": [("a", 1, minute(1))],
    }


def test_the_rows_of_one_operator_are_the_input_of_another():
    counts = keyed(events("abacab"), "user").process(Count(), COUNTS)
    found = keyed(counts, "n").aggregate(users=count())
    assert plain(found) == [(1, 3), (2, 2), (3, 1)]


def test_the_function_runs_in_the_thread_that_reads_the_rows():
    class Where(KeyedProcessFunction):
        def process(self, row, ctx):
            yield ctx.key, threading.get_ident()

    found = keyed(events("a"), "user").process(Where(), "user string, thread long")
    assert plain(found) == [("a", threading.get_ident())]


def test_nothing_runs_before_the_rows_are_read():
    def generate():
        yield {"user": "a"}
        raise AssertionError("a second row was read")

    out = keyed(({"user": user} for user in "a"), "user").process(Count(), COUNTS)
    assert plain(out) == [("a", 1)]
    with pytest.raises(AssertionError, match="second row"):
        keyed(generate(), "user")


def test_an_error_of_the_function_names_the_key_and_the_row():
    class Failing(KeyedProcessFunction):
        def process(self, row, ctx):
            raise ValueError("no such user")

    with pytest.raises(UserFunctionError, match="no such user") as caught:
        keyed(events("a"), "user").process(Failing(), COUNTS).to_table()
    assert caught.value.key == "a"


def test_a_yielded_row_of_another_type_is_an_error():
    class Wrong(KeyedProcessFunction):
        def process(self, row, ctx):
            yield ctx.key, "many"

    with pytest.raises(OutputTypeError, match="column 'n'"):
        keyed(events("a"), "user").process(Wrong(), COUNTS).to_table()


def test_what_would_run_is_explained():
    text = keyed(events("a"), "user", event_time=BY_MINUTE).process(Count(), COUNTS).explain()
    assert "Count" in text
    assert "key: user string, in 128 key groups" in text
    assert "event time ts" in text
    assert "backend: heap-cow, tasks: 1" in text


class NotConnected(KeyedProcessFunction):
    def process(self, row, ctx):
        yield ctx.key, 1


@pytest.mark.parametrize(
    ("build", "error", "said"),
    [
        (lambda: keyed(events("a")), KeyColumnError, "name at least one"),
        (lambda: keyed(events("a"), "usr"), KeyColumnError, "Did you mean 'user'"),
        (lambda: keyed(5, "user"), SourceError, "they are a int"),
        (lambda: keyed(events("a"), "user", event_time=EventTime("v", "0 s")), EventTimeError, "int64"),
        (
            lambda: keyed(events("a"), "user", event_time=EventTime("ts", follows="first")).process(
                Count(), COUNTS
            ),
            EventTimeError,
            "follows the operator 'first', and in a local run",
        ),
        (
            lambda: keyed(events("a"), "user", event_time=EventTime("ts")).process(Count(), COUNTS),
            EventTimeError,
            "no delay",
        ),
        (lambda: keyed(events("a"), "user").process(Count, COUNTS), InvalidFunctionError, r"forget \(\)"),
        (lambda: keyed(events("a"), "user").process(Count(), "user strng"), OutputSchemaError, "strng"),
        (lambda: keyed(events("a"), "user").process(Matched(), COUNTS), InvalidFunctionError, "2 inputs"),
        (lambda: keyed(events("a"), "user").process(Rated(), COUNTS), InvalidFunctionError, "broadcast side"),
        (lambda: keyed(events("a"), "user").aggregate(n=sum_("w")), InvalidAggregateError, "no column 'w'"),
        (lambda: keyed(events("a"), "user").window(Tumbling.of("1 h")), InvalidWindowError, "event_time="),
        (
            lambda: keyed(events("a"), "user", uid="count").process(Count(), COUNTS),
            MissingOptionError,
            "checkpoint.dir",
        ),
        (
            lambda: keyed(events("a"), "user", config={"backnd": "x"}).process(Count(), COUNTS),
            UnknownOptionError,
            "backend",
        ),
        (
            lambda: keyed(events("a"), "user").broadcast([{"x": 1}]).broadcast([{"x": 1}]),
            BroadcastFrameError,
            "second",
        ),
        (
            lambda: connect(keyed(events("a"), "user"), keyed(events("a"), "v")),
            ConnectedFramesError,
            "int64",
        ),
        (
            lambda: connect(keyed(events("a"), "user", event_time=BY_MINUTE), keyed(events("a"), "user")),
            EventTimeError,
            "the second",
        ),
        (
            lambda: keyed(keyed(events("a"), "user").process(Count(), COUNTS).drain(), "user"),
            LocalRunError,
            r"Call drain\(\) on the last result",
        ),
        (
            lambda: connect(keyed(events("a"), "user", uid="x"), keyed(events("a"), "user")),
            ConnectedFramesError,
            "a uid",
        ),
    ],
)
def test_a_mistake_is_found_before_anything_runs(build, error, said):
    with pytest.raises(error, match=said):
        build()


def test_two_operators_cannot_read_one_result():
    counts = keyed(events("ab"), "user").process(Count(), COUNTS)
    both = connect(keyed(counts, "user"), keyed(counts, "user"))

    class Either(Matched):
        def process1(self, row, ctx):
            yield ctx.key, row.n

        process2 = process1

    with pytest.raises(LocalRunError, match="two operators read it"):
        both.process(Either(), COUNTS).to_table()


def test_the_first_result_needs_no_pyspark():
    code = (
        "import sys; sys.modules['pyspark'] = None\n"
        "import keyedstate as ks\n"
        "from keyedstate.local import keyed\n"
        "print(keyed([{'user': 'a'}, {'user': 'a'}], 'user').aggregate(n=ks.aggregates.count()).to_table())\n"
        "assert not [name for name in sys.modules if name.startswith('keyedstate.spark')]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)


def _ms(number: int) -> int:
    return int(minute(number).timestamp() * 1000)
