"""Runs that overlap, fail or are stopped: no row is lost or doubled by what another run does meanwhile."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.framework.local.functions import COUNTS, Channels, Count, events

from keyedstate.errors import OvertakenRunError, UserFunctionError
from keyedstate.local import ResultStream, SourceChannel, keyed

OTHERS = (
    ".epoch-7.11111111111111111111111111111111.parquet.pending",
    ".11111111111111111111111111111111.22222222222222222222222222222222.parquet.writing",
)


class Users(Channels):
    """A source of one channel with a row for each letter.

    `meanwhile` is called when the channels are opened.
    """

    def __init__(self, users: str, meanwhile: Callable[[], object] = lambda: None) -> None:
        super().__init__([events(user) for user in users])
        self.meanwhile = meanwhile

    def channels(self) -> Sequence[SourceChannel]:
        self.meanwhile()
        return super().channels()


def counted(source: Users, config: dict[str, object], uid: str = "counts") -> ResultStream:
    return keyed(source, "user", uid=uid, config=config).process(Count(), COUNTS)


def rows_in(folder: Path) -> list[tuple[Any, ...]]:
    names = [name for name in os.listdir(folder) if not name.startswith(".")]
    return sorted(tuple(row.values()) for name in names for row in pq.read_table(folder / name).to_pylist())


def test_a_run_whose_epoch_another_one_published_before_it_claimed_the_folder_is_refused(
    tmp_path: Path, config: dict[str, object]
) -> None:
    out, begun = tmp_path / "out", []
    counted(Users("a"), config).write_parquet(out)

    def other_run() -> None:
        if not begun:
            begun.append(True)
            counted(Users("abc"), config).write_parquet(out)

    with pytest.raises(OvertakenRunError):
        counted(Users("abc", meanwhile=other_run), config).write_parquet(out)
    assert rows_in(out) == [("a", 1), ("b", 1), ("c", 1)]
    counted(Users("abcd"), config).write_parquet(out)
    assert rows_in(out) == [("a", 1), ("b", 1), ("c", 1), ("d", 1)]


def test_files_of_other_operators_and_later_runs_stay_in_the_folder(
    tmp_path: Path, config: dict[str, object]
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    for name in OTHERS:
        (out / name).write_bytes(b"rows")
    counted(Users("ab"), config).write_parquet(out)
    assert all((out / name).exists() for name in OTHERS)


def test_two_operators_may_write_into_one_folder(tmp_path: Path, config: dict[str, object]) -> None:
    """The rows of one that died before their last renaming appear with its next run."""
    out = tmp_path / "out"
    with pytest.MonkeyPatch.context() as patched:

        def killed(*_: object) -> None:
            raise KeyboardInterrupt

        patched.setattr("keyedstate.local.sinks.parquet._publish", killed)
        with pytest.raises(KeyboardInterrupt):
            counted(Users("ab"), config, "first").write_parquet(out)
    counted(Users("x"), config, "second").write_parquet(out)
    assert rows_in(out) == [("x", 1)]
    counted(Users("ab"), config, "first").write_parquet(out)
    assert rows_in(out) == [("a", 1), ("b", 1), ("x", 1)]


class FailsOnce(Count):
    """Fails at the user "!" unless a file is there, which it then makes."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def process(self, row, ctx):
        if row.user == "!" and not self.mark.exists():
            self.mark.touch()
            raise ValueError("once")
        if row.user == "^" and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGINT)
        yield from super().process(row, ctx)


@pytest.mark.parametrize(("at", "error"), [("!", UserFunctionError), ("^", KeyboardInterrupt)])
def test_a_table_has_all_rows_after_an_earlier_run_was_ended(
    tmp_path: Path, config: dict[str, object], at: str, error: type[BaseException]
) -> None:
    """Its rows are in memory until the end, so that no checkpoint may say before that they are out."""
    stream = keyed(Users(f"abc{at}de"), "user", uid="counts", config=config)
    with pytest.raises(error):
        stream.process(FailsOnce(tmp_path / "mark"), COUNTS).to_table()
    table = stream.process(FailsOnce(tmp_path / "mark"), COUNTS).to_table()
    assert sorted(table["user"].to_pylist()) == sorted(f"abc{at}de")
    assert stream.process(FailsOnce(tmp_path / "mark"), COUNTS).to_table().num_rows == 0


def test_a_run_ends_with_its_error_although_that_is_kept(tmp_path: Path, config: dict[str, object]) -> None:
    before = signal.getsignal(signal.SIGINT)
    stream = keyed(events("a!"), "user", uid="counts", config=config)
    with pytest.raises(UserFunctionError) as kept:
        stream.process(FailsOnce(tmp_path / "mark"), COUNTS).write_parquet(tmp_path / "out")
    assert signal.getsignal(signal.SIGINT) is before
    assert kept.value is not None
