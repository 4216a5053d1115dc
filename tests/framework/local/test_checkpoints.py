"""Runs that keep state: continued after their end, after Ctrl-C and after a kill, from savepoints."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from tests.framework.local.functions import COUNTS, Count, Matched, Silence, events, minute, plain

from keyedstate.aggregates import count
from keyedstate.checkpoint.protocol.coordinator import Acknowledgement, CheckpointCoordinator
from keyedstate.checkpoint.protocol.operator_folder import OperatorFolder
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.errors import (
    DuplicateUidError,
    LocalRunError,
    MaxParallelismChangedError,
    SourceError,
    StateFolderOwnedError,
    TargetExistsError,
    UserFunctionError,
)
from keyedstate.local import FileSource, ResultStream, connect, keyed
from keyedstate.runtime import KeyedProcessFunction
from keyedstate.savepoints import Savepoint
from keyedstate.state import ValueState
from keyedstate.time import EventTime
from keyedstate.types import INT64
from keyedstate.windows import Tumbling

BY_MINUTE = EventTime("ts", delay="0 s")


def counted(rows: Any, config: dict[str, object], uid: str = "counts") -> ResultStream:
    return keyed(rows, "user", uid=uid, config=config).process(Count(), COUNTS)


def test_a_later_run_continues_with_the_rows_that_are_new(tmp_path: Path, config: dict[str, object]):
    files = tmp_path / "files"
    files.mkdir()
    pq.write_table(events("aab"), files / "1.parquet")
    assert plain(counted(ds.dataset(files), config)) == [("a", 1), ("a", 2), ("b", 1)]
    assert plain(counted(ds.dataset(files), config)) == []
    pq.write_table(events("ac"), files / "0.parquet")
    assert plain(counted(ds.dataset(files), config)) == [("a", 3), ("c", 1)]


def test_files_in_another_number_of_channels_are_refused(tmp_path: Path, config: dict[str, object]):
    for name in ("1", "2", "3"):
        (tmp_path / "files").mkdir(exist_ok=True)
        pq.write_table(events("a"), tmp_path / "files" / f"{name}.parquet")
    files = ds.dataset(tmp_path / "files")
    counted(FileSource(files, channels=2), config).to_table()
    with pytest.raises(SourceError, match=r"had 2 channel\(s\) .* have 1 now\. Give .*channels=2"):
        counted(files, config).to_table()
    assert plain(counted(FileSource(files, channels=2), config)) == []


def test_a_channel_that_was_missing_in_a_run_continues_at_its_position(config: dict[str, object]):
    class Users:
        schema = events("a").schema

        def __init__(self, *users: str) -> None:
            self._users = users

        def channels(self):
            return [_Batches([events(user)], user) for user in self._users]

    assert plain(counted(Users("a", "b"), config)) == [("a", 1), ("b", 1)]
    assert plain(counted(Users("a"), config)) == []
    assert plain(counted(Users("a", "b", "c"), config)) == [("c", 1)]


@pytest.mark.parametrize(
    "form", [lambda rows: rows, pa.Table.to_reader, pa.Table.to_pylist], ids=["table", "reader", "dicts"]
)
def test_fewer_rows_than_were_read_before_are_refused(form: Any, config: dict[str, object]):
    counted(form(events("aab")), config).to_table()
    with pytest.raises(SourceError, match="they are 2, and 3 were read before"):
        counted(form(events("cc")), config).to_table()
    assert plain(counted(form(events("aabb")), config)) == [("b", 2)]


def test_timers_and_windows_stay_open_for_the_rows_of_a_later_run(config: dict[str, object]):
    def run(users: str, minutes: list[int]) -> list[tuple[Any, ...]]:
        stream = keyed(events(users, minutes), "user", uid="silence", config=config, event_time=BY_MINUTE)
        return plain(stream.process(Silence(), "user string, at long"))

    assert run("ab", [0, 0]) == []
    # The second run reads the same two rows again: it skips them.
    assert run("abc", [0, 0, 5]) == [("a", _ms(1)), ("b", _ms(1))]


def test_the_watermark_moves_with_the_rows_and_drops_late_ones(config: dict[str, object]):
    class Late:
        """Three batches, the last of which is behind the watermark of the second."""

        schema = events("a").schema

        def channels(self):
            return [_Batches([events("a", [0]), events("a", [20]), events("a", [1])])]

    stream = keyed(Late(), "user", uid="windows", config=config, event_time=BY_MINUTE)
    found = stream.window(Tumbling.of("5 minutes")).aggregate(n=count())
    assert plain(found) == [("a", minute(0), minute(5), 1)]


def test_a_channel_that_was_behind_at_the_end_of_a_run_has_no_late_rows_in_the_next(
    config: dict[str, object],
):
    class Two:
        schema = events("a").schema

        def __init__(self, batches: int) -> None:
            self._batches = batches

        def channels(self):
            fast, slow = [events("a", [60]), events("a", [120])], [events("a", [10]), events("a", [70])]
            return [_Batches(fast[: self._batches], "fast"), _Batches(slow[: self._batches], "slow")]

    def run(batches: int) -> ResultStream:
        stream = keyed(Two(batches), "user", uid="two", config=config, event_time=BY_MINUTE)
        return stream.window(Tumbling.of("5 minutes")).aggregate(n=count())

    assert [begin for _, begin, _, _ in plain(run(1))] == [minute(10)]
    assert [begin for _, begin, _, _ in plain(run(2).drain())] == [minute(60), minute(70), minute(120)]


def test_the_watermark_of_several_channels_is_the_least_and_survives_a_restart(config: dict[str, object]):
    class Two:
        """A channel that is far ahead, and one that is behind it and gets its last row in the second run."""

        schema = events("a").schema

        def __init__(self, slow: list[pa.Table]) -> None:
            self._slow = slow

        def channels(self):
            return [_Batches([events("a", [60])], "fast"), _Batches(self._slow, "slow")]

    def run(slow: list[pa.Table], *, stop: bool) -> list[tuple[Any, ...]]:
        stream = keyed(Two(slow), "user", uid="two", config=config, event_time=BY_MINUTE)
        rows = stream.window(Tumbling.of("5 minutes")).aggregate(n=count())
        return plain(rows) if not stop else plain(_until_interrupted(rows))

    interrupted = [events("a", [0]), events("a", [2]), _INTERRUPT]
    assert run(interrupted, stop=True) == []
    assert run([events("a", [0]), events("a", [2]), events("a", [3])], stop=False) == [
        ("a", minute(0), minute(5), 3)
    ]


def test_draining_fires_the_timers_of_event_time(config: dict[str, object]):
    stream = keyed(events("ab", [0, 0]), "user", uid="silence", config=config, event_time=BY_MINUTE)
    rows = stream.process(Silence(), "user string, at long")
    assert plain(rows.drain()) == [("a", _ms(1)), ("b", _ms(1))]


def test_a_failure_returns_to_the_last_checkpoint(config: dict[str, object]):
    class Fragile(KeyedProcessFunction):
        n = ValueState("n", INT64, default=0)

        def __init__(self, fails: bool) -> None:
            self.fails = fails

        def process(self, row, ctx):
            if self.fails and row.v == 3:
                raise ValueError("no fourth row today")
            self.n.update(self.n.value() + 1)
            yield ctx.key, self.n.value()

    class Rows:
        schema = events("a").schema

        def channels(self):
            table = events("aaaaa")
            return [_Batches([table.slice(start, 2) for start in (0, 2, 4)])]

    def run(fails: bool) -> ResultStream:
        return keyed(Rows(), "user", uid="fragile", config=config).process(Fragile(fails), COUNTS)

    with pytest.raises(UserFunctionError, match="no fourth row today"):
        list(run(True))
    assert plain(run(False)) == [("a", 3), ("a", 4), ("a", 5)]


def test_ctrl_c_stops_a_run_at_a_checkpoint(tmp_path: Path, config: dict[str, object]):
    class Endless:
        schema = events("a").schema

        def __init__(self, end: int) -> None:
            self._end = end

        def channels(self):
            return [_Batches([events("a")] * 3 + [_INTERRUPT] * (self._end == 3) + [events("a")] * 2)]

    config["checkpoint.interval"] = "1 hour"
    before = signal.getsignal(signal.SIGINT)
    assert plain(_until_interrupted(counted(Endless(3), config))) == [("a", 1), ("a", 2), ("a", 3)]
    assert plain(counted(Endless(5), config)) == [("a", 4), ("a", 5)]
    assert signal.getsignal(signal.SIGINT) is before


def test_another_backend_continues_with_the_state(config: dict[str, object]):
    assert counted(events("aab"), {**config, "backend": "heap-cow"}).to_table().num_rows == 3
    assert plain(counted(events("aabb"), {**config, "backend": "nested-map"})) == [("b", 2)]


def test_a_new_folder_begins_from_a_savepoint_and_its_positions(tmp_path: Path, config: dict[str, object]):
    counted(events("aab"), config).to_table()
    made = Savepoint.create(tmp_path / "savepoint", str(config["checkpoint.dir"]))
    assert made.operators == ("counts",)
    restored = {
        **config,
        "checkpoint.dir": str(tmp_path / "other"),
        "restore.savepoint": str(tmp_path / "savepoint"),
    }
    assert plain(counted(events("aabb"), restored)) == [("b", 2)]
    assert plain(counted(events("aabba"), restored)) == [("a", 3)]


def test_operators_that_feed_each_other_have_one_checkpoint(config: dict[str, object]):
    def run(rows: pa.Table) -> list[tuple[Any, ...]]:
        counts = counted(rows, config)
        return plain(
            keyed(counts, "n", uid="per-count", config=config).process(_PerCount(), "n long, users long")
        )

    assert run(events("aab")) == [(1, 1), (1, 2), (2, 1)]
    assert run(events("aabc")) == [(1, 3)]
    storage = CheckpointStorage.open(str(config["checkpoint.dir"]))
    newest = {OperatorFolder(storage, uid).checkpoints()[-1] for uid in ("counts", "per-count")}
    assert len(newest) == 1


def test_a_run_that_ends_between_the_checkpoints_of_two_operators_is_completed_by_the_next(
    config: dict[str, object], monkeypatch: pytest.MonkeyPatch
):
    def run(rows: pa.Table) -> list[tuple[Any, ...]]:
        per_count = keyed(counted(rows, config), "n", uid="per-count", config=config)
        return plain(per_count.process(_PerCount(), "n long, users long"))

    run(events("a"))
    acknowledge = CheckpointCoordinator.acknowledge

    def end_before_the_second(self: CheckpointCoordinator, acknowledgement: Acknowledgement) -> None:
        if acknowledgement.identity.uid == "per-count":
            raise SystemExit("killed")
        acknowledge(self, acknowledgement)

    monkeypatch.setattr(CheckpointCoordinator, "acknowledge", end_before_the_second)
    with pytest.raises(SystemExit):
        run(events("aab"))
    monkeypatch.undo()
    # The rows of the killed run are in both states: nothing of them is read again.
    assert run(events("aabc")) == [(1, 3)]


def test_timers_of_processing_time_fire_while_a_source_is_idle(config: dict[str, object]):
    class Waits:
        """A row, and then none until the timer has had its time."""

        schema = events("a").schema

        def channels(self):
            return [_Waiting()]

    class Soon(KeyedProcessFunction):
        def process(self, row, ctx):
            now = ctx.timer_service.current_processing_time
            ctx.timer_service.register_processing_time_timer(now + 20)

        def on_timer(self, time, ctx):
            yield ctx.key, time

    config["checkpoint.interval"] = "1 hour"
    stream = keyed(Waits(), "user", uid="soon", config=config)
    rows = stream.process(Soon(), "user string, at long").batches()
    assert next(rows).num_rows == 1


def test_two_connected_sources_continue_at_their_own_offsets(config: dict[str, object]):
    def run(orders: list[dict[str, Any]], payments: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
        both = connect(keyed(orders, "id"), keyed(payments, "order"), uid="paid", config=config)
        return plain(both.process(Matched(), "id long, item string, amount long"))

    orders = [{"id": 1, "item": "book"}]
    assert run(orders, [{"order": 1, "amount": 5}, {"order": 2, "amount": 6}]) == [(1, "book", 5)]
    orders.append({"id": 2, "item": "pen"})
    payments = [{"order": 1, "amount": 5}, {"order": 2, "amount": 6}, {"order": 1, "amount": 7}]
    assert run(orders, payments) == [(1, "book", 7), (2, "pen", 6)]


@pytest.mark.parametrize(
    "signal_number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.long)]
)
@pytest.mark.long
def test_a_killed_program_continues_and_its_parquet_files_have_each_row_once(
    tmp_path: Path, signal_number: signal.Signals
):
    """The output of a run that is killed three times is that of an uninterrupted one."""
    program = [sys.executable, "-m", "tests.framework.local.killed_program", str(tmp_path), "200", "1"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    for death in range(3):
        # A line for each batch: it dies in the middle of the work, at another place each time.
        last_line = 25 + 17 * death
        # However late the signal comes, the program waits for it behind a few more batches.
        with subprocess.Popen([*program, str(last_line + 8)], **pipes) as running:
            assert running.stdout is not None
            assert len(list(islice(running.stdout, last_line))) == last_line
            running.send_signal(signal_number)
            assert running.wait() == -signal_number
    assert subprocess.run(program, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL).returncode == 0
    found = Counter(tuple(row.values()) for row in pq.read_table(tmp_path / "out").to_pylist())
    assert found == Counter((f"u{user}", n) for user in range(7) for n in range(1, 1 + _rows_of(user, 200)))


def test_rows_of_a_killed_run_that_were_not_committed_are_deleted(tmp_path: Path, config: dict[str, object]):
    counted(events("aab"), config).write_parquet(tmp_path / "out")
    owner = OperatorFolder(CheckpointStorage.open(str(config["checkpoint.dir"])), "counts").read_owner()
    assert owner is not None
    (tmp_path / "out" / f".epoch-7.{owner.runs[-1]}.parquet.pending").write_bytes(b"lost")
    (tmp_path / "out" / f".{owner.runs[-1]}.{'a' * 32}.parquet.writing").write_bytes(b"lost")
    counted(events("aabb"), config).write_parquet(tmp_path / "out")
    assert pq.read_table(tmp_path / "out").num_rows == 4
    assert not [name for name in os.listdir(tmp_path / "out") if name.startswith(".")]


def test_a_run_without_state_refuses_a_folder_with_rows(tmp_path: Path):
    rows = keyed(events("a"), "user").process(Count(), COUNTS)
    rows.write_parquet(tmp_path / "out")
    with pytest.raises(TargetExistsError):
        rows.write_parquet(tmp_path / "out")
    assert pq.read_table(tmp_path / "out").num_rows == 1


def test_a_callback_gets_the_rows_of_each_epoch_and_its_number(config: dict[str, object]):
    class Rows:
        schema = events("a").schema

        def channels(self):
            return [_Batches([events("a"), events("bc")])]

    found: dict[int, list[tuple[Any, ...]]] = {}
    counted(Rows(), config).for_each(
        lambda rows, epoch: found.__setitem__(epoch, plain(row.values() for row in rows.to_pylist()))
    )
    assert found == {0: [("a", 1)], 1: [("b", 1), ("c", 1)], 2: []}


def test_two_operators_of_one_uid_are_refused(config: dict[str, object]):
    chain = keyed(counted(events("a"), config), "user", uid="counts", config=config).process(Count(), COUNTS)
    with pytest.raises(DuplicateUidError, match="'counts'"):
        chain.to_table()


def test_a_chain_in_which_only_one_operator_keeps_state_is_refused(config: dict[str, object]):
    chain = keyed(counted(events("a"), config), "user").process(Count(), COUNTS)
    with pytest.raises(LocalRunError, match="only some of them have a uid"):
        chain.to_table()


def test_the_folder_of_a_query_on_spark_is_refused(config: dict[str, object]):
    counted(events("a"), config).to_table()
    folder = OperatorFolder(CheckpointStorage.open(str(config["checkpoint.dir"])), "counts")
    owner = folder.read_owner()
    assert owner is not None
    folder.write_owner(dataclasses.replace(owner, query_id="8a7c0d7e-0000-0000-0000-000000000000"))
    with pytest.raises(StateFolderOwnedError):
        counted(events("ab"), config).to_table()


def test_the_number_of_key_groups_is_that_of_the_state(config: dict[str, object]):
    counted(events("aab"), {**config, "max-parallelism": 64}).to_table()
    assert plain(counted(events("aaba"), config)) == [("a", 3)]
    with pytest.raises(MaxParallelismChangedError):
        counted(events("aabab"), {**config, "max-parallelism": 32}).to_table()


class _PerCount(KeyedProcessFunction):
    n = ValueState("n", INT64, default=0)

    def process(self, row, ctx):
        self.n.update(self.n.value() + 1)
        yield ctx.key, self.n.value()


#: In place of a batch: the user presses Ctrl-C.
_INTERRUPT = object()


class _Waiting:
    """A channel that has one row and does not end."""

    name = "0"
    _rows = 1

    def read(self) -> pa.RecordBatch:
        rows, self._rows = self._rows, 0
        return events("a"[:rows]).combine_chunks().to_batches()[0] if rows else _nothing()

    def offset(self) -> int:
        return 0


class _Batches:
    """A channel over tables, one a batch."""

    def __init__(self, tables: list[Any], name: str = "0") -> None:
        self.name = name
        self._tables = tables
        self._read = 0

    def read(self) -> pa.RecordBatch | None:
        if self._read == len(self._tables):
            return None
        table = self._tables[self._read]
        if table is _INTERRUPT:
            os.kill(os.getpid(), signal.SIGINT)
            return _nothing()
        self._read += 1
        return table.combine_chunks().to_batches()[0]

    def offset(self) -> int:
        return self._read

    def seek(self, offset: int) -> None:
        self._read = offset


def _nothing() -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], events("a").schema)


def _until_interrupted(rows: ResultStream) -> Iterator[tuple[Any, ...]]:
    with pytest.raises(KeyboardInterrupt):
        yield from rows


def _rows_of(user: int, batches: int) -> int:
    return sum((number % 7) == user for number in range(batches * 10))


def _ms(number: int) -> int:
    return int(minute(number).timestamp() * 1000)
