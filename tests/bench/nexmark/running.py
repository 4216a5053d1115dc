"""The queries of Nexmark as streaming queries over files: their inputs, and their results as one table."""

from __future__ import annotations

import datetime as dt
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from .events import KINDS, SCHEMAS
from .queries import Tables

WATERMARK = "4 seconds"
#: How the output of a query is to be read: the columns of which a new row replaces an old one, or that of the
#: row kinds.  The rows of all others are final.
UPSERTS = {
    "q9": ("id",),
    "q15": ("day",),
    "q16": ("channel", "day"),
    "q17": ("auction", "day"),
    "q18": ("bidder", "auction"),
    "q19": ("auction", "rank"),
}
ROW_KINDS = {"q4": "kind"}
#: Micro-batches of closing events: the first moves the watermark, by which windows end in the second.
CLOSING = 2
Row = tuple[Any, ...]


def side_input() -> pa.Table:
    keys = list(range(10_000))
    return pa.table({"key": keys, "value": [f"value-{key * 31}" for key in keys]})


def write_batch(folder: Path, number: int, batch: Mapping[str, pa.Table], row_groups: int = 2) -> None:
    """Add a micro-batch to the files that a source reads, in the order of their times."""
    for kind, table in batch.items():
        (folder / kind).mkdir(parents=True, exist_ok=True)
        path = folder / kind / f"{number:06}.parquet"
        hidden = path.with_name(f".{path.name}")
        pq.write_table(table, hidden, row_group_size=-(-table.num_rows // row_groups) or None)
        os.utime(hidden, (1_000_000_000 + number, 1_000_000_000 + number))
        hidden.rename(path)


def tables_of(session: SparkSession, folder: Path, *, streaming: bool = True) -> Tables:
    """Return DataFrames over the files of a folder."""

    def frame(kind: str) -> DataFrame:
        schema = from_arrow_schema(SCHEMAS[kind])
        if not streaming:
            return session.read.schema(schema).parquet(str(folder / kind))
        reader = session.readStream.schema(schema).option("maxFilesPerTrigger", 1)
        return reader.parquet(str(folder / kind)).withWatermark("dateTime", WATERMARK)

    return Tables(*(frame(kind) for kind in KINDS), session.createDataFrame(side_input()))


class Results:
    """The rows that a query has put out, as the table that a sink would have made of them."""

    def __init__(self, query: str) -> None:
        self._keys = UPSERTS.get(query, ())
        self._kinds = ROW_KINDS.get(query)
        self._final: Counter[Row] = Counter()
        self._by_key: dict[Row, Row] = {}

    def add(self, batch: DataFrame, epoch: int = 0) -> None:
        """Add those of a micro-batch: a function for ``foreachBatch``."""
        table = batch.toArrow()
        kinds = ["+I"] * table.num_rows
        if self._kinds is not None:
            kinds = table.column(self._kinds).to_pylist()
            table = table.drop_columns([self._kinds])
        places = [table.schema.get_field_index(key) for key in self._keys]
        for kind, row in zip(kinds, plain_rows(zip(*table.to_pydict().values(), strict=True)), strict=True):
            if self._keys:
                self._by_key[tuple(row[place] for place in places)] = row
            else:
                self._final[row] += 1 if kind[0] == "+" else -1

    def rows(self) -> Counter[Row]:
        """Return how often each row is in the table; less than never for one that was wrongly taken back."""
        rows = Counter(self._by_key.values()) if self._keys else self._final
        return Counter({row: times for row, times in rows.items() if times})


def plain_rows(rows: Iterable[Iterable[Any]]) -> Iterable[Row]:
    """Return rows with values that two engines have in common."""
    return (tuple(_plain(value) for value in row) for row in rows)


def _plain(value: Any) -> Any:
    if isinstance(value, dt.datetime):
        return value.replace(tzinfo=None)
    if isinstance(value, (float, Decimal)):
        # Sums of floats depend on their order in the last digits.
        return float(f"{float(value):.12g}")
    return value
