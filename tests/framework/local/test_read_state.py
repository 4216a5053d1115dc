"""State of a local run as an Arrow table."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from tests.framework.local.functions import COUNTS, Count, events

from keyedstate.aggregates import count
from keyedstate.errors import CheckpointError, UnknownStateError
from keyedstate.local import keyed, read_state
from keyedstate.savepoints import Savepoint
from keyedstate.time import EventTime
from keyedstate.windows import Tumbling


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The checkpoints of a run that counted three rows of two users."""
    config = {"checkpoint.dir": str(tmp_path / "checkpoints")}
    keyed(events("aab"), "user", uid="counts", config=config).process(Count(), COUNTS).to_table()
    return tmp_path / "checkpoints"


def values(table: pa.Table) -> dict[object, object]:
    return dict(zip(table["user"].to_pylist(), table["value"].to_pylist(), strict=True))


def test_a_state_is_a_table_with_a_row_for_each_key(folder: Path) -> None:
    table = read_state(folder, "n")
    assert values(table) == {"a": 2, "b": 1}
    assert table.schema.names[:3] == ["user", "namespace", "value"]
    assert table["value"].type == pa.int64()


def test_one_of_several_operators_and_epochs_is_chosen(folder: Path) -> None:
    config = {"checkpoint.dir": str(folder)}
    keyed(events("a"), "user", uid="others", config=config).process(Count(), COUNTS).to_table()
    assert values(read_state(folder, "n", uid="others")) == {"a": 1}
    assert values(read_state(folder, "n", uid="counts", epoch=0)) == {"a": 2, "b": 1}
    with pytest.raises(CheckpointError, match=r"counts.*others"):
        read_state(folder, "n")


def test_a_savepoint_is_read_too(folder: Path, tmp_path: Path) -> None:
    Savepoint.create(tmp_path / "savepoint", folder)
    assert values(read_state(str(tmp_path / "savepoint"), "n")) == {"a": 2, "b": 1}


def test_open_windows_have_namespaces(tmp_path: Path) -> None:
    config = {"checkpoint.dir": str(tmp_path / "checkpoints")}
    stream = keyed(events("aab"), "user", uid="hours", config=config, event_time=EventTime("ts", delay="1 h"))
    stream.window(Tumbling.of("1 h")).aggregate(n=count()).to_table()
    table = read_state(tmp_path / "checkpoints", "window-contents")
    assert set(table["user"].to_pylist()) == {"a", "b"}
    assert None not in table["namespace"].to_pylist()


def test_a_state_without_entries_is_an_empty_table(tmp_path: Path) -> None:
    config = {"checkpoint.dir": str(tmp_path / "checkpoints")}
    keyed(events(""), "user", uid="counts", config=config).process(Count(), COUNTS).to_table()
    table = read_state(tmp_path / "checkpoints", "n")
    assert (table.num_rows, table.schema.names[0]) == (0, "user")


def test_an_unknown_state_is_refused_with_the_closest_name(folder: Path) -> None:
    with pytest.raises(UnknownStateError, match="n"):
        read_state(folder, "m")


def test_a_folder_without_checkpoints_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=str(tmp_path / "missing")):
        read_state(tmp_path / "missing", "n")
