"""Writing and reading a segment file against what pyarrow itself needs for the same columns, in one run.

    python tests/bench/bench_segment.py [--entries N] [--compression zstd|lz4|none]

The entries have a void namespace, a string key and an integer value and are in 128 key groups.  The floor
of writing converts the same lists to the same columns, puts one Arrow stream per key group into one file with
the same compression, and syncs it.  The floor of reading reads these streams from one buffer, converts keys
and values to lists and builds one dict; the segment is read into one dict too.  Times are the best of five.

Then the same state in heap-cow, of which one epoch has changed a hundredth: writing the delta against writing
the full snapshot, and restoring full snapshot and delta against restoring the full snapshot.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from keyedstate.backend import EntryBatch, StateKind, StateMeta
from keyedstate.checkpoint.format.delta import ChainHandle, write_delta
from keyedstate.checkpoint.format.segment import SegmentHandle, SegmentWriter
from keyedstate.checkpoint.format.segment_format import SegmentFile
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.keygroups import KeyGroupRange
from keyedstate.options import Configuration
from keyedstate.plugins import PluginRegistry
from keyedstate.state import ValueState
from keyedstate.state.registry.chosen_backend import ChosenBackend, KeySpace
from keyedstate.state.registry.keyed_backend import KeyedStateBackend
from keyedstate.types import INT64, STRING, VOID, VOID_NAMESPACE

META = StateMeta("views", StateKind.VALUE, STRING, VOID, INT64)
GROUPS = KeyGroupRange(0, 127)
SCHEMA = pa.schema([("namespace", pa.null()), ("key", pa.string()), ("value", pa.int64())])
_ROUNDS = 5

Row = tuple[str, float, float]
Batches = list[EntryBatch[object, str, int]]


def batches_of(entries: int) -> Batches:
    """Return one batch for each key group."""
    generator = random.Random(1)
    size = entries // len(GROUPS)
    return [
        EntryBatch(
            [VOID_NAMESPACE] * size,
            [f"key-{group * size + number:09d}" for number in range(size)],
            [generator.randrange(1 << 40) for _ in range(size)],
        )
        for group in GROUPS
    ]


def write_floor(path: Path, batches: Batches, options: pa.ipc.IpcWriteOptions) -> list[int]:
    """Write the columns with pyarrow alone; returns where the streams begin."""
    offsets = []
    path.unlink(missing_ok=True)
    with path.open("wb") as file:
        for batch in batches:
            offsets.append(file.tell())
            columns = [
                pa.nulls(len(batch)),
                pa.array(batch.keys, pa.string()),
                pa.array(batch.values, pa.int64()),
            ]
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, SCHEMA, options=options) as writer:
                writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))
            file.write(sink.getvalue())
        file.flush()
        os.fsync(file.fileno())
        offsets.append(file.tell())
    return offsets


def read_floor(path: Path, offsets: list[int]) -> dict[str, int]:
    """Read what `write_floor` wrote into a dict."""
    found: dict[str, int] = {}
    data = pa.py_buffer(path.read_bytes())
    options = pa.ipc.IpcReadOptions(use_threads=False)
    for start, end in itertools.pairwise(offsets):
        for columns in pa.ipc.open_stream(data.slice(start, end - start), options=options):
            found.update(zip(columns.column(1).to_pylist(), columns.column(2).to_pylist(), strict=True))
    return found


def write_segment(storage: CheckpointStorage, batches: Batches, compression: str) -> SegmentFile:
    """Write the entries as a backend does."""
    storage.delete_file("views.seg")
    writer = SegmentWriter(storage, "views.seg", GROUPS, compression)
    writer.begin_state(META)
    for group, batch in zip(GROUPS, batches, strict=True):
        writer.write_entries(group, [batch])
    return writer.finish()


def read_segment(storage: CheckpointStorage, segment: SegmentFile) -> dict[str, int]:
    """Read the entries as a restore does, into a dict."""
    found: dict[str, int] = {}
    handle = SegmentHandle.open(storage, segment)
    for group in GROUPS:
        for batch in handle.entries(META.name, group):
            found.update(zip(batch.keys, batch.values, strict=True))
    handle.close()
    return found


def delta_rows(storage: CheckpointStorage, entries: int, compression: str) -> tuple[list[Row], str]:
    """Return how long files of a full snapshot and of a hundredth of it take, and how large they are."""
    config = Configuration({"backend": "heap-cow"})
    registry = PluginRegistry(config)
    plugin = registry.choose()

    def opened(handles: list[SegmentHandle | ChainHandle]) -> KeyedStateBackend:
        return KeyedStateBackend.open(
            ChosenBackend(plugin, config.plugin_options(registry.options, plugin.name)),
            KeySpace(STRING, GROUPS, len(GROUPS)),
            handles,
            track_changes=True,
        )

    def whole(path: str) -> SegmentFile:
        storage.delete_file(path)
        writer = SegmentWriter(storage, path, GROUPS, compression)
        backend.snapshot(1).run(writer)
        return writer.finish()

    def delta() -> SegmentFile:
        storage.delete_file("delta.seg")
        changes = backend.changes_since(0)
        metas = {meta.name: meta for meta in backend.metas()}
        written = write_delta(storage, "delta.seg", GROUPS, metas, changes, compression)
        for changed in changes.values():
            changed.release()
        return written

    def restore(full: SegmentFile, *deltas: SegmentFile) -> int:
        files = [SegmentHandle.open(storage, file) for file in (full, *deltas)]
        handle = ChainHandle(files[0], files[1:], backend.metas()) if deltas else files[0]
        restored = opened([handle])
        handle.close()
        found = restored.num_entries()
        restored.close()
        return found

    backend = opened([])
    state = backend.get_state(ValueState(META.name, INT64))
    keys = [f"key-{number:09d}" for number in range(entries)]
    state.update_many(keys, range(entries))
    full = whole("base.seg")
    backend.begin_epoch(1)
    state.update_many(keys[::100], range(0, entries, 100))
    changed = delta()
    if not restore(full, changed) == restore(full) == entries:
        raise SystemExit("entries were lost")
    rows = [
        ("write a delta", best_of(lambda: whole("whole.seg")), best_of(delta)),
        ("restore with it", best_of(lambda: restore(full)), best_of(lambda: restore(full, changed))),
    ]
    backend.close()
    return rows, f"full snapshot {full.bytes:,} bytes, delta {changed.bytes:,} bytes"


def best_of(action: Callable[[], object]) -> float:
    """Return the seconds of the fastest of some rounds."""
    times = []
    for _ in range(_ROUNDS):
        gc.collect()
        start = time.perf_counter()
        result = action()
        times.append(time.perf_counter() - start)
        del result
    return min(times)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--entries", type=int, default=1_000_000, help="default: %(default)s")
    parser.add_argument("--compression", choices=("zstd", "lz4", "none"), default="zstd")
    arguments = parser.parse_args()
    codec = arguments.compression
    options = pa.ipc.IpcWriteOptions(compression=None if codec == "none" else codec, use_threads=False)
    batches = batches_of(arguments.entries)
    with tempfile.TemporaryDirectory() as folder:
        path, storage = Path(folder, "floor.arrows"), CheckpointStorage.open(folder)
        offsets = write_floor(path, batches, options)
        segment = write_segment(storage, batches, codec)
        if read_floor(path, offsets) != read_segment(storage, segment):
            raise SystemExit("the segment does not hold what pyarrow read")
        rows = [
            (
                "write",
                best_of(lambda: write_floor(path, batches, options)),
                best_of(lambda: write_segment(storage, batches, codec)),
            ),
            (
                "read into a dict",
                best_of(lambda: read_floor(path, offsets)),
                best_of(lambda: read_segment(storage, segment)),
            ),
        ]
        entries = sum(map(len, batches))
        sys.stdout.write(f"pyarrow {pa.__version__}, {entries:,} entries, {codec}, {segment.bytes:,} bytes\n")
        sys.stdout.write(f"{'':18}{'pyarrow entries/s':>18}{'segment entries/s':>18}{'time ratio':>12}\n")
        for name, floor, ours in rows:
            sys.stdout.write(
                f"{name:18}{entries / floor:18,.0f}{entries / ours:18,.0f}{ours / floor:12.2f}\n"
            )
        rows, sizes = delta_rows(storage, arguments.entries, codec)
        sys.stdout.write(f"\n{sizes}\n{'':18}{'whole, ms':>18}{'delta, ms':>18}{'time ratio':>12}\n")
        for name, floor, ours in rows:
            sys.stdout.write(f"{name:18}{floor * 1e3:18,.1f}{ours * 1e3:18,.1f}{ours / floor:12.2f}\n")


if __name__ == "__main__":
    main()
