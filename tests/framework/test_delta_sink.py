"""The sink that merges changing results into a Delta table."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import sys
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keyedstate.aggregates import count, sum_
from keyedstate.errors import MissingPackageError, RowKindError, UpsertError
from keyedstate.local import keyed
from keyedstate.sinks import DeltaSink

UTC = dt.timezone.utc


def content(folder: Path) -> list[dict[str, Any]]:
    rows = deltalake.DeltaTable(str(folder)).to_pyarrow_table().to_pylist()
    return sorted(rows, key=repr)


def table(*rows: tuple[Any, ...]) -> pa.Table:
    types = [("shop", pa.string()), ("n", pa.int64()), ("total", pa.int64()), ("kind", pa.string())]
    columns = [pa.array([row[place] for row in rows], type_) for place, (_, type_) in enumerate(types)]
    return pa.table(columns, names=[name for name, _ in types])


def row(shop: str | None, n: int | None, total: int | None) -> dict[str, Any]:
    return {"shop": shop, "n": n, "total": total}


def test_row_kinds_update_and_delete_and_an_epoch_may_be_written_again(tmp_path: Path) -> None:
    sink = DeltaSink(str(tmp_path / "table"), ["shop", "n"], row_kind="kind")
    sink(table(), 0)
    assert not (tmp_path / "table").exists(), "no row has said what its columns are"
    sink(table(("a", 1, 1, "+I"), ("a", None, 2, "+I"), (None, 3, 3, "+I"), ("b", 1, 4, "+I")), 1)
    changes = table(
        ("a", 1, 1, "-U"), ("a", 1, 9, "+U"), ("a", None, 2, "-D"), (None, 3, 8, "+U"), ("x", 1, 1, "-D")
    )
    for _ in range(2):
        sink(changes, 2)
        assert content(tmp_path / "table") == [row("a", 1, 9), row("b", 1, 4), row(None, 3, 8)]
    sink(table(("b", 1, 4, "-U")), 3)
    assert content(tmp_path / "table") == [row("a", 1, 9), row(None, 3, 8)]


def test_an_epoch_is_one_version_of_the_table(tmp_path: Path) -> None:
    sink = DeltaSink(str(tmp_path), ["shop"], row_kind="kind")
    sink(table(("a", 1, 1, "+I"), ("b", 1, 1, "+I")), 0)
    before = deltalake.DeltaTable(str(tmp_path)).version()
    sink(table(("a", 1, 1, "-D"), ("b", 2, 2, "+U"), ("c", 3, 3, "+I")), 1)
    assert deltalake.DeltaTable(str(tmp_path)).version() == before + 1


STEPS = st.lists(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b", None]),
            st.sampled_from([1, None]),
            st.integers(0, 9),
            st.sampled_from(["+I", "-U", "+U", "-D"]),
        ),
        max_size=6,
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS)
def test_a_table_is_what_a_dict_would_be(tmp_path_factory: pytest.TempPathFactory, steps: Any) -> None:
    folder = tmp_path_factory.mktemp("delta") / "table"
    sink = DeltaSink(str(folder), ["shop", "n"], row_kind="kind")
    model: dict[Any, Any] = {}
    for epoch, rows in enumerate(steps):
        sink(table(*rows), epoch)
        for shop, n, total, kind in rows:
            model.pop((shop, n), None)
            if kind in ("+I", "+U"):
                model[shop, n] = row(shop, n, total)
    if folder.exists():
        assert content(folder) == sorted(model.values(), key=repr)


def test_values_of_all_types_come_back_and_names_may_be_anything(tmp_path: Path) -> None:
    noon = dt.datetime(2026, 7, 1, 12, tzinfo=UTC)
    rows = pa.table(
        {
            'the "key" of': pa.array([1, 2], pa.int32()),
            "a.b`c": pa.array([decimal.Decimal("1.50"), None], pa.decimal128(10, 2)),
            "at": pa.array([noon, None], pa.timestamp("us", "Europe/Berlin")),
            "day": [noon.date(), None],
            "Liste": [[1, 2], None],
            "struct": [{"x": 1.5, "y": "z"}, None],
            "bytes": [b"\x00", None],
            "yes": [True, None],
        }
    )
    sink = DeltaSink(str(tmp_path), ['the "key" of'])
    for _ in range(2):
        sink(rows, 0)
        found = content(tmp_path)
        assert found == rows.to_pylist()
        assert found[0]["at"] == noon


def test_a_local_run_writes_its_changes(tmp_path: Path) -> None:
    def run(sales: list[tuple[str, int]]) -> None:
        rows = pa.table({"shop": [shop for shop, _ in sales], "n": [n for _, n in sales]})
        config = {"checkpoint.dir": str(tmp_path / "state")}
        totals = keyed(rows, "shop", uid="totals", config=config).aggregate(
            n=count(), total=sum_("n"), row_kind="kind"
        )
        totals.for_each(DeltaSink(str(tmp_path / "table"), ["shop"], row_kind="kind"))

    run([("a", 1), ("b", 2)])
    run([("a", 1), ("b", 2), ("a", 5)])
    assert content(tmp_path / "table") == [row("a", 2, 6), row("b", 1, 2)]


@pytest.mark.parametrize(
    ("rows", "options", "error", "words"),
    [
        (table(("a", 1, 1, "+I")), {"keys": ["shp"]}, UpsertError, "Did you mean 'shop'"),
        (table(("a", 1, 1, "+I")), {"row_kind": "kid"}, UpsertError, "Did you mean 'kind'"),
        (table(("a", 1, 1, "+X")), {}, RowKindError, "'+X'"),
        (table(("a", 1, 1, None)), {}, RowKindError, "None"),
        (pa.table({"shop": [1.0, math.nan], "kind": ["+I", "+I"]}), {}, UpsertError, "NaN"),
        (pa.table({"shop": [[1]], "kind": ["+I"]}), {}, UpsertError, "cannot be compared"),
        ([1, 2], {}, UpsertError, "its rows are list"),
    ],
)
def test_rows_that_cannot_be_written_are_refused_and_change_nothing(
    tmp_path: Path, rows: Any, options: Any, error: Any, words: str
) -> None:
    with pytest.raises(error) as caught:
        DeltaSink(str(tmp_path / "table"), **{"keys": ["shop"], "row_kind": "kind", **options})(rows, 0)
    assert words in str(caught.value)
    assert not (tmp_path / "table").exists()


def test_other_types_than_those_of_the_table_are_refused_by_it_and_change_nothing(tmp_path: Path) -> None:
    sink = DeltaSink(str(tmp_path), ["shop"])
    sink(pa.table({"shop": ["a"], "n": [1]}), 0)
    with pytest.raises(Exception, match="n"):
        sink(pa.table({"shop": ["a"], "n": [[1]]}), 1)
    with pytest.raises(UpsertError, match="it has no column 'more', but shop, n"):
        sink(pa.table({"shop": ["a"], "more": [1]}), 1)
    assert content(tmp_path) == [{"shop": "a", "n": 1}]


def test_keys_are_a_list_and_the_package_is_named_where_it_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for keys in ("shop", []):
        with pytest.raises(UpsertError, match="at least one column"):
            DeltaSink(str(tmp_path), keys)
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(MissingPackageError, match="deltalake"):
        DeltaSink(str(tmp_path), ["shop"])
