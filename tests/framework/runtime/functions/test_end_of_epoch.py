"""`end_epoch` of per-record functions: once for each key of the epoch, after its rows and timers."""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import math
import weakref

import pyarrow as pa
import pytest
from support.backends import backend_of

import keyedstate as ks
from keyedstate import local
from keyedstate.errors import InvalidFunctionError, OutputRowError, OutputTypeError, UserFunctionError
from keyedstate.keygroups import KeyGroupRange
from keyedstate.murmur3 import key_groups
from keyedstate.runtime import key_runs
from keyedstate.runtime.grouping import key_serializer_for
from keyedstate.runtime.output import OutputSchema
from keyedstate.runtime.runners import OperatorSpec, keyed_operator
from keyedstate.runtime.runners import rows as row_runners
from keyedstate.runtime.timers import AtEnd
from keyedstate.state.clock import BEFORE_TIME, END_OF_TIME
from keyedstate.state.registry.chosen_backend import KeySpace
from keyedstate.state.registry.keyed_backend import KeyedStateBackend
from keyedstate.testing import Harness, Input
from keyedstate.types import VOID_NAMESPACE

SCHEMA, OUTPUT = "k string, n long", "k string, step string, n long"
NOON = dt.datetime(2026, 7, 1, 12, tzinfo=dt.timezone.utc)


class Balance(ks.KeyedProcessFunction):
    """Puts out its steps; each end of an epoch counts in the state."""

    n = ks.ValueState("n", ks.types.INT64, default=0)
    ends = ks.ValueState("ends", ks.types.INT64, default=0)

    def process(self, row, ctx):
        self.n.update(self.n.value() + row.n)
        if row.n < 0:
            ctx.timer_service.register_event_time_timer(ctx.timestamp + 1000)
        yield ctx.key, "row", row.n

    def on_timer(self, time, ctx):
        yield ctx.key, "timer", time

    def end_epoch(self, ctx):
        self.ends.update(self.ends.value() + 1)
        yield ctx.key, "end", self.n.value()


class WithoutTimers(ks.KeyedProcessFunction):
    n = ks.ValueState("n", ks.types.INT64, default=0)

    def process(self, row, ctx):
        self.n.update(self.n.value() + row.n)

    def end_epoch(self, ctx):
        return [(ctx.key, "end", self.n.value())]


def test_each_touched_key_ends_once_after_its_rows_and_timers(one_backend):
    with Harness(
        Balance(),
        key="k",
        schema="k string, n long, ts timestamp",
        output=OUTPUT,
        event_time=ks.EventTime("ts"),
        backend=one_backend,
    ) as harness:
        harness.process_all([("a", 1, NOON), ("b", -2, NOON), ("a", 3, NOON), ("c", 4, NOON)])
        assert harness.end_epoch() == [("a", "end", 4), ("b", "end", -2), ("c", "end", 4)]
        # First nothing is touched, then a timer touches its key.
        assert harness.end_epoch() == []
        due = int(NOON.timestamp() * 1000) + 1000
        assert harness.advance_watermark(NOON + dt.timedelta(seconds=1)) == [("b", "timer", due)]
        harness.process_all([("c", 1, NOON)])
        assert sorted(harness.end_epoch()) == [("b", "end", -2), ("c", "end", 5)]
        assert [harness.state(Balance.ends, key).value() for key in "abc"] == [1, 2, 2]


def test_the_end_of_an_epoch_may_register_a_timer_for_the_next(one_backend):
    class Later(WithoutTimers):
        def end_epoch(self, ctx):
            if ctx.timestamp is not None:
                ctx.timer_service.register_event_time_timer(ctx.timestamp - 1)
            yield ctx.key, "end", ctx.timestamp

        def on_timer(self, time, ctx):
            yield ctx.key, "timer", time

    now = int(NOON.timestamp() * 1000)
    time = ks.EventTime("ts", delay=0)
    columns = "k string, n long, ts timestamp"
    with Harness(
        Later(), key="k", schema=columns, output=OUTPUT, event_time=time, backend=one_backend
    ) as harness:
        harness.process_all([("a", 1, NOON), ("b", 1, NOON + dt.timedelta(seconds=1))])
        assert harness.end_epoch() == [("a", "end", now + 1000), ("b", "end", now + 1000)]
        # Their keys are touched by the timers only, in an epoch without event times.
        ended = harness.end_epoch()
        assert sorted(ended[:2]) == [("a", "timer", now + 999), ("b", "timer", now + 999)]
        assert sorted(ended[2:]) == [("a", "end", None), ("b", "end", None)]


def test_a_key_of_several_chunks_and_nan_end_once(one_backend, monkeypatch):
    monkeypatch.setattr(row_runners, "ROWS_AT_ONCE", 2)
    with Harness(
        WithoutTimers(), key="k", schema="k double, n long", output="k double, step string, n long"
    ) as harness:
        keys = [math.nan, 0.0, 1.0, -0.0, math.nan, None, 2.0]
        harness.process_all([(key, 1) for key in keys])
        harness.process_all([(key, 1) for key in keys])
        ended = harness.end_epoch()
        assert [(str(row.k), row.n) for row in ended] == [
            ("nan", 4),
            ("0.0", 4),
            ("1.0", 2),
            ("None", 2),
            ("2.0", 2),
        ]


@contextlib.contextmanager
def opened(function, event_time=None):
    """Open the operator of a task of Spark in an epoch, and give what makes its batches of rows."""
    space = KeySpace(key_serializer_for([pa.string()]), KeyGroupRange(0, 7), 8)
    output = pa.schema([("k", pa.string()), ("step", pa.string()), ("n", pa.int64())])
    with contextlib.closing(KeyedStateBackend.open(backend_of("heap-cow"), space)) as backend:
        spec = OperatorSpec(
            key_columns=["k"],
            key_group_column="group",
            output=OutputSchema(output),
            epoch=4,
            event_time=event_time,
        )
        operator = keyed_operator(function, backend, spec)
        operator.open()
        yield operator, backend


def batch_of(rows):
    columns = [pa.array(column) for column in zip(*rows, strict=True)]
    batch = pa.record_batch(columns, names=["k", "n", "ts"][: len(columns)])
    return batch.append_column("group", pa.array(key_groups([batch.column("k")], 8)))


def rows_of(batches):
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def run_whole(function, rows, *, at_end=AtEnd.EPOCH, event_time=None, watermark=None, watermark_after=None):
    """Return the output of a task that reads all rows of an epoch and ends it."""
    with opened(function, event_time) as (operator, backend):

        def advance(mark):
            if mark is not None:
                backend.advance_watermark(mark)
            yield from ()

        made = operator.process(iter([batch_of(rows)]), at_end, advance(watermark_after))
        return rows_of(itertools.chain(advance(watermark), made))


def test_keys_whose_rows_are_cut_into_chunks_end_once_and_in_their_order(monkeypatch):
    for module in (key_runs, row_runners):
        monkeypatch.setattr(module, "ROWS_AT_ONCE", 2)
    rows = [(key, 1) for key in "abacabdeb"]
    ended = [("a", "end", 3), ("b", "end", 3), ("c", "end", 1), ("d", "end", 1), ("e", "end", 1)]
    assert run_whole(WithoutTimers(), rows) == ended
    monkeypatch.setattr(row_runners, "GROUPED_ROWS", 4)
    assert run_whole(WithoutTimers(), rows) == ended


def test_the_epochs_of_keys_end_after_timers_that_their_rows_register():
    now = int(NOON.timestamp() * 1000)
    rows = [("a", -1, NOON), ("b", 2, NOON)] * 600
    made = run_whole(Balance(), rows, watermark=now + 1000, event_time=ks.EventTime("ts"))
    assert made[-3:] == [("a", "timer", now + 1000), ("a", "end", -600), ("b", "end", 1200)]


def test_the_epochs_of_keys_end_with_the_watermark_after_all_rows():
    class Watermark(WithoutTimers):
        def end_epoch(self, ctx):
            return [(ctx.key, "end", ctx.watermark)]

    rows = [("a", 1, NOON), ("b", 2, NOON)] * 600
    made = run_whole(Watermark(), rows, watermark=5, watermark_after=7, event_time=ks.EventTime("ts"))
    assert made == [("a", "end", 7), ("b", "end", 7)]


def test_large_rows_do_not_wait_for_many_others(monkeypatch):
    monkeypatch.setattr(key_runs, "ROWS_AT_ONCE", 2)
    monkeypatch.setattr(row_runners, "OUTPUT_BYTES", 1)  # batches leave as they are made

    class Text(WithoutTimers):
        def end_epoch(self, ctx):
            return [(ctx.key, "x" * 1000, 1)]

    with opened(Text()) as (operator, _):
        made = operator.process(iter([batch_of([(f"{number:04}", 1) for number in range(40)])]))
        sizes = [batch.num_rows for batch in made]
    assert sum(sizes) == 40 and max(sizes) <= 2 * row_runners.OUTPUT_CHUNKS


def test_keys_with_rows_before_the_last_ones_end_once():
    with opened(WithoutTimers()) as (operator, _):
        rows = [("a", 1), ("b", 1)] * 600
        assert rows_of(operator.process_rows(iter([batch_of(rows)]))) == []
        assert rows_of(operator.process(iter([batch_of(rows)]))) == [("a", "end", 1200), ("b", "end", 1200)]


def test_keys_end_once_and_after_the_timers_of_a_service_of_the_function():
    class Serviced(WithoutTimers):
        def open(self, ctx):
            self.service = ctx._timers.service("own", self)

        def process(self, row, ctx):
            self.service.register_processing_time_timer(VOID_NAMESPACE, 1)

        def on_processing_time(self, timer):
            return [(timer.key, "timer", timer.time)]

    made = run_whole(Serviced(), [("a", 1)] * 1200)
    assert made == [("a", "timer", 1), ("a", "end", 0)]


def test_rows_that_are_read_ahead_are_freed_before_the_epoch_ends(monkeypatch):
    monkeypatch.setattr(row_runners, "GROUPED_ROWS", 1)
    read = []

    def batches():
        for number in range(6):
            batch = batch_of([(f"{number}", 1)] * 1200)
            read.append(weakref.ref(batch))
            yield batch
            del batch
            assert sum(one() is not None for one in read) <= 2

    with opened(WithoutTimers()) as (operator, _):
        assert len(rows_of(operator.process(batches()))) == 6


def test_a_wrong_row_names_its_key_after_full_batches_of_earlier_keys(monkeypatch):
    monkeypatch.setattr(row_runners, "OUTPUT_BATCH_ROWS", 2)

    class Wrong(WithoutTimers):
        def process(self, row, ctx):
            return [(ctx.key, "row", "none" if ctx.key == "d" else 1)]

    with pytest.raises(OutputTypeError, match="key 'd'"):
        run_whole(Wrong(), [(key, 1) for key in "abcdefg"])


@pytest.mark.parametrize(("at_end", "mark"), [(AtEnd.EPOCH, BEFORE_TIME), (AtEnd.DRAINED, END_OF_TIME)])
def test_the_end_of_a_key_sees_the_watermark_of_the_end(at_end, mark):
    class Watermark(WithoutTimers):
        def end_epoch(self, ctx):
            return [(ctx.key, "end", ctx.watermark)]

    assert run_whole(Watermark(), [("a", 1), ("a", 1)] * 600, at_end=at_end) == [("a", "end", mark)]


def test_both_inputs_and_a_broadcast_side_end_the_epochs_of_keys(one_backend):
    class Both(ks.KeyedCoProcessFunction):
        n = ks.ValueState("n", ks.types.INT64, default=0)

        def process1(self, row, ctx):
            self.n.update(self.n.value() + row.n)

        def process2(self, row, ctx):
            self.n.update(self.n.value() - row.m)

        def end_epoch(self, ctx):
            yield ctx.key, "end", self.n.value()

    class Broadcast(ks.KeyedBroadcastProcessFunction):
        def process(self, row, ctx):
            pass

        def process_broadcast(self, row, ctx):
            pass

        def end_epoch(self, ctx):
            yield ctx.key, "end", 0

    with Harness(
        Both(),
        key="k",
        schema=SCHEMA,
        second=Input("k string, m long", "k"),
        output=OUTPUT,
        backend=one_backend,
    ) as harness:
        harness.process1_all([("a", 5), ("b", 1)])
        harness.process2_all([("a", 2), ("c", 3)])
        assert harness.end_epoch() == [("a", "end", 3), ("b", "end", 1), ("c", "end", -3)]
    with Harness(
        Broadcast(), key="k", schema=SCHEMA, output=OUTPUT, broadcast="rule string", backend=one_backend
    ) as harness:
        harness.process_broadcast(("only rows with a key count",))
        harness.process(("a", 1))
        assert harness.end_epoch() == [("a", "end", 0)]


def test_a_local_run_ends_epochs_of_keys_at_its_checkpoints(one_backend, tmp_path):
    rows = [{"k": "ab"[n % 2], "n": n} for n in range(4)]

    def run(**options):
        config = {"checkpoint.dir": str(tmp_path), "backend": one_backend}
        keyed = local.keyed(rows, "k", config=config, **options)
        return keyed.process(WithoutTimers(), OUTPUT).to_table().to_pylist()

    ended = [{"k": "a", "step": "end", "n": 2}, {"k": "b", "step": "end", "n": 4}]
    assert sorted(run(), key=lambda row: row["k"]) == ended
    assert sorted(run(uid="u"), key=lambda row: row["k"]) == ended


def test_mistakes_in_the_end_of_an_epoch_are_named(one_backend):
    class WithoutContext(WithoutTimers):
        def end_epoch(self):
            pass

    class Failing(WithoutTimers):
        def end_epoch(self, ctx):
            raise RuntimeError("no end")

    class OneRow(WithoutTimers):
        def end_epoch(self, ctx):
            return (ctx.key, "end", 1)

    class Wrong(WithoutTimers):
        def end_epoch(self, ctx):
            yield (ctx.key, "end")

    def end(function):
        with Harness(function, key="k", schema=SCHEMA, output=OUTPUT, backend=one_backend) as harness:
            harness.process_all([("a", 1), ("b", 1)])
            harness.end_epoch()

    with pytest.raises(InvalidFunctionError, match=r"define end_epoch\(self, ctx\)"):
        end(WithoutContext())
    with pytest.raises(UserFunctionError, match=r"no end(.|\n)*end_epoch\(\) for the key 'a'"):
        end(Failing())
    with pytest.raises(UserFunctionError, match=r"end_epoch\(\) must yield its rows"):
        end(OneRow())
    with pytest.raises(OutputRowError, match="'a'"):
        end(Wrong())
