"""The queries of Nexmark: what they give over a whole input, and how many lines they take."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

pytest.importorskip("pyspark.sql.streaming.stateful_processor")

from bench.nexmark.checking import Input, differences
from bench.nexmark.events import Events
from bench.nexmark.queries import QUERIES, lines_of_code, lines_of_sql


@pytest.mark.parametrize("name", QUERIES)
def test_a_query_takes_at_most_twice_the_lines_of_its_sql(name: str) -> None:
    assert lines_of_code(QUERIES[name]) <= 2 * lines_of_sql(QUERIES[name])


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Input:
    pytest.importorskip("duckdb")
    return Input.written(tmp_path_factory.mktemp("events"), Events(period_ms=20), 4000, 2000)


@pytest.mark.long
@pytest.mark.parametrize("name", QUERIES)
def test_the_rows_of_a_query_are_those_of_an_independent_engine(
    name: str, events: Input, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEYEDSTATE_CHECKPOINT_DIR", str(tmp_path / "state"))
    with warnings.catch_warnings():
        # q3, q20 and q23 join for ever.
        warnings.simplefilter("ignore")
        found = events.found(spark, name, QUERIES[name], tmp_path)
    assert differences(events.expected(name), found) == ""
