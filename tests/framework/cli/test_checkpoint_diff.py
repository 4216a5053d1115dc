"""``keyedstate checkpoint diff``: states and entries that two stored states do not have in common."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keyedstate.backend import StateKind, StateMeta
from keyedstate.checkpoint.reading.comparison import is_same
from keyedstate.checkpoint.reading.json_values import json_value, shown_value
from keyedstate.errors import (
    CorruptFileError,
    IncomparableStateError,
    UnknownOperatorError,
    UnknownStateError,
)
from keyedstate.types import FLOAT64, INT64, STRING, VOID, TimedDict, TimedList, TtlSerializer


@pytest.fixture
def diff(invoke: Any, query: Any, tmp_path: Path) -> Any:
    """Return a function that compares two paths below the folder: the exit code and the document."""

    def diff(first: str, second: str, *arguments: str) -> tuple[int, dict[str, Any]]:
        paths = [str(tmp_path / path) for path in (first, second)]
        ran = invoke("checkpoint", "diff", *paths, *arguments, "--format", "json")
        document = json.loads(ran.stdout)
        assert document["equal"] is (ran.returncode == 0)
        return ran.returncode, document

    return diff


def states(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    (operator,) = document["operators"]
    return {state["name"]: state for state in (*operator["states"], *operator["operator_states"])}


def counts(state: dict[str, Any]) -> tuple[int, int, int]:
    return state["added"], state["removed"], state["changed"]


def test_a_state_equals_itself_with_nan_in_it(diff):
    code, document = diff("state", "state/aircraft/chk-1")
    assert code == 0
    assert {state["difference"] for state in states(document).values()} == {"none"}
    assert states(document)["delay"]["entries_a"] == 40


def test_entries_that_were_added_removed_and_changed_are_counted_per_state(diff):
    code, document = diff("state/aircraft/chk-0", "state/aircraft/chk-1", "--limit", "5")
    (operator,) = document["operators"]
    assert code == 1
    assert (operator["a"]["epoch"], operator["b"]["epoch"]) == (0, 1)
    found = states(document)
    assert {name: counts(state) for name, state in found.items()} == {
        "flights": (1, 0, 1),
        "seen": (0, 1, 0),
        "delay": (0, 0, 0),
        "destinations": (0, 0, 0),
        "rules": (0, 0, 0),
        "offsets": (0, 0, 0),
    }
    examples = {example["key"]: example for example in found["flights"]["examples"]}
    assert (examples["N3"]["difference"], examples["N3"]["a"], examples["N3"]["b"]) == ("changed", 3, 33)
    assert (examples["new"]["difference"], examples["new"]["a"], examples["new"]["b"]) == ("added", None, 1)
    (gone,) = found["seen"]["examples"]
    assert (gone["difference"], gone["key"], gone["a"]) == ("removed", "N5", ["s5", "x"])


def test_two_epochs_of_one_path_may_be_compared(diff, invoke, tmp_path):
    code, document = diff("state", "state", "--epoch-a", "0", "--epoch-b", "1", "--state", "seen")
    assert (code, list(states(document))) == (1, ["seen"])
    people = invoke(
        "checkpoint", "diff", *[str(tmp_path / "state")] * 2, "--epoch-a", "0", "--limit", "9"
    ).stdout
    assert "flights: 'N3' was 3 and is 33" in people
    assert "flights: 'new' was added: 1" in people
    assert "seen: 'N5' was removed: ['s5', 'x']" in people
    assert people.splitlines()[-1] == "They differ."


def test_fields_of_long_values_are_all_shown(invoke, stored, query, tmp_path):
    other = stored.Query(tmp_path / "other", operator_state=True)
    other.state = {name: dict(entries) for name, entries in query.state.items()}
    long = {f"place {number}": number for number in range(40)}
    other.state["destinations"]["N7"] = long
    other.epoch(0)
    paths = [str(tmp_path / "state"), str(tmp_path / "other")]
    people = invoke("checkpoint", "diff", *paths, "--limit", "9", COLUMNS="80").stdout
    assert f" and is {long!r}\n" in people


@pytest.mark.parametrize("value", ["x" * 1000, list(range(1000)), b"y" * 1000, {"a": {"b": ["z" * 500]}}])
def test_a_value_for_people_is_whole(value):
    assert shown_value(value) == repr(value)
    assert shown_value((1500, value), TtlSerializer(INT64, "processing time")).startswith(repr(value))


def test_an_array_for_people_is_whole_and_one_line():
    text = shown_value({"a": np.arange(5000)})
    assert "..." not in text and "\n" not in text and "4998, 4999]" in text


def test_a_chain_equals_a_whole_state_of_another_parallelism(diff, stored, query, tmp_path):
    other = stored.Query(tmp_path / "other", "renamed", parallelism=3)
    other.state = query.state
    other.epoch(0)
    code, document = diff("state/aircraft", "other/renamed")
    assert {name: state["difference"] for name, state in states(document).items()} == {
        "flights": "none",
        "delay": "none",
        "seen": "none",
        "destinations": "none",
        # The other one has no operator state.
        "rules": "removed",
        "offsets": "removed",
    }
    assert code == 1
    assert diff("state/aircraft", "other/renamed", "--state", "flights", "--state", "delay")[0] == 0


def test_states_that_were_added_removed_or_retyped_are_reported(diff, stored, query, tmp_path):
    other = stored.Query(tmp_path / "other", operator_state=True)
    kept = {name: other.metas[name] for name in ("flights", "delay", "seen")}
    other.metas = {
        **kept,
        "flights": replace(kept["flights"], value_serializer=FLOAT64),
        "total": StateMeta("total", StateKind.VALUE, STRING, VOID, INT64),
    }
    other.state = {name: dict(query.state.get(name, {"all": 1})) for name in other.metas}
    other.state["flights"] = {key: float(value) for key, value in query.state["flights"].items()}
    other.epoch(0)
    code, document = diff("state", "other")
    found = states(document)
    assert code == 1
    assert {name: state["difference"] for name, state in found.items()} == {
        "flights": "type changed",
        "delay": "none",
        "seen": "none",
        "destinations": "removed",
        "total": "added",
        "rules": "none",
        "offsets": "none",
    }
    # The values are the same numbers.
    assert counts(found["flights"]) == (0, 0, 0)
    assert (found["flights"]["types_a"]["value"], found["flights"]["types_b"]["value"]) == (
        "INT64",
        "FLOAT64",
    )
    assert (counts(found["destinations"]), counts(found["total"])) == ((0, 40, 0), (1, 0, 0))


def test_operator_state_is_compared_as_the_operator_has_it(diff, stored, query, tmp_path):
    other = stored.Query(tmp_path / "other", parallelism=1, operator_state=True)
    other.state = query.state
    other.epoch(0)
    _, document = diff("state", "other")
    found = states(document)
    # Two tasks wrote two elements each; the map is the same on every task.
    assert counts(found["offsets"]) == (0, 2, 0)
    assert counts(found["rules"]) == (0, 0, 0)


def test_operators_of_only_one_folder_are_named(diff, stored, query, tmp_path):
    for folder, uids in (("state", ["origins"]), ("other", ["aircraft", "airlines"])):
        for uid in uids:
            other = stored.Query(tmp_path / folder, uid, operator_state=True)
            other.state = query.state
            other.epoch(0)
    code, document = diff("state", "other")
    assert code == 1
    assert [(one["uid"], one["equal"]) for one in document["operators"]] == [("aircraft", True)]
    assert document["unmatched"] == [
        {"uid": "airlines", "only_in": "b"},
        {"uid": "origins", "only_in": "a"},
    ]
    assert diff("state", "other", "--uid", "aircraft")[0] == 0
    # One operator that is named is compared alone.
    assert diff("state/aircraft", "other")[0] == 0
    with pytest.raises(UnknownOperatorError, match="'origins'"):
        diff("state/origins", "other")


def test_what_cannot_be_compared_is_an_error(run, diff, stored, query, tmp_path):
    stored.Query(tmp_path / "other", max_parallelism=16).epoch(0)
    with pytest.raises(IncomparableStateError, match="8 key groups in one and in 16 in the other"):
        diff("state", "other")
    with pytest.raises(UnknownStateError, match="Did you mean 'flights'"):
        diff("state", "state", "--state", "flight")
    full = next((tmp_path / "state/aircraft/data").glob("*-e0p0t0.seg"))
    full.write_bytes(full.read_bytes()[:-9])
    with pytest.raises(CorruptFileError, match="e0p0t0"):
        diff("state/aircraft/chk-0", "state/aircraft/chk-1")
    ran = run("checkpoint", "diff", *[str(tmp_path / "state")] * 2)
    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (2, "", 1)


def test_no_hold_is_left_behind(diff, query):
    diff("state", "state", "--epoch-a", "0")
    assert query.folder.leases() == []


# -- values ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (math.nan, math.nan, True),
        ([1, math.nan], [1, math.nan], True),
        ({"a": (math.nan,)}, {"a": (math.nan,)}, True),
        ({"a": 1}, {"b": 1}, False),
        ([1], [1, 2], False),
        (None, 0, False),
        (np.array([1.0, math.nan]), np.array([1.0, math.nan]), True),
        (np.array([1]), np.array([2]), False),
        (np.array([1]), [1], False),
        (TimedList.of([1], [5]), TimedList.of([1], [5]), True),
        (TimedList.of([1], [5]), TimedList.of([1], [6]), False),
        (TimedDict.of({"a": 1}, {"a": 5}), TimedDict.of({"a": 1}, {"a": 6}), False),
    ],
)
def test_values_are_the_same_where_a_program_could_not_tell_them_apart(one, other, same):
    assert is_same(one, other) is same
    assert is_same(other, one) is same


@pytest.mark.parametrize(
    ("value", "document"),
    [
        (math.nan, "nan"),
        (math.inf, "inf"),
        (b"\x00\xff", "AP8="),
        ({1: b"a"}, [[1, "YQ=="]]),
        ({"a": [None, True]}, {"a": [None, True]}),
        ({2, 1}, [1, 2]),
        (np.array([[1, 2]]), [[1, 2]]),
        (np.int8(3), 3),
        (Decimal("1.10"), "1.10"),
        (TimedList.of(["x"], [0]), {"value": ["x"], "written_at": ["1970-01-01T00:00:00.000Z"]}),
        (TimedDict.of({"k": 1}, {"k": 2**63 - 1}), {"value": {"k": 1}, "written_at": {"k": None}}),
    ],
)
def test_values_become_json(value, document):
    assert json_value(value) == document
    json.dumps(document, allow_nan=False)


def test_a_value_with_a_time_to_live_tells_both():
    timed = TtlSerializer(INT64, "processing time")
    assert json_value((1500, 7), timed) == {"value": 7, "written_at": "1970-01-01T00:00:01.500Z"}
    assert shown_value((1500, 7), timed) == "7 written at 1970-01-01T00:00:01.500Z"
