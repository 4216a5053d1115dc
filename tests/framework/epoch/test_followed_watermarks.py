"""An operator that follows another one has that one's watermark in the same epoch, after its rows."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from keyedstate.checkpoint.format.manifest import TaskIdentity
from keyedstate.checkpoint.protocol.operator_folder import START_EMPTY, OperatorFolder
from keyedstate.checkpoint.protocol.recovery import drain
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.epoch.configuration import frozen
from keyedstate.epoch.epoch_start import EpochStart
from keyedstate.epoch.event_time import EventTimes, FollowedOperator, FollowedOperators
from keyedstate.epoch.function_transport import pack_function
from keyedstate.epoch.partition import Partition
from keyedstate.epoch.partition_plan import PartitionPlan, StateLocation
from keyedstate.errors import EventTimeError
from keyedstate.keygroups import KEY_GROUP_COLUMN
from keyedstate.options import Configuration
from keyedstate.runtime import KeyedProcessFunction
from keyedstate.runtime.output import OutputSchema
from keyedstate.savepoints import Savepoint
from keyedstate.time import EventTime

OUTPUT = pa.schema([("what", pa.string()), ("time", pa.int64()), ("watermark", pa.int64())])
ROWS = pa.schema([("key", pa.string()), ("at", pa.timestamp("ms")), (KEY_GROUP_COLUMN, pa.int32())])
#: No watermark is known.
UNKNOWN = -(2**63)


class Reporting(KeyedProcessFunction):
    """Reports rows and a timer at the time of each, with the watermark that they see."""

    def process(self, row: Any, ctx: Any) -> Iterator[tuple[Any, ...]]:
        late = ctx.timestamp <= ctx.watermark
        if not late:
            ctx.timer_service.register_event_time_timer(ctx.timestamp)
        yield "late" if late else "row", ctx.timestamp, ctx.watermark

    def on_timer(self, time: int, ctx: Any) -> Iterator[tuple[Any, ...]]:
        yield "timer", time, ctx.watermark


class Chain:
    """Operators of one query, each with one partition; those in `follows` follow another one."""

    def __init__(
        self,
        folder: Path,
        follows: Mapping[str, str],
        delay_ms: int = 0,
        settings: tuple[tuple[str, Any], ...] = frozen(Configuration({}, environ={})),
    ) -> None:
        self.folder = folder
        self.settings = settings
        self.query = "query"
        self.run_id = "run-1"
        self.plans: dict[str, PartitionPlan] = {}
        self._nonces = itertools.count()
        for uid, other in follows.items():
            if other not in self.plans:
                self.add(other, EventTime("at", delay=0))
            self.add(uid, EventTime("at", delay=delay_ms, follows=other))

    def add(self, uid: str, *event_times: EventTime) -> None:
        """Add an operator, or replace it by one with other event times."""
        followed: FollowedOperators = ()
        if any(each.follows for each in event_times):
            followed = tuple(self.followed(each.follows) if each.follows else None for each in event_times)
        self.plans[uid] = self.plan(uid, event_times, followed)

    def followed(self, uid: str) -> FollowedOperator:
        plan = self.plans[uid]
        return FollowedOperator(
            uid, str(self.folder), plan.settings, plan.max_parallelism, plan.event_times, plan.followed
        )

    def plan(self, uid: str, event_times: EventTimes, followed: FollowedOperators) -> PartitionPlan:
        return PartitionPlan(
            function=pack_function(Reporting()),
            function_name="Reporting",
            key_columns=(("key", "string"),),
            key_types=(pa.string(),),
            output=OutputSchema(OUTPUT),
            parallelism=1,
            max_parallelism=8,
            settings=self.settings,
            location=StateLocation(uid, str(self.folder), "zstd", True),
            event_times=event_times,
            followed=followed,
        )

    def start(self, uid: str, epoch: int) -> EpochStart:
        plan = self.plans[uid]
        nonce = f"{uid}-{next(self._nonces)}"
        identity = TaskIdentity(uid, self.query, self.run_id, epoch, 0, 1, plan.max_parallelism, 0, nonce)
        assert plan.location is not None
        return EpochStart.of(plan, plan.location, identity)

    def epoch(self, uid: str, epoch: int, *times: int) -> list[tuple[Any, ...]]:
        """Run an epoch over rows of these times, and return what it yields."""
        start = self.start(uid, epoch)
        rows = pa.record_batch(
            [pa.array(["a"] * len(times)), pa.array(times, pa.timestamp("ms")), pa.array([0] * len(times))],
            schema=None,
            names=ROWS.names,
        ).cast(ROWS)
        with contextlib.closing(Partition(self.plans[uid], start)) as partition:
            made = [
                tuple(row.values())
                for batch in partition.run(start, (), iter([rows]))
                for row in batch.to_pylist()
            ]
            partition.finish(start)
        return made


@pytest.fixture
def chain(tmp_path: Path) -> Chain:
    """The operator `second` follows `first`."""
    return Chain(tmp_path, {"second": "first"})


def test_the_watermark_arrives_in_its_epoch_after_the_rows(chain: Chain) -> None:
    chain.epoch("first", 0, 101)
    assert chain.epoch("second", 0, 50) == [("row", 50, UNKNOWN)]
    chain.epoch("first", 1, 201)
    assert chain.epoch("second", 1, 100, 101) == [
        ("row", 100, UNKNOWN),
        ("row", 101, UNKNOWN),
        ("timer", 50, 100),
        ("timer", 100, 100),
    ]


def test_a_row_behind_the_watermark_of_the_epoch_before_is_late(chain: Chain) -> None:
    for epoch, time in enumerate((101, 201, 301)):
        chain.epoch("first", epoch, time)
        if epoch < 2:
            assert chain.epoch("second", epoch) == []
    assert chain.epoch("second", 2, 100, 101) == [
        ("late", 100, 100),
        ("row", 101, 100),
        ("timer", 101, 200),
    ]


def test_a_repeated_epoch_has_the_same_watermark(chain: Chain) -> None:
    chain.epoch("first", 0, 101)
    chain.epoch("second", 0, 50)
    chain.epoch("first", 1, 201)
    once = chain.epoch("second", 1, 150)
    assert once == [("row", 150, UNKNOWN), ("timer", 50, 100)]
    chain.run_id = "run-2"
    chain.epoch("first", 1, 201)
    assert chain.epoch("second", 1, 150) == once
    # And the first operator may be ahead already.
    chain.epoch("first", 2, 301)
    assert chain.start("second", 2).watermark_after_rows == 200


def test_a_delay_holds_the_watermark_back(tmp_path: Path) -> None:
    chain = Chain(tmp_path, {"second": "first"}, delay_ms=30)
    chain.epoch("first", 0, 101)
    chain.epoch("second", 0, 70, 71)
    chain.epoch("first", 1)
    assert chain.epoch("second", 1) == [("timer", 70, 70)]


def test_the_watermark_of_the_first_operator_reaches_the_end_of_a_chain(tmp_path: Path) -> None:
    chain = Chain(tmp_path, {"second": "first", "third": "second"}, delay_ms=10)
    for uid, times in (("first", (101,)), ("second", ()), ("third", (80, 81))):
        chain.epoch(uid, 0, *times)
    for uid in ("first", "second"):
        chain.epoch(uid, 1)
    assert chain.epoch("third", 1) == [("timer", 80, 80)]


def test_the_watermark_does_not_go_back_where_an_operator_begins_to_follow(chain: Chain) -> None:
    following = chain.plans["second"]
    chain.add("second", EventTime("at", delay=0))
    chain.epoch("first", 0, 101)
    chain.epoch("second", 0, 501)
    chain.epoch("first", 1, 201)
    assert chain.epoch("second", 1, 600) == [("row", 600, 500)]
    chain.plans["second"] = following
    chain.epoch("first", 2, 701)
    assert chain.epoch("second", 2, 500) == [("late", 500, 500)]
    chain.epoch("first", 3)
    assert chain.epoch("second", 3) == [("timer", 501, 700), ("timer", 600, 700)]


def test_an_operator_that_is_new_in_a_query_has_the_watermark_at_once(chain: Chain) -> None:
    chain.epoch("first", 0, 101)
    chain.epoch("first", 1, 201)
    OperatorFolder(CheckpointStorage.open(str(chain.folder)), "second").storage.write_atomic(START_EMPTY, b"")
    assert chain.epoch("second", 1, 90, 150) == [
        ("row", 90, UNKNOWN),
        ("row", 150, UNKNOWN),
        ("timer", 90, 100),
    ]


def test_a_query_that_begins_from_a_savepoint_has_the_watermark_in_its_first_epoch(tmp_path: Path) -> None:
    before = Chain(tmp_path / "before", {"second": "first"})
    before.epoch("first", 0, 101)
    before.epoch("second", 0, 50)
    before.epoch("first", 1, 201)
    before.epoch("second", 1)
    for uid in before.plans:
        before.start(uid, 2)
    Savepoint.create(str(tmp_path / "savepoint"), str(before.folder))
    settings = frozen(Configuration({"restore.savepoint": str(tmp_path / "savepoint")}, environ={}))
    chain = Chain(tmp_path / "after", {"second": "first"}, settings=settings)
    chain.epoch("first", 0, 301)
    assert chain.epoch("second", 0, 150) == [("row", 150, 100), ("timer", 150, 200)]


def test_all_timers_fire_when_the_input_is_over_and_the_watermark_stays(chain: Chain) -> None:
    chain.epoch("first", 0, 101)
    chain.epoch("second", 0, 50, 900)
    chain.epoch("first", 1, 201)
    storage = CheckpointStorage.open(str(chain.folder))
    drain(OperatorFolder(storage, "second"), chain.run_id)
    assert [(what, time) for what, time, _ in chain.epoch("second", 1)] == [("timer", 50), ("timer", 900)]
    chain.epoch("first", 2, 301)
    assert chain.start("second", 2).watermark == 100


def test_connected_inputs_have_the_least_of_both_kinds_of_watermarks(tmp_path: Path) -> None:
    chain = Chain(tmp_path, {"second": "first"})
    following, own = EventTime("at", follows="first"), EventTime("at", delay=0)
    chain.add("both", following, following)
    chain.add("mixed", following, own)
    chain.epoch("first", 0, 101)
    chain.epoch("both", 0)
    chain.epoch("mixed", 0)
    chain.epoch("first", 1, 201)
    assert chain.start("both", 1).watermark_after_rows == 100
    assert chain.start("mixed", 1).watermark_after_rows is None, "the other input has had no row"


def test_an_operator_that_runs_in_another_query_cannot_be_followed(chain: Chain) -> None:
    refused = "'first', which does not run before 'second' in the same query; name the operator whose output"
    with pytest.raises(EventTimeError, match=refused):
        chain.start("second", 0)
    chain.query = "other"
    chain.epoch("first", 0, 101)
    chain.query = "query"
    with pytest.raises(EventTimeError, match=refused):
        chain.start("second", 0)


@pytest.mark.parametrize("given", [{"inputs": "device"}, {"idle": "5 minutes"}])
def test_inputs_and_idle_times_are_those_of_the_followed_operator(given: dict[str, str]) -> None:
    with pytest.raises(EventTimeError, match=f"leave {next(iter(given))}= out, or give it to that operator"):
        EventTime("at", follows="first", **given)
