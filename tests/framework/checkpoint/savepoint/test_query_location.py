"""The copied files of Spark's checkpoint location: all up to one micro-batch, and none after it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from keyedstate.errors import SparkLocationError
from keyedstate.spark.query.location import QueryLocation


@pytest.fixture
def location(tmp_path: Path) -> Path:
    """A query with two sources that has come to micro-batch 3."""
    write(tmp_path, "metadata", json.dumps({"id": "the query"}))
    for epoch in range(4):
        offsets(tmp_path, epoch, {"logOffset": epoch}, {"offset": 10 * epoch})
        write(tmp_path, f"commits/{epoch}", "v1\n{}")
        write(tmp_path, f"commits/.{epoch}.crc", "checksum")
        log(tmp_path, 0, str(epoch), epoch)
    write(tmp_path, "sources/1/0", "v1\n17")
    return tmp_path


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def offsets(root: Path, epoch: int, *sources: object) -> None:
    lines = ["-" if source is None else json.dumps(source) for source in sources]
    write(root, f"offsets/{epoch}", "\n".join(["v1", '{"batchWatermarkMs":0}', *lines]))


def log(root: Path, source: int, name: str, *batches: int) -> None:
    entries = [json.dumps({"path": f"file-{batch}", "timestamp": 1, "batchId": batch}) for batch in batches]
    write(root, f"sources/{source}/{name}", "\n".join(["v1", *entries]))


def sources_at(root: Path, epoch: int) -> set[str]:
    files = QueryLocation.open(root).files_at(epoch)
    return {path for path in files if path.startswith("sources/")}


def test_everything_up_to_a_micro_batch_is_there_and_nothing_behind_it(location: Path) -> None:
    query = QueryLocation.open(location)
    assert query.query_id() == "the query" and query.committed() == [0, 1, 2, 3]
    assert sorted(query.files_at(2)) == [
        *("commits/1", "commits/2", "metadata", "offsets/1", "offsets/2"),
        *("sources/0/0", "sources/0/1", "sources/0/2", "sources/1/0"),
    ]
    assert sorted(query.files_at(0)) == ["commits/0", "metadata", "offsets/0", "sources/0/0", "sources/1/0"]


def test_a_gathered_log_is_cut_at_its_end(location: Path) -> None:
    for name in "0123":
        (location / "sources/0" / name).unlink()
    log(location, 0, "3.compact", 0, 1, 2, 3)
    files = QueryLocation.open(location).files_at(1)
    assert [path for path in files if path.startswith("sources/0/")] == ["sources/0/1.compact"]
    assert [json.loads(line)["batchId"] for line in files["sources/0/1.compact"].splitlines()[1:]] == [0, 1]
    assert sources_at(location, 3) == {"sources/0/3.compact", "sources/1/0"}
    (location / "sources/0/3.compact").unlink()
    log(location, 0, "0", 0)
    with pytest.raises(SparkLocationError, match=r"something is missing, .*sources/0/3"):
        QueryLocation.open(location).files_at(3)


def test_a_source_that_had_not_read_anything_then_has_no_log(location: Path) -> None:
    of_others = {f"sources/0/{number}" for number in range(4)} | {"sources/1/0"}
    offsets(location, 3, {"logOffset": 3}, {"offset": 1}, None)
    assert sources_at(location, 3) == of_others
    # It has since, and its files are new to a query that continues from here.
    for number in range(5):
        log(location, 2, str(number), number)
    assert sources_at(location, 3) == of_others
    offsets(location, 3, {"logOffset": 3}, {"offset": 1}, {"logOffset": -1})
    assert sources_at(location, 3) == of_others
    # The second offset may be that of the first source, which is in the plan twice, or of one that has none.
    (location / "sources/1/0").write_text((location / "sources/0/0").read_text())
    offsets(location, 3, {"logOffset": 0}, {"logOffset": 0}, None)
    with pytest.raises(SparkLocationError, match="unclear which of the offsets"):
        sources_at(location, 3)


def test_a_frame_that_is_in_the_plan_twice_has_one_log(location: Path) -> None:
    offsets(location, 3, {"logOffset": 3}, {"offset": 1}, {"logOffset": 3})
    assert "sources/0/3" in sources_at(location, 3)
    log(location, 1, "0", 0)
    (location / "sources/1/0").write_text((location / "sources/0/0").read_text())
    offsets(location, 3, {"logOffset": 3}, {"logOffset": 3}, {"logOffset": 0})
    with pytest.raises(SparkLocationError, match="unclear which of the offsets"):
        QueryLocation.open(location).files_at(3)


def test_what_cannot_be_continued_is_refused_by_name(location: Path, tmp_path: Path) -> None:
    with pytest.raises(SparkLocationError, match="has no file metadata; it has nothing"):
        QueryLocation.open(tmp_path / "nowhere").query_id()
    write(location, "offsets/3", 'v2\n{}\n{"a":1}')
    with pytest.raises(SparkLocationError, match="begin with 'v2'"):
        QueryLocation.open(location).files_at(3)
    write(location, "metadata", "{}")
    with pytest.raises(SparkLocationError, match="is not one of Spark's"):
        QueryLocation.open(location).query_id()
    write(location, "state/0/0/1.delta", "")
    with pytest.raises(SparkLocationError, match="the folder state exists"):
        QueryLocation.open(location).files_at(2)
