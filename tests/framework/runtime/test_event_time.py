"""The event time of rows in the operator, and states that expire by it."""

from __future__ import annotations

import contextlib
import datetime as dt

import pyarrow as pa
import pytest
from support.backends import backend_of

from keyedstate import types
from keyedstate.errors import MissingEventTimeError
from keyedstate.keygroups import KeyGroupRange
from keyedstate.runtime import KeyedProcessFunction
from keyedstate.runtime.event_time import event_times, is_event_time
from keyedstate.runtime.grouping import key_serializer_for
from keyedstate.runtime.output import OutputSchema
from keyedstate.runtime.runners import OperatorSpec, keyed_operator
from keyedstate.state import Ttl, TtlClock, ValueState
from keyedstate.state.clock import BEFORE_TIME
from keyedstate.state.registry.chosen_backend import KeySpace
from keyedstate.state.registry.keyed_backend import KeyedStateBackend
from keyedstate.time import EventTime

MS = pa.timestamp("ms", "UTC")


class LastSeen(KeyedProcessFunction):
    """Yields the row that was seen last while it lived, and the times that the context tells."""

    seen = ValueState("seen", types.INT64, ttl=Ttl(100, clock=TtlClock.EVENT_TIME, expiry_index=True))

    def process(self, row, ctx):
        before = self.seen.value()
        self.seen.update(row.number)
        yield row.key, before, ctx.timestamp, ctx.watermark


OUTPUT = OutputSchema(
    pa.schema([("key", pa.string()), ("before", pa.int64()), ("time", pa.int64()), ("mark", pa.int64())])
)


@pytest.fixture
def backend():
    chosen = backend_of("heap-cow")

    def open_(**settings):
        return contextlib.closing(
            KeyedStateBackend.open(
                chosen,
                KeySpace(key_serializer_for([pa.string()]), KeyGroupRange(0, 0), 1),
                **settings,
            )
        )

    with open_() as opened:
        opened.open = open_
        yield opened


TIMES = EventTime("time")


def run(backend, rows, event_time=TIMES, function=None):
    operator = keyed_operator(
        LastSeen() if function is None else function,
        backend,
        OperatorSpec(
            key_columns=["key"],
            key_group_column="group",
            output=OUTPUT,
            epoch=1,
            event_time=event_time,
        ),
    )
    operator.open()
    keys, numbers, times = zip(*rows, strict=True)
    batch = pa.record_batch(
        {
            "key": pa.array(keys, pa.string()),
            "number": pa.array(numbers, pa.int64()),
            "time": pa.array(times, MS),
            "group": pa.array([0] * len(rows), pa.int32()),
        }
    )
    out = [tuple(row.values()) for made in operator.process(iter([batch])) for row in made.to_pylist()]
    return out, operator.largest_event_time


def test_a_function_gets_the_event_time_of_its_row_and_the_watermark(backend):
    out, largest = run(backend, [("a", 1, 5000), ("b", 2, None), ("a", 3, 4000)])
    assert out == [
        ("a", None, 5000, BEFORE_TIME),
        ("b", None, None, BEFORE_TIME),
        ("a", 1, 4000, BEFORE_TIME),
    ]
    assert largest == 5000


def test_without_a_time_column_no_row_has_an_event_time(backend):
    out, largest = run(backend, [("a", 1, 5000)], event_time=None)
    assert out == [("a", None, None, BEFORE_TIME)] and largest is None


def test_a_state_expires_by_the_watermark_after_its_row(backend):
    run(backend, [("a", 1, 5000), ("b", 2, 5050), ("c", 3, None)])
    backend.advance_watermark(5100)
    out, _ = run(backend, [("a", 4, 5100), ("b", 5, 5100)])
    assert [(key, before) for key, before, _, _ in out] == [("a", None), ("b", 2)]
    assert backend.num_entries() == 3, "what had no time lives from the first watermark on"
    backend.advance_watermark(5200)
    backend.end_epoch()
    assert backend.num_entries() == 0


def test_a_replay_expires_what_the_first_run_did(backend):
    rows = [("a", 1, 5000), ("b", 2, 5050), ("a", 3, 4990)]
    outputs = []
    for _ in range(2):
        with backend.open() as fresh:
            fresh.advance_watermark(4000)
            first = run(fresh, rows)
            fresh.advance_watermark(5090)
            outputs.append((first, run(fresh, rows), fresh.num_entries()))
    assert outputs[0] == outputs[1]


def test_a_state_in_event_time_is_refused_without_event_times(backend):
    with backend.open(event_time=False) as fresh:
        with pytest.raises(MissingEventTimeError, match=r"'seen'.*event_time=EventTime\('ts'"):
            run(fresh, [("a", 1, 5000)])
        assert fresh.metas() == []


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([1, None, -1], pa.timestamp("s")), [1000, None, -1000]),
        (pa.array([1500, -1], pa.timestamp("us", "UTC")), [1, -1]),
        (pa.array([1_999_999, -1], pa.timestamp("ns", "Asia/Tokyo")), [1, -1]),
        (pa.array([dt.date(1970, 1, 2), None]), [86_400_000, None]),
        (pa.array([dt.datetime(9999, 12, 31, 23, 59, 59, 999999)]), [253402300799999]),
        (pa.array([], MS), []),
    ],
)
def test_times_are_read_in_milliseconds_and_rounded_down(column, expected):
    assert is_event_time(column.type)
    assert event_times(column) == expected


def test_numbers_and_text_are_no_event_times():
    for arrow_type in (pa.int64(), pa.string(), pa.time64("us"), pa.duration("ms")):
        assert not is_event_time(arrow_type)
