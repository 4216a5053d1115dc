"""Documents of checkpoints: their bytes, and which content is refused although its checksum is right."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from keyedstate.checkpoint.format.json_converter import to_json
from keyedstate.checkpoint.format.json_document import decode_as, encode_document
from keyedstate.checkpoint.format.manifest import AttemptManifest, CheckpointMetadata, Owner
from keyedstate.errors import CorruptFileError

DOCUMENTS = Path(__file__).parent / "documents"
#: Every field of each kind, written by the version before the first that had a library do it.
KINDS: dict[str, type] = {"attempt": AttemptManifest, "checkpoint": CheckpointMetadata, "owner": Owner}
GOLDEN = sorted(Path(__file__).parents[4].glob("framework/src/keyedstate/testing/golden/*/*/*/_metadata"))
#: JSON that backends and serializers bring: any is right there.
FREE = ("states", "details", "latencies")


def body_of(kind: str) -> dict[str, Any]:
    body: dict[str, Any] = json.loads((DOCUMENTS / f"{kind}.json").read_bytes())["body"]
    return body


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield where the values of a document are, but for JSON of others."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, below in inner:
        yield (*path, name)
        if name not in FREE:
            yield from paths(below, (*path, name))


def replaced(body: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(body)
    place: Any = changed
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    return changed


@pytest.mark.parametrize("kind", KINDS)
def test_a_document_with_every_field_is_written_with_the_same_bytes(kind: str):
    data = (DOCUMENTS / f"{kind}.json").read_bytes()
    assert encode_document(kind, 1, to_json(decode_as(KINDS[kind], "file", kind, 1, data))) == data


@pytest.mark.parametrize("file", GOLDEN, ids=lambda file: file.parent.parent.name)
def test_a_golden_document_keeps_every_value_that_it_has(file: Path):
    data = file.read_bytes()
    old = json.loads(data)["body"]
    written = json.loads(json.dumps(to_json(decode_as(CheckpointMetadata, "file", "checkpoint", 1, data))))
    assert {name: written[name] for name in old if name != "parts"} == {
        name: value for name, value in old.items() if name != "parts"
    }
    for part, before in zip(written["parts"], old["parts"], strict=True):
        # Its segments have later fields too.
        assert {name: part[name] for name in before if name != "segments"} == {
            name: value for name, value in before.items() if name != "segments"
        }


@pytest.mark.parametrize("kind", ["attempt", "owner"])
def test_a_value_of_a_type_that_its_field_never_has_is_refused(kind: str):
    body = body_of(kind)
    for path in paths(body):
        for wrong in ([["nested"]], {"nested": [1]}, True):
            if path[-1] in (*FREE, "claimed", "background") or type(wrong) is type(_at(body, path)):
                continue
            data = encode_document(kind, 1, replaced(body, path, wrong))
            with pytest.raises(CorruptFileError, match="malformed"):
                decode_as(KINDS[kind], "file", kind, 1, data)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("state_origin",), "elsewhere"),
        (("bases", 1, "failure"), "BORED"),
        (("key_groups",), [0]),
        (("key_groups",), [0, 1.5]),
        (("rows_in",), "4"),
        (("bases", 0, "background"), 1),
        (("key_columns",), "ab"),
        (("deltas",), {"path": "data/a.seg"}),
    ],
)
def test_an_unknown_name_or_another_type_is_refused(path: tuple[Any, ...], value: Any):
    data = encode_document("attempt", 1, replaced(body_of("attempt"), path, value))
    with pytest.raises(CorruptFileError, match="malformed"):
        decode_as(AttemptManifest, "file", "attempt", 1, data)


def test_a_document_without_a_field_of_the_first_version_is_refused():
    for name in ("identity", "segments", "entries", "rows_in", "bytes"):
        body = body_of("attempt")
        del body[name]
        with pytest.raises(CorruptFileError, match=name):
            decode_as(AttemptManifest, "file", "attempt", 1, encode_document("attempt", 1, body))


def _at(body: Any, path: tuple[Any, ...]) -> Any:
    for name in path:
        body = body[name]
    return body
