"""Those queries of Nexmark that Spark's own stateful operators can say, with the output mode of each.

Spark has no others: q4 and q9 need aggregates over rows that change, q15 and q16 distinct counts, which it
refuses on streams.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from .queries import Query, Tables, _ranked


def q3(on: Tables) -> DataFrame:
    items = on.auction.where("category = 10").select("seller", "id")
    people = on.person.where("state in ('OR', 'ID', 'CA')").withColumnRenamed("id", "person")
    return items.join(people, f.expr("seller = person")).select("name", "city", "state", "id")


def q5(on: Tables) -> DataFrame:
    counts = on.bid.groupBy(f.window("dateTime", "10 seconds", "2 seconds"), "auction").agg(
        f.count("*").alias("num")
    )
    windows = counts.groupBy("window").agg(
        f.max("num").alias("most"), f.collect_list(f.struct("auction", "num")).alias("all")
    )
    return windows.selectExpr("window.end", "inline(filter(all, each -> each.num = most))")


def q7(on: Tables) -> DataFrame:
    bid = f.struct("auction", "price", "bidder", "dateTime", "extra")
    highest = on.bid.groupBy(f.window("dateTime", "10 seconds")).agg(f.max_by(bid, "price").alias("bid"))
    return highest.select("bid.*")


def q8(on: Tables) -> DataFrame:
    people = on.person.groupBy(f.window("dateTime", "10 seconds").alias("minted"), "id", "name").count()
    sellers = on.auction.groupBy(f.window("dateTime", "10 seconds").alias("sold"), "seller").count()
    joined = people.join(sellers, f.expr("id = seller and minted = sold"))
    return joined.select("id", "name", "minted.start")


def q11(on: Tables) -> DataFrame:
    sessions = on.bid.groupBy("bidder", f.session_window("dateTime", "10 seconds").alias("session"))
    counts = sessions.agg(f.count("*").alias("bid_count"))
    return counts.select("bidder", "session.start", "session.end", "bid_count")


def q12(on: Tables) -> DataFrame:
    windows = on.bid.groupBy("bidder", f.window(f.current_timestamp(), "10 seconds"))
    return windows.agg(f.count("*").alias("bid_count"))


def q17(on: Tables) -> DataFrame:
    return (
        _ranked(on)
        .groupBy("auction", "day")
        .agg(
            f.count("*").alias("total_bids"),
            *(f.count_if(f"rank{rank}").alias(f"rank{rank}_bids") for rank in (1, 2, 3)),
            f.min("price").alias("min_price"),
            f.max("price").alias("max_price"),
            f.avg("price").alias("avg_price"),
            f.sum("price").alias("sum_price"),
        )
    )


def q18(on: Tables) -> DataFrame:
    row = f.struct(*on.bid.columns)
    return on.bid.groupBy("bidder", "auction").agg(f.max_by(row, "dateTime").alias("row")).select("row.*")


def q19(on: Tables) -> DataFrame:
    order = f.struct("price", -f.unix_millis("dateTime"))
    top = on.bid.groupBy("auction").agg(f.max_by(f.struct(*on.bid.columns), order, 10).alias("top"))
    return top.selectExpr("posexplode(top) as (place, row)").selectExpr("row.*", "place + 1 as rank")


def q20(on: Tables) -> DataFrame:
    items = on.auction.where("category = 10").withColumnsRenamed({"dateTime": "begun", "extra": "more"})
    return on.bid.join(items, f.expr("auction = id")).drop("id")


def q23(on: Tables) -> DataFrame:
    # A computed column has no watermark, by which the second join would drop bids that waited.
    bids = on.bid.withColumn("dateTime", f.expr("dateTime + interval 0 seconds"))
    people = on.person.select(f.col("id").alias("person"), "name")
    items = on.auction.select("seller", "id", "itemName")
    joined = bids.join(people, f.expr("bidder = person")).join(items, f.expr("bidder = seller"))
    return joined.select("auction", "bidder", "price", "channel", "url", "dateTime", "name", "id", "itemName")


SPARK_QUERIES: dict[str, tuple[Query, str]] = {
    "q3": (q3, "append"),
    "q5": (q5, "append"),
    "q7": (q7, "append"),
    "q8": (q8, "append"),
    "q11": (q11, "append"),
    "q12": (q12, "update"),
    "q17": (q17, "update"),
    "q18": (q18, "update"),
    "q19": (q19, "update"),
    "q20": (q20, "append"),
    "q23": (q23, "append"),
}
