"""Two queries of Nexmark with Spark's transformWithState, a row at a time; both in output mode update."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import LongType, StructType

from .events import SCHEMAS
from .queries import Query, Tables

#: Of the bids of an auction.
FIRST = 10

# Spark's workers cannot import this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def _bid() -> StructType:
    return from_arrow_schema(SCHEMAS["bid"])


class Last(StatefulProcessor):
    """The newest bid of a key."""

    def init(self, handle: Any) -> None:
        self._newest = handle.getValueState("newest", "at timestamp")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        newest = max(rows, key=lambda row: row.dateTime)
        before = self._newest.get()
        if before is None or before[0] < newest.dateTime:
            self._newest.update((newest.dateTime,))
            yield newest

    def close(self) -> None:
        pass


class Highest(StatefulProcessor):
    """The highest bids of a key, with their ranks."""

    def init(self, handle: Any) -> None:
        self._bids = handle.getListState("bids", _bid())

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        known = [tuple(bid) for bid in self._bids.get()] if self._bids.exists() else []
        bids = sorted([*known, *map(tuple, rows)], key=lambda bid: (-bid[2], bid[5]))[:FIRST]
        self._bids.put(bids)
        for rank, bid in enumerate(bids, 1):
            if rank > len(known) or bid != known[rank - 1]:
                yield Row(*bid, rank)

    def close(self) -> None:
        pass


def q18(on: Tables) -> DataFrame:
    return on.bid.groupBy("bidder", "auction").transformWithState(Last(), _bid(), "Update", "None")


def q19(on: Tables) -> DataFrame:
    schema = _bid().add("rank", LongType())
    return on.bid.groupBy("auction").transformWithState(Highest(), schema, "Update", "None")


STATEFUL_QUERIES: dict[str, Query] = {"q18": q18, "q19": q19}
