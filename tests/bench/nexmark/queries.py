"""The queries of Nexmark with keyedstate; the docstring of each is its SQL, as Flink's Nexmark has it.

q0, q1, q2, q13, q14, q21 and q22 have no state, so they are Spark's alone.  Two queries are missing:

- q6, the mean price of the last ten auctions of each seller, is a window over rows that change, which neither
  Flink's SQL nor an operator here can say; it takes a process function with timers;
- q10 writes bids into partitioned files, which is a matter of Spark's sinks.

q19 orders bids of one price by their time, which Nexmark leaves open: so its result is one.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from keyedstate import Ttl, connect, keyed
from keyedstate.aggregates import count, count_distinct, max_, max_by, mean, min_, sum_, top_by
from keyedstate.joins import LeftColumn
from keyedstate.windows import Session, Sliding, Tumbling


@dataclass(frozen=True)
class Tables:
    """What queries read; the first three have a watermark of `dateTime` less four seconds."""

    person: DataFrame
    auction: DataFrame
    bid: DataFrame
    side_input: DataFrame


Query = Callable[[Tables], DataFrame]


def q0(on: Tables) -> DataFrame:
    """SELECT auction, bidder, price, dateTime, extra FROM bid"""
    return on.bid.select("auction", "bidder", "price", "dateTime", "extra")


def q1(on: Tables) -> DataFrame:
    """
    SELECT auction, bidder, 0.908 * price AS price, dateTime, extra
    FROM bid
    """
    return on.bid.selectExpr("auction", "bidder", "0.908 * price as price", "dateTime", "extra")


def q2(on: Tables) -> DataFrame:
    """
    SELECT auction, price FROM bid
    WHERE MOD(auction, 123) = 0
    """
    return on.bid.where("mod(auction, 123) = 0").select("auction", "price")


def q3(on: Tables) -> DataFrame:
    """
    SELECT P.name, P.city, P.state, A.id
    FROM auction AS A INNER JOIN person AS P ON A.seller = P.id
    WHERE A.category = 10 AND (P.state = 'OR' OR P.state = 'ID' OR P.state = 'CA')
    """
    items = keyed(on.auction.where("category = 10"), "seller")
    people = keyed(on.person.where("state in ('OR', 'ID', 'CA')"), "id")
    return connect(items, people, uid="q3").join().select("name", "city", "state", "id")


def q4(on: Tables) -> DataFrame:
    """
    SELECT Q.category, AVG(Q.final)
    FROM (
        SELECT MAX(B.price) AS final, A.category
        FROM auction A, bid B
        WHERE A.id = B.auction AND B.dateTime BETWEEN A.dateTime AND A.expires
        GROUP BY A.id, A.category
    ) Q
    GROUP BY Q.category
    """
    best = keyed(_valid_bids(on, "q4"), "id", "category", uid="q4-best").aggregate(
        final=max_("price"), row_kind="kind"
    )
    return keyed(best, "category", uid="q4-mean", row_kind="kind").aggregate(mean=mean("final"))


def _valid_bids(on: Tables, uid: str) -> DataFrame:
    both = connect(keyed(on.auction, "id"), keyed(on.bid, "auction"), uid=uid)
    return both.interval_join(0, LeftColumn("expires")).join()


def q5(on: Tables) -> DataFrame:
    """
    SELECT AuctionBids.auction, AuctionBids.num
    FROM (
        SELECT auction, count(*) AS num, window_start AS starttime, window_end AS endtime
        FROM TABLE(HOP(TABLE bid, DESCRIPTOR(dateTime), INTERVAL '2' SECOND, INTERVAL '10' SECOND))
        GROUP BY auction, window_start, window_end
    ) AS AuctionBids
    JOIN (
        SELECT max(CountBids.num) AS maxn, CountBids.starttime, CountBids.endtime
        FROM (
            SELECT count(*) AS num, window_start AS starttime, window_end AS endtime
            FROM TABLE(HOP(TABLE bid, DESCRIPTOR(dateTime), INTERVAL '2' SECOND, INTERVAL '10' SECOND))
            GROUP BY auction, window_start, window_end
        ) AS CountBids
        GROUP BY CountBids.starttime, CountBids.endtime
    ) AS MaxBids
    ON AuctionBids.starttime = MaxBids.starttime AND AuctionBids.endtime = MaxBids.endtime
       AND AuctionBids.num >= MaxBids.maxn
    """
    counts = keyed(on.bid, "auction", uid="q5").window(Sliding.of("10 s", "2 s")).aggregate(num=count())
    # The windows of all auctions that end together fire in one micro-batch.
    ends = keyed(counts, "window_end", uid="q5-top")
    tops = ends.aggregate(top=top_by(1000, "auction", "num", by="num"), ttl=Ttl.of("1 hour"))
    return tops.selectExpr("window_end", "inline(filter(top, each -> each.num = top[0].num))")


def q7(on: Tables) -> DataFrame:
    """
    SELECT B.auction, B.price, B.bidder, B.dateTime, B.extra
    FROM bid B
    JOIN (
        SELECT MAX(price) AS maxprice, window_end AS dateTime
        FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(dateTime), INTERVAL '10' SECOND))
        GROUP BY window_start, window_end
    ) B1
    ON B.price = B1.maxprice
    WHERE B.dateTime BETWEEN B1.dateTime - INTERVAL '10' SECOND AND B1.dateTime
    """
    windows = keyed(on.bid, f.lit(0).alias("all"), uid="q7").window(Tumbling.of("10 s"))
    return windows.aggregate(
        bid=max_by("auction", "price", "bidder", "dateTime", "extra", by="price")
    ).select("bid.*")


def q8(on: Tables) -> DataFrame:
    """
    SELECT P.id, P.name, P.starttime
    FROM (
        SELECT id, name, window_start AS starttime, window_end AS endtime
        FROM TABLE(TUMBLE(TABLE person, DESCRIPTOR(dateTime), INTERVAL '10' SECOND))
        GROUP BY id, name, window_start, window_end
    ) P
    JOIN (
        SELECT seller, window_start AS starttime, window_end AS endtime
        FROM TABLE(TUMBLE(TABLE auction, DESCRIPTOR(dateTime), INTERVAL '10' SECOND))
        GROUP BY seller, window_start, window_end
    ) A
    ON P.id = A.seller AND P.starttime = A.starttime AND P.endtime = A.endtime
    """
    both = connect(keyed(on.person, "id"), keyed(on.auction, "seller"), uid="q8")
    return both.window(Tumbling.of("10 s")).join("semi").select("id", "name", "window_start")


def q9(on: Tables) -> DataFrame:
    """
    SELECT id, itemName, description, initialBid, reserve, dateTime, expires, seller, category, extra,
           bidder, price, bid_dateTime, bid_extra
    FROM (
        SELECT A.*, B.bidder, B.price, B.dateTime AS bid_dateTime, B.extra AS bid_extra,
               ROW_NUMBER() OVER (PARTITION BY A.id ORDER BY B.price DESC, B.dateTime ASC) AS rownum
        FROM auction A, bid B
        WHERE A.id = B.auction AND B.dateTime BETWEEN A.dateTime AND A.expires
    )
    WHERE rownum <= 1
    """
    return (
        keyed(_valid_bids(on, "q9").drop("channel", "url"), "id", uid="q9-first")
        .top_n(1, by=["price", "right_dateTime"], descending=[True, False])
        .drop("rank")
    )


def q11(on: Tables) -> DataFrame:
    """
    SELECT bidder, count(*) AS bid_count, window_start, window_end
    FROM TABLE(SESSION(TABLE bid PARTITION BY bidder, DESCRIPTOR(dateTime), INTERVAL '10' SECOND))
    GROUP BY bidder, window_start, window_end
    """
    return keyed(on.bid, "bidder", uid="q11").window(Session.with_gap("10 s")).aggregate(bid_count=count())


def q12(on: Tables) -> DataFrame:
    """
    SELECT bidder, count(*) AS bid_count, window_start, window_end
    FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(p_time), INTERVAL '10' SECOND))
    GROUP BY bidder, window_start, window_end
    """
    windows = keyed(on.bid, "bidder", uid="q12").window(Tumbling.of("10 s", processing_time=True))
    return windows.aggregate(bid_count=count())


def q13(on: Tables) -> DataFrame:
    """
    SELECT B.auction, B.bidder, B.price, B.dateTime, S.value
    FROM (SELECT *, PROCTIME() AS p_time FROM bid) B
    JOIN side_input FOR SYSTEM_TIME AS OF B.p_time AS S
    ON MOD(B.auction, 10000) = S.key
    """
    joined = on.bid.join(on.side_input, f.expr("mod(auction, 10000) = key"))
    return joined.select("auction", "bidder", "price", "dateTime", "value")


def q14(on: Tables) -> DataFrame:
    """
    SELECT auction, bidder, 0.908 * price AS price,
        CASE
            WHEN HOUR(dateTime) >= 8 AND HOUR(dateTime) <= 18 THEN 'dayTime'
            WHEN HOUR(dateTime) <= 6 OR HOUR(dateTime) >= 20 THEN 'nightTime'
            ELSE 'otherTime'
        END AS bidTimeType,
        dateTime, extra, count_char(extra, 'c') AS c_counts
    FROM bid
    WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000
    """
    return on.bid.where("0.908 * price > 1000000 and 0.908 * price < 50000000").selectExpr(
        *("auction", "bidder", "0.908 * price as price"),
        "case when hour(dateTime) between 8 and 18 then 'dayTime' when hour(dateTime) <= 6 "
        "or hour(dateTime) >= 20 then 'nightTime' else 'otherTime' end as bidTimeType",
        *("dateTime", "extra", "length(extra) - length(replace(extra, 'c', '')) as c_counts"),
    )


def _ranked(on: Tables) -> DataFrame:
    """Return bids with their day, and in which of three ranges their price is."""
    return on.bid.selectExpr(
        "*",
        "date_format(dateTime, 'yyyy-MM-dd') as day",
        "price < 10000 as rank1",
        "price >= 10000 and price < 1000000 as rank2",
        "price >= 1000000 as rank3",
    )


def q15(on: Tables) -> DataFrame:
    """
    SELECT
        DATE_FORMAT(dateTime, 'yyyy-MM-dd') AS `day`,
        count(*) AS total_bids,
        count(*) FILTER (WHERE price < 10000) AS rank1_bids,
        count(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bids,
        count(*) FILTER (WHERE price >= 1000000) AS rank3_bids,
        count(DISTINCT bidder) AS total_bidders,
        count(DISTINCT bidder) FILTER (WHERE price < 10000) AS rank1_bidders,
        count(DISTINCT bidder) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bidders,
        count(DISTINCT bidder) FILTER (WHERE price >= 1000000) AS rank3_bidders,
        count(DISTINCT auction) AS total_auctions,
        count(DISTINCT auction) FILTER (WHERE price < 10000) AS rank1_auctions,
        count(DISTINCT auction) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_auctions,
        count(DISTINCT auction) FILTER (WHERE price >= 1000000) AS rank3_auctions
    FROM bid
    GROUP BY DATE_FORMAT(dateTime, 'yyyy-MM-dd')
    """
    return keyed(_ranked(on), "day", uid="q15").aggregate(
        total_bids=count(),
        rank1_bids=count(where="rank1"),
        rank2_bids=count(where="rank2"),
        rank3_bids=count(where="rank3"),
        total_bidders=count_distinct("bidder"),
        rank1_bidders=count_distinct("bidder", where="rank1"),
        rank2_bidders=count_distinct("bidder", where="rank2"),
        rank3_bidders=count_distinct("bidder", where="rank3"),
        total_auctions=count_distinct("auction"),
        rank1_auctions=count_distinct("auction", where="rank1"),
        rank2_auctions=count_distinct("auction", where="rank2"),
        rank3_auctions=count_distinct("auction", where="rank3"),
    )


def q16(on: Tables) -> DataFrame:
    """
    SELECT
        channel,
        DATE_FORMAT(dateTime, 'yyyy-MM-dd') AS `day`,
        max(DATE_FORMAT(dateTime, 'HH:mm')) AS `minute`,
        count(*) AS total_bids,
        count(*) FILTER (WHERE price < 10000) AS rank1_bids,
        count(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bids,
        count(*) FILTER (WHERE price >= 1000000) AS rank3_bids,
        count(DISTINCT bidder) AS total_bidders,
        count(DISTINCT bidder) FILTER (WHERE price < 10000) AS rank1_bidders,
        count(DISTINCT bidder) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bidders,
        count(DISTINCT bidder) FILTER (WHERE price >= 1000000) AS rank3_bidders,
        count(DISTINCT auction) AS total_auctions,
        count(DISTINCT auction) FILTER (WHERE price < 10000) AS rank1_auctions,
        count(DISTINCT auction) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_auctions,
        count(DISTINCT auction) FILTER (WHERE price >= 1000000) AS rank3_auctions
    FROM bid
    GROUP BY channel, DATE_FORMAT(dateTime, 'yyyy-MM-dd')
    """
    bids = _ranked(on).withColumn("minute", f.date_format("dateTime", "HH:mm"))
    return keyed(bids, "channel", "day", uid="q16").aggregate(
        minute=max_("minute"),
        total_bids=count(),
        rank1_bids=count(where="rank1"),
        rank2_bids=count(where="rank2"),
        rank3_bids=count(where="rank3"),
        total_bidders=count_distinct("bidder"),
        rank1_bidders=count_distinct("bidder", where="rank1"),
        rank2_bidders=count_distinct("bidder", where="rank2"),
        rank3_bidders=count_distinct("bidder", where="rank3"),
        total_auctions=count_distinct("auction"),
        rank1_auctions=count_distinct("auction", where="rank1"),
        rank2_auctions=count_distinct("auction", where="rank2"),
        rank3_auctions=count_distinct("auction", where="rank3"),
    )


def q17(on: Tables) -> DataFrame:
    """
    SELECT
        auction,
        DATE_FORMAT(dateTime, 'yyyy-MM-dd') AS `day`,
        count(*) AS total_bids,
        count(*) FILTER (WHERE price < 10000) AS rank1_bids,
        count(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bids,
        count(*) FILTER (WHERE price >= 1000000) AS rank3_bids,
        min(price) AS min_price,
        max(price) AS max_price,
        avg(price) AS avg_price,
        sum(price) AS sum_price
    FROM bid
    GROUP BY auction, DATE_FORMAT(dateTime, 'yyyy-MM-dd')
    """
    return keyed(_ranked(on), "auction", "day", uid="q17").aggregate(
        total_bids=count(),
        rank1_bids=count(where="rank1"),
        rank2_bids=count(where="rank2"),
        rank3_bids=count(where="rank3"),
        min_price=min_("price"),
        max_price=max_("price"),
        avg_price=mean("price"),
        sum_price=sum_("price"),
    )


def q18(on: Tables) -> DataFrame:
    """
    SELECT auction, bidder, price, channel, url, dateTime, extra
    FROM (
        SELECT *, ROW_NUMBER() OVER (PARTITION BY bidder, auction ORDER BY dateTime DESC) AS rank_number
        FROM bid
    )
    WHERE rank_number <= 1
    """
    return keyed(on.bid, "bidder", "auction", uid="q18").deduplicate(keep="last", by="dateTime")


def q19(on: Tables) -> DataFrame:
    """
    SELECT * FROM (
        SELECT *, ROW_NUMBER() OVER (PARTITION BY auction ORDER BY price DESC, dateTime) AS rank_number
        FROM bid
    )
    WHERE rank_number <= 10
    """
    return keyed(on.bid, "auction", uid="q19").top_n(10, by=["price", "dateTime"], descending=[True, False])


def q20(on: Tables) -> DataFrame:
    """
    SELECT auction, bidder, price, channel, url, B.dateTime, B.extra,
           itemName, description, initialBid, reserve, A.dateTime, expires, seller, category, A.extra
    FROM bid AS B INNER JOIN auction AS A ON B.auction = A.id
    WHERE A.category = 10
    """
    items = keyed(on.auction.where("category = 10"), "id")
    return connect(keyed(on.bid, "auction"), items, uid="q20").join()


def q21(on: Tables) -> DataFrame:
    r"""
    SELECT auction, bidder, price, channel,
        CASE
            WHEN lower(channel) = 'apple' THEN '0'
            WHEN lower(channel) = 'google' THEN '1'
            WHEN lower(channel) = 'facebook' THEN '2'
            WHEN lower(channel) = 'baidu' THEN '3'
            ELSE REGEXP_EXTRACT(url, '(&|^)channel_id=([^&]*)', 2)
        END AS channel_id
    FROM bid
    WHERE REGEXP_EXTRACT(url, '(&|^)channel_id=([^&]*)', 2) IS NOT NULL
       OR lower(channel) IN ('apple', 'google', 'facebook', 'baidu')
    """
    channel_id = (
        "case lower(channel) when 'apple' then '0' when 'google' then '1' when 'facebook' then '2' "
        "when 'baidu' then '3' else regexp_extract(url, '(&|^)channel_id=([^&]*)', 2) end as channel_id"
    )
    return on.bid.selectExpr("auction", "bidder", "price", "channel", channel_id).where("channel_id <> ''")


def q22(on: Tables) -> DataFrame:
    """
    SELECT auction, bidder, price, channel,
        SPLIT_INDEX(url, '/', 3) AS dir1,
        SPLIT_INDEX(url, '/', 4) AS dir2,
        SPLIT_INDEX(url, '/', 5) AS dir3
    FROM bid
    """
    parts = (f"split_part(url, '/', {part + 3}) as dir{part}" for part in (1, 2, 3))
    return on.bid.selectExpr("auction", "bidder", "price", "channel", *parts)


def q23(on: Tables) -> DataFrame:
    """
    SELECT B.auction, B.bidder, B.price, B.channel, B.url, B.dateTime, P.name, A.id, A.itemName
    FROM bid B
    JOIN person P ON B.bidder = P.id
    JOIN auction A ON B.bidder = A.seller
    """
    people = keyed(on.person.select("id", "name", "dateTime"), "id")
    items = keyed(on.auction.select("seller", "id", "itemName", "dateTime"), "seller")
    joined = connect(keyed(on.bid, "bidder"), people, items, uid="q23").join()
    return joined.select(
        "auction", "bidder", "price", "channel", "url", "first_dateTime", "name", "id", "itemName"
    )


QUERIES: dict[str, Query] = {
    query.__name__: query
    for query in (
        *(q0, q1, q2, q3, q4, q5, q7, q8, q9, q11, q12, q13, q14),
        *(q15, q16, q17, q18, q19, q20, q21, q22, q23),
    )
}
#: Those that Spark says alone.
STATELESS = ("q0", "q1", "q2", "q13", "q14", "q21", "q22")


def lines_of_sql(query: Query) -> int:
    """Return the lines of the docstring of a query."""
    return len((inspect.getdoc(query) or "").splitlines())


def lines_of_code(query: Query) -> int:
    """Return the lines of a query's body, with those of the functions that it shares with others."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(query))).body[0]
    assert isinstance(tree, ast.FunctionDef) and tree.end_lineno is not None
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    shared = [one for one in (_valid_bids, _ranked) if one.__name__ in used]
    first = tree.body[1] if ast.get_docstring(tree) else tree.body[0]
    return tree.end_lineno - first.lineno + 1 + sum(lines_of_code(one) for one in shared)
