"""Sources over Arrow data: tables in memory, and readers of record batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from keyedstate.errors import SourceError
from keyedstate.local.sources.read_once import note_read
from keyedstate.local.sources.source import SourceChannel, other_source

#: Rows in a batch of a source that has them all at once; time moves forward between two batches.
BATCH_ROWS = 131_072
_ONLY = "0"


class BatchSource:
    """Rows that come as record batches, in one channel.

    `open_batches` returns them from the first one on or, where they can be read once, those that were not
    read yet.
    """

    def __init__(
        self,
        schema: pa.Schema,
        open_batches: Callable[[], Iterator[pa.RecordBatch]],
        *,
        reads_once: bool = False,
    ) -> None:
        self.schema = schema
        self.reads_once = reads_once
        self._open_batches = open_batches

    @classmethod
    def of_table(cls, table: pa.Table) -> BatchSource:
        """Return the rows of a table, which may be read any number of times."""
        return cls(table.schema, lambda: iter(table.to_batches(max_chunksize=BATCH_ROWS)))

    @classmethod
    def of_reader(cls, reader: pa.RecordBatchReader) -> BatchSource:
        """Return the rows of a reader.

        After a restart the program makes the same reader again, and the rows before the offset are skipped.
        """
        return cls(reader.schema, lambda: _rest_of(reader), reads_once=True)

    def channels(self) -> Sequence[SourceChannel]:
        """Return the only channel."""
        return [BatchChannel(_ONLY, self._open_batches())]


def _rest_of(reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    # With the first batch, not when the channel is opened: `explain` opens channels too.
    note_read(reader)
    yield from reader


class BatchChannel:
    """Reads batches; its offset is the number of rows."""

    def __init__(self, name: str, batches: Iterator[pa.RecordBatch]) -> None:
        self.name = name
        self._batches = batches
        self._rows = 0
        self._skipped = 0

    def read(self) -> pa.RecordBatch | None:
        """Return the next batch, or the part of it behind the offset that was sought."""
        for batch in self._batches:
            skipped = min(self._skipped, batch.num_rows)
            self._skipped -= skipped
            if skipped == batch.num_rows:
                continue
            self._rows += batch.num_rows - skipped
            return batch.slice(skipped)
        if self._skipped:
            raise SourceError(
                "the rows",
                f"they are {self._rows - self._skipped}, and {self._rows} were read before",
                "Give the rows that were read before, and the new ones behind them; where they are in files, "
                "give a pyarrow.dataset of their folder.",
            )
        return None

    def offset(self) -> Any:
        """Return the number of rows that were read."""
        return self._rows

    def seek(self, offset: Any) -> None:
        """Skip rows from the beginning."""
        if not isinstance(offset, int):
            raise other_source(self.name)
        self._rows = self._skipped = offset
