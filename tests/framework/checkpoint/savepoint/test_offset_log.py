"""What Spark's log of offsets says about a micro-batch."""

from __future__ import annotations

from pathlib import Path

import pytest

from keyedstate.checkpoint.savepoint.offset_log import OffsetLog
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.errors import MissingFileError

FILE, LATER_FILE = '{"logOffset":0}', '{"logOffset":1}'


def looks(times: int) -> str:
    return f'{{"beat": 0, "keyedstate-end": {times}}}'


def log_of(folder: Path, *batches: tuple[str, ...], first: int = 0) -> OffsetLog:
    for number, sources in enumerate(batches, first):
        lines = ("v1", f'{{"batchWatermarkMs":0,"batchTimestampMs":{1000 + number}}}', *sources)
        (folder / str(number)).write_text("\n".join(lines))
    return OffsetLog(CheckpointStorage.open(str(folder)))


@pytest.mark.parametrize(
    ("before", "now", "ends"),
    [
        ((FILE, looks(1)), (FILE, looks(2)), True),
        ((FILE, looks(1), looks(1)), (FILE, looks(2), looks(2)), True),
        ((FILE, looks(1), looks(1)), (FILE, looks(1), looks(2)), True),
        # Version 2 names sources.
        ((f"0:{FILE}", f"1:{looks(1)}"), (f"0:{FILE}", f"1:{looks(2)}"), True),
        ((FILE, looks(1)), (LATER_FILE, looks(2)), False),
        (("-", looks(1)), (FILE, looks(2)), False),
        # A beat of a heartbeat, of this operator or of another one.
        ((FILE, '{"beat": 1}'), (FILE, '{"beat": 2}'), False),
        ((FILE, looks(1)), (FILE, '{"beat": 2}'), False),
        ((FILE, '{"beat": 1}', looks(1)), (FILE, '{"beat": 2}', looks(2)), False),
        # No source of ours looks for the end: the query runs with another trigger.
        ((FILE, looks(1)), (FILE, looks(1)), False),
        ((FILE,), (FILE,), False),
    ],
)
def test_the_input_ends_where_only_sources_that_look_for_the_end_have_new_offsets(
    tmp_path: Path, before: tuple[str, ...], now: tuple[str, ...], ends: bool
) -> None:
    assert log_of(tmp_path, before, now).ends_input(1) is ends


def test_the_first_micro_batch_and_one_without_the_one_before_do_not_end_the_input(tmp_path: Path) -> None:
    log = log_of(tmp_path, (FILE, looks(1)), (FILE, looks(2)))
    assert not log.ends_input(0)
    (tmp_path / "0").unlink()
    assert not log.ends_input(1)
    with pytest.raises(MissingFileError):
        log.ends_input(2)


def test_the_time_of_a_micro_batch_is_none_where_the_log_does_not_have_it(tmp_path: Path) -> None:
    log = log_of(tmp_path, (FILE,))
    (tmp_path / "1").write_text("v1\n{}\n-")
    (tmp_path / "2").write_text("nothing")
    assert [log.time_of(epoch) for epoch in range(4)] == [1000, None, None, None]
