"""The round trip of segment files: what a backend writes is what a restore reads."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest

from keyedstate.backend import AnyStateTable, BackendContext, EntryBatch, StateKind, StateMeta
from keyedstate.checkpoint.format.json_converter import from_json, to_json
from keyedstate.checkpoint.format.segment import SegmentHandle, SegmentWriter
from keyedstate.checkpoint.format.segment_format import SegmentFile
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.errors import (
    ColumnSizeError,
    InvalidOptionError,
    KeyGroupOutOfRangeError,
    MissingFileError,
    SnapshotCancelledError,
    SnapshotOrderError,
    StorageError,
    UnwritableEntryError,
)
from keyedstate.keygroups import KeyGroupRange
from keyedstate.tables import FullRestoreOperation
from keyedstate.types import (
    BYTES,
    FLOAT64,
    INT64,
    STRING,
    VOID,
    VOID_NAMESPACE,
    TypeSerializer,
    list_of,
    map_of,
    nullable,
    tuple_of,
)

GROUPS = KeyGroupRange(4, 9)
VIEWS = StateMeta("views", StateKind.VALUE, STRING, VOID, INT64)
VISITS = StateMeta("visits", StateKind.MAP, INT64, tuple_of(INT64, INT64), map_of(STRING, list_of(FLOAT64)))
RAW = StateMeta("raw", StateKind.VALUE, BYTES, VOID, BYTES)

Entry = tuple[Any, Any, Any]
Content = dict[str, dict[int, list[Entry]]]


def batch(*entries: Entry) -> EntryBatch[Any, Any, Any]:
    return EntryBatch(*([list(column) for column in zip(*entries, strict=True)] if entries else [[], [], []]))


def write(
    storage: CheckpointStorage,
    content: dict[StateMeta, dict[int, list[Entry]]],
    *,
    path: str = "data/one.seg",
    key_groups: KeyGroupRange = GROUPS,
    compression: str = "zstd",
    batch_size: int = 1000,
) -> SegmentFile:
    writer = SegmentWriter(storage, path, key_groups, compression)
    for meta, groups in content.items():
        writer.begin_state(meta)
        for group in key_groups:
            entries = groups.get(group, [])
            starts = range(0, len(entries), batch_size)
            writer.write_entries(group, (batch(*entries[at : at + batch_size]) for at in starts))
    return writer.finish()


def read(handle: SegmentHandle, jobs: ModuleType) -> Content:
    return {
        meta.name: {
            group: entries
            for group in handle.key_groups
            if (entries := jobs.entries_of(handle.entries(meta.name, group)))
        }
        for meta in handle.states
    }


CONTENT: dict[StateMeta, dict[int, list[Entry]]] = {
    VIEWS: {
        4: [(VOID_NAMESPACE, f"key-{number}", number) for number in range(2500)],
        6: [(VOID_NAMESPACE, "ключ 🔑", -(2**63)), (VOID_NAMESPACE, "", 2**63 - 1)],
        9: [(VOID_NAMESPACE, "last", 0)],
    },
    VISITS: {5: [((0, 10), 7, {"a": [1.5, float("inf")], "b": []}), ((10, 20), 7, {})]},
    RAW: {},
}


@pytest.mark.parametrize("compression", ["zstd", "lz4", "none"])
def test_several_states_come_back_as_they_were_written(
    storage: CheckpointStorage, jobs: ModuleType, compression: str
) -> None:
    segment = write(storage, CONTENT, compression=compression, batch_size=999)
    assert segment.entries == {"views": 2503, "visits": 2, "raw": 0}
    assert segment.bytes == len(storage.read(segment.path))
    handle = SegmentHandle.open(storage, from_json(SegmentFile, json.loads(json.dumps(to_json(segment)))))
    assert handle.key_groups == GROUPS
    assert list(handle.states) == [VIEWS, VISITS, RAW]
    assert read(handle, jobs) == {meta.name: groups for meta, groups in CONTENT.items()}


def test_a_backend_without_states_has_an_empty_snapshot_that_can_be_read(
    storage: CheckpointStorage, jobs: ModuleType
) -> None:
    """SB-48."""
    segment = write(storage, {})
    handle = SegmentHandle.open(storage, segment)
    assert (list(handle.states), segment.entries, handle.key_groups) == ([], {}, GROUPS)
    assert read(handle, jobs) == {}


def test_empty_key_groups_take_no_room_in_the_streams(local: CheckpointStorage) -> None:
    wide = KeyGroupRange(0, 32_767)
    few = {VIEWS: {17: [(VOID_NAMESPACE, "a", 1)]}}
    narrow_file = write(local, few, key_groups=KeyGroupRange(0, 31), path="data/narrow.seg")
    wide_file = write(local, few, key_groups=wide, path="data/wide.seg")
    assert wide_file.bytes - narrow_file.bytes < 10
    handle = SegmentHandle.open(local, wide_file)
    assert handle.key_groups == wide
    assert list(handle.entries("views", 16)) == [] and list(handle.entries("views", 32_767)) == []


def test_only_key_groups_of_four_kibibytes_or_more_are_compressed(
    local: CheckpointStorage, jobs: ModuleType
) -> None:
    def group_of(*sizes: int) -> list[Entry]:
        return [(VOID_NAMESPACE, b"%d" % number, b"a" * size) for number, size in enumerate(sizes)]

    # The last one begins with a small batch.
    groups = {4: group_of(3000), 5: group_of(5000), 6: group_of(1000, 9000)}
    for compression in ("zstd", "none"):
        path = f"data/{compression}.seg"
        segment = write(local, {RAW: groups}, path=path, compression=compression, batch_size=1)
        handle = SegmentHandle.open(local, segment)
        assert read(handle, jobs) == {"raw": groups}
        assert 3000 < segment.bytes < 6000 if compression == "zstd" else segment.bytes > 18_000


def test_none_as_a_value_is_an_entry_and_comes_back(local: CheckpointStorage, jobs: ModuleType) -> None:
    meta = StateMeta("maybe", StateKind.VALUE, STRING, VOID, nullable(INT64))
    entries = [(VOID_NAMESPACE, "a", None), (VOID_NAMESPACE, "b", 1)]
    handle = SegmentHandle.open(local, write(local, {meta: {4: entries}}))
    assert read(handle, jobs) == {"maybe": {4: entries}}


def test_huge_values_come_back(local: CheckpointStorage, jobs: ModuleType) -> None:
    # Larger than any piece that writing or reading handles at once, and hard to compress.
    huge = b"".join(number.to_bytes(8, "little") for number in range(0, 3_000_000 * 977, 977))
    entries = {4: [(VOID_NAMESPACE, b"huge", huge)], 5: [(VOID_NAMESPACE, b"small", b"")]}
    segment = write(local, {RAW: entries}, compression="none")
    assert segment.bytes > 24_000_000
    assert read(SegmentHandle.open(local, segment), jobs) == {"raw": entries}


def test_only_the_wanted_key_groups_are_read(local: CheckpointStorage, jobs: ModuleType) -> None:
    """What is outside the wanted range may be destroyed without being noticed."""
    big = {group: [(VOID_NAMESPACE, b"k", bytes([group]) * 100_000)] for group in GROUPS}
    segment = write(local, {RAW: big}, compression="none")
    data = bytearray(local.read(segment.path))
    for group in (4, 9):
        at = data.index(bytes([group]) * 1000)
        data[at : at + 1000] = bytes(1000)
    local.write_atomic(segment.path, bytes(data))
    handle = SegmentHandle.open(local, segment, KeyGroupRange(5, 8))
    for group in (7, 5, 6, 8, 5):
        assert jobs.entries_of(handle.entries("raw", group)) == big[group]


def test_neighbouring_key_groups_are_read_at_once(local: CheckpointStorage, jobs: ModuleType) -> None:
    groups = KeyGroupRange(0, 99)
    content = {VIEWS: {group: [(VOID_NAMESPACE, f"{group}-{i}", i) for i in range(200)] for group in groups}}
    segment = write(local, content, key_groups=groups)
    source = local.open_input(segment.path)
    reads: list[tuple[int, int]] = []
    plain = source.read_at
    source.read_at = lambda offset, length: (reads.append((offset, length)), plain(offset, length))[1]  # type: ignore[method-assign]
    counting = CheckpointStorage(local.filesystem, local.root, local.uri)
    object.__setattr__(counting, "open_input", lambda _path: source)
    handle = SegmentHandle.open(counting, segment, KeyGroupRange(10, 59))
    opening = len(reads)
    assert sum(len(jobs.entries_of(handle.entries("views", group))) for group in range(10, 60)) == 10_000
    assert opening <= 3 and len(reads) == opening + 1
    # Nothing outside the wanted half is read ahead.
    assert reads[-1][1] < segment.bytes * 0.55


def test_what_was_written_restores_through_the_contract(local: CheckpointStorage) -> None:
    """The full restore of the contract gets every key group of its range, and no other."""
    segment = write(local, CONTENT)
    context = BackendContext(KeyGroupRange(5, 6), 16, {}, local_base=None)  # type: ignore[arg-type]
    restored: dict[str, list[tuple[int, int]]] = {}

    class Table:
        def __init__(self, meta: StateMeta) -> None:
            self.name = meta.name
            restored[meta.name] = []

        def restore_entries(self, key_group: int, entries: EntryBatch[Any, Any, Any]) -> None:
            restored[self.name].append((key_group, len(entries)))

    def create(meta: StateMeta, _context: BackendContext) -> AnyStateTable:
        return Table(meta)  # type: ignore[return-value]

    tables = FullRestoreOperation([SegmentHandle.open(local, segment)], context, create).restore()
    assert list(tables) == ["views", "visits", "raw"]
    assert restored == {"views": [(6, 2)], "visits": [(5, 2)], "raw": []}


def test_any_arrow_tool_can_read_a_stream(local: CheckpointStorage) -> None:
    segment = write(local, {VISITS: CONTENT[VISITS]})
    data = local.read(segment.path)
    table = pa.ipc.open_stream(data[16:]).read_all()
    assert table.column_names == ["namespace", "key", "value"]
    assert table.column("key").to_pylist() == [7, 7]


# -- what cannot be written ------------------------------------------------------------------------


def test_a_value_of_another_type_is_an_error_that_names_the_entry(local: CheckpointStorage) -> None:
    writer = SegmentWriter(local, "data/one.seg", GROUPS)
    writer.begin_state(VIEWS)
    entries = [(VOID_NAMESPACE, f"key-{number}", number) for number in range(500)]
    entries[321] = (VOID_NAMESPACE, "key-321", "three hundred")
    with pytest.raises(UnwritableEntryError) as caught:
        writer.write_entries(4, [batch(*entries)])
    error = caught.value
    assert (error.state, error.key_group, error.key, error.column) == ("views", 4, "'key-321'", "value")
    assert "three hundred" in error.reason
    with pytest.raises(SnapshotOrderError):
        writer.finish()
    writer.abort()
    assert list(local.list("data")) == []


def test_a_serializer_that_names_no_row_is_searched_for_the_entry(local: CheckpointStorage) -> None:
    class Refusing(type(STRING)):  # type: ignore[misc]
        def to_arrow(self, values: Sequence[Any]) -> pa.Array:
            if "bad" in values:
                raise RuntimeError("I do not like it")
            return super().to_arrow(values)

    writer = SegmentWriter(local, "data/one.seg", GROUPS)
    writer.begin_state(StateMeta("words", StateKind.VALUE, STRING, VOID, Refusing()))
    words = ["good", "better", "bad", "best"]
    with pytest.raises(
        UnwritableEntryError, match=r"key 'k2'.*group 5.*'words'.*I do not like it\. "
    ) as caught:
        writer.write_entries(5, [batch(*((VOID_NAMESPACE, f"k{i}", word) for i, word in enumerate(words)))])
    assert isinstance(caught.value.__cause__, RuntimeError)


class Narrow(type(STRING)):  # type: ignore[misc]
    """Strings whose columns take ten characters, as if these were the two gibibytes that Arrow's take."""

    def to_arrow(self, values: Sequence[Any]) -> pa.Array:
        if sum(map(len, values)) > 10:
            raise ColumnSizeError("Narrow()")
        return super().to_arrow(values)


def test_a_batch_with_more_bytes_than_a_column_takes_is_split(
    local: CheckpointStorage, jobs: ModuleType
) -> None:
    narrow: TypeSerializer[Any] = Narrow()
    meta = StateMeta("words", StateKind.VALUE, STRING, VOID, narrow)
    entries = [(VOID_NAMESPACE, f"k{number}", "four") for number in range(21)]
    segment = write(local, {meta: {4: entries}})
    handle = SegmentHandle.open(local, segment)
    assert len(list(handle.entries("words", 4))) > 10
    assert read(handle, jobs) == {"words": {4: entries}}


def test_a_single_value_that_no_column_takes_is_an_error_that_names_the_entry(
    local: CheckpointStorage,
) -> None:
    writer = SegmentWriter(local, "data/one.seg", GROUPS)
    writer.begin_state(StateMeta("words", StateKind.VALUE, STRING, VOID, Narrow()))
    entries = [(VOID_NAMESPACE, "a", "x"), (VOID_NAMESPACE, "b", "x" * 11), (VOID_NAMESPACE, "c", "x")]
    with pytest.raises(UnwritableEntryError, match=r"the key 'b' in key group 4"):
        writer.write_entries(4, [batch(*entries)])


def test_an_error_of_the_backend_passes_through_and_nothing_is_published(local: CheckpointStorage) -> None:
    def batches() -> Iterator[EntryBatch[Any, Any, Any]]:
        yield batch((VOID_NAMESPACE, "a", 1))
        raise ZeroDivisionError("the backend's own")

    writer = SegmentWriter(local, "data/one.seg", GROUPS)
    writer.begin_state(VIEWS)
    with pytest.raises(ZeroDivisionError, match="the backend's own"):
        writer.write_entries(4, batches())
    with pytest.raises(SnapshotOrderError):
        writer.write_entries(5, [])
    writer.abort()
    assert list(local.list("data")) == []


def test_a_full_disk_is_an_error_that_names_the_file(local: CheckpointStorage) -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    writer = SegmentWriter(local, "data/one.seg", GROUPS, "none")
    writer.begin_state(RAW)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(StorageError, match=r"cannot write .*data/one\.seg"):
            writer.write_entries(4, [batch((VOID_NAMESPACE, b"k", b"v" * 8_000_000))])
        writer.abort()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(local.list("data")) == []


def test_after_an_error_of_the_storage_nothing_more_is_written(unruly_storage: Any, tmp_path: Path) -> None:
    unruly = unruly_storage(tmp_path)
    writer = SegmentWriter(unruly.storage, "data/one.seg", GROUPS, "none")
    writer.begin_state(RAW)
    unruly.handler.fail("write", [ConnectionResetError("the network is gone"), ValueError("closed")])
    with pytest.raises(StorageError, match="the network is gone"):
        writer.write_entries(4, (batch((VOID_NAMESPACE, b"%d" % n, b"v" * (1 << 20))) for n in range(9)))
    writer.abort()
    assert list(unruly.storage.list("data")) == []


def test_the_order_of_calls_is_checked(local: CheckpointStorage) -> None:
    writer = SegmentWriter(local, "data/one.seg", GROUPS)
    one = [batch((VOID_NAMESPACE, "a", 1))]
    with pytest.raises(SnapshotOrderError, match="before any state"):
        writer.write_entries(4, one)
    writer.begin_state(VIEWS)
    with pytest.raises(KeyGroupOutOfRangeError):
        writer.write_entries(3, one)
    writer.write_entries(6, one)
    for group in (6, 5):
        with pytest.raises(SnapshotOrderError, match="came after 6"):
            writer.write_entries(group, one)
    with pytest.raises(SnapshotOrderError, match="begun twice"):
        writer.begin_state(VIEWS)
    writer.finish()
    writer.abort()
    assert list(local.list("data")) == ["one.seg"]
    with pytest.raises(SnapshotOrderError):
        writer.finish()


def test_lists_of_unequal_length_are_refused(local: CheckpointStorage) -> None:
    writer = SegmentWriter(local, "data/one.seg", GROUPS)
    writer.begin_state(VIEWS)
    with pytest.raises(SnapshotOrderError, match="2 keys, 1 values"):
        writer.write_entries(4, [EntryBatch([VOID_NAMESPACE] * 2, ["a", "b"], [1])])


def test_a_cancel_in_the_middle_of_a_key_group_leaves_nothing(local: CheckpointStorage) -> None:
    """SB-53, the part of the sink: between two batches the snapshot sees that it was cancelled."""

    def batches() -> Iterator[EntryBatch[Any, Any, Any]]:
        yield batch((VOID_NAMESPACE, "a", 1))
        raise SnapshotCancelledError(7)

    writer = SegmentWriter(local, "data/one.seg", GROUPS)
    writer.begin_state(VIEWS)
    with pytest.raises(SnapshotCancelledError):
        writer.write_entries(4, batches())
    with pytest.raises(SnapshotOrderError):
        writer.finish()
    writer.abort()
    assert list(local.list("data")) == []


def test_an_unknown_compression_is_refused_before_a_file_is_made(local: CheckpointStorage) -> None:
    with pytest.raises(InvalidOptionError, match="zstd, lz4, none"):
        SegmentWriter(local, "data/one.seg", GROUPS, "brotli")
    assert list(local.list()) == []


def test_a_file_that_is_gone_is_an_error_that_names_it(local: CheckpointStorage) -> None:
    segment = write(local, CONTENT)
    local.delete_file(segment.path)
    with pytest.raises(MissingFileError, match=r"data/one\.seg"):
        SegmentHandle.open(local, segment)
