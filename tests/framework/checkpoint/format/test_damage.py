"""Every byte of every stored file is covered: a change anywhere is found before any value is used."""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest

from keyedstate.backend import EntryBatch
from keyedstate.checkpoint.format.json_document import decode_document, encode_document
from keyedstate.checkpoint.format.segment import SegmentHandle, SegmentWriter
from keyedstate.checkpoint.format.segment_format import SegmentFile
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.errors import CorruptFileError, FormatVersionError
from keyedstate.keygroups import KeyGroupRange
from keyedstate.types import VOID_NAMESPACE

GROUPS = KeyGroupRange(0, 2)
PATH = "data/one.seg"


def small_segment(storage: CheckpointStorage, jobs: ModuleType, path: str = PATH) -> SegmentFile:
    """Write one state with entries in the first and last of three key groups."""
    writer = SegmentWriter(storage, path, GROUPS)
    writer.begin_state(jobs.EPOCHS)
    writer.write_entries(0, [EntryBatch([VOID_NAMESPACE] * 2, ["a", "b"], [[1], [2, 3]])])
    writer.write_entries(2, [EntryBatch([VOID_NAMESPACE], ["c"], [[]])])
    return writer.finish()


def use(storage: CheckpointStorage, segment: SegmentFile, jobs: ModuleType) -> list[Any]:
    handle = SegmentHandle.open(storage, segment)
    try:
        return [jobs.entries_of(handle.entries("epochs", group)) for group in GROUPS]
    finally:
        handle.close()


INTACT = [[(VOID_NAMESPACE, "a", [1]), (VOID_NAMESPACE, "b", [2, 3])], [], [(VOID_NAMESPACE, "c", [])]]


def test_a_flipped_bit_in_any_byte_of_a_segment_is_found(local: CheckpointStorage, jobs: ModuleType) -> None:
    segment = small_segment(local, jobs)
    data = local.read(PATH)
    assert use(local, segment, jobs) == INTACT
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1 << (position % 8)
        local.delete_file(PATH)
        with open(f"{local.root}/{PATH}", "wb") as file:
            file.write(damaged)
        with pytest.raises(CorruptFileError, match=r"data/one\.seg is damaged"):
            use(local, segment, jobs)


def test_damage_in_one_key_group_leaves_the_others_readable(
    local: CheckpointStorage, jobs: ModuleType
) -> None:
    segment = small_segment(local, jobs)
    data = bytearray(local.read(PATH))
    data[16 + 200] ^= 4  # within the first stream
    local.write_atomic(PATH, bytes(data))
    handle = SegmentHandle.open(local, segment)
    with pytest.raises(CorruptFileError, match="key group 0 of the state 'epochs'"):
        next(handle.entries("epochs", 0))
    assert jobs.entries_of(handle.entries("epochs", 2)) == INTACT[2]


def test_a_segment_cut_off_anywhere_is_found(local: CheckpointStorage, jobs: ModuleType) -> None:
    segment = small_segment(local, jobs)
    data = local.read(PATH)
    for length in range(len(data)):
        with open(f"{local.root}/{PATH}", "wb") as file:
            file.write(data[:length])
        with pytest.raises(CorruptFileError, match=r"data/one\.seg"):
            use(local, segment, jobs)


def test_the_error_names_the_damaged_part(local: CheckpointStorage, jobs: ModuleType) -> None:
    segment = small_segment(local, jobs)
    data = local.read(PATH)
    parts = {
        0: "the header is not that of a segment file",
        len(data) - 60: "the index does not have its checksum",
        len(data) - 30: "the footer does not have its checksum",
    }
    for position, what in parts.items():
        local.write_atomic(PATH, data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])
        with pytest.raises(CorruptFileError, match=what):
            use(local, segment, jobs)
    local.write_atomic(PATH, data)
    with pytest.raises(CorruptFileError, match=f"it has {len(data)} bytes, and {len(data) + 1} were written"):
        use(local, replace(segment, bytes=len(data) + 1), jobs)


@pytest.mark.parametrize("garbage", [b"\0", b"GESDEYEK", b"x" * 100_000])
def test_bytes_behind_a_segment_are_found(local: CheckpointStorage, jobs: ModuleType, garbage: bytes) -> None:
    segment = small_segment(local, jobs)
    local.write_atomic(PATH, local.read(PATH) + garbage)
    with pytest.raises(CorruptFileError, match=r"data/one\.seg"):
        use(local, segment, jobs)


def test_a_second_footer_after_the_footer_is_found(local: CheckpointStorage, jobs: ModuleType) -> None:
    segment = small_segment(local, jobs)
    data = local.read(PATH)
    local.write_atomic(PATH, data + data[-36:])
    with pytest.raises(CorruptFileError, match=r"data/one\.seg"):
        use(local, segment, jobs)


def test_another_intact_segment_in_the_place_of_one_is_found(
    local: CheckpointStorage, jobs: ModuleType
) -> None:
    segment = small_segment(local, jobs)
    for number in range(4, 100):  # until the checksums in the index happen to have as many digits
        writer = SegmentWriter(local, f"data/{number}.seg", GROUPS)
        writer.begin_state(jobs.EPOCHS)
        writer.write_entries(0, [EntryBatch([VOID_NAMESPACE] * 2, ["a", "b"], [[1], [2, number]])])
        writer.write_entries(2, [EntryBatch([VOID_NAMESPACE], ["c"], [[]])])
        other = writer.finish()
        if other.bytes == segment.bytes:
            break
    assert other.bytes == segment.bytes
    local.write_atomic(PATH, local.read(other.path))
    with pytest.raises(CorruptFileError, match="another file"):
        use(local, segment, jobs)


def test_a_segment_of_a_newer_format_is_refused_by_its_version(
    local: CheckpointStorage, jobs: ModuleType
) -> None:
    segment = small_segment(local, jobs)
    data = bytearray(local.read(PATH))
    footer = bytearray(data[-36:])
    footer[20:24] = struct.pack("<I", 2)
    footer[24:28] = struct.pack("<I", zlib.crc32(footer[:24]))
    data[-36:] = footer
    local.write_atomic(PATH, bytes(data))
    with pytest.raises(FormatVersionError, match="format version 2") as caught:
        use(local, segment, jobs)
    assert (caught.value.version, caught.value.supported) == (2, 1)


def test_an_index_that_leaves_bytes_uncovered_is_refused(local: CheckpointStorage, jobs: ModuleType) -> None:
    """Checksums alone do not tell that a writer left a gap; the index must cover the file."""
    segment = small_segment(local, jobs)
    data = local.read(PATH)
    offset, length = struct.unpack("<QQ", data[-36:-20])
    document = json.loads(data[offset : offset + length])
    document["states"][0]["offsets"][1] += 1
    index = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
    footer = struct.pack("<QQII", offset, len(index), zlib.crc32(index), 1)
    footer += struct.pack("<I", zlib.crc32(footer)) + b"GESDEYEK"
    local.write_atomic(PATH, data[:offset] + index + footer)
    described = SegmentFile(
        PATH, offset + len(index) + 36, hashlib.sha256(index).hexdigest(), GROUPS, segment.entries
    )
    with pytest.raises(CorruptFileError, match="no stream covers byte"):
        SegmentHandle.open(local, described)


# -- documents -------------------------------------------------------------------------------------


def owner(job: Any) -> tuple[str, Callable[[], object]]:
    return "_owner", job.folder.read_owner


def metadata(job: Any) -> tuple[str, Callable[[], object]]:
    return "chk-0/_metadata", lambda: job.folder.read_metadata(0)


def manifest(job: Any) -> tuple[str, Callable[[], object]]:
    path = next(attempt.path for attempt in job.folder.attempts(0) if attempt.finished)
    return path, lambda: job.folder.read_manifest(path)


@pytest.fixture(params=[owner, metadata, manifest], ids=lambda place: place.__name__)
def document(request: pytest.FixtureRequest, job: Any) -> tuple[str, Callable[[], object], CheckpointStorage]:
    """One of the kinds of JSON files: its path, what reads it, and the storage that it is in."""
    from keyedstate.checkpoint.protocol.coordinator import CheckpointCoordinator

    job.epoch("run-1", 0, CheckpointCoordinator(job.folder))
    path, read = request.param(job)
    return path, read, job.folder.storage


Document = tuple[str, Callable[[], object], CheckpointStorage]


@pytest.mark.slow
def test_a_flipped_bit_in_any_byte_of_a_document_is_found(document: Document) -> None:
    path, read, storage = document
    data = storage.read(path)
    before = read()
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1 << (position % 8)
        with open(f"{storage.root}/{path}", "wb") as file:
            file.write(damaged)
        with pytest.raises(CorruptFileError) as caught:
            read()
        assert caught.value.path == storage.location(path)
    storage.write_atomic(path, data)
    assert read() == before


def test_a_document_cut_off_or_continued_is_found(document: Document) -> None:
    path, read, storage = document
    data = storage.read(path)
    for damaged in [*(data[:length] for length in range(len(data))), data + b"\n", data + b"{}", data + data]:
        with open(f"{storage.root}/{path}", "wb") as file:
            file.write(damaged)
        with pytest.raises(CorruptFileError, match="is damaged"):
            read()


def test_a_document_of_a_newer_format_is_refused_by_its_version(document: Document) -> None:
    path, read, storage = document
    content = json.loads(storage.read(path))
    storage.write_atomic(path, encode_document(content["kind"], 2, content["body"]))
    with pytest.raises(FormatVersionError, match="Upgrade keyedstate") as caught:
        read()
    assert (caught.value.version, caught.value.supported) == (2, 1)


def test_an_intact_document_of_another_kind_or_form_is_refused(document: Document) -> None:
    path, read, storage = document
    content = json.loads(storage.read(path))
    storage.write_atomic(path, encode_document("recipe", 1, content["body"]))
    with pytest.raises(CorruptFileError, match="'recipe'"):
        read()
    storage.write_atomic(path, encode_document(content["kind"], 1, {"uid": "views"}))
    with pytest.raises(CorruptFileError, match="malformed"):
        read()


@pytest.mark.parametrize(
    "data",
    [b"", b"{}", b"[]", b"null", b"\xff\xfe", b'{"kind":"owner","version":"1","body":{}}', b"[" * 100_000],
)
def test_what_is_no_document_at_all_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptFileError, match="a/file"):
        decode_document("a/file", "owner", 1, data)


def test_documents_with_equal_content_have_equal_bytes() -> None:
    one = encode_document("owner", 1, {"a": 1.5, "b": {"y": "ü", "x": None}})
    two = encode_document("owner", 1, {"b": {"x": None, "y": "ü"}, "a": 1.5})
    assert one == two
    assert decode_document("f", "owner", 1, one) == {"a": 1.5, "b": {"x": None, "y": "ü"}}
