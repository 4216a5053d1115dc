"""The segment file: the entries of some states over some key groups, as Arrow columns.

The layout is in `keyedstate.checkpoint.format.segment_format`.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa

from keyedstate.backend import EntryBatch, SnapshotSink, StateHandle, StateMeta
from keyedstate.checkpoint.format.segment_format import (
    COLUMNS,
    HEADER_BYTES,
    SegmentFile,
    StreamIndex,
    encode_ending,
    encode_header,
    read_index,
)
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage, InputFile, OutputFile
from keyedstate.errors import (
    CheckpointError,
    ColumnSizeError,
    CorruptFileError,
    KeyedStateError,
    KeyGroupOutOfRangeError,
    SnapshotOrderError,
    UnreadableStateError,
    UnwritableEntryError,
    ValueTypeError,
)
from keyedstate.keygroups import KeyGroupRange
from keyedstate.options import CHECKPOINT_COMPRESSION, Configuration
from keyedstate.tables import ArrowEntryBatch
from keyedstate.types import AccumulatorsSerializer, TypeSerializer
from keyedstate.types.collections.maps import MapSerializer
from keyedstate.types.collections.ttl import TtlMapSerializer

#: Streams of neighbouring key groups that are read at once.
_RUN_BYTES = 8 << 20
#: Bytes of columns below which a stream is not compressed, and made in memory: 30 rows with 1.5 KB of columns
#: took six times as long with zstd, for 1.9 instead of 2.4 KB.
_SMALL_BYTES = 4 << 10
_SMALL_STREAM = pa.ipc.IpcWriteOptions(compression=None, use_threads=False)
#: Bytes of a stream that are gathered before they go to the file.
_PIECE_BYTES = 4 << 20
# Batches are small and tasks are many: handing a batch to other threads costs more than it saves.
_READ_OPTIONS = pa.ipc.IpcReadOptions(use_threads=False)


# -- writing ---------------------------------------------------------------------------------------


class SegmentWriter(SnapshotSink):
    """Writes one new segment file.

    One thread at a time uses it.  Every method raises `StorageError` where the file system refuses.  After an
    error, also a cancel, only `abort` is allowed; the end of a ``with`` block calls it.  The compression is
    that of the option ``checkpoint.compression``.
    """

    def __init__(
        self, storage: CheckpointStorage, path: str, key_groups: KeyGroupRange, compression: str = "zstd"
    ) -> None:
        codec = Configuration({CHECKPOINT_COMPRESSION.name: compression})[CHECKPOINT_COMPRESSION]
        self._options = pa.ipc.IpcWriteOptions(
            compression=None if codec == "none" else codec, use_threads=False
        )
        self._path = path
        self._location = storage.location(path)
        self._key_groups = key_groups
        self._states: dict[str, StreamIndex] = {}
        self._meta: StateMeta | None = None
        self._schema: pa.Schema | None = None
        # True once finished or aborted, and while a key group is being written: what raises stays half done.
        self._unusable = False
        self._closed = False
        self._output: OutputFile = storage.open_output(path)
        try:
            self._output.write(encode_header())
        except CheckpointError:
            self.abort()
            raise
        self._position = HEADER_BYTES

    def begin_state(self, meta: StateMeta) -> None:
        """Announce the state whose entries follow; `SnapshotOrderError` for one that was begun before."""
        self._check_usable()
        if meta.name in self._states:
            raise SnapshotOrderError(self._location, f"the state {meta.name!r} was begun twice")
        self._states[meta.name] = StreamIndex(meta.to_json())
        self._meta = meta
        serializers = (meta.namespace_serializer, meta.key_serializer, meta.value_serializer)
        types = [serializer.arrow_type for serializer in serializers]
        self._schema = pa.schema(list(zip(COLUMNS, types, strict=True)))

    def write_entries(self, key_group: int, batches: Iterable[EntryBatch[Any, Any, Any]]) -> None:
        """Write the entries of one key group, as `write_columns`; raises as `record_batches` too."""
        self.write_columns(key_group, self._as_columns(key_group, batches))

    def write_columns(self, key_group: int, batches: Iterable[pa.RecordBatch]) -> None:
        """Write the entries of one key group in the form of `SegmentHandle.columns`.

        Raises `KeyGroupOutOfRangeError` and `SnapshotOrderError` for a key group outside the file's range, or
        not after the previous one.
        """
        index = self._checked(key_group)
        self._unusable = True
        filled = (batch for batch in batches if batch.num_rows)
        first, size = [], 0
        for batch in filled:
            first.append(batch)
            size += batch.nbytes
            if size >= _SMALL_BYTES:
                break
        if first:
            sink, small = StreamSink(self._output), size < _SMALL_BYTES
            target = pa.BufferOutputStream() if small else pa.PythonFile(sink, "w")
            options = _SMALL_STREAM if small else self._options
            # Not in a with block: after an error that would write into the broken file again.
            writer = pa.ipc.new_stream(target, self._schema, options=options)
            entries = 0
            for batch in chain(_taken(first), filled):
                writer.write_batch(batch)
                entries += batch.num_rows
            writer.close()
            if small:
                sink.write(target.getvalue())
            sink.send()
            index.key_groups.append(key_group)
            index.offsets.append(self._position)
            index.lengths.append(sink.length)
            index.entries.append(entries)
            index.checksums.append(sink.checksum)
            self._position += sink.length
        self._unusable = False

    def _checked(self, key_group: int) -> StreamIndex:
        """Return the index of the present state, after checking that the key group may follow."""
        self._check_usable()
        if self._meta is None:
            raise SnapshotOrderError(self._location, f"key group {key_group} came before any state")
        if key_group not in self._key_groups:
            raise KeyGroupOutOfRangeError(key_group, self._key_groups)
        index = self._states[self._meta.name]
        if index.key_groups and key_group <= index.key_groups[-1]:
            before = f"after {index.key_groups[-1]}"
            what = f"key group {key_group} of the state {self._meta.name!r} came {before}"
            raise SnapshotOrderError(self._location, what)
        return index

    def _as_columns(
        self, key_group: int, batches: Iterable[EntryBatch[Any, Any, Any]]
    ) -> Iterator[pa.RecordBatch]:
        assert self._meta is not None, "checked before the first batch"
        for batch in batches:
            if isinstance(batch, ArrowEntryBatch):
                yield batch.columns
                continue
            lengths = len(batch.namespaces), len(batch.keys), len(batch.values)
            if len(set(lengths)) > 1:
                what = "a batch of {!r} has {} namespaces, {} keys, {} values"
                raise SnapshotOrderError(self._location, what.format(self._meta.name, *lengths))
            if len(batch):
                yield from record_batches(self._meta, key_group, batch)

    def finish(self) -> SegmentFile:
        """Write index and footer, publish the file and return its description."""
        self._check_usable()
        self._unusable = True
        ending, digest = encode_ending(self._position, self._key_groups, self._states.values())
        self._output.write(ending)
        self._output.close()
        self._closed = True
        return SegmentFile(
            path=self._path,
            bytes=self._position + len(ending),
            digest=digest,
            key_groups=self._key_groups,
            entries={name: sum(streams.entries) for name, streams in self._states.items()},
            sizes={name: sum(streams.lengths) for name, streams in self._states.items()},
        )

    def __enter__(self) -> SegmentWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.abort()

    def abort(self) -> None:
        """Delete the unfinished file; does nothing after `finish` and when called again."""
        if not self._closed:
            self._closed = self._unusable = True
            self._output.abort()

    def _check_usable(self) -> None:
        if self._unusable:
            raise SnapshotOrderError(self._location, "it continued after it was finished, aborted or failed")


def _taken(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a list, which keeps none of them in memory longer."""
    while batches:
        yield batches.pop(0)


class StreamSink:
    """The file-like object for Arrow: counts and checksums bytes, and writes them in large pieces."""

    def __init__(self, output: OutputFile) -> None:
        self.length = 0
        self.checksum = 0
        self.closed = False
        self._output = output
        self._pieces: list[bytes] = []
        self._waiting = 0

    def write(self, data: bytes | pa.Buffer) -> int:
        """Gather bytes, and write them when there are enough."""
        piece = bytes(data)
        self._pieces.append(piece)
        self.checksum = zlib.crc32(piece, self.checksum)
        self.length += len(piece)
        self._waiting += len(piece)
        if self._waiting >= _PIECE_BYTES:
            self.send()
        return len(piece)

    def send(self) -> None:
        """Write what was gathered."""
        self._output.write(b"".join(self._pieces))
        self._pieces.clear()
        self._waiting = 0

    def flush(self) -> None:
        """Do nothing: Arrow flushes after every batch."""

    def close(self) -> None:
        """Note that Arrow has ended the stream."""
        self.closed = True


def record_batches(
    meta: StateMeta, key_group: int, batch: EntryBatch[Any, Any, Any]
) -> Iterator[pa.RecordBatch]:
    """Yield entries as columns, in halves where Arrow cannot address so many bytes.

    Raises `UnwritableEntryError` where a serializer refuses a part of an entry.
    """
    arrays = []
    serializers = meta.namespace_serializer, meta.key_serializer, meta.value_serializer
    columns: tuple[Sequence[Any], ...] = batch.namespaces, batch.keys, batch.values
    for name, serializer, values in zip(COLUMNS, serializers, columns, strict=True):
        try:
            arrays.append(serializer.to_arrow(values))
        except MemoryError:
            raise
        except ColumnSizeError as error:
            if len(batch) == 1:
                raise UnwritableEntryError(meta.name, key_group, batch.keys[0], name, str(error)) from error
            middle = len(batch) // 2
            for part in (slice(middle), slice(middle, None)):
                half = EntryBatch(batch.namespaces[part], batch.keys[part], batch.values[part])
                yield from record_batches(meta, key_group, half)
            return
        except Exception as error:
            row = _refused_row(serializer, values, error)
            raise UnwritableEntryError(meta.name, key_group, batch.keys[row], name, str(error)) from error
    yield pa.RecordBatch.from_arrays(arrays, list(COLUMNS))


def _refused_row(serializer: Any, values: Sequence[Any], error: Exception) -> int:
    if isinstance(error, ValueTypeError) and error.row is not None:
        return error.row
    for row in range(len(values)):
        try:
            serializer.to_arrow(values[row : row + 1])
        except Exception:
            return row
    return 0


# -- reading ---------------------------------------------------------------------------------------


class SegmentHandle(StateHandle):
    """Reads a segment file: first its index, then only the requested key groups.

    It reads neighbouring key groups at once, up to 8 MiB, as far as they are in the wanted range.
    """

    def __init__(
        self,
        location: str,
        source: InputFile,
        key_groups: KeyGroupRange,
        wanted: KeyGroupRange,
        streams: dict[str, StreamIndex],
    ) -> None:
        self.location = location
        self._source = source
        self._key_groups = key_groups
        self._wanted = wanted
        self._streams = streams
        self._rows = {
            state: {group: row for row, group in enumerate(index.key_groups)}
            for state, index in streams.items()
        }
        self._metas: dict[str, StateMeta] | None = None
        self._run_offset = 0
        self._run = pa.py_buffer(b"")

    @classmethod
    def open(
        cls, storage: CheckpointStorage, segment_file: SegmentFile, wanted: KeyGroupRange | None = None
    ) -> SegmentHandle:
        """Open a file and check its header, index and footer against its description, as `read_index`.

        Nothing beyond the `wanted` key groups is read ahead.
        """
        location = storage.location(segment_file.path)
        source = storage.open_input(segment_file.path)
        try:
            streams = read_index(location, source, segment_file)
            covered = segment_file.key_groups
            return cls(location, source, covered, covered if wanted is None else wanted, streams)
        except BaseException:
            source.close()
            raise

    @property
    def key_groups(self) -> KeyGroupRange:
        return self._key_groups

    @property
    def states(self) -> Sequence[StateMeta]:
        """The states in the file, with the serializers that wrote them.

        Raises `UnreadableStateError` where a type, or its version, is not known here.
        """
        return tuple(self._meta_of_states().values())

    def _meta_of_states(self) -> dict[str, StateMeta]:
        if self._metas is None:
            metas = {}
            for state, index in self._streams.items():
                try:
                    metas[state] = StateMeta.from_json(index.meta)
                except KeyedStateError as error:
                    raise UnreadableStateError(self.location, state, str(error)) from error
                except (LookupError, TypeError, ValueError) as error:
                    reason = f"its description is of another form ({type(error).__name__}: {error})"
                    way_out = "A newer keyedstate may have written it: upgrade this one."
                    raise UnreadableStateError(self.location, state, f"{reason}. {way_out}") from error
            self._metas = metas
        return self._metas

    def occupied(self, state: str, key_groups: KeyGroupRange) -> Iterable[int]:
        return [key_group for key_group in self._rows.get(state, ()) if key_group in key_groups]

    def entries(self, state: str, key_group: int) -> Iterator[EntryBatch[Any, Any, Any]]:
        for columns in self.columns(state, key_group):
            yield decoded(self._meta_of_states()[state], columns)

    def columns(self, state: str, key_group: int) -> Iterator[pa.RecordBatch]:
        """Yield the same entries in their stored form: the columns `segment_format.COLUMNS`, verified."""
        row = self._rows.get(state, {}).get(key_group)
        if row is None:
            return
        index = self._streams[state]
        stream_name = f"key group {key_group} of the state {state!r}"
        stream = self._verified_stream(index, row, stream_name)
        # An unknown type is refused before the first batch.
        self._meta_of_states()
        entries = 0
        try:
            for columns in pa.ipc.open_stream(stream, options=_READ_OPTIONS):
                entries += columns.num_rows
                yield columns
        except (pa.ArrowException, OSError) as error:
            raise CorruptFileError(self.location, f"{stream_name} is no Arrow stream ({error})") from error
        if entries != index.entries[row]:
            what = f"{stream_name} has {entries} entries, and {index.entries[row]} were written"
            raise CorruptFileError(self.location, what)

    def verify(self) -> None:
        """Compare every stream with its checksum; raises `CorruptFileError` and `StorageError`."""
        for state, index in self._streams.items():
            for row, key_group in enumerate(index.key_groups):
                self._verified_stream(index, row, f"key group {key_group} of the state {state!r}")

    def close(self) -> None:
        """Close the file."""
        self._run = pa.py_buffer(b"")
        self._source.close()

    def _verified_stream(self, index: StreamIndex, row: int, name: str) -> pa.Buffer:
        stream = self._read_stream(index, row)
        if zlib.crc32(stream) != index.checksums[row]:
            raise CorruptFileError(self.location, f"{name} does not have its checksum")
        return stream

    def _read_stream(self, index: StreamIndex, row: int) -> pa.Buffer:
        offset, length = index.offsets[row], index.lengths[row]
        if not self._run_offset <= offset <= offset + length <= self._run_offset + self._run.size:
            end, following = offset + length, row + 1
            while (
                following < len(index.offsets)
                and index.key_groups[following] in self._wanted
                and index.offsets[following] + index.lengths[following] - offset <= _RUN_BYTES
            ):
                end = index.offsets[following] + index.lengths[following]
                following += 1
            self._run_offset, self._run = offset, self._source.read_at(offset, end - offset)
            if self._run.size != end - offset:
                raise CorruptFileError(self.location, "it ends within its streams")
        return self._run.slice(offset - self._run_offset, length)


def decoded(meta: StateMeta, columns: pa.RecordBatch) -> EntryBatch[Any, Any, Any]:
    """Return stored entries as tables take them."""
    if isinstance(meta.value_serializer, AccumulatorsSerializer):
        # A table may take them as they are.
        return ArrowEntryBatch(meta, columns)
    return EntryBatch(
        canonical_column(meta.namespace_serializer, columns.column(0)),
        canonical_column(meta.key_serializer, columns.column(1)),
        canonical_values(meta.value_serializer, meta.value_serializer.from_arrow(columns.column(2))),
    )


def canonical_column(serializer: TypeSerializer[Any], column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Return keys or namespaces in the form by which tables find them: Arrow creates a new NaN each time."""
    found = serializer.from_arrow(column)
    return list(map(serializer.canonical, found)) if serializer.needs_canonical else found


def canonical_values(serializer: TypeSerializer[Any], found: Sequence[Any]) -> Sequence[Any]:
    """Return values in the form that tables keep: a map's own keys are looked up too."""
    if (
        isinstance(serializer, (MapSerializer, TtlMapSerializer))
        and serializer.key_serializer.needs_canonical
    ):
        return [value and serializer.with_canonical_keys(value) for value in found]
    return found
