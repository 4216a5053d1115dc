"""The events of Nexmark: how many of each kind, what they refer to, their order, and that they repeat."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .events import BLOCK, FIRST_ID, KINDS, SCHEMAS, Events

EVENTS = Events(period_ms=2)


def column(table: pa.Table, name: str) -> np.ndarray:
    return table.column(name).to_numpy()


def test_of_fifty_events_one_is_a_person_three_are_auctions_and_the_others_bids() -> None:
    batch = EVENTS.batch(0, 2 * BLOCK)
    assert [batch[kind].num_rows for kind in KINDS] == [200, 600, 9200]
    assert {kind: table.schema for kind, table in batch.items()} == SCHEMAS


def test_the_same_seed_gives_the_same_events_however_they_are_cut() -> None:
    whole = EVENTS.batch(0, 12_345)
    for rows in (999, BLOCK, 7000):
        parts = list(Events(period_ms=2).batches(12_345, rows))
        for kind in KINDS:
            assert pa.concat_tables(part[kind] for part in parts).combine_chunks() == whole[kind]
    assert Events(seed=2, period_ms=2).batch(0, 12_345)["bid"] != whole["bid"]


def test_events_refer_to_persons_and_auctions_that_exist_at_their_time() -> None:
    person, auction, bid = EVENTS.batch(0, 8 * BLOCK).values()
    assert column(person, "id").min() == column(auction, "id").min() == FIRST_ID
    for table, reference, other in (
        (auction, "seller", person),
        (bid, "bidder", person),
        (bid, "auction", auction),
    ):
        made = dict(zip(other["id"].to_pylist(), column(other, "dateTime"), strict=True))
        begun = np.array([made[each] for each in table[reference].to_pylist()])
        assert (begun < column(table, "dateTime")).all()
    assert (column(auction, "expires") > column(auction, "dateTime")).all()


def test_some_auctions_bidders_and_sellers_are_hot() -> None:
    _, auction, bid = EVENTS.batch(0, 8 * BLOCK).values()
    assert 0.45 < (column(bid, "auction") % 100 == 0).mean() < 0.6
    assert 0.7 < (column(bid, "bidder") % 100 == 1).mean() < 0.85
    assert 0.7 < (column(auction, "seller") % 100 == 0).mean() < 0.85


def test_events_arrive_out_of_order_within_the_bound_and_no_two_at_one_time() -> None:
    for disorder_ms in (1, 100, 3000):
        bid = Events(period_ms=2, disorder_ms=disorder_ms).batch(0, 4 * BLOCK)["bid"]
        times = column(bid, "dateTime").astype("datetime64[ms]").astype(int)
        behind = np.maximum.accumulate(times) - times
        assert behind.max() < disorder_ms
        assert bool(behind.max() > disorder_ms // 2) == (disorder_ms > 1)
        assert pc.count_distinct(bid["dateTime"]).as_py() == bid.num_rows


def test_closing_events_are_long_after_all_others() -> None:
    latest = max(pc.max(table["dateTime"]).as_py() for table in EVENTS.batch(0, BLOCK).values())
    for table in EVENTS.closing(0).values():
        assert table.num_rows == 1 and (table["dateTime"][0].as_py() - latest).days > 900
