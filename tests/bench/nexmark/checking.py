"""Whether the queries of Nexmark give what an independent SQL engine gives for the whole input."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from .events import CLOSING_MS, KINDS, START_MS, Events
from .queries import Query
from .reference import Reference
from .running import CLOSING, Results, Row, plain_rows, side_input, tables_of, write_batch


@dataclass
class Input:
    """A folder with files of events, and what DuckDB makes of all of them."""

    folder: Path
    reference: Reference

    @classmethod
    def written(cls, folder: Path, events: Events, count: int, rows: int) -> Input:
        """Write `count` events in micro-batches of `rows`, and those that close the windows of them."""
        batches = [*events.batches(count, rows), *(events.closing(number) for number in range(CLOSING))]
        for number, batch in enumerate(batches):
            write_batch(folder, number, batch)
        tables = {kind: pa.concat_tables(batch[kind] for batch in batches) for kind in KINDS}
        closed = dt.datetime(1970, 1, 1) + dt.timedelta(milliseconds=START_MS + CLOSING_MS - 60_000)
        return cls(folder, Reference({**tables, "side_input": side_input()}, closed))

    def expected(self, name: str) -> Counter[Row]:
        return Counter(plain_rows(self.reference.rows(name)))

    def found(
        self, session: SparkSession, name: str, query: Query, folder: Path, mode: str = "append"
    ) -> Counter[Row]:
        """Return the table that a query has made, in as many micro-batches as there are files."""
        results = Results(name)
        if name == "q12":
            # In processing time: only how many bids each bidder has made is the same in every run.
            made = query(tables_of(session, self.folder, streaming=False))
            results.add(made.groupBy("bidder").sum("bid_count"))
            return results.rows()
        running = (
            query(tables_of(session, self.folder))
            .writeStream.foreachBatch(results.add)
            .outputMode(mode)
            .option("checkpointLocation", str(folder / "query"))
            .trigger(availableNow=True)
            .start()
        )
        running.awaitTermination()
        return results.rows()


def differences(expected: Counter[Row], found: Counter[Row], most: int = 3) -> str:
    """Return what is missing and what is too much, in words; empty for equal tables."""
    missing, surplus = expected - found, found - expected
    surplus.update({row: times for row, times in found.items() if times < 0})
    parts: Iterable[tuple[str, Counter[Row]]] = (("missing", missing), ("too many", surplus))
    return "; ".join(
        f"{sum(rows.values())} rows of {sum(expected.values())} are {what}, such as {list(rows)[:most]}"
        for what, rows in parts
        if rows
    )
