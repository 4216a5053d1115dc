"""``keyedstate checkpoint show``: states with their types, parts with their files and durations."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from keyedstate.backend import StateKind, StateMeta
from keyedstate.checkpoint.format.json_document import encode_document
from keyedstate.errors import (
    CorruptFileError,
    FormatVersionError,
    UnknownEpochError,
    UnknownOperatorError,
)
from keyedstate.types import STRING, VOID, infer


@pytest.fixture
def shown(query: Any, invoke: Any, tmp_path: Path) -> Any:
    """Return a function that shows a checkpoint as JSON."""

    def shown(*arguments: str) -> dict[str, Any]:
        ran = invoke("checkpoint", "show", str(tmp_path / "state"), *arguments, "--format", "json")
        assert ran.returncode == 0
        return json.loads(ran.stdout)

    return shown


def test_the_newest_checkpoint_is_shown_with_everything_that_is_known_of_it(shown, tmp_path):
    document = shown()
    assert document["location"] == f"{tmp_path}/state/aircraft/chk-1"
    assert document.pop("published").startswith("20")
    facts = {
        name: document[name] for name in ("kind", "uid", "epoch", "status", "query_id", "run_id", "deltas")
    }
    assert facts == {
        "kind": "checkpoint",
        "uid": "aircraft",
        "epoch": 1,
        "status": "complete",
        "query_id": "query-1",
        "run_id": "run-1",
        "deltas": 1,
    }
    assert (document["parallelism"], document["max_parallelism"]) == (2, 8)
    assert document["key_columns"] == [{"name": "tailnum", "type": "string"}]
    assert document["watermark"] == "2023-11-14T22:12:20.000Z"
    assert document["owner"]["runs"] == ["run-1"]
    assert (document["entries"], document["files"]) == (160, 6)


def test_states_come_with_kinds_types_and_entries(shown):
    document = shown()
    states = {
        state["name"]: (state["kind"], state["value"], state["entries"]) for state in document["states"]
    }
    assert states == {
        "delay": ("value", "FLOAT64", 40),
        "destinations": ("map", "map_of(STRING, INT64)", 40),
        "flights": ("value", "INT64", 41),
        "seen": ("list", "list_of(STRING)", 39),
    }
    assert {state["key"] for state in document["states"]} == {"nullable(STRING)"}
    assert document["operator_states"] == [
        {"name": "offsets", "kind": "operator list", "key": "INT64", "value": "INT64", "entries": 4},
        # Both tasks have written the same map.
        {"name": "rules", "kind": "broadcast", "key": "STRING", "value": "INT64", "entries": 2},
    ]


def test_parts_come_with_key_groups_entries_files_and_durations(shown, query):
    first, second = shown()["parts"]
    assert (first["partition"], first["key_groups"], second["key_groups"]) == (0, [0, 3], [4, 7])
    assert first["entries"] + second["entries"] == 160
    assert first["entries_by_state"]["flights"] == sum(
        query.group_of(key) < 4 for key in query.state["flights"]
    )
    assert (first["restore_ms"], first["process_ms"], first["sync_ms"], first["write_ms"]) == (
        4.0,
        70.0,
        0.25,
        2.5,
    )
    assert (second["rows_in"], second["rows_out"]) == (101, 50)
    assert [file["role"] for file in first["files"]] == ["full snapshot", "delta", "operator state"]
    assert [file["key_groups"] for file in first["files"]] == [[0, 3], [0, 3], [0, 0]]
    assert sum(file["bytes"] for file in first["files"]) == first["bytes"]


def test_one_epoch_and_one_part_may_be_chosen(shown, invoke, tmp_path):
    document = shown("--epoch", "0", "--part", "1")
    assert (document["epoch"], [part["partition"] for part in document["parts"]]) == (0, [1])
    # What is said of the whole stays that of the whole.
    assert document["entries"] == 160
    ran = invoke("checkpoint", "show", str(tmp_path / "state/aircraft/chk-0"), "--format", "json")
    assert json.loads(ran.stdout)["epoch"] == 0


def test_the_tables_say_the_same(invoke, query, tmp_path):
    people = invoke("checkpoint", "show", str(tmp_path / "state"), "--part", "0").stdout
    for line in (
        "epoch        1, published 20",
        "keys         tailnum string",
        "parallelism  2 of at most 8",
        "watermark    2023-11-14 22:12:20.000 UTC",
        "destinations  map    map_of(STRING, INT64)",
        "rules           broadcast      INT64",
        "run          run-1, the newest",
        "data/run-1-e0p0t0.seg",
    ):
        assert line in people
    assert "data/run-1-e0p1t1.seg" not in people


def test_a_record_is_shown_with_its_columns_without_its_class(invoke, stored, tmp_path):
    @dataclass
    class Visit:
        place: str
        seconds: float | None

    meta = StateMeta("visit", StateKind.VALUE, STRING, VOID, infer(Visit))
    stored.Query(tmp_path / "state", states={"visit": meta}).epoch(0)
    ran = invoke("checkpoint", "show", str(tmp_path / "state"), "--format", "json")
    (state,) = json.loads(ran.stdout)["states"]
    assert "Visit" in state["value"]
    assert "place: string" in state["value"] and "seconds: double" in state["value"]


def test_an_unknown_type_is_shown_as_it_is_stored(shown, tmp_path):
    metadata = tmp_path / "state/aircraft/chk-1/_metadata"
    body = json.loads(metadata.read_bytes())["body"]
    for part in body["parts"]:
        part["states"][0]["value"] = {"type": "hologram", "version": 3}
    metadata.write_bytes(encode_document("checkpoint", 1, body))
    values = {state["name"]: state["value"] for state in shown()["states"]}
    assert values["flights"] == '{"type": "hologram", "version": 3}'
    assert values["delay"] == "FLOAT64"


def test_of_several_operators_one_has_to_be_named(invoke, stored, query, tmp_path):
    stored.Query(tmp_path / "state", "origins").epoch(0)
    with pytest.raises(UnknownOperatorError, match="aircraft, origins"):
        invoke("checkpoint", "show", str(tmp_path / "state"))
    ran = invoke("checkpoint", "show", str(tmp_path / "state"), "--uid", "origins", "--format", "json")
    assert json.loads(ran.stdout)["uid"] == "origins"


def test_what_is_not_there_is_refused_with_what_is(invoke, query, tmp_path):
    with pytest.raises(UnknownEpochError, match=r"epoch 7\. It has those of the epochs 0, 1"):
        invoke("checkpoint", "show", str(tmp_path / "state"), "--epoch", "7")
    ran = invoke("checkpoint", "show", str(tmp_path / "state"), "--part", "2")
    assert ran.returncode == 2
    assert "the parts 0 to 1" in " ".join(ran.stderr.replace("│", "").split())


def test_damaged_metadata_and_that_of_a_newer_keyedstate_are_one_error(run, invoke, query, tmp_path):
    metadata = tmp_path / "state/aircraft/chk-1/_metadata"
    whole = metadata.read_bytes()
    metadata.write_bytes(whole[:50])
    with pytest.raises(CorruptFileError, match="chk-1/_metadata is damaged"):
        invoke("checkpoint", "show", str(tmp_path / "state"))
    metadata.write_bytes(encode_document("checkpoint", 99, json.loads(whole)["body"]))
    with pytest.raises(FormatVersionError, match="format version 99"):
        invoke("checkpoint", "show", str(tmp_path / "state"))
    ran = run("checkpoint", "show", str(tmp_path / "state"))
    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (2, "", 1)
