"""Sources: what rows may be, their types, and the offsets from which they are read again."""

from __future__ import annotations

import datetime as dt
import gzip
import json
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.dataset as ds
import pyarrow.json
import pyarrow.parquet as pq
import pytest
from tests.framework.local.functions import COUNTS, Count, events, plain

from keyedstate.aggregates import count
from keyedstate.errors import SourceError
from keyedstate.local import FileSource, RowSource, Source, keyed
from keyedstate.local.sources.batches import BatchChannel
from keyedstate.murmur3 import key_groups
from keyedstate.runtime import KeyedProcessFunction


@pytest.mark.parametrize(
    "rows",
    [
        events("aba"),
        events("aba").to_batches()[0],
        pa.RecordBatchReader.from_batches(events("").schema, events("aba").to_batches()),
        events("aba").to_pandas(),
        pl.DataFrame(events("aba")),
        events("aba").to_pylist(),
        ds.dataset(events("aba")),
        RowSource([("a",), ("b",), ("a",)], "user string"),
    ],
    ids=["table", "batch", "reader", "pandas", "polars", "dicts", "dataset", "rows"],
)
def test_rows_may_come_in_any_of_the_usual_forms(rows: Any):
    assert plain(keyed(rows, "user").process(Count(), COUNTS)) == [("a", 1), ("a", 2), ("b", 1)]


def test_columns_of_polars_get_the_types_of_spark():
    frame = pl.DataFrame({"user": ["a", None, "a"], "v": [[1], [2, 3], []]}).with_columns(
        pl.col("user").cast(pl.Categorical)
    )
    stream = keyed(frame, "user").process(Count(), COUNTS)
    assert sorted(stream, key=str) == [("a", 1), ("a", 2), (None, 1)]


@pytest.mark.parametrize("rows", [pl.Series("user", ["a"]), pl.LazyFrame({"user": ["a"]})])
@pytest.mark.filterwarnings("ignore:Resolving the schema")
def test_a_column_and_an_unfinished_query_of_polars_are_refused(rows: Any):
    with pytest.raises(SourceError, match=f"they are a {type(rows).__name__}"):
        keyed(rows, "user")


def test_a_generator_gives_its_first_rows_before_its_end():
    def generate():
        for number in range(100_000):
            yield {"user": f"u{number % 10}"}
            taken.append(number)

    taken: list[int] = []
    rows = iter(keyed(generate(), "user").process(Count(), COUNTS))
    assert next(rows).n == 1
    assert len(taken) < 100_000


@pytest.mark.parametrize("format", ["parquet", "csv", "json"])
def test_files_of_a_folder_are_read_in_the_order_of_their_names(tmp_path: Path, format: str):
    for number, users in enumerate(["ab", "ca", "b"]):
        _write(tmp_path / f"{number}.{format}", events(users).select(["user", "v"]), format)

    class Names(KeyedProcessFunction):
        def process(self, row, ctx):
            yield (row.user,)

    dataset = ds.dataset(tmp_path, format=format)
    found = [row.user for row in keyed(dataset, "user").process(Names(), "user string")]
    assert sorted(found) == ["a", "a", "b", "b", "c"]
    read = [batch["user"].to_pylist() for batch in _all(FileSource(dataset))]
    assert [user for users in read for user in users] == list("abcab")


@pytest.mark.parametrize("before", ["", "\n", "  \n", "\r\n\n", "\ufeff\n"])
def test_a_json_file_whose_only_newlines_are_before_its_line_is_read(tmp_path: Path, before: str):
    (tmp_path / "1.json").write_text(before + '{"user": "a"}', newline="")
    dataset = ds.dataset(tmp_path, format="json", schema=pa.schema({"user": pa.string()}))
    assert plain(keyed(dataset, "user").process(Count(), COUNTS)) == [("a", 1)]


@pytest.mark.parametrize("name", ["1.json", "1.json.gz"])
def test_a_json_file_of_one_line_without_a_final_newline_is_read(tmp_path: Path, name: str):
    """pyarrow.dataset gives nulls for it."""
    opened = gzip.open if name.endswith("gz") else open
    for user, in_folder in (("a", "x=1"), ("b", "x=2")):
        (tmp_path / in_folder).mkdir()
        with opened(tmp_path / in_folder / name, "wb") as file:
            file.write(json.dumps({"user": user}).encode())
    dataset = ds.dataset(tmp_path, format="json", partitioning="hive")
    assert plain(keyed(dataset, "user", "x").aggregate(n=count())) == [("a", 1, 1), ("b", 2, 1)]


@pytest.mark.parametrize("content", ["", "\n \n", "\ufeff"])
@pytest.mark.parametrize("format", ["csv", "json"])
def test_a_file_without_content_has_no_rows(tmp_path: Path, format: str, content: str):
    """Writers that had no rows leave such files, and pyarrow.dataset refuses them."""
    _write(tmp_path / f"1.{format}", events("ab").select(["user", "v"]), format)
    (tmp_path / f"2.{format}").write_text(content)
    (tmp_path / f"3.{format}.gz").write_bytes(gzip.compress(content.encode()))
    dataset = ds.dataset(tmp_path, format=format)
    assert plain(keyed(dataset, "user").process(Count(), COUNTS)) == [("a", 1), ("b", 1)]


def test_a_damaged_file_is_named(tmp_path: Path):
    pq.write_table(events("a"), tmp_path / "1.parquet")
    (tmp_path / "2.parquet").write_bytes(b"PAR1 and no more")
    dataset = ds.dataset([str(tmp_path / "1.parquet"), str(tmp_path / "2.parquet")], format="parquet")
    with pytest.raises(SourceError, match=r"^the file .*/2\.parquet cannot be read.*Repair the file"):
        keyed(dataset, "user").process(Count(), COUNTS).to_table()


def test_a_file_that_another_path_leads_to_is_the_same_file(tmp_path: Path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    for number, users in enumerate(["aaa", "b"]):
        pq.write_table(events(users), tmp_path / "real" / f"{number}.parquet", row_group_size=1)
    before = FileSource(ds.dataset(tmp_path / "real"), channels=2).channels()
    after = FileSource(ds.dataset(tmp_path / "link"), channels=2).channels()
    rows = 0
    for channel in before:
        batch = channel.read()
        rows += 0 if batch is None else batch.num_rows
    for channel, continues in zip(before, after, strict=True):
        continues.seek(channel.offset())
        while (batch := continues.read()) is not None:
            rows += batch.num_rows
    assert rows == 4
    with pytest.raises(SourceError, match="has a file twice"):
        FileSource(ds.dataset([ds.dataset(tmp_path / "real"), ds.dataset(tmp_path / "link")]))


def test_a_union_of_datasets_is_read_file_by_file(tmp_path: Path):
    for name, users in (("1", "ab"), ("2", "b")):
        (tmp_path / name).mkdir()
        pq.write_table(events(users), tmp_path / name / "0.parquet")
    union = ds.dataset([ds.dataset(tmp_path / "1"), ds.dataset(tmp_path / "2")])
    stream = keyed(union, "user").process(Count(), COUNTS)
    assert "FileSource" in stream.explain()
    assert plain(stream) == [("a", 1), ("b", 1), ("b", 2)]


def test_a_filtered_dataset_is_refused(tmp_path: Path):
    pq.write_table(events("ab"), tmp_path / "0.parquet")
    with pytest.raises(SourceError, match="filtered or projected"):
        keyed(ds.dataset(tmp_path).filter(pc.field("v") > 0), "user")


def test_folders_that_are_columns_are_columns_of_the_rows(tmp_path: Path):
    ds.write_dataset(
        events("ab"), tmp_path, format="parquet", partitioning=["user"], partitioning_flavor="hive"
    )
    dataset = ds.dataset(tmp_path, partitioning="hive")
    assert plain(keyed(dataset, "user").process(Count(), COUNTS)) == [("a", 1), ("b", 1)]


def test_files_are_dealt_to_channels_by_their_paths(tmp_path: Path):
    for number in range(8):
        pq.write_table(events("ab"), tmp_path / f"{number}.parquet")
    before = _names_by_channel(FileSource(ds.dataset(tmp_path), channels=2))
    pq.write_table(events("ab"), tmp_path / "00.parquet")
    after = _names_by_channel(FileSource(ds.dataset(tmp_path), channels=2))
    assert all(len(names) > 0 for names in before)
    assert all(old <= new for old, new in zip(before, after, strict=True))


def test_a_file_source_continues_in_the_middle_of_a_file(tmp_path: Path):
    pq.write_table(events("a" * 100_000), tmp_path / "0.parquet")
    pq.write_table(events("b" * 10), tmp_path / "1.parquet")
    (channel,) = FileSource(ds.dataset(tmp_path)).channels()
    first = channel.read()
    assert first is not None
    (again,) = FileSource(ds.dataset(tmp_path)).channels()
    again.seek(channel.offset())
    rest = [batch for batch in iter(again.read, None) if batch is not None]
    assert first.num_rows + sum(batch.num_rows for batch in rest) == 100_010
    assert pc.sum(rest[0]["v"]).as_py() != pc.sum(first["v"]).as_py()


def test_a_file_that_is_gone_after_its_first_rows_is_an_error(tmp_path: Path):
    pq.write_table(events("a" * 100_000), tmp_path / "0.parquet")
    pq.write_table(events("b"), tmp_path / "1.parquet")
    (channel,) = FileSource(ds.dataset(tmp_path)).channels()
    channel.read()
    (tmp_path / "0.parquet").unlink()
    (again,) = FileSource(ds.dataset(tmp_path)).channels()
    with pytest.raises(SourceError, match=r"0\.parquet .*it is gone"):
        again.seek(channel.offset())


def test_columns_get_the_types_of_spark_so_that_keys_hash_alike():
    rows = pa.table(
        {
            "user": pa.array(["a"], pa.large_string()).dictionary_encode(),
            "small": pa.array([7], pa.uint8()),
            "at": pa.array([dt.datetime(2026, 1, 1)], pa.timestamp("ns", "Europe/Berlin")),
        }
    )

    class Groups(KeyedProcessFunction):
        side_outputs: ClassVar = {"rows": None}

        def process(self, row, ctx):
            ctx.output("rows", tuple(row))

    found = keyed(rows, "user").process(Groups(), COUNTS).to_tables()["rows"]
    assert [str(type_) for type_ in found.schema.types] == ["string", "int16", "timestamp[us, tz=UTC]"]
    assert key_groups([pa.array(["a"])], 128).tolist() == key_groups([rows["user"]], 128).tolist()


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([], "no row that shows the columns"),
        ([("a", 1)], "is no dict"),
        ([{"user": "a"}, {"usr": "b"}], r"row 1 cannot be read .*user"),
        ([{"user": "a"}] * 200 + [{"user": 5}], "row 200 cannot be read"),
    ],
)
def test_rows_that_do_not_fit_are_refused_with_their_number(rows: list[Any], said: str):
    with pytest.raises(SourceError, match=said):
        keyed(rows, "user").process(Count(), COUNTS).to_table()


class Numbers:
    """A source of two channels that can be read again."""

    schema = pa.schema([("user", pa.string())])

    def channels(self):
        return [_NumbersChannel("even", 0), _NumbersChannel("odd", 1)]


class _NumbersChannel:
    def __init__(self, name: str, first: int) -> None:
        self.name = name
        self._next = first

    def read(self):
        if self._next >= 10:
            return None
        self._next += 2
        return pa.record_batch({"user": [str(self._next)]}, schema=Numbers.schema)

    def offset(self):
        return self._next

    def seek(self, offset):
        self._next = offset


class _Given:
    """A source of the given batches, by the names of their channels."""

    def __init__(self, schema: pa.Schema, batches: dict[str, list[pa.RecordBatch]]) -> None:
        self.schema = schema
        self._batches = batches

    def channels(self):
        return [BatchChannel(name, iter(batches)) for name, batches in self._batches.items()]


def test_a_source_of_the_user_is_any_object_with_channels():
    assert isinstance(Numbers(), Source)
    found = keyed(Numbers(), "user").aggregate(n=count()).to_table()
    assert found.num_rows == 10


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        ({"x": ["wrong"], "user": ["a"]}, r"columns are \(x string, user string\)"),
        ({"user": ["a"], "y": ["b"]}, r"columns are \(user string, y string\)"),
        ({"user": ["a"], "x": [1]}, r"columns are \(user string, x int64\)"),
    ],
    ids=["another order", "another name", "another type"],
)
def test_a_batch_with_other_columns_than_its_source_is_refused(batch: dict[str, Any], said: str):
    source = _Given(pa.schema({"user": pa.string(), "x": pa.string()}), {"0": [pa.record_batch(batch)]})
    with pytest.raises(SourceError, match=f"channel '0' .*{said}, and .*user string, x string"):
        keyed(source, "user").process(Count(), COUNTS).to_table()


def test_a_batch_may_have_other_types_that_spark_reads_alike():
    batch = pa.record_batch({"user": pa.array(["a"], pa.large_string())})
    source = _Given(pa.schema({"user": pa.string()}), {"0": [batch]})
    assert plain(keyed(source, "user").process(Count(), COUNTS)) == [("a", 1)]


@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_source_without_channels_is_refused(parallelism: int):
    class Nowhere:
        schema = events("a").schema

        def channels(self):
            return []

    stream = keyed(Nowhere(), "user", config={"parallelism": parallelism}).process(Count(), COUNTS)
    with pytest.raises(SourceError, match="channels\\(\\) are none"):
        stream.to_table()


def test_the_position_of_another_kind_of_source_is_refused(tmp_path: Path):
    pq.write_table(events("ab"), tmp_path / "1.parquet")
    files, table = ds.dataset(tmp_path / "1.parquet"), events("ab")
    for first, second in ((files, table), (table, files)):
        config = {"checkpoint.dir": str(tmp_path / type(first).__name__)}
        keyed(first, "user", uid="counts", config=config).process(Count(), COUNTS).to_table()
        with pytest.raises(SourceError, match="is that of another kind of source"):
            keyed(second, "user", uid="counts", config=config).process(Count(), COUNTS).to_table()


@pytest.mark.parametrize(
    ("offset", "said"),
    [
        (b"3", "bytes is not JSON serializable"),
        ((1, 2), r"seek\(\) would get \[1, 2\]"),
        ({1: 2}, "seek"),
        (float("nan"), "not JSON compliant"),
    ],
)
def test_an_offset_that_changes_by_a_restart_is_refused(tmp_path: Path, offset: object, said: str):
    class Channel(BatchChannel):
        def offset(self) -> object:
            return offset

    class Rows:
        schema = events("a").schema

        def channels(self):
            return [Channel("0", iter(events("a").to_batches()))]

    config = {"checkpoint.dir": str(tmp_path)}
    with pytest.raises(SourceError, match=f"JSON cannot hold its offset .*{said}"):
        keyed(Rows(), "user", uid="counts", config=config).process(Count(), COUNTS).to_table()


def test_two_channels_of_one_name_are_refused():
    class Twins(Numbers):
        def channels(self):
            return [_NumbersChannel("0", 0), _NumbersChannel("0", 1)]

    with pytest.raises(SourceError, match=r"the channel '0' .*2 channels"):
        keyed(Twins(), "user").process(Count(), COUNTS).to_table()


@pytest.mark.parametrize(
    "rows",
    [lambda: ({"user": "a"} for _ in range(200)), lambda: events("a" * 200).to_reader()],
    ids=["generator", "reader"],
)
def test_rows_that_can_be_read_once_are_refused_at_the_second_read(rows: Any):
    stream = keyed(rows(), "user").process(Count(), COUNTS)
    assert "1 channel" in stream.explain()
    assert stream.to_table().num_rows == 200
    assert "1 channel" in stream.explain()
    with pytest.raises(SourceError, match="read once"):
        stream.to_table()


@pytest.mark.parametrize("schema", [None, "user string"], ids=["types of the rows", "declared"])
def test_a_generator_is_refused_in_a_second_source(schema: str | None):
    rows = ({"user": "a"} for _ in range(200))
    keyed(RowSource(rows, schema), "user")
    with pytest.raises(SourceError, match="read once"):
        keyed(RowSource(rows, schema), "user")


def test_a_reader_that_was_read_is_refused_in_a_second_stream():
    reader = events("a").to_reader()
    first, second = (keyed(reader, "user").process(Count(), COUNTS) for _ in range(2))
    assert first.to_table().num_rows == 1
    with pytest.raises(SourceError, match="read once"):
        second.to_table()


def test_an_iterator_of_a_list_is_refused_at_the_second_read():
    stream = keyed(iter([{"user": "a"}]), "user").process(Count(), COUNTS)
    assert stream.to_table().num_rows == 1
    with pytest.raises(SourceError, match="read once"):
        stream.to_table()


def test_a_frame_with_an_index_gives_its_columns_alone():
    frame = pd.DataFrame({"user": ["a", "b"]}, index=[7, 9])
    assert keyed(frame, "user").process(Count(), COUNTS).to_table().num_rows == 2


def _write(path: Path, table: pa.Table, format: str) -> None:
    if format == "parquet":
        pq.write_table(table, path)
    elif format == "csv":
        pyarrow.csv.write_csv(table, path)
    else:
        path.write_text("".join(f"{json.dumps(row)}\n" for row in table.to_pylist()))


def _all(source: Any) -> list[pa.RecordBatch]:
    return [batch for channel in source.channels() for batch in iter(channel.read, None)]


def _names_by_channel(source: FileSource) -> list[set[str]]:
    found = []
    for channel in source.channels():
        while channel.read() is not None:
            pass
        found.append(set(channel.offset()["done"]))
    return found
