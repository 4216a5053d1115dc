"""Two queries of Nexmark with Spark's transformWithState, a row at a time; both in output mode update.

Times are numbers in the state: Spark gives those of rows a zone, and those of states none.
"""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Iterator
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import DoubleType, LongType, StructType

from .events import SCHEMAS
from .queries import Query, Tables

#: Of the bids of an auction.
FIRST = 10
COLUMNS = [*SCHEMAS["bid"].names, "rank"]
PRICE, AT = COLUMNS.index("price"), COLUMNS.index("dateTime")

# Spark's workers cannot import this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def _bid() -> StructType:
    return from_arrow_schema(SCHEMAS["bid"])


class Last(StatefulProcessor):
    """The newest bid of a key."""

    def init(self, handle: Any) -> None:
        self._newest = handle.getValueState("newest", "at double")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        at, newest = max((row.dateTime.timestamp(), row) for row in rows)
        before = self._newest.get()
        if before is None or before[0] < at:
            self._newest.update((at,))
            yield newest

    def close(self) -> None:
        pass


class Highest(StatefulProcessor):
    """The highest bids of a key, with their ranks."""

    def init(self, handle: Any) -> None:
        schema = _bid()
        schema["dateTime"].dataType = DoubleType()
        self._bids = handle.getListState("bids", schema)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        known = [tuple(bid) for bid in self._bids.get()] if self._bids.exists() else []
        made = [(*row[:AT], row[AT].timestamp(), *row[AT + 1 :]) for row in rows]
        bids = sorted([*known, *made], key=lambda bid: (-bid[PRICE], bid[AT]))[:FIRST]
        self._bids.put(bids)
        for place, bid in enumerate(bids):
            if place >= len(known) or bid != known[place]:
                at = dt.datetime.fromtimestamp(bid[AT], dt.timezone.utc)
                yield Row(*COLUMNS)(*bid[:AT], at, *bid[AT + 1 :], place + 1)

    def close(self) -> None:
        pass


def q18(on: Tables) -> DataFrame:
    return on.bid.groupBy("bidder", "auction").transformWithState(Last(), _bid(), "Update", "None")


def q19(on: Tables) -> DataFrame:
    schema = _bid().add("rank", LongType())
    return on.bid.groupBy("auction").transformWithState(Highest(), schema, "Update", "None")


STATEFUL_QUERIES: dict[str, Query] = {"q18": q18, "q19": q19}
