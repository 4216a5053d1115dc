"""Runs with several subtasks, which are processes: results, guarantees, rescaling, failures."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.framework.local.channels_program import ROWS, counted
from tests.framework.local.functions import (
    COUNTS,
    Channels,
    Count,
    Matched,
    Rated,
    Silence,
    events,
    minute,
    plain,
)

from keyedstate.aggregates import count
from keyedstate.checkpoint.format.manifest import TaskIdentity
from keyedstate.epoch.epoch_start import EpochStart
from keyedstate.epoch.partition import Partition
from keyedstate.errors import RowsInFlightError, SubtaskFailedError, UserFunctionError
from keyedstate.local import ResultStream, connect, keyed
from keyedstate.local.parallel import job
from keyedstate.local.parallel.fork_server import ForkServer
from keyedstate.runtime import KeyedProcessFunction
from keyedstate.savepoints import Savepoint
from keyedstate.state import ValueState
from keyedstate.time import EventTime
from keyedstate.types import INT64
from keyedstate.windows import Tumbling

ROOT = Path(__file__).parents[3]
BY_MINUTE = EventTime("ts", delay="0 s")
TWO: dict[str, object] = {"parallelism": 2}


@pytest.mark.parametrize("parallelism", [2, 3])
@pytest.mark.slow
def test_several_tasks_count_the_rows_of_each_key_as_one_does(parallelism):
    users = [chr(ord("a") + number * number % 26) for number in range(500)]
    rows = Channels([events(users)] * 3, [events(users[:100])])
    counted = keyed(rows, "user", config={"parallelism": parallelism}).process(Count(), COUNTS)
    found = counted.to_table().to_pydict()
    expected = Counter(users * 3 + users[:100])
    assert Counter(found["user"]) == expected
    for user in expected:
        of_user = [n for name, n in zip(found["user"], found["n"], strict=True) if name == user]
        assert of_user == list(range(1, expected[user] + 1)), "in the order in which they were counted"


def test_broadcast_rows_reach_every_task():
    rates = [{"currency": "eur", "rate": 2.0}, {"currency": "usd", "rate": 1.5}]
    payments = [{"user": f"u{n}", "amount": 10.0 + n, "currency": "eur"} for n in range(50)]
    rated = keyed(payments, "user", config=TWO).broadcast(rates).process(Rated(), "user string, v double")
    assert plain(rated) == sorted((row["user"], 2.0 * row["amount"]) for row in payments)


@pytest.mark.long
def test_two_connected_inputs_meet_in_the_task_of_their_key():
    orders = [{"order": f"o{n}", "item": f"item {n}"} for n in range(30)]
    payments = [{"order": f"o{n}", "amount": n} for n in reversed(range(30))]
    connected = connect(keyed(orders, "order"), keyed(payments, "order"), config=TWO)
    matched = connected.process(Matched(), "order string, item string, amount long")
    assert plain(matched) == sorted((f"o{n}", f"item {n}", n) for n in range(30))


def test_the_watermark_is_that_of_the_slowest_channel(config):
    """WM-03: no row is late because another channel is ahead, and windows close across channels."""
    ahead = [events("ab" * 5, range(n, n + 10)) for n in range(0, 100, 10)]
    behind = [events("ab", [n, n]) for n in range(0, 100, 5)]
    stream = keyed(Channels(ahead, behind), "user", uid="w", config=config | TWO, event_time=BY_MINUTE)
    windows = stream.window(Tumbling.of("20 minutes")).aggregate(n=count())
    found = windows.drain().to_table().to_pydict()
    assert sum(found["n"]) == 100 + 40
    assert sorted(set(found["window_start"])) == [minute(n) for n in range(0, 100, 20)]
    assert found["n"] == [14] * 10


@pytest.mark.long
def test_timers_fire_in_the_task_of_their_key(config):
    rows = Channels([events("abc", [0, 0, 0])], [events("abcd", [10, 20, 30, 40])])
    stream = keyed(rows, "user", uid="silence", config=config | TWO, event_time=BY_MINUTE)
    fired = plain(stream.process(Silence(), "user string, at long"))
    assert {user for user, _ in fired} >= {"a", "b", "c"}


class Leaving(KeyedProcessFunction):
    """Leaves a task for the end of its process, and a thread that ends later than it does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(self, ctx):
        atexit.register((self.folder / f"exit-{os.getpid()}").touch)

    def process(self, row, ctx):
        yield ctx.key, os.getpid()

    def close(self):
        late = (self.folder / f"thread-{os.getpid()}").touch
        threading.Timer(0.3, late).start()


def test_the_process_of_a_task_ends_as_python_does(tmp_path: Path):
    rows = keyed(events("abcdef"), "user", config=TWO).process(Leaving(tmp_path), COUNTS)
    tasks = set(rows.to_table()["n"].to_pylist())
    assert len(tasks) == 2
    expected = {f"{what}-{task}" for what in ("exit", "thread") for task in tasks}
    assert {path.name for path in tmp_path.iterdir()} == expected


def test_the_tasks_and_their_mode_are_explained(config):
    text = keyed(events("a"), "user", uid="c", config=config | TWO).process(Count(), COUNTS).explain()
    assert "tasks: 2" in text
    assert "mode: exactly-once" in text


@pytest.mark.slow
@pytest.mark.long
def test_each_run_may_have_another_number_of_tasks(config):
    """CP-19: a later run restores the state of other key groups, and continues behind the rows read."""
    expected: Counter[str] = Counter()
    batches: list[pa.Table] = []
    for parallelism in (2, 3, 1, 4):
        users = [f"u{number * parallelism % 17}" for number in range(100)]
        batches.append(events(users))
        expected.update(users)
        rows = keyed(Channels(batches), "user", uid="c", config=config | {"parallelism": parallelism})
        found = rows.process(Count(), COUNTS).to_table().to_pydict()
        assert Counter(found["user"]) == Counter(users)
        latest = dict(zip(found["user"], found["n"], strict=True))
        assert latest.items() <= expected.items()


# -- guarantees ---------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "tasks_later"),
    [
        ("exactly-once", 2),
        pytest.param("at-least-once", 2, marks=pytest.mark.long),
        pytest.param("unaligned", 2, marks=pytest.mark.long),
        ("unaligned", 3),
        pytest.param("unaligned", 1, marks=pytest.mark.long),
        pytest.param("unaligned after 50 ms", 2, marks=pytest.mark.long),
    ],
)
def test_rows_behind_the_barrier_of_a_fast_channel_count_once_or_twice_after_a_kill(
    tmp_path: Path, mode: str, tasks_later: int
):
    """BAR-01, BAR-02, BAR-03, BAR-04."""
    first = _program(tmp_path, mode, 2)
    assert first.returncode == -signal.SIGKILL
    if mode == "unaligned":
        _check_that_spark_cannot_begin_here(tmp_path)
    second = _program(tmp_path, mode, tasks_later)
    assert second.returncode == 0, second.stderr
    out = pq.read_table(tmp_path / "out").to_pydict()
    counts = {
        channel: sorted(n for name, n in zip(out["channel"], out["n"], strict=True) if name == channel)
        for channel in ("fast", "slow")
    }
    assert counts["slow"] == list(range(1, ROWS + 1))
    if mode == "at-least-once":
        assert max(counts["fast"]) > ROWS
        assert set(counts["fast"]) >= set(range(1, ROWS + 1)), "none is lost"
    else:
        assert counts["fast"] == list(range(1, ROWS + 1))


def _check_that_spark_cannot_begin_here(folder: Path) -> None:
    """Begin an epoch as a task on Spark does: it has no way to process rows in flight."""
    partitions = counted(folder, "unaligned", 1).plan.partitions
    assert partitions.location is not None
    identity = TaskIdentity("counts", "query", "run", 0, 0, 1, partitions.max_parallelism, 0, "nonce")
    savepoint = folder / "savepoint"
    Savepoint.create(str(savepoint), str(folder / "checkpoints"))
    settings = {**dict(partitions.settings), "restore.savepoint": str(savepoint)}
    plan = replace(
        partitions,
        settings=tuple(settings.items()),
        location=replace(partitions.location, directory=str(folder / "spark")),
    )
    start = EpochStart.of(plan, plan.location, identity)
    partition = Partition(plan, start)
    with pytest.raises(RowsInFlightError, match="Run it there until its end"):
        list(partition.run(start, [], iter(())))
    partition.close()


def _program(folder: Path, mode: str, parallelism: int) -> subprocess.CompletedProcess[str]:
    program = "tests.framework.local.channels_program"
    command = [sys.executable, "-m", program, str(folder), mode, str(parallelism)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)


# -- failures -----------------------------------------------------------------------------------------------


class Failing(KeyedProcessFunction):
    """Refuses one key."""

    def process(self, row, ctx):
        if ctx.key == "bad":
            raise ValueError(f"no {ctx.key} rows")
        yield ctx.key, 1


def test_an_error_of_the_function_is_raised_as_in_one_process():
    failing = keyed(events(["a", "b", "bad"]), "user", config=TWO).process(Failing(), COUNTS)
    with pytest.raises(UserFunctionError, match="ValueError: no bad rows") as raised:
        failing.to_table()
    assert raised.value.key == "bad"
    assert "test_parallel.py" in str(raised.value.__cause__), "the traceback of the task"


class Stubborn(KeyedProcessFunction):
    """Ends its process."""

    def process(self, row, ctx):
        os._exit(3)
        yield


def test_a_task_that_ends_is_an_error_that_names_it():
    rows = keyed(events("a"), "user", config=TWO).process(Stubborn(), COUNTS)
    with pytest.raises(SubtaskFailedError, match=r"ended with exit code 3\..*with a uid") as raised:
        rows.to_table()
    assert raised.value.subtask in (0, 1)


class KillsItsTask(KeyedProcessFunction):
    """Counts rows, and kills its process at the row 300 as often as its argument says."""

    n = ValueState("n", INT64, default=0)

    def __init__(self, folder: Path, times: int) -> None:
        self._folder = folder
        self._times = times

    def process(self, row, ctx):
        if row.v == 300 and len(list(self._folder.glob("killed-*"))) < self._times:
            (self._folder / f"killed-{os.getpid()}").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        self.n.update(self.n.value() + 1)
        yield ctx.key, self.n.value()


def _killed_rows(config: dict[str, object], folder: Path, times: int) -> ResultStream:
    rows = events([f"u{number % 7}" for number in range(500)])
    batches = Channels([rows.slice(start, 10) for start in range(0, 500, 10)])
    stream = keyed(batches, "user", uid="killed", config={**config, **TWO})
    return stream.process(KillsItsTask(folder, times), COUNTS)


def test_a_killed_task_starts_again_from_the_last_checkpoint(tmp_path, config, caplog):
    _killed_rows(config, tmp_path, 1).write_parquet(tmp_path / "out")
    assert "was killed by signal 9. The run continues from its last checkpoint." in caplog.text
    found = Counter(tuple(row.values()) for row in pq.read_table(tmp_path / "out").to_pylist())
    assert found == Counter((f"u{number % 7}", number // 7 + 1) for number in range(500))


@pytest.mark.long
def test_a_task_that_is_killed_again_before_the_next_checkpoint_ends_the_run(tmp_path, config):
    config["checkpoint.interval"] = "1 hour"
    with pytest.raises(SubtaskFailedError, match="was killed by signal 9"):
        _killed_rows(config, tmp_path, 2).to_table()
    found = plain(_killed_rows(config, tmp_path, 2))
    assert found == sorted((f"u{number % 7}", number // 7 + 1) for number in range(500))


class KilledServer(ForkServer):
    """A fork server that is killed once, when it has started so many tasks."""

    def __init__(self, folder: Path, after: int) -> None:
        super().__init__()
        self._mark = folder / "killed"
        self._left = after

    def start(self, descriptors):
        if not self._left and not self._mark.exists():
            self._mark.touch()
            self._process.kill()
            self._process.wait()
        self._left -= 1
        return super().start(descriptors)


@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.slow
def test_a_run_whose_fork_server_is_killed_while_tasks_start_begins_again(
    tmp_path, config, caplog, monkeypatch, after
):
    monkeypatch.setattr(job, "ForkServer", partial(KilledServer, tmp_path, after))
    found = plain(_killed_rows(config, tmp_path, 0))
    assert f"subtask {after} of 'killed' failed: the process that starts subtasks has ended." in caplog.text
    assert found == sorted((f"u{number % 7}", number // 7 + 1) for number in range(500))


def test_a_killed_fork_server_ends_a_run_without_state(tmp_path, monkeypatch):
    monkeypatch.setattr(job, "ForkServer", partial(KilledServer, tmp_path, 0))
    with pytest.raises(SubtaskFailedError, match="the process that starts subtasks has ended"):
        keyed(events("a"), "user", config=TWO).process(Count(), COUNTS).to_table()


class Later(KeyedProcessFunction):
    """Sets a timer for a fixed minute, and takes a while for each row of one key."""

    def process(self, row, ctx):
        if ctx.key == "k":
            time.sleep(0.02)
            ctx.timer_service.register_event_time_timer(int(minute(122).timestamp() * 1000))
        yield from ()

    def on_timer(self, time, ctx):
        yield ctx.key, 122


@pytest.mark.long
def test_timers_fire_where_a_task_processes_the_channel_last_that_ended_first(config):
    """The last watermark is only in the channel that ended last."""
    early = [events("k", [n]) for n in range(20)]
    late = [events("x", [100 + n]) for n in range(25)]
    stream = keyed(
        Channels(early, late),
        "user",
        uid="late",
        config={**config, **TWO, "checkpoint.interval": "1 hour"},
        event_time=BY_MINUTE,
    )
    assert plain(stream.process(Later(), "user string, minute long")) == [("k", 122)]


class KilledOnce(Count):
    """Kills its process once: in `close`, or when the state is released behind it."""

    def __init__(self, marker: Path, *, in_close: bool) -> None:
        self._marker = marker
        self._in_close = in_close

    def open(self, ctx):
        if not self._in_close:
            Partition.close = lambda partition: self._kill()

    def close(self):
        if self._in_close:
            self._kill()

    def _kill(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._marker.unlink()
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    ("in_close", "logged"),
    [(True, "continues from its last checkpoint"), (False, "failed after the last checkpoint: its process")],
)
@pytest.mark.slow
def test_a_task_that_is_killed_at_its_end_loses_no_row(tmp_path, config, caplog, in_close, logged):
    marker = tmp_path / "marker"
    marker.touch()
    stream = keyed(events("a"), "user", uid="counts", config={**config, "parallelism": 2})
    found = stream.process(KilledOnce(marker, in_close=in_close), COUNTS).to_table()
    assert not marker.exists()
    assert found.to_pylist() == [{"user": "a", "n": 1}]
    assert logged in caplog.text


class FailsToClose(Count):
    """Cannot be closed while a file exists."""

    def __init__(self, marker: Path) -> None:
        self._marker = marker

    def close(self):
        if self._marker.exists():
            raise OSError("the connection is gone")


@pytest.mark.parametrize("tasks", [1, 2])
@pytest.mark.slow
def test_an_error_while_closing_leaves_all_rows_to_the_next_run(tmp_path, config, tasks):
    marker = tmp_path / "marker"
    marker.touch()
    stream = keyed(events("aba"), "user", uid="counts", config={**config, "parallelism": tasks})
    counts = stream.process(FailsToClose(marker), COUNTS)
    with pytest.raises(UserFunctionError, match=r"the connection is gone.* in FailsToClose\.close\(\)"):
        counts.to_table()
    marker.unlink()
    assert sorted(plain(counts)) == [("a", 1), ("a", 2), ("b", 1)]
    assert plain(counts) == []


class RatedUntilKilled(Rated):
    """Kills its process once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def process(self, row, ctx):
        if not list(self._folder.glob("killed-*")):
            (self._folder / f"killed-{os.getpid()}").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        yield from super().process(row, ctx)


@pytest.mark.long
def test_a_run_with_broadcast_rows_that_can_be_read_once_does_not_start_again(tmp_path, config):
    """They would be missing in the second run."""
    payments = [{"user": "a", "currency": "EUR", "amount": 1.0}]
    rates = (rate for rate in [{"currency": "EUR", "rate": 2.0}])
    stream = keyed(payments, "user", uid="rated", config={**config, **TWO}).broadcast(rates)
    with pytest.raises(SubtaskFailedError, match="was killed by signal 9"):
        stream.process(RatedUntilKilled(tmp_path), "user string, v double").to_table()


class Pids(KeyedProcessFunction):
    """Yields the process of the task."""

    def process(self, row, ctx):
        yield ctx.key, os.getpid()


def test_the_processes_of_tasks_end_with_the_run():
    batches = (
        keyed([{"user": str(n)} for n in range(20)], "user", config=TWO).process(Pids(), COUNTS).batches()
    )
    pids = set(next(batches)["n"].to_pylist())
    assert os.getpid() not in pids
    batches.close()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
