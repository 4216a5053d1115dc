"""Stored state as a DataFrame: any backend's checkpoints, typed, read by key groups."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

import keyedstate.types as t
from keyedstate import keyed, register
from keyedstate.checkpoint.protocol.operator_folder import OperatorFolder
from keyedstate.checkpoint.protocol.retention import prune
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.errors import CheckpointGoneError, KeyedStateError
from keyedstate.runtime import KeyedProcessFunction
from keyedstate.spark.dataframe.state_columns import fitted, spark_type_of
from keyedstate.spark.schema import to_arrow
from keyedstate.state import ListState, MapState, Ttl, ValueState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytest.importorskip("pyspark.sql.datasource", reason="data sources in Python came with Spark 4")
from keyedstate.spark.datasource.source import KeyedStateDataSource


class Counts(KeyedProcessFunction):
    count = ValueState("count", t.INT64, default=0)
    values = ListState("values", t.INT64)
    by_parity = MapState("by parity", t.STRING, t.INT64)
    last = ValueState("last", t.TIMESTAMP, ttl=Ttl.of("1 hour"))

    def process(self, row: Any, ctx: Any) -> Iterator[Any]:
        import datetime

        self.count.update(self.count.value() + 1)
        self.values.add(row.v)
        self.by_parity.put("even" if row.v % 2 == 0 else "odd", row.v)
        self.last.update(datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc))
        return iter(())


@pytest.fixture(scope="module")
def checkpoints(new_stream: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoints of a query after three epochs, two of which wrote deltas."""
    stream = new_stream(tmp_path_factory.mktemp("stored"))
    stream.add({"k": f"k{n}", "v": n} for n in range(20))
    stream.add({"k": f"k{n}", "v": n} for n in range(0, 20, 2))
    stream.add([{"k": None, "v": 7}, {"k": "k4", "v": 5}])
    config = {"checkpoint.dir": str(stream.state), "checkpoint.delta-min-bytes": 0, "checkpoint.retained": 3}
    stream.run(keyed(stream.frame(), "k", uid="counts", config=config).process(Counts(), "k string"))
    path: Path = stream.state
    return path


def load(spark: SparkSession, path: Path, **options: Any) -> DataFrame:
    reader = spark.read.format("keyedstate")
    for name, value in options.items():
        reader = reader.option(name.replace("_", "-"), value)
    return reader.load(str(path))


def expected_counts() -> dict[str | None, int]:
    counts: dict[str | None, int] = {f"k{n}": 2 - n % 2 for n in range(20)}
    return {**counts, None: 1, "k4": 3}


@pytest.mark.long
def test_the_states_of_every_backend_are_read_typed_with_their_deltas(
    spark: SparkSession, checkpoints: Path
) -> None:
    """SPA-08: whichever backend wrote the files."""
    counts = load(spark, checkpoints, state="count")
    assert counts.columns == ["k", "namespace", "value", "written_at", "expires_at", "key_group", "state"]
    assert counts.schema["k"].dataType.simpleString() == "string"
    assert counts.schema["value"].dataType.simpleString() == "bigint"
    assert {row.k: row.value for row in counts.collect()} == expected_counts()
    by_parity = load(spark, checkpoints, state="by parity")
    assert by_parity.schema["value"].dataType.simpleString() == "map<string,bigint>"
    assert by_parity.where("k = 'k4'").head().value == {"even": 4, "odd": 5}
    last = load(spark, checkpoints, state="last")
    row = last.selectExpr("value", "expires_at - written_at as ttl", "expires_at > now() as lives").head()
    assert (str(row.value), row.ttl.total_seconds(), row.lives) == ("2024-01-01 00:00:00", 3600.0, True)
    everything = load(spark, checkpoints, uid="counts").where("k = 'k4'")
    assert {row.state: json.loads(row.value) for row in everything.collect()} == {
        "count": 3,
        "values": [4, 4, 5],
        "by parity": {"even": 4, "odd": 5},
        "last": "2024-01-01T00:00:00+00:00",
    }


def source(path: Path, **options: Any) -> KeyedStateDataSource:
    """Return what Spark makes of the options, without its processes."""
    given = {name.replace("_", "-"): str(value) for name, value in options.items()}
    return KeyedStateDataSource({"path": str(path), **given})


def read(found: KeyedStateDataSource) -> list[dict[str, Any]]:
    reader = pickle.loads(pickle.dumps(found)).reader(found.schema())
    pieces = pickle.loads(pickle.dumps(reader.partitions()))
    return [row for piece in pieces for batch in reader.read(piece) for row in batch.to_pylist()]


def test_a_dataframe_keeps_what_it_found_when_it_was_made(checkpoints: Path, tmp_path: Path) -> None:
    """A lease keeps the checkpoint that is read, while a running query publishes newer ones."""
    path = tmp_path / "state"
    shutil.copytree(checkpoints, path)
    folder = OperatorFolder(CheckpointStorage.open(path), "counts")
    newer = folder.read_metadata(2)
    assert newer is not None
    folder.delete_checkpoint(2)
    first = source(path, state="count")
    assert sum(row["value"] for row in read(first)) == 30
    folder.write_metadata(newer)
    assert sum(row["value"] for row in read(first)) == 30
    assert sum(row["value"] for row in read(source(path, state="count"))) == 32
    prune(folder, newer, retained=1)
    assert folder.checkpoints() == [1, 2]
    shutil.rmtree(path / "counts" / "holds")
    folder.delete_checkpoint(1)
    with pytest.raises(CheckpointGoneError, match="no checkpoint of epoch 1"):
        read(first)


def test_key_groups_limit_what_is_read_and_slices_what_a_task_reads(checkpoints: Path) -> None:
    everything = read(source(checkpoints, state="count"))
    groups = sorted({row["key_group"] for row in everything})
    some = read(source(checkpoints, state="count", key_groups=f"{groups[1]}-{groups[4]}"))
    assert some == [row for row in everything if groups[1] <= row["key_group"] <= groups[4]]
    one = read(source(checkpoints, state="count", key_groups=groups[2]))
    assert {row["key_group"] for row in one} == {groups[2]}
    small = source(checkpoints, state="count", slice_bytes=1)
    assert len(small.reader(small.schema()).partitions()) == 4 * 32
    assert sorted(map(str, read(small))) == sorted(map(str, everything))
    older = read(source(checkpoints, state="count", epoch=0))
    assert sum(row["value"] for row in older) == 20


def test_schemes_of_plugins_in_the_environment_are_read_too(
    checkpoints: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No session reaches the processes in which Spark plans a read."""
    (tmp_path / "shelf_of_reader.py").write_text(
        "import pyarrow.fs as fs\n"
        "from keyedstate.hooks import hookimpl\n"
        "@hookimpl\n"
        "def keyedstate_checkpoint_storage(uri, options):\n"
        "    if uri.startswith('shelf://'):\n"
        "        return fs.SubTreeFileSystem(options['folder'], fs.LocalFileSystem()), uri[8:]\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("KEYEDSTATE_PLUGINS_MODULES", "shelf_of_reader")
    monkeypatch.setenv("KEYEDSTATE_STORAGE_OPTIONS", f"folder={checkpoints.parent}")
    found = KeyedStateDataSource({"path": f"shelf://{checkpoints.name}", "state": "count"})
    assert sum(row["value"] for row in read(found)) == 32


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"state": "coutn"}, r"no state 'coutn'. Did you mean 'count'"),
        ({"stat": "count"}, r"unknown option 'stat' .* Did you mean 'state'"),
        ({"uid": "count"}, r"no state of the operator 'count'. Did you mean 'counts'"),
        ({"epoch": "first"}, r"'epoch' has the value 'first'.* give a whole number of at least 0"),
        ({"epoch": 77}, r"no checkpoint of epoch 77"),
        ({"key_groups": "5-900"}, r"'key-groups' has the value '5-900'"),
        ({"lease": "long"}, r"'lease' has the value 'long'.*a duration"),
        ({"allow_generic": "yes"}, r"'allow-generic' has the value 'yes'.*true or false"),
        ({"slice_bytes": 0}, r"'slice-bytes' has the value '0'.* at least 1"),
    ],
)
def test_a_mistake_in_the_options_is_named(checkpoints: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(KeyedStateError, match=message):
        source(checkpoints, **options).schema()


def test_a_schema_of_ones_own_and_no_path_are_refused(checkpoints: Path) -> None:
    with pytest.raises(KeyedStateError, match=r"'schema' has the value.* give none: state has its own"):
        source(checkpoints, state="count").reader(StructType().add("k", "string"))
    with pytest.raises(KeyedStateError, match="'path' is needed"):
        KeyedStateDataSource({}).schema()


def test_a_folder_without_state_is_an_error_that_the_user_sees(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    with pytest.raises(Exception, match=r"has no stored state; it is empty or does not exist"):
        load(spark, tmp_path / "nowhere")


def test_a_mistake_in_the_options_is_reported_without_a_trace(spark: SparkSession, checkpoints: Path) -> None:
    register(spark)
    with pytest.raises(Exception, match=r"unknown option 'stat' .* Did you mean 'state'\?") as caught:
        load(spark, checkpoints, stat="count")
    assert "Traceback" not in str(caught.value)
    assert ".py" not in str(caught.value)


def test_columns_that_spark_has_not_become_their_nearest() -> None:
    columns = {
        "small": pa.array([1, None], pa.uint8()),
        "large": pa.array([2**64 - 1, 0], pa.uint64()),
        "half": pa.array([np.float16(1.5), None], pa.float16()),
        "id": pa.array([b"x" * 16, None], pa.binary(16)),
        "nothing": pa.nulls(2),
        "nanos": pa.array([1_001, None], pa.timestamp("ns", "UTC")),
        "deep": pa.array(
            [[("a", {"n": 3, "s": [b"y" * 4]})], None],
            pa.map_(pa.string(), pa.struct([("n", pa.uint16()), ("s", pa.list_(pa.binary(4)))])),
        ),
        "empty": pa.array([{}, None], pa.struct([])),
    }
    table = pa.table(columns).slice(0, 2)
    schema = spark_type_of(pa.struct(list(table.schema)))
    assert schema.simpleString() == (
        "struct<small:smallint,large:decimal(20,0),half:float,id:binary,nothing:string,nanos:timestamp,"
        "deep:map<string,struct<n:int,s:array<binary>>>,empty:struct<>>"
    )
    for batch in (table.to_batches()[0], table.slice(1).to_batches()[0]):
        target = to_arrow(schema)
        arrays = [fitted(array, field.type) for array, field in zip(batch.columns, target, strict=True)]
        found = pa.RecordBatch.from_arrays(arrays, schema=target)
        assert (
            found.select(["id", "nothing", "deep"]).to_pylist()
            == batch.select(["id", "nothing", "deep"]).to_pylist()
        )
    assert found.to_pylist()[0]["small"] is None
