"""The sink that writes changing results into a table of a database, here of SQLite."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from keyedstate.aggregates import count, sum_
from keyedstate.errors import RowKindError, UpsertError
from keyedstate.local import keyed
from keyedstate.sinks import UpsertSink


@pytest.fixture
def database(tmp_path: Path) -> Callable[[], sqlite3.Connection]:
    path = tmp_path / "results.db"
    with sqlite3.connect(path) as connection:
        connection.execute('create table results (shop text, "the total" integer, n integer)')
    return lambda: sqlite3.connect(path)


def content(database: Callable[[], sqlite3.Connection]) -> list[tuple[Any, ...]]:
    connection = database()
    try:
        return sorted(connection.execute("select * from results").fetchall(), key=repr)
    finally:
        connection.close()


def table(*rows: tuple[Any, ...], kind: bool = True) -> pa.Table:
    names = ["shop", "the total", "n", *(["kind"] if kind else [])]
    return pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows])


def test_a_row_replaces_the_one_of_its_key_also_of_a_key_with_a_null(database: Any) -> None:
    sink = UpsertSink(database, "results", ["shop"])
    sink(table(("a", 1, 1), (None, 2, 1), kind=False), 0)
    sink(table((None, 3, 2), ("b", 4, 1), kind=False), 1)
    assert content(database) == [("a", 1, 1), ("b", 4, 1), (None, 3, 2)]


def test_row_kinds_update_and_delete_and_an_epoch_may_be_written_again(database: Any) -> None:
    sink = UpsertSink(database, "results", ["shop", "n"], row_kind="kind")
    sink(table(("a", 1, 1, "+I"), ("a", 2, None, "+I"), ("b", 2, 1, "+I")), 0)
    changes = table(("a", 1, 1, "-U"), ("a", 9, 1, "+U"), ("a", 2, None, "-D"))
    for _ in range(2):
        sink(changes, 1)
        assert content(database) == [("a", 9, 1), ("b", 2, 1)]
    sink(changes.slice(0, 0), 2)
    assert len(content(database)) == 2


def test_an_epoch_is_written_whole_or_not_at_all(database: Any) -> None:
    sink = UpsertSink(database, "results", ["shop"])
    sink(table(("a", 1, 1), kind=False), 0)
    with pytest.raises(sqlite3.Error):
        sink(table(("a", None, 2), ("b", [1], 1), kind=False), 1)  # SQLite has no lists
    assert content(database) == [("a", 1, 1)]


def test_a_local_run_updates_the_table_over_restarts(database: Any, tmp_path: Path) -> None:
    sales = [("a", 3), ("b", 1), ("a", 4)]
    for end in (1, 3, 3):
        rows = pa.Table.from_pylist([{"shop": shop, "amount": amount} for shop, amount in sales[:end]])
        totals = keyed(rows, "shop", uid="totals", config={"checkpoint.dir": str(tmp_path / "state")})
        stream = totals.aggregate({"the total": sum_("amount")}, n=count(), row_kind="kind")
        stream.for_each(UpsertSink(database, "results", ["shop"], row_kind="kind"))
    assert content(database) == [("a", 7, 2), ("b", 1, 1)]


def test_a_row_leaves_the_table_where_only_its_end_is_seen(database: Any) -> None:
    sink = UpsertSink(database, "results", ["shop"], row_kind="kind")
    sink(table(("a", 1, 1, "+I"), ("b", 2, 1, "+I")), 0)
    # A filter has dropped the row that replaces it.
    sink(table(("a", 1, 1, "-U")), 1)
    assert content(database) == [("b", 2, 1)]


def test_instants_of_a_repeated_hour_are_two_keys_and_a_nan_is_refused(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "hours.db")) as connection:
        connection.execute("create table hours (start text, n integer)")
    sink = UpsertSink(lambda: sqlite3.connect(tmp_path / "hours.db"), "hours", ["start"])
    hour = 3_600_000_000
    first = 1_729_987_200_000_000  # 2024-10-27 00:00 UTC: at 01:00 the clocks of Berlin go back
    times = pa.array([first + hour // 2, first + 3 * hour // 2], pa.timestamp("us", "Europe/Berlin"))
    sink(pa.table({"start": times, "n": [1, 2]}), 0)
    with closing(sqlite3.connect(tmp_path / "hours.db")) as connection:
        assert sorted(n for (n,) in connection.execute("select n from hours")) == [1, 2]
    with pytest.raises(UpsertError, match="'start' has nan"):
        sink(pa.table({"start": [math.nan], "n": [1]}), 1)


def test_a_table_without_the_key_column_loses_nothing(database: Any) -> None:
    UpsertSink(database, "results", ["shop"])(table(("a", 1, 1), kind=False), 0)
    rows = pa.table({"store": ["store"], "kind": ["-D"]})
    with pytest.raises(sqlite3.Error, match="no such column"):
        UpsertSink(database, "results", ["store"], row_kind="kind")(rows, 1)
    assert content(database) == [("a", 1, 1)]


def test_a_connection_that_begins_no_transaction_writes_an_epoch_whole(database: Any, tmp_path: Path) -> None:
    sink = UpsertSink(
        lambda: sqlite3.connect(tmp_path / "results.db", isolation_level=None), "results", ["shop"]
    )
    sink(table(("a", 1, 1), kind=False), 0)
    with pytest.raises(sqlite3.Error):
        sink(table(("a", None, 2), ("b", [1], 1), kind=False), 1)
    assert content(database) == [("a", 1, 1)]


def test_wrong_declarations_and_rows_name_the_table_and_the_way_out(database: Any) -> None:
    for keys, placeholder in (("shop", "?"), ([], "?"), (["shop"], ":1")):
        with pytest.raises(UpsertError, match="the table results cannot be written"):
            UpsertSink(database, "results", keys, placeholder=placeholder)
    with pytest.raises(UpsertError, match=r"no column 'shopp'.*Did you mean 'shop'"):
        UpsertSink(database, "results", ["shopp"])(table(("a", 1, 1), kind=False), 0)
    with pytest.raises(UpsertError, match="its rows are list"):
        UpsertSink(database, "results", ["shop"])([], 0)
    with pytest.raises(RowKindError, match="a row has 'x'"):
        UpsertSink(database, "results", ["shop"], row_kind="kind")(table(("a", 1, 1, "x")), 0)
