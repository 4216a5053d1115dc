"""What a streaming query with keyed state refuses to do, and the errors that say so on the driver."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from keyedstate import keyed, types
from keyedstate.runtime import Context, KeyedProcessFunction
from keyedstate.state import ValueState

SCHEMA = "k string, n long"


class Count(KeyedProcessFunction):
    n = ValueState("n", types.INT64, default=0)

    def process(self, row: Any, ctx: Context) -> Iterator[tuple[Any, ...]]:
        self.n.update(self.n.value() + 1)
        yield row.k, self.n.value()


class CountAsText(Count):
    n = ValueState("n", types.STRING, default="0")


class Boom(KeyedProcessFunction):
    def process(self, row: Any, ctx: Context) -> Iterator[tuple[Any, ...]]:
        raise ValueError(f"no flight {row.v}")


def counts(
    stream: Any,
    backend: str,
    *keys: str,
    uid: str = "counts",
    function: KeyedProcessFunction | None = None,
    source: DataFrame | None = None,
    **options: object,
) -> DataFrame:
    config = {"checkpoint.dir": str(stream.state), "parallelism": 2, "backend": backend}
    config |= {name.replace("_", "-"): value for name, value in options.items()}
    frame = keyed(stream.frame() if source is None else source, *(keys or ("k",)), uid=uid, config=config)
    return frame.process(function or Count(), SCHEMA)


def rows(number: int = 40) -> list[dict[str, Any]]:
    return [{"k": f"key {row % 7}", "v": row} for row in range(number)]


def started(stream: Any, backend: str) -> None:
    """Run the first epoch."""
    stream.add(rows())
    stream.run(counts(stream, backend))


def test_a_result_that_is_evaluated_in_part_stops_the_next_epoch(stream: Any, one_backend: str) -> None:
    for _ in range(3):
        stream.add(rows())
    epochs = []

    def glance(batch: DataFrame, epoch: int) -> None:
        epochs.append(epoch)
        batch.take(1)

    message = stream.failure(counts(stream, one_backend), glance)
    assert "IncompleteEpochError: what epoch 0 of the operator 'counts' did to the state is lost" in message
    assert "partition 1 has no finished attempt" in message
    assert epochs == [0, 1]


@pytest.mark.long
def test_a_limit_that_stops_the_tasks_early_stops_the_next_epoch(stream: Any, one_backend: str) -> None:
    for _ in range(2):
        # More output than fits between a worker and the JVM, so that the worker is really cut off.
        stream.add({"k": f"{row:0300}", "v": row} for row in range(60_000))
    message = stream.failure(counts(stream, one_backend).limit(3))
    assert "IncompleteEpochError: what epoch 0 of the operator 'counts'" in message


def test_the_state_folder_of_another_query_is_refused_by_name(
    stream: Any, one_backend: str, tmp_path: Path
) -> None:
    started(stream, one_backend)
    before = sorted(path.name for path in stream.state.rglob("*"))
    message = stream.failure(counts(stream, one_backend), checkpoint=tmp_path / "another query")
    owner = json.loads((stream.state / "counts" / "_owner").read_text())["body"]["query_id"]
    assert (
        f"StateFolderOwnedError: the state folder {stream.state}/counts belongs to query {owner}" in message
    )
    assert sorted(path.name for path in stream.state.rglob("*")) == before, "nothing was written"


@pytest.mark.long
def test_another_max_parallelism_than_the_stored_one_is_refused(stream: Any, one_backend: str) -> None:
    started(stream, one_backend)
    stream.add(rows())
    message = stream.failure(counts(stream, one_backend, max_parallelism=64))
    assert "MaxParallelismChangedError: the stored state has the max parallelism 128, and 64" in message


@pytest.mark.long
def test_a_state_folder_that_is_deleted_between_epochs_stops_the_query(stream: Any, one_backend: str) -> None:
    for _ in range(2):
        stream.add(rows())

    def lose_state(batch: DataFrame, epoch: int) -> None:
        batch.collect()
        stream.settle()
        shutil.rmtree(stream.state)

    message = stream.failure(counts(stream, one_backend), lose_state)
    assert (
        f"MissingStateFolderError: epoch 1 of the operator 'counts' finds no state folder {stream.state}"
        in message
    )


def test_a_flipped_bit_in_a_segment_file_is_named_and_stops_the_query(stream: Any, one_backend: str) -> None:
    started(stream, one_backend)
    for segment in (stream.state / "counts" / "data").iterdir():
        content = bytearray(segment.read_bytes())
        content[len(content) // 3] ^= 0x10
        segment.write_bytes(content)
    stream.add(rows())
    message = stream.failure(counts(stream, one_backend))
    assert f"CorruptFileError: the file {stream.state}/counts/data/" in message
    assert list(stream.rows) == [0]


def test_two_operators_of_one_uid_in_one_query_are_refused(stream: Any, one_backend: str) -> None:
    stream.add(rows())
    both = counts(stream, one_backend).union(
        counts(stream, one_backend, source=stream.frame().where("v > 3"))
    )
    assert "DuplicateUidError: two keyed operators of this query have the uid 'counts'" in stream.failure(
        both
    )


@pytest.mark.long
@pytest.mark.parametrize(
    "mixed", ["coalesced", pytest.param("behind another side of a union", marks=pytest.mark.long)]
)
def test_a_result_whose_partitions_are_mixed_with_others_is_refused(
    stream: Any, one_backend: str, mixed: str
) -> None:
    stream.add(rows())
    out = counts(stream, one_backend)
    if mixed == "coalesced":
        out = out.coalesce(1)
    else:
        out = stream.frame().select("k", f.col("v").alias("n")).union(out)
    message = stream.failure(out)
    assert "MisroutedRowsError: partition" in message
    assert "put .repartition(n) behind the keyed result" in message


@pytest.mark.long
def test_key_columns_in_another_order_are_refused_although_their_types_agree(
    stream: Any, one_backend: str
) -> None:
    stream.add(rows())
    source = stream.frame().withColumn("other", f.reverse("k"))
    stream.run(counts(stream, one_backend, "k", "other", source=source))
    stream.add(rows())
    message = stream.failure(counts(stream, one_backend, "other", "k", source=source))
    assert (
        "KeyColumnsChangedError: the state of the keyed operator 'counts' was written with the key" in message
    )
    assert "k, other, and now they are other, k" in message


@pytest.mark.long
@pytest.mark.parametrize(
    ("keys", "function", "said"),
    [
        (
            ("v",),
            Count(),
            "was written with the key columns 'k' of type string, and now they are 'v' of type",
        ),
        (("k",), CountAsText(), "StateMigrationError: the value type of the state 'n'"),
    ],
)
def test_stored_state_of_another_type_is_refused(
    stream: Any, one_backend: str, keys: tuple[str, ...], function: KeyedProcessFunction, said: str
) -> None:
    started(stream, one_backend)
    stream.add(rows())
    message = stream.failure(counts(stream, one_backend, *keys, function=function))
    assert said in message


def test_an_error_of_the_function_arrives_with_its_key_epoch_and_own_traceback(
    stream: Any, one_backend: str
) -> None:
    stream.add([{"k": "N1", "v": 7}])
    message = stream.failure(counts(stream, one_backend, function=Boom()))
    assert "UserFunctionError: ValueError: no flight 7\n" in message
    assert (
        "raise ValueError(f\"no flight {row.v}\")\nRaised in Boom.process() for the key 'N1' in epoch 0"
        in message
    )
    # Nothing of the attempt counts: the repaired query begins with the same epoch, without state.
    stream.run(counts(stream, one_backend))
    assert stream.rows == {0: [("N1", 1)]}


@pytest.mark.long
def test_a_new_operator_in_a_running_query_needs_consent_to_begin_without_state(
    stream: Any, one_backend: str
) -> None:
    started(stream, one_backend)
    stream.add(rows())
    message = stream.failure(counts(stream, one_backend, uid="new"))
    consent = stream.state / "new" / "_start-empty"
    assert (
        f"MissingStateFolderError: epoch 1 of the operator 'new' finds no state folder {stream.state}/new"
        in message
    )
    assert str(consent) in message
    consent.parent.mkdir(exist_ok=True)
    consent.touch()
    stream.run(counts(stream, one_backend, uid="new"))
    assert max(count for _, count in stream.rows[1]) == 6


@pytest.mark.long
def test_an_operator_that_returns_to_its_query_needs_consent_to_miss_epochs(
    stream: Any, one_backend: str
) -> None:
    """It was removed from the query for an epoch; its state is that of the epoch before."""

    def query(uid: str | None) -> DataFrame:
        source = stream.frame()
        stays = counts(stream, one_backend, uid="stays", source=source)
        # As many sources in each run: Spark insists on that.
        return stays.union(
            source.selectExpr("k", "0L")
            if uid is None
            else counts(stream, one_backend, uid=uid, source=source)
        )

    stream.add(rows())
    stream.run(query("goes"))
    stream.add(rows())
    stream.run(query(None))
    stream.add(rows())
    message = stream.failure(query("goes"))
    consent = stream.state / "goes" / "_continue-at-2"
    assert "MissedEpochsError: epoch 2 of the operator 'goes' finds the state of epoch 0" in message
    assert "the epochs 1 to 1 ran without this operator" in message and str(consent) in message
    consent.touch()
    stream.run(query("goes"))
    per_epoch = max(count for _, count in stream.rows[0])
    found = sorted({count for _, count in stream.rows[2]})
    assert max(found) == 3 * per_epoch, "the one that stayed has counted three epochs"
    assert 2 * per_epoch in found, "the other one has counted two"


def test_a_published_and_an_unpublished_operator_run_again_and_count_once(
    stream: Any, one_backend: str
) -> None:
    """The driver dies between the publications of two operators, before Spark commits the batch."""

    class DriverDied(Exception):
        pass

    def dying(batch: DataFrame, epoch: int) -> None:
        stream.rows[epoch] = [tuple(row) for row in batch.collect()]
        if epoch == 1:
            raise DriverDied

    def two() -> DataFrame:
        source = stream.frame()
        return counts(stream, one_backend, uid="left", source=source).union(
            counts(stream, one_backend, uid="right", source=source)
        )

    for _ in range(3):
        stream.add(rows())
    stream.failure(two(), dying)
    left, right = stream.state / "left", stream.state / "right"
    assert (left / "chk-1" / "_metadata").is_file()
    # What a driver leaves that was killed before this one's publication.
    (right / "chk-1" / "_metadata").unlink()
    stream.run(two())
    per_epoch = max(count for _, count in stream.rows[0])
    for epoch in range(3):
        assert max(count for _, count in stream.rows[epoch]) == (epoch + 1) * per_epoch
    assert (right / "chk-2" / "_metadata").is_file()
