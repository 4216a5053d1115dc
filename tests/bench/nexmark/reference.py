"""What each query must give, in DuckDB's SQL over all events at once.

`closed` is the time up to which windows have ended.
"""

from __future__ import annotations

import pyarrow as pa

_RANKED = """
    count(*), count(*) filter (price < 10000), count(*) filter (price >= 10000 and price < 1000000),
    count(*) filter (price >= 1000000)"""
_DISTINCT = "".join(
    f""",
    count(distinct {what}), count(distinct {what}) filter (price < 10000),
    count(distinct {what}) filter (price >= 10000 and price < 1000000),
    count(distinct {what}) filter (price >= 1000000)"""
    for what in ("bidder", "auction")
)
_VALID = "from auction a join bid b on a.id = b.auction and b.dateTime between a.dateTime and a.expires"

REFERENCES = {
    "q0": "select auction, bidder, price, dateTime, extra from bid",
    "q1": "select auction, bidder, 0.908 * price, dateTime, extra from bid",
    "q2": "select auction, price from bid where auction % 123 = 0",
    "q3": """
        select p.name, p.city, p.state, a.id from auction a join person p on a.seller = p.id
        where a.category = 10 and p.state in ('OR', 'ID', 'CA')""",
    "q4": f"""
        select category, avg(final)
        from (select a.id, a.category, max(b.price) as final {_VALID} group by all) group by category""",
    "q5": """
        with hops as (
            select auction, ends, count(*) as num from (
                select auction, unnest([time_bucket(interval 2 second, dateTime) + to_seconds(2 * hop)
                                        for hop in range(1, 6)]) as ends from bid)
            group by auction, ends)
        select ends, auction, num from hops where ends <= $closed
        qualify num = max(num) over (partition by ends)""",
    "q7": """
        select auction, price, bidder, dateTime, extra from (
            select *, time_bucket(interval 10 second, dateTime) as starts from bid)
        where starts + interval 10 second <= $closed
        qualify price = max(price) over (partition by starts)""",
    "q8": """
        select id, name, time_bucket(interval 10 second, dateTime) as starts from person p
        where starts + interval 10 second <= $closed and exists (
            select 1 from auction a
            where a.seller = p.id and time_bucket(interval 10 second, a.dateTime) = starts)""",
    "q9": f"""
        select a.*, b.bidder, b.price, b.dateTime, b.extra {_VALID}
        qualify row_number() over (partition by a.id order by b.price desc, b.dateTime) = 1""",
    "q11": """
        with gaps as (
            select bidder, dateTime, coalesce(dateTime - lag(dateTime) over own > interval 10 second, true)
                as begins from bid window own as (partition by bidder order by dateTime)),
        sessions as (
            select *, sum(begins::int) over (partition by bidder order by dateTime) as session from gaps)
        select bidder, min(dateTime), max(dateTime) + interval 10 second as ends, count(*) from sessions
        group by bidder, session having ends <= $closed""",
    "q12": "select bidder, count(*) from bid group by bidder",
    "q13": """
        select auction, bidder, price, dateTime, value from bid join side_input on auction % 10000 = key""",
    "q14": """
        select auction, bidder, 0.908 * price as euros,
            case when hour(dateTime) between 8 and 18 then 'dayTime'
                 when hour(dateTime) <= 6 or hour(dateTime) >= 20 then 'nightTime' else 'otherTime' end,
            dateTime, extra, len(list_filter(string_split(extra, ''), lambda each: each = 'c'))
        from bid where euros > 1000000 and euros < 50000000""",
    "q15": f"select strftime(dateTime, '%Y-%m-%d') as day, {_RANKED} {_DISTINCT} from bid group by day",
    "q16": f"""
        select channel, strftime(dateTime, '%Y-%m-%d') as day, max(strftime(dateTime, '%H:%M')),
        {_RANKED} {_DISTINCT} from bid group by channel, day""",
    "q17": f"""
        select auction, strftime(dateTime, '%Y-%m-%d') as day, {_RANKED},
        min(price), max(price), avg(price), sum(price) from bid group by auction, day""",
    "q18": """
        select * from bid
        qualify row_number() over (partition by bidder, auction order by dateTime desc) = 1""",
    "q19": """
        select *, row_number() over (partition by auction order by price desc, dateTime) as rank from bid
        qualify rank <= 10""",
    "q20": """
        select b.*, a.* exclude (id) from bid b join auction a on b.auction = a.id where a.category = 10""",
    "q21": """
        select auction, bidder, price, channel,
            case lower(channel) when 'apple' then '0' when 'google' then '1' when 'facebook' then '2'
            when 'baidu' then '3' else regexp_extract(url, 'channel_id=([^&]*)', 1) end as channel_id
        from bid where channel_id <> ''""",
    "q22": """
        select auction, bidder, price, channel, string_split(url, '/')[4], string_split(url, '/')[5],
        string_split(url, '/')[6] from bid""",
    "q23": """
        select b.auction, bidder, price, channel, url, b.dateTime, name, a.id, itemName
        from bid b join person p on bidder = p.id join auction a on bidder = seller""",
}


class Reference:
    """DuckDB over the tables of events."""

    def __init__(self, tables: dict[str, pa.Table], closed: object) -> None:
        # Only who checks results has it.
        import duckdb

        self._database = duckdb.connect()
        self._database.execute("set threads = 1")
        self._closed = closed
        for name, table in tables.items():
            self._database.register(f"{name}_events", table)
            # Times without a zone, which DuckDB formats as they are.
            zoned = [each.name for each in table.schema if pa.types.is_timestamp(each.type)]
            plain = ", ".join(f"{each} at time zone 'UTC' as {each}" for each in zoned)
            replaced = f"replace ({plain})" if zoned else ""
            self._database.execute(f"create table {name} as select * {replaced} from {name}_events")

    def rows(self, query: str) -> list[tuple[object, ...]]:
        """Return the rows of a query."""
        sql = REFERENCES[query]
        given = {"closed": self._closed} if "$closed" in sql else {}
        return self._database.execute(sql, given).fetchall()
