"""``keyedstate checkpoint export``: typed columns in files that other tools read, all of them or none."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import dataclass
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from keyedstate import types
from keyedstate.backend import StateKind, StateMeta
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.errors import (
    CorruptFileError,
    GenericStateRefusedError,
    StorageError,
    TargetExistsError,
    UnknownStateError,
    UnorderedTypeError,
)


@pytest.fixture
def export(invoke: Any, query: Any, tmp_path: Path) -> Any:
    """Return a function that exports the state of `query` to a place below the folder."""

    def export(out: str, *arguments: str) -> Any:
        return invoke("checkpoint", "export", str(tmp_path / "state"), str(tmp_path / out), *arguments)

    return export


@dataclass
class Visit:
    place: str
    at: datetime | None


def of_one_state(stored: Any, folder: Path, meta: StateMeta, entries: dict[Any, Any]) -> None:
    query = stored.Query(folder, states={meta.name: meta})
    query.state = {meta.name: entries}
    query.epoch(0)


def read_arrow(path: Path) -> pa.Table:
    with pa.OSFile(str(path)) as source:
        return pa.ipc.open_file(source).read_all()


def same_values(found: dict[Any, Any], expected: dict[Any, Any]) -> bool:
    return found.keys() == expected.keys() and all(
        found[key] == value or (math.isnan(found[key]) and math.isnan(value))
        for key, value in expected.items()
    )


# -- formats ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "read"), [("parquet", pyarrow.parquet.read_table), ("arrow", read_arrow)])
def test_every_state_becomes_a_file_of_typed_columns(export, query, tmp_path, kind, read):
    ran = export("out", "--as", kind, "--format", "json")
    document = json.loads(ran.stdout)
    assert (document["uid"], document["epoch"]) == ("aircraft", 1)
    files = {file["state"]: Path(file["path"]) for file in document["files"]}
    assert sorted(files) == ["delay", "destinations", "flights", "offsets", "rules", "seen"]
    assert sorted(files.values()) == sorted((tmp_path / "out").iterdir())
    assert {file["state"]: file["bytes"] for file in document["files"]} == {
        name: path.stat().st_size for name, path in files.items()
    }
    tables = {name: read(path) for name, path in files.items()}
    for name, entries in query.state.items():
        assert tables[name].num_rows == len(entries)
        rows = zip(tables[name]["tailnum"].to_pylist(), tables[name]["value"].to_pylist(), strict=True)
        found = {key: dict(value) if name == "destinations" else value for key, value in rows}
        assert same_values(found, entries)
    assert tables["flights"]["value"].type == pa.int64()
    assert tables["destinations"]["value"].type == pa.map_(pa.string(), pa.int64())
    assert tables["rules"].to_pydict()["value"] == [15, 60]
    assert tables["offsets"].to_pydict()["value"] == [0, 1, 10, 11]


def test_json_lines_have_values_of_json(export, query, tmp_path):
    export("out", "--as", "jsonl")
    lines = {
        path.stem: [json.loads(line) for line in path.read_text().splitlines()]
        for path in (tmp_path / "out").iterdir()
    }
    assert {line["tailnum"]: line["value"] for line in lines["seen"]} == query.state["seen"]
    assert {line["tailnum"]: line["value"] for line in lines["destinations"]} == query.state["destinations"]
    assert next(line["value"] for line in lines["delay"] if line["tailnum"] == "N7") == "nan"
    assert {line["key_group"] for line in lines["flights"]} <= set(range(8))


def test_csv_has_plain_values_as_they_are_and_json_for_the_others(export, query, tmp_path):
    export("out", "--as", "csv")
    with (tmp_path / "out" / "destinations.csv").open(newline="") as file:
        rows = {row["tailnum"]: json.loads(row["value"]) for row in csv.DictReader(file)}
    assert rows == {key or "": value for key, value in query.state["destinations"].items()}
    flights = pyarrow.csv.read_csv(tmp_path / "out" / "flights.csv").to_pydict()
    assert dict(zip(flights["tailnum"], flights["value"], strict=True))["N3"] == 33


def test_records_times_and_decimals_keep_their_types(invoke, stored, tmp_path):
    at = datetime(2024, 2, 29, 12, 30, tzinfo=timezone.utc)
    visit = StateMeta("visit", StateKind.VALUE, types.STRING, types.VOID, types.infer(Visit))
    of_one_state(stored, tmp_path / "visits", visit, {"a": Visit("gate", at), "b": Visit("bar", None)})
    paths = str(tmp_path / "visits"), str(tmp_path / "out")
    invoke("checkpoint", "export", *paths)
    table = pyarrow.parquet.read_table(tmp_path / "out/visit.parquet")
    values = dict(zip(table["tailnum"].to_pylist(), table["value"].to_pylist(), strict=True))
    assert values == {"a": {"place": "gate", "at": at}, "b": {"place": "bar", "at": None}}
    invoke("checkpoint", "export", *paths, "--as", "jsonl")
    lines = [json.loads(line) for line in (tmp_path / "out/visit.jsonl").read_text().splitlines()]
    assert {"place": "gate", "at": at.isoformat()} in [line["value"] for line in lines]
    price = StateMeta("price", StateKind.VALUE, types.STRING, types.VOID, types.decimal(10, 2))
    of_one_state(stored, tmp_path / "prices", price, {"a": Decimal("9.90")})
    invoke("checkpoint", "export", str(tmp_path / "prices"), str(tmp_path / "out/price.parquet"))
    assert pyarrow.parquet.read_table(tmp_path / "out/price.parquet")["value"].to_pylist() == [
        Decimal("9.90")
    ]


def test_a_state_without_entries_becomes_a_file_with_its_columns(invoke, stored, tmp_path):
    total = StateMeta("total", StateKind.VALUE, types.STRING, types.VOID, types.INT64)
    of_one_state(stored, tmp_path / "state", total, {})
    for kind in ("parquet", "arrow", "csv", "jsonl"):
        ran = invoke("checkpoint", "export", str(tmp_path / "state"), str(tmp_path / f"total.{kind}"))
        assert ran.returncode == 0
    assert pyarrow.parquet.read_table(tmp_path / "total.parquet").schema.names[:3] == [
        "tailnum",
        "namespace",
        "value",
    ]
    assert (tmp_path / "total.csv").read_text().count("\n") == 1
    assert (tmp_path / "total.jsonl").read_text() == ""


# -- which states, and where to --------------------------------------------------------------------


def test_one_state_may_go_into_a_file_whose_ending_says_the_format(export, tmp_path):
    assert export("here/flights.jsonl", "--state", "flights", "--epoch", "0").returncode == 0
    assert len((tmp_path / "here/flights.jsonl").read_text().splitlines()) == 40
    ran = export("here/all.csv")
    assert (ran.returncode, (tmp_path / "here/all.csv").exists()) == (2, False)
    assert export("here/x.csv", "--state", "flights", "--as", "arrow").returncode == 2
    with pytest.raises(UnknownStateError, match="Did you mean 'flights'"):
        export("here/x.csv", "--state", "flight")


def test_a_name_that_cannot_be_one_of_a_file_is_quoted(invoke, stored, tmp_path):
    odd = StateMeta("../a/b", StateKind.VALUE, types.STRING, types.VOID, types.INT64)
    of_one_state(stored, tmp_path / "state", odd, {"x": 1})
    invoke("checkpoint", "export", str(tmp_path / "state"), str(tmp_path / "out"))
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["..%2Fa%2Fb.parquet"]


def test_files_that_are_there_are_replaced_only_by_force(export, run, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/flights.csv").write_text("mine")
    with pytest.raises(TargetExistsError, match=r"no export .*/out: it has flights\.csv already"):
        export("out", "--as", "csv")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["flights.csv"]
    ran = run("checkpoint", "export", str(tmp_path / "state"), str(tmp_path / "out"), "--as", "csv")
    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (2, "", 1)
    assert export("out", "--as", "csv", "--force").returncode == 0
    assert (tmp_path / "out/flights.csv").read_text().startswith('"tailnum"')


def test_pickled_values_are_refused_unless_asked_for_and_stay_bytes(invoke, stored, tmp_path):
    generic = StateMeta("generic", StateKind.VALUE, types.STRING, types.VOID, types.pickled())
    of_one_state(stored, tmp_path / "state", generic, {"x": {1, 2}})
    paths = str(tmp_path / "state"), str(tmp_path / "out")
    with pytest.raises(GenericStateRefusedError):
        invoke("checkpoint", "export", *paths)
    assert not (tmp_path / "out").exists() or list((tmp_path / "out").iterdir()) == []
    assert invoke("checkpoint", "export", *paths, "--allow-generic").returncode == 0
    (value,) = pyarrow.parquet.read_table(tmp_path / "out/generic.parquet")["value"].to_pylist()
    assert isinstance(value, bytes)


# -- all or nothing --------------------------------------------------------------------------------


def test_a_damaged_file_leaves_nothing_and_what_was_there_stays(export, tmp_path):
    export("out", "--as", "csv")
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    damaged = next((tmp_path / "state/aircraft/data").glob("*-e0p1t1.seg"))
    content = bytearray(damaged.read_bytes())
    content[len(content) // 3] ^= 1
    damaged.write_bytes(content)
    with pytest.raises(CorruptFileError, match="e0p1t1"):
        export("out", "--as", "csv", "--force")
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


def test_a_full_disk_leaves_nothing(export, query, monkeypatch, tmp_path):
    open_output = CheckpointStorage.open_output

    def refuse(self: CheckpointStorage, path: str) -> Any:
        if "rules" in path:
            raise StorageError(self.location(path), "write", "No space left on device")
        return open_output(self, path)

    monkeypatch.setattr(CheckpointStorage, "open_output", refuse)
    with pytest.raises(StorageError, match="No space left"):
        export("out")
    assert list((tmp_path / "out").iterdir()) == []
    assert query.folder.leases() == []


@pytest.mark.parametrize("out", ["flights.xlsx", "flights.CSV", "out/flights.parq", "flights.json5"])
@pytest.mark.slow
def test_an_ending_that_no_format_has_is_refused(run, query, tmp_path, out):
    paths = str(tmp_path / "state"), str(tmp_path / out)
    ran = run("checkpoint", "export", *paths, "--state", "flights", TERMINAL_WIDTH="300")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert f"and not in .{out.rpartition('.')[2]}." in ran.stderr
    assert ".parquet, .arrow, .csv, .jsonl" in ran.stderr
    assert not (tmp_path / out).exists()


def test_an_ending_that_is_nearly_a_format_is_corrected(run, query, tmp_path):
    paths = str(tmp_path / "state"), str(tmp_path / "flights.CSV")
    assert "Did you mean 'csv'?" in run("checkpoint", "export", *paths, TERMINAL_WIDTH="300").stderr


@pytest.mark.parametrize("out", ["of-2026.11.22", "v1.2"])
def test_a_folder_may_end_in_a_number(export, tmp_path, out):
    assert export(out, "--state", "flights").returncode == 0
    assert [path.name for path in (tmp_path / out).iterdir()] == ["flights.parquet"]


def test_a_folder_with_an_ending_is_named_with_a_slash(invoke, query, tmp_path):
    ran = invoke("checkpoint", "export", str(tmp_path / "state"), f"{tmp_path}/out.d/", "--state", "flights")
    assert ran.returncode == 0
    assert [path.name for path in (tmp_path / "out.d").iterdir()] == ["flights.parquet"]


# -- sorted ----------------------------------------------------------------------------------------


def test_sorted_entries_are_in_the_order_of_their_keys_with_none_first(export, query, tmp_path):
    export("plain")
    export("sorted", "--sort")
    for name, entries in query.state.items():
        if name in ("flights", "delay", "seen", "destinations"):
            table = pyarrow.parquet.read_table(tmp_path / "sorted" / f"{name}.parquet")
            keys = table["tailnum"].to_pylist()
            assert keys == sorted(entries, key=lambda key: (key is not None, key or ""))
            other = pyarrow.parquet.read_table(tmp_path / "plain" / f"{name}.parquet")
            assert sorted(map(str, table.to_pylist())) == sorted(map(str, other.to_pylist()))
    offsets = pyarrow.parquet.read_table(tmp_path / "sorted" / "offsets.parquet")
    assert offsets["value"].to_pylist() == [0, 1, 10, 11]


def test_a_state_larger_than_the_memory_is_sorted_on_disk(stored, run, tmp_path):
    texts = StateMeta("texts", StateKind.VALUE, types.STRING, types.VOID, types.STRING)
    entries = {f"key-{number * 7919 % 20_000:05}": "x" * 100 for number in range(20_000)}
    of_one_state(stored, tmp_path / "state", texts, entries)
    config = tmp_path / "keyedstate.toml"
    # Three eighths of it are the sorters' share, a third of which are rows: a fifth of the state.
    config.write_text("[keyedstate]\nmemory.managed-size = 3145728\n")
    paths = str(tmp_path / "state"), str(tmp_path / "texts.parquet")
    # In a process of its own: the first use of managed memory determines its size.
    run("checkpoint", "export", *paths, "--sort", "--config", str(config))
    table = pyarrow.parquet.read_table(paths[1])
    assert table["tailnum"].to_pylist() == sorted(entries)
    assert set(table["value"].to_pylist()) == {"x" * 100}


def test_keys_without_an_order_are_refused_and_no_file_appears(stored, invoke, tmp_path):
    key = types.tuple_of(types.list_of(types.INT64))
    odd = StateMeta("odd", StateKind.VALUE, key, types.VOID, types.INT64)
    of_one_state(stored, tmp_path / "state", odd, {})
    with pytest.raises(UnorderedTypeError, match="have no order to sort by"):
        invoke("checkpoint", "export", str(tmp_path / "state"), str(tmp_path / "odd.parquet"), "--sort")
    assert not [path for path in tmp_path.iterdir() if "odd" in path.name]
