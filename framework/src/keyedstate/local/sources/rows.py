"""Python rows as a source: an iterable of dicts, tuples or lists."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

import pyarrow as pa

from keyedstate.columns.declared import output_schema
from keyedstate.columns.spark_types import schema_as_spark_reads
from keyedstate.errors import OutputRowError, OutputSchemaError, OutputTypeError, SourceError
from keyedstate.local.sources.batches import BatchChannel
from keyedstate.local.sources.read_once import note_read
from keyedstate.local.sources.source import SourceChannel
from keyedstate.runtime.output import OutputSchema

#: Rows of one batch, and seconds after which a batch of an iterable that is slow is given out as it is.
_ROWS = 10_000
_SECONDS = 0.1
#: Rows that decide the types of columns which are not declared.
_LOOKED_AT = 100


class RowSource:
    """Rows of Python values, in one channel.

    After a restart the rows before the offset are skipped, so the iterable must give the same rows again.

    Parameters
    ----------
    rows : iterable of dict, tuple or list
        May have no end, such as a generator that waits for events.
    schema : str, mapping, pyarrow.Schema or StructType, optional
        The columns: ``"user string, amount double"``.  By default the first rows, which are dicts then,
        decide.

    Raises
    ------
    SourceError
        Where the columns cannot be used, or the first rows do not show them.  Where the rows are an iterator
        that another source has.
    """

    def __init__(self, rows: Iterable[Any], schema: object = None) -> None:
        self._rows = rows
        #: Whether it is an iterator, which gives each row to one reader only.
        self.reads_once = isinstance(rows, Iterator)
        if self.reads_once:
            # Already here, where the columns take the first rows.
            note_read(rows)
        self._first: list[Any] = []
        if schema is None:
            iterator = iter(rows)
            self._first = list(islice(iterator, _LOOKED_AT))
            if iterator is rows:
                self._rows = iterator
            else:
                # A list, say, which begins again.
                self._first, found = [], self._first
            schema = _schema_of(self._first or found)
        try:
            self._checked = output_schema(schema)
        except OutputSchemaError as error:
            raise _unusable(error.reason) from error
        self.schema = self._checked.schema

    def channels(self) -> Sequence[SourceChannel]:
        """Return the only channel."""
        return [BatchChannel("0", self._batches())]

    def _batches(self) -> Iterator[pa.RecordBatch]:
        if self.reads_once:
            note_read(self)
        yield from _batches(chain(self._first, self._rows), self._checked)


def _batches(rows: Iterable[Any], checked: OutputSchema) -> Iterator[pa.RecordBatch]:
    before, waiting = 0, []
    began = time.monotonic()
    for row in rows:
        waiting.append(row)
        if len(waiting) >= _ROWS or time.monotonic() - began > _SECONDS:
            yield _batch(waiting, before, checked)
            before, waiting = before + len(waiting), []
            began = time.monotonic()
    if waiting:
        yield _batch(waiting, before, checked)


def _batch(rows: list[Any], before: int, checked: OutputSchema) -> pa.RecordBatch:
    failed = 0

    def note(row: int) -> None:
        nonlocal failed
        failed = row

    way_out = f"The columns are {', '.join(checked.schema.names)}."
    try:
        return checked.to_batch(rows, note)
    except OutputRowError as error:
        raise SourceError(f"row {before + failed}", error.reason, way_out) from None
    except OutputTypeError as error:
        detail = f" ({error.reason})" if error.reason else ""
        reason = f"has {error.given} in the column {error.column!r}, which takes {error.expected}{detail}"
        raise SourceError(f"row {before + failed}", reason, way_out) from None


def _schema_of(rows: Sequence[Any]) -> pa.Schema:
    if not rows:
        raise _unusable("there is no row that shows the columns")
    if not all(isinstance(row, dict) for row in rows):
        other = next(row for row in rows if not isinstance(row, dict))
        raise _unusable(f"{other!r} is no dict")
    try:
        return schema_as_spark_reads(pa.Table.from_pylist(rows).schema)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise _unusable(str(error).rstrip(".")) from error


def _unusable(reason: str) -> SourceError:
    return SourceError(
        "the columns of the rows", reason, "Declare them: RowSource(rows, 'user string, amount double')."
    )
