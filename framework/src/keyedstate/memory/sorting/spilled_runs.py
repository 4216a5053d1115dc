"""A sorter with sorted runs on disk, and their merge in as many passes as the fan-in needs."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from keyedstate.errors import SorterClosedError, SpillError
from keyedstate.memory.sorting.merging import RunWholeKeys, merged
from keyedstate.memory.sorting.run_files import RunFile

if TYPE_CHECKING:
    from typing_extensions import Self

#: Runs that are merged at once (Flink's ``taskmanager.runtime.max-fan``).
FAN_IN: Final = 128
#: In a merge a batch of a run is in memory twice: as it was read, and among the rows that are sorted.
_COPIES: Final = 3
_LEAST_BATCH, _LARGEST_BATCH = 4 << 10, 1 << 20


class SpilledRuns:
    """Sorted runs, of a schema with the columns of keys, in a folder.

    `memory_bytes` is what a merge may take: it limits the size of batches, and how many runs are merged at
    once, which is at most the fan-in, and at least 2.
    """

    def __init__(
        self,
        folder: Path,
        schema: pa.Schema,
        whole_keys: RunWholeKeys,
        memory_bytes: int,
        fan_in: int = FAN_IN,
    ) -> None:
        if fan_in < 2:
            raise ValueError(f"a fan-in of {fan_in}: at least two runs are merged at once")
        self._folder = folder
        self._schema = schema
        self._whole_keys = whole_keys
        self._memory_bytes = memory_bytes
        self._fan_in = fan_in
        self._name = f"sort-{uuid.uuid4().hex}"
        self._numbers = count()
        self._runs: list[RunFile] = []
        self._reading: list[Iterator[pa.RecordBatch]] = []
        #: The size that batches of runs should have.
        self.batch_bytes = min(max(memory_bytes // (_COPIES * fan_in), _LEAST_BATCH), _LARGEST_BATCH)
        #: Of all files so far.
        self.written_bytes = 0
        #: How many passes the last merge took.
        self.passes = 0

    def __len__(self) -> int:
        return len(self._runs)

    def path(self, suffix: str) -> Path:
        """Return the path of a file of this sorter."""
        return self._folder / f"{self._name}.{suffix}"

    def add(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Write a run, which comes after the others where rows are equal; raises SpillError."""
        self._runs.append(self._write(batches))

    def merged(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of all runs in their order, with the columns of keys.

        Raises `RunFileError` for a damaged or missing file, and `SpillError` where a run of a pass cannot be
        written.
        """
        self.passes = 1
        while len(self._runs) > self._most_at_once():
            self._merge_once(self._most_at_once())
            self.passes += 1
        yield from self._merge(self._runs)

    def close(self) -> None:
        """Delete all files; again has no effect."""
        for reading in self._reading:
            reading.close()  # type: ignore[attr-defined] # a generator
        self._reading.clear()
        for run in self._runs:
            run.delete()
        self._runs.clear()

    def _most_at_once(self) -> int:
        largest = max(run.largest for run in self._runs)
        return max(2, min(self._fan_in, self._memory_bytes // (_COPIES * largest)))

    def _merge_once(self, fan_in: int) -> None:
        """Replace the runs by fewer.  Neighbours are merged, so that equal rows keep their order."""
        before, self._runs = self._runs, []
        try:
            while before:
                group = before[:fan_in]
                self.add(self._merge(group))
                del before[: len(group)]
                for run in group:
                    run.delete()
        finally:
            self._runs += before

    def _merge(self, runs: list[RunFile]) -> Iterator[pa.RecordBatch]:
        self._reading = [run.read() for run in runs]
        return merged(self._reading, self._whole_keys)

    def _write(self, batches: Iterable[pa.RecordBatch]) -> RunFile:
        run = RunFile.write(self.path(f"{next(self._numbers)}.run"), self._schema, batches)
        self.written_bytes += run.size
        return run


class SpillingSorter(ABC):
    """A sorter with runs on disk; a context manager that closes it."""

    def __init__(self, runs: SpilledRuns) -> None:
        self._runs = runs
        self._finished = self._closed = False

    @property
    def runs(self) -> int:
        """How many sorted runs are on disk."""
        return len(self._runs)

    @abstractmethod
    def close(self) -> None:
        """Release the memory, and delete all files; again has no effect."""

    def _check_open(self) -> None:
        if self._closed:
            raise SorterClosedError("was closed")

    def _check_unread(self) -> None:
        self._check_open()
        if self._finished:
            raise SorterClosedError("has been read")

    @contextmanager
    def _closed_by_a_failed_write(self) -> Iterator[None]:
        try:
            yield
        except SpillError:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
