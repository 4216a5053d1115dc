"""Checkpoints of chains of operators of which each has its own tasks: guarantees, rescaling, failures."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.framework.local.functions import (
    COUNTS,
    MODES,
    Channels,
    Count,
    Stamped,
    events,
    minute,
    plain,
    tasks,
)

from keyedstate.aggregates import count
from keyedstate.checkpoint.format.manifest import CheckpointMetadata
from keyedstate.checkpoint.protocol.operator_folder import OperatorFolder
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.errors import CheckpointTimeoutError, SubtaskFailedError
from keyedstate.local import ResultStream, keyed
from keyedstate.runtime import (
    KeyedProcessFunction,
)
from keyedstate.state import ValueState
from keyedstate.time import EventTime
from keyedstate.types import INT64, PickledSerializer
from keyedstate.windows import Tumbling

# -- checkpoints --------------------------------------------------------------------------------------------


def _numbered(source: Any, config: dict[str, object], parallelism: tuple[int, int]) -> ResultStream:
    """Count the rows of each user, and then the users that have had so many."""
    first, second = (tasks(number, config) for number in parallelism)
    counts = keyed(source, "user", uid="first", config=first).process(Count(), COUNTS)
    return keyed(counts, "n", uid="second", config=second).process(Count(), "n long, users long")


def _users_by_count(users: list[str]) -> Counter[tuple[int, int]]:
    """Return the rows that `_numbered` yields."""
    having = Counter(n for total in Counter(users).values() for n in range(1, total + 1))
    return Counter((n, number) for n, total in having.items() for number in range(1, total + 1))


@pytest.mark.long
@pytest.mark.slow
def test_each_operator_may_have_another_number_of_tasks_in_each_run(config):
    """CP-19."""
    batches: list[pa.Table] = []
    users: list[str] = []
    for parallelism in ((2, 3), (1, 1), (3, 1), (1, 2)):
        added = [f"u{number * parallelism[0] % 17}" for number in range(60)]
        batches.append(events(added))
        before = _users_by_count(users)
        users += added
        found = plain(_numbered(Channels(batches), config, parallelism))
        assert Counter(found) == _users_by_count(users) - before


class Unequal(Stamped):
    """Takes longer for some keys, so that one task is behind the others."""

    def process(self, row, ctx):
        if ctx.key == "u0":
            time.sleep(0.02)
        yield from super().process(row, ctx)


@pytest.mark.slow
@pytest.mark.long
def test_time_continues_in_an_operator_over_another_one_with_any_number_of_tasks(config):
    """No row of a task that is behind the others is late in a later run."""
    by_minute = EventTime("ts", delay="0 s")
    batches: list[pa.Table] = []
    found: Counter[Any] = Counter()
    for run, parallelism in enumerate([(2, 2), (1, 1), (3, 1), (2, 1)]):
        begin = 100 * run
        users = [f"u{number % 9}" for number in range(10)]
        batches += [events(users, range(minute_, minute_ + 10)) for minute_ in range(begin, begin + 100, 10)]
        first, second = (tasks(number, config) for number in parallelism)
        by_user = keyed(Channels(batches), "user", uid="a", config=first, event_time=by_minute)
        stamped = by_user.process(Unequal(), "user string, n long, ts timestamp")
        windows = keyed(stamped, "user", uid="b", config=second, event_time=by_minute).window(
            Tumbling.of("5 minutes")
        )
        rows = windows.aggregate(rows=count())
        for window in rows.drain() if run == 3 else rows:
            found[window.user] += window.rows
    assert found == Counter(user for batch in batches for user in batch["user"].to_pylist())


class KillsItself(Count):
    """Counts, and kills its process once when a key has had so many rows."""

    def __init__(self, killed: Path) -> None:
        self._killed = killed

    def process(self, row, ctx):
        for key, n in super().process(row, ctx):
            if n == 40 and not self._killed.exists():
                self._killed.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield key, n


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("killed", [pytest.param("first", marks=pytest.mark.long), "second"])
def test_rows_count_once_in_all_operators_after_a_task_of_one_was_killed(
    tmp_path, config, caplog, mode, killed
):
    """BAR-01, BAR-02, BAR-03; with at-least-once none is lost."""
    config |= {"checkpoint.mode": mode, "checkpoint.interval": 20}
    users = [f"u{number % 50}" for number in range(2500)]
    rows = events(users)
    batches = Channels([rows.slice(start, 10) for start in range(0, 2500, 10)])
    functions: dict[str, Count] = {
        "first": Count(),
        "second": Count(),
        killed: KillsItself(tmp_path / "killed"),
    }
    counts = keyed(batches, "user", uid="first", config=tasks(2, config)).process(functions["first"], COUNTS)
    by_count = keyed(counts, "n", uid="second", config=tasks(2, config))
    by_count.process(functions["second"], "n long, users long").write_parquet(tmp_path / "out")
    assert f"of {killed!r} failed: its process was killed by signal 9. The run continues" in caplog.text
    found = Counter(tuple(row.values()) for row in pq.read_table(tmp_path / "out").to_pylist())
    expected = _users_by_count(users)
    if mode == "at-least-once":
        assert not expected - found
    else:
        assert found == expected


class Slower(Count):
    """Counts, and takes long for it while a file exists."""

    def __init__(self, slow: Path) -> None:
        self._slow = slow

    def process(self, row, ctx):
        if self._slow.exists():
            time.sleep(0.01)
        yield from super().process(row, ctx)


class Endless(Channels):
    """A channel that does not end while a file exists, so that there are as many checkpoints as it takes."""

    def __init__(self, slow: Path) -> None:
        self._slow = slow
        self._batches = [_five_users(0)]
        super().__init__(self._batches)

    def channels(self):
        (channel,) = super().channels()
        read = channel.read

        def paced():
            time.sleep(0.002)
            number = len(self._batches)
            if channel.offset() == number and (self._slow.exists() or number < 200):
                self._batches.append(_five_users(number))
            return read()

        channel.read = paced
        return [channel]

    def users(self) -> list[str]:
        return pa.concat_tables(self._batches)["user"].to_pylist()


def _five_users(number: int) -> pa.Table:
    return events([f"u{row % 50}" for row in range(5 * number, 5 * number + 5)])


class Failed(Exception):
    """The program has failed."""


@pytest.mark.slow
@pytest.mark.parametrize("tasks_later", [1, pytest.param(3, marks=pytest.mark.long)])
def test_rows_between_two_operators_are_part_of_an_unaligned_checkpoint(tmp_path, config, tasks_later):
    """BAR-03: the checkpoint does not wait until the second operator has processed them."""
    config |= {"checkpoint.mode": "unaligned", "checkpoint.interval": 20}
    slow = tmp_path / "slow"
    slow.touch()
    batches = Endless(slow)
    found: dict[int, Counter[tuple[int, int]]] = {}

    def run(number: int) -> None:
        by_user = keyed(batches, "user", uid="first", config=tasks(2, config))
        by_count = keyed(by_user.process(Count(), COUNTS), "n", uid="second", config=tasks(number, config))
        by_count.process(Slower(slow), "n long, users long").for_each(note)

    def note(table: pa.Table, epoch: int) -> None:
        found[epoch] = Counter(zip(*table.to_pydict().values(), strict=True))
        if epoch and slow.exists():
            parts = _checkpoint(config, "second", epoch - 1).parts
            if any(part.operator_state is not None for part in parts):
                # Rows were in flight.
                slow.unlink()
                raise Failed

    with pytest.raises(Failed):
        run(2)
    run(tasks_later)
    assert sum(found.values(), Counter()) == _users_by_count(batches.users())


def _checkpoint(config: dict[str, object], uid: str, epoch: int) -> CheckpointMetadata:
    metadata = OperatorFolder(CheckpointStorage.open(config["checkpoint.dir"]), uid).read_metadata(epoch)
    assert metadata is not None
    return metadata


class Announcing(Channels):
    """Two batches, and then none for ever; a barrier comes behind the second while that is processed."""

    def __init__(self, marks: Path) -> None:
        super().__init__([events("a", [0]), events("a", [7])])
        self._marks = marks

    def channels(self):
        (channel,) = super().channels()
        read, offset = channel.read, channel.offset
        nothing = pa.RecordBatch.from_pylist([], schema=self.schema)

        def noted():
            if offset() == 2:
                _wait_for(self._marks / "processing")
                (self._marks / "announced").touch()
            return offset()

        channel.read, channel.offset = lambda: read() or nothing, noted
        return [channel]


class BehindBarrier(KeyedProcessFunction):
    """Yields the second row of a key after a barrier that overtakes it."""

    n = ValueState("n", INT64, default=0)

    def __init__(self, marks: Path) -> None:
        self._marks = marks

    def process(self, row, ctx):
        self.n.update(self.n.value() + 1)
        if self.n.value() == 2:
            (self._marks / "processing").touch()
            _wait_for(self._marks / "announced")
        yield ctx.key, row.ts


def test_an_unaligned_checkpoint_has_the_event_times_of_rows_between_operators(tmp_path, config):
    """BAR-03: they were yielded behind the barrier that was announced to the second operator."""
    config |= {"checkpoint.mode": "unaligned", "checkpoint.interval": 20}
    times = []

    def note(table: pa.Table, epoch: int) -> None:
        if epoch and _checkpoint(config, "first", epoch - 1).positions["1"]["0"]["offset"] == 2:
            positions = _checkpoint(config, "second", epoch - 1).positions
            times.append(positions["1"]["upstream"]["event_times"])
            raise Failed

    by_minute = EventTime("ts", delay="0 s")
    late = keyed(Announcing(tmp_path), "user", uid="first", config=tasks(1, config), event_time=by_minute)
    stamped = late.process(BehindBarrier(tmp_path), "user string, ts timestamp")
    second = keyed(stamped, "user", uid="second", config=tasks(2, config), event_time=by_minute)
    with pytest.raises(Failed):
        second.process(Count(), COUNTS).for_each(note)
    assert times == [{"": int(minute(7).timestamp() * 1000)}]


class Held:
    """A value of a state that is not written before a file exists."""

    #: Set when the value is in the state: then the next who pickles it writes a checkpoint.
    marks: ClassVar[Path | None] = None

    def __reduce__(self):
        if self.marks is not None:
            (self.marks / "writing").touch()
            _wait_for(self.marks / "written")
        return Held, ()


class WritesLong(KeyedProcessFunction):
    """Writes the state of one task only after the other one has processed all rows before its barrier."""

    held = ValueState("held", PickledSerializer())
    n = ValueState("n", INT64, default=0)

    def __init__(self, marks: Path) -> None:
        self._marks = marks

    def process(self, row, ctx):
        if ctx.key == "x":
            self.held.update(Held())
            Held.marks = self._marks
        else:
            if not self.n.value():
                _wait_for(self._marks / "writing")
            self.n.update(self.n.value() + 1)
            if self.n.value() == int((self._marks / "before").read_text()):
                (self._marks / "written").touch()
        yield ctx.key, row.ts


class NotesBarrier(Channels):
    """Notes how many rows of the key "k" are before the first barrier."""

    def __init__(self, marks: Path, *channels: Sequence[pa.Table]) -> None:
        super().__init__(*channels)
        self._before = marks / "before"

    def channels(self):
        channels = super().channels()
        first, *_ = channels
        offset = first.offset

        def noted():
            # The run asks the channels for their offsets when it sends the barrier.
            if not self._before.exists():
                self._before.write_text(str(offset() - 1 + sum(each.offset() for each in channels[1:])))
            return offset()

        first.offset = noted
        return channels


def _wait_for(mark: Path) -> None:
    until = time.monotonic() + 600
    while not mark.exists():
        assert time.monotonic() < until, mark
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.long
def test_many_watermarks_behind_a_barrier_do_not_stop_a_checkpoint(tmp_path, config):
    """The channel of the task that still writes is full of them, and is read again in the next epoch."""
    config |= {"checkpoint.interval": "2 s", "checkpoint.timeout": "5 minutes"}
    channels = [[events("k", [3 * n + channel]) for n in range(200)] for channel in range(3)]
    channels[0].insert(0, events("x", [10_000]))
    rows = keyed(NotesBarrier(tmp_path, *channels), "user", uid="first", config=tasks(2, config))
    passed = rows.process(WritesLong(tmp_path), "user string, ts timestamp")
    late = EventTime("ts", delay="20000 minutes")
    counted = keyed(passed, "user", uid="second", config=tasks(2, config), event_time=late)
    assert plain(counted.process(Count(), COUNTS)) == [("k", n + 1) for n in range(600)] + [("x", 1)]


class Gone(Count):
    """Kills its process at each row."""

    def process(self, row, ctx):
        os.kill(os.getpid(), signal.SIGKILL)
        yield ctx.key, 0


def test_a_chain_over_rows_that_can_be_read_once_does_not_start_again(config):
    rows = ({"user": user} for user in "ab")
    counts = keyed(rows, "user", uid="a", config=config).process(Count(), COUNTS)
    gone = keyed(counts, "user", uid="b", config=tasks(2, config)).process(Gone(), COUNTS)
    with pytest.raises(SubtaskFailedError, match="was killed by signal 9") as raised:
        gone.to_table()
    assert raised.value.operator == "b"


# -- the timeout --------------------------------------------------------------------------------------------


class Stuck(Count):
    """Counts, and is stuck at a row while a file exists."""

    def __init__(self, stuck: Path) -> None:
        self._stuck = stuck

    def process(self, row, ctx):
        while ctx.key == 7 and self._stuck.exists():
            time.sleep(0.01)
        yield from super().process(row, ctx)


@pytest.mark.long
@pytest.mark.slow
def test_a_checkpoint_that_a_stuck_task_does_not_finish_in_time_ends_the_run(tmp_path, config):
    """CP-11: nothing of it is visible, and the next run continues from the checkpoint before."""
    users = [f"u{number % 3}" for number in range(90)]

    def rows() -> Iterator[pa.Table]:
        for start in range(0, 90, 3):
            yield events(users[start : start + 3])

    stuck = tmp_path / "stuck"
    stuck.touch()

    def run() -> None:
        counts = keyed(Channels(list(rows())), "user", uid="a", config=tasks(2, config)).process(
            Count(), COUNTS
        )
        by_count = keyed(counts, "n", uid="b", config=tasks(2, config))
        by_count.process(Stuck(stuck), "n long, users long").write_parquet(tmp_path / "out")

    # All other tasks finish within it, however slow the machine is.
    config["checkpoint.timeout"] = "15 s"
    with pytest.raises(CheckpointTimeoutError, match=r"'b', these have not finished .*unaligned") as raised:
        run()
    assert (raised.value.parallelism, raised.value.timeout_ms) == (2, 15_000)
    assert len(raised.value.subtasks) == 1
    assert raised.value.epoch >= 1
    assert not {row["n"] for row in pq.read_table(tmp_path / "out").to_pylist()} & {7}
    stuck.unlink()
    del config["checkpoint.timeout"]
    run()
    found = Counter(tuple(row.values()) for row in pq.read_table(tmp_path / "out").to_pylist())
    assert found == _users_by_count(users)
