"""New queries that begin from a savepoint: with other sources, another program, backend and parallelism."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from pyspark.sql import DataFrame, SparkSession

from keyedstate import keyed, types
from keyedstate.checkpoint.protocol.operator_folder import OperatorFolder
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.errors import MaxParallelismChangedError, NewOperatorError, NotASavepointError
from keyedstate.runtime import Context, KeyedProcessFunction
from keyedstate.savepoints import Savepoint
from keyedstate.spark.task.acknowledgements import acknowledgements_of
from keyedstate.state import OperatorListState, ValueState

KEYS = [f"key {number}" for number in range(30)]


class Before(KeyedProcessFunction):
    total = ValueState("total", types.INT32, default=0)
    gone = ValueState("gone", types.STRING)
    rows = OperatorListState("rows", types.INT64)

    def process(self, row: Any, ctx: Context) -> Iterator[tuple[str, int, str]]:
        self.total.update(self.total.value() + row.v)
        self.gone.update("x")
        self.rows.add(row.v)
        yield ctx.key, self.total.value(), ""


class After(KeyedProcessFunction):
    total = ValueState("total", types.INT64, default=0)
    added = ValueState("added", types.INT64, default=0)
    rows = OperatorListState("rows", types.INT64)

    def process(self, row: Any, ctx: Context) -> Iterator[tuple[str, int, str]]:
        self.total.update(self.total.value() + row.v)
        self.added.update(self.added.value() + 1)
        self.rows.add(row.v)
        yield ctx.key, self.total.value(), str(self.added.value())


def operator(
    frame: DataFrame, state: Path, function: KeyedProcessFunction, uid: str = "totals", **options: Any
) -> DataFrame:
    config = {"checkpoint.dir": str(state), "parallelism": 2}
    config |= {name.replace("__", ".").replace("_", "-"): value for name, value in options.items()}
    return keyed(frame, "k", uid=uid, config=config).process(function, "k string, total long, added string")


def rows(add: int) -> list[dict[str, Any]]:
    return [{"k": key, "v": number + add} for number, key in enumerate(KEYS)]


@pytest.fixture(scope="module")
def taken(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A savepoint of the operators ``totals`` and ``others``, taken with heap-cow after two epochs."""

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    folder = tmp_path_factory.mktemp("taken")
    (folder / "input").mkdir()
    for epoch in range(2):
        text = "".join(json.dumps(row) + "\n" for row in rows(100 * epoch))
        (folder / "input" / f"{epoch}.json").write_text(text, encoding="utf-8")
    reader = spark.readStream.schema("k string, v long").option("maxFilesPerTrigger", 1)
    options = {"backend": "heap-cow", "max_parallelism": 16}
    first = operator(reader.json(str(folder / "input")), folder / "state", Before(), **options)
    second = operator(first.selectExpr("k", "total v"), folder / "state", Before(), "others", **options)
    query = second.writeStream.format("noop").option("checkpointLocation", str(folder / "spark"))
    query.trigger(availableNow=True).start().awaitTermination()
    Savepoint.create(folder / "savepoint", folder / "state", folder / "spark")
    return folder / "savepoint"


@pytest.fixture
def savepoint(taken: Path, tmp_path: Path) -> Path:
    """A copy of it, which a test may harm."""
    return Path(shutil.copytree(taken, tmp_path / "savepoint"))


def expected(*added: int) -> dict[str, int]:
    return {key: sum(number + add for add in (0, 100, *added)) for number, key in enumerate(KEYS)}


def test_a_new_query_continues_from_a_savepoint_with_another_program(stream: Any, savepoint: Path) -> None:
    """CP-16, REG-10: the first checkpoint is whole and names no file of the savepoint, which stays."""
    options = {"restore__savepoint": str(savepoint), "restore__allow_unclaimed": True}

    def run(frame: DataFrame, sink: Any = None, **more: Any) -> None:
        stream.run(operator(frame, stream.state, After(), backend="nested-map", parallelism=3, **more), sink)

    def failing(batch: DataFrame, epoch: int) -> None:
        batch.collect()
        raise KeyError("the sink")

    before = {path: path.read_bytes() for path in savepoint.rglob("*") if path.is_file()}
    stream.add(rows(5))
    with pytest.raises(Exception, match="the sink"):
        run(stream.frame(), failing, **options)
    # Epoch 0 runs again, and begins from the savepoint again, wherever that has been moved to.
    moved = savepoint.rename(savepoint.with_name("moved"))
    run(stream.frame(), **{**options, "restore__savepoint": str(moved)})
    assert {row[0]: row[1:] for row in stream.rows[0]} == {
        key: (total, "1") for key, total in expected(5).items()
    }
    assert {path: path.read_bytes() for path in moved.rglob("*") if path.is_file()} == {
        moved / path.relative_to(savepoint): data for path, data in before.items()
    }
    folder = OperatorFolder(CheckpointStorage.open(stream.state), "totals")
    metadata = folder.read_metadata(0)
    assert metadata is not None and metadata.max_parallelism == 16
    names = {path for part in metadata.parts for path in part.data_files}
    assert all(not part.deltas for part in metadata.parts)
    assert not names & {f"data/{path.name}" for path in moved.rglob("*.seg")}
    assert (
        sum(part.operator_state.segment.entries["rows"] for part in metadata.parts if part.operator_state)
        == 90
    )
    # From here on nothing needs it, and the option may stay.
    shutil.rmtree(moved)
    stream.add(rows(7))
    run(stream.frame(), **options)
    assert {row[0]: row[1:] for row in stream.rows[1]} == {
        key: (total, "2") for key, total in expected(5, 7).items()
    }


def test_what_does_not_fit_the_savepoint_is_refused_before_the_query_starts(
    stream: Any, savepoint: Path, tmp_path: Path
) -> None:
    def build(uid: str = "totals", where: Path = savepoint, **options: Any) -> DataFrame:
        return operator(stream.frame(), stream.state, After(), uid, restore__savepoint=str(where), **options)

    with pytest.raises(NewOperatorError, match=r"'total'.*Did you mean 'totals'.*restore\.allow-new"):
        build("total")
    with pytest.raises(MaxParallelismChangedError, match="max parallelism 16, and 32"):
        build(max_parallelism=32)
    with pytest.raises(NotASavepointError, match="it is empty or does not exist"):
        build(where=tmp_path / "nowhere")
    (savepoint / "totals" / "_metadata").write_bytes(b"{}")
    with pytest.raises(Exception, match="totals/_metadata"):
        build()
    assert not stream.state.exists() or list(stream.state.iterdir()) == []


@pytest.mark.long
def test_epoch_0_that_runs_again_may_not_start_from_another_savepoint(
    stream: Any, savepoint: Path, taken: Path, tmp_path: Path
) -> None:
    def failing(batch: DataFrame, epoch: int) -> None:
        batch.collect()
        raise KeyError("the sink")

    def run(where: Path | None, sink: Any = None) -> None:
        options = {} if where is None else {"restore__savepoint": str(where)}
        out = operator(stream.frame(), stream.state, After(), restore__allow_unclaimed=True, **options)
        stream.run(out, sink)

    stream.add(rows(5))
    with pytest.raises(Exception, match="the sink"):
        run(savepoint, failing)
    other = Savepoint.open(taken)
    Savepoint.create(tmp_path / "other", taken.parent / "state")
    with pytest.raises(Exception, match=f"started from the savepoint {savepoint}"):
        run(tmp_path / "other")
    # A copy is the same one; without the option it is known from the first time.
    assert other.id == Savepoint.open(savepoint).id
    run(None)
    assert {row[0]: row[1] for row in stream.rows[0]} == expected(5)


def test_state_that_no_operator_claims_stops_the_query_unless_that_is_allowed(
    stream: Any, savepoint: Path
) -> None:
    """CP-19."""

    def out(**options: Any) -> DataFrame:
        return operator(stream.frame(), stream.state, After(), restore__savepoint=str(savepoint), **options)

    stream.add(rows(5))
    stream.run(out())
    stream.add(rows(7))
    failure = stream.failure(out())
    assert "no operator for: others" in failure and "restore.allow-unclaimed" in failure
    # An operator that the savepoint does not have, beside one that it does.
    new = operator(
        out(restore__allow_unclaimed=True).selectExpr("k", "total v"),
        stream.state.with_name("new"),
        After(),
        "new",
        restore__savepoint=str(savepoint),
        restore__allow_new=True,
    )
    assert new.isStreaming
    stream.run(out(restore__allow_unclaimed=True))
    assert {row[0]: row[1] for row in stream.rows[1]} == expected(5, 7)


def test_a_claimed_savepoint_goes_when_epoch_0_cannot_run_again(stream: Any, savepoint: Path) -> None:
    """CP-16, CP-18, REG-10."""

    def both() -> DataFrame:
        options = {"restore__savepoint": str(savepoint), "restore__claim_mode": "claim"}
        first = operator(stream.frame(), stream.state, After(), **options)
        return operator(first.selectExpr("k", "total v"), stream.state, After(), "others", **options)

    (savepoint / "notes.txt").write_text("mine")
    stream.add(rows(5))
    stream.run(both())
    assert acknowledgements_of(stream.spark.sparkContext).drain(60)
    assert Savepoint.open(savepoint).operators == ("others", "totals")
    stream.add(rows(7))
    stream.run(both())
    assert acknowledgements_of(stream.spark.sparkContext).drain(60)
    assert [path.name for path in savepoint.rglob("*") if path.is_file()] == ["notes.txt"]
    first = expected(5, 7)
    assert len(stream.rows[1]) == len(first)
    assert {row[0] for row in stream.rows[1]} == set(first)
