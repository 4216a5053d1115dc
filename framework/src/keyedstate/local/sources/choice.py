"""The source of any rows that a user gives: tables, readers, datasets, frames, iterables."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from keyedstate.errors import SourceError
from keyedstate.local.sources.batches import BatchSource
from keyedstate.local.sources.files import FileSource
from keyedstate.local.sources.rows import RowSource
from keyedstate.local.sources.source import Source


def source_of(rows: object) -> Source:
    """Return the source of rows in any of the forms that `keyedstate.local.keyed` takes.

    Raises `SourceError`.
    """
    if isinstance(rows, Source):
        return rows
    if isinstance(rows, pa.Table):
        return BatchSource.of_table(rows)
    if isinstance(rows, pa.RecordBatch):
        return BatchSource.of_table(pa.Table.from_batches([rows]))
    if isinstance(rows, pa.RecordBatchReader):
        return BatchSource.of_reader(rows)
    # A program that has a dataset or a frame has imported its module; others need not import it.
    dataset: Any = sys.modules.get("pyarrow.dataset")
    if dataset is not None and isinstance(rows, dataset.InMemoryDataset):
        return BatchSource(rows.schema, rows.to_batches)
    if dataset is not None and isinstance(rows, dataset.Dataset):
        return FileSource(rows)
    pandas: Any = sys.modules.get("pandas")
    if pandas is not None and isinstance(rows, pandas.DataFrame):
        return BatchSource.of_table(pa.Table.from_pandas(rows, preserve_index=False))
    if hasattr(rows, "__arrow_c_stream__"):
        try:
            return BatchSource.of_table(pa.table(rows))
        except pa.ArrowInvalid as error:
            # A single column exports a stream, too.
            raise _unusable(rows) from error
    if isinstance(rows, Iterable) and not isinstance(rows, (str, bytes, dict)):
        return RowSource(rows)
    raise _unusable(rows)


def _unusable(rows: object) -> SourceError:
    return SourceError(
        "the rows",
        f"they are a {type(rows).__name__}",
        "Give an Arrow table or reader, a pyarrow.dataset, a frame of pandas or polars, an iterable of "
        "dicts, or an object with the methods of keyedstate.local.Source.",
    )
