"""A state larger than memory should be: built, checkpointed, changed by 1 %, and restored elsewhere."""

from __future__ import annotations

import random
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from measuring import GROUPS, Result, open_backend

from keyedstate import types
from keyedstate.checkpoint.format.native_files import StoredNativeHandle, write_native
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.keygroups import KeyGroupRange, key_group_ranges
from keyedstate.murmur3 import key_groups as key_groups_of
from keyedstate.state import ValueState
from keyedstate.state.registry.keyed_backend import KeyedStateBackend

#: Keys of one bulk call.
_CHUNK = 1_000_000
_NUMBERS = ValueState("numbers", types.INT64)


def limit_memory(size: int) -> None:
    """Let this process have no more private memory than `size` bytes; what is above is a MemoryError."""
    resource.setrlimit(resource.RLIMIT_DATA, (size, size))


def large_state(count: int, before: int = 2, after: int = 3) -> Iterator[Result]:
    """Measure a large state with native full snapshots; `before` and `after` are parallelisms."""
    with tempfile.TemporaryDirectory() as folder:
        storage = CheckpointStorage.open(folder)
        instances = [_opened(Path(folder), key_groups, []) for key_groups in key_group_ranges(before, GROUPS)]
        began = time.monotonic()
        for start in range(0, count, _CHUNK):
            _write(instances, np.arange(start, min(start + _CHUNK, count)), 0)
        yield _line(f"build {count:,} entries", began)
        began = time.monotonic()
        for instance in instances:
            _settle(instance)
        yield _line("written out, counted and compacted as far as RocksDB wants it", began)
        full_snapshots: list[Any] = []
        for number, (what, share) in enumerate((("the first native bases", None), ("after 1 %", 0.01))):
            if share is not None:
                began = time.monotonic()
                chosen = np.sort(random.Random(7).sample(range(count), int(count * share)))
                for instance in instances:
                    instance.begin_epoch(1)
                _write(instances, chosen, 1_000)
                yield _line(f"change {len(chosen):,} of them", began)
            began, held, size = time.monotonic(), 0.0, 0
            completed = {file.path: file for full in full_snapshots for file in full.files}
            full_snapshots = []
            for place, instance in enumerate(instances):
                captured = time.monotonic()
                snapshot = instance.native_snapshot(number)
                assert snapshot is not None
                held = max(held, time.monotonic() - captured)
                full, uploaded = write_native(
                    storage,
                    f"data/{number}-{place}.seg",
                    instance.key_groups,
                    GROUPS,
                    "rocksdb",
                    snapshot,
                    completed,
                )
                snapshot.release()
                full_snapshots.append(full)
                size += uploaded
            whole = sum(full.bytes for full in full_snapshots)
            yield _line(f"{what}: {size:,} bytes of {whole:,}; held up {held:.1f} s", began)
        metas = instances[0].metas()
        for instance in instances:
            instance.close()
        began = time.monotonic()
        changed = set(map(int, chosen))
        found = 0
        for key_groups in key_group_ranges(after, GROUPS):
            handles: list[Any] = [
                StoredNativeHandle(storage, full, metas, (), full.entries, key_groups)
                for full in full_snapshots
                if full.key_groups.intersection(key_groups)
            ]
            opened = time.monotonic()
            instance = _opened(Path(folder), key_groups, handles)
            state = instance.get_state(_NUMBERS)
            first = time.monotonic() - opened
            keys = np.array(random.Random(9).sample(range(count), min(count, 200_000)))
            groups = key_groups_of([pa.array(keys)], GROUPS)
            own = (groups >= key_groups.start) & (groups <= key_groups.end)
            values = state.get_many(keys[own].tolist(), groups[own])
            wanted = [key + 1_000 if key in changed else key for key in keys[own].tolist()]
            assert values == wanted, "every entry has its last value"
            found += len(instance._tables["numbers"])
            yield _line(f"restore {key_groups} of {after}: usable after {first:.1f} s", opened)
            instance.close()
        assert found == count, f"{found:,} entries, and not {count:,}"
        yield _line(f"restore at {after} instances instead of {before}, read and counted", began)


def _opened(folder: Path, key_groups: KeyGroupRange, handles: list[Any]) -> KeyedStateBackend:
    options = {"rocksdb.incremental": True}
    return open_backend(
        "rocksdb",
        types.INT64,
        key_groups=key_groups,
        handles=handles,
        local_base=folder,
        track_changes=True,
        **options,
    )


def _write(instances: list[KeyedStateBackend], keys: Any, more: int) -> None:
    groups = key_groups_of([pa.array(keys)], GROUPS)
    for instance in instances:
        own = (groups >= instance.key_groups.start) & (groups <= instance.key_groups.end)
        chosen = keys[own]
        instance.get_state(_NUMBERS).update_many(chosen.tolist(), (chosen + more).tolist(), groups[own])


def _settle(instance: KeyedStateBackend) -> None:
    """Let RocksDB catch up with a load that came faster than epochs do: a checkpoint is then a usual one."""
    table: Any = instance._tables["numbers"]
    table.write_back()
    len(table)
    rows = table.buffer._space.rows
    rows.flush(wait=True)
    waits = ("compaction-pending", "num-running-compactions", "num-running-flushes")
    while any(rows.property_int_value(f"rocksdb.{name}") for name in waits):
        time.sleep(1)


def _line(what: str, began: float) -> Result:
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return Result(
        what, f"{time.monotonic() - began:,.0f} s", f"{rss / (1 << 20):.2f} GiB at the most so far", None
    )
