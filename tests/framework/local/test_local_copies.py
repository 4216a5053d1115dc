"""Runs that restore from copies of checkpoint files where these are good, and from the storage otherwise."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from tests.framework.local.functions import COUNTS, Count, events

from keyedstate.errors import CheckpointError
from keyedstate.local import ResultStream, keyed


class Runs:
    """Runs over a folder of files, to which each run adds one."""

    def __init__(self, folder: Path, parallelism: int) -> None:
        self.copies = folder / "copies"
        self.data = folder / "checkpoints" / "counts" / "data"
        self._files = folder / "files"
        self._files.mkdir()
        self._config = {
            "parallelism": parallelism,
            "checkpoint.dir": str(folder / "checkpoints"),
            # Full snapshots only: without the copy of a full snapshot, its chain is not copied either.
            "checkpoint.max-deltas": 0,
            "checkpoint.local-copies-dir": str(self.copies),
        }
        self.expected: Counter[str] = Counter()

    def stream(self, users: str, *, copies: str) -> ResultStream:
        """Return the counts after a file with these users."""
        number = len(list(self._files.iterdir()))
        pq.write_table(events(users), self._files / f"{number}.parquet")
        self.expected.update(users)
        config = {**self._config, "checkpoint.local-copies": copies}
        return keyed(ds.dataset(self._files), "user", uid="counts", config=config).process(Count(), COUNTS)

    def check(self, users: str, *, copies: str = "on") -> None:
        """Run, and compare the last count of each user."""
        found = self.stream(users, copies=copies).to_table().to_pydict()
        latest = dict(zip(found["user"], found["n"], strict=True))
        assert latest == {user: self.expected[user] for user in set(users)}

    def copied(self) -> list[Path]:
        return sorted(path for path in self.copies.rglob("*.seg") if path.is_file())


@pytest.mark.parametrize("parallelism", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_run_restores_from_copies_if_the_storage_is_gone_and_not_from_damaged_ones(
    tmp_path: Path, parallelism: int
):
    """LOC-01, LOC-03."""
    runs = Runs(tmp_path, parallelism)
    runs.check("abcabc")
    assert runs.copied()
    for copy in runs.copied():
        copy.write_bytes(copy.read_bytes()[:-1])
    runs.check("aab")
    for data in runs.data.iterdir():
        data.write_bytes(b"")
    runs.check("abcd")


def test_without_the_option_nothing_is_copied_and_damaged_files_are_an_error(tmp_path: Path):
    """LOC-01: disabled."""
    runs = Runs(tmp_path, 1)
    runs.check("ab", copies="off")
    assert runs.copied() == []
    for data in runs.data.iterdir():
        data.write_bytes(b"")
    with pytest.raises(CheckpointError):
        runs.stream("a", copies="off").to_table()
