"""Snapshots written and restored, against the same columns written and read with pyarrow."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from measuring import BACKENDS, GROUPS, Keys, Result, filled, medians, open_backend

from keyedstate import types
from keyedstate.checkpoint.format.segment import SegmentHandle, SegmentWriter
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.keygroups import KeyGroupRange
from keyedstate.options import Configuration
from keyedstate.plugins import PluginRegistry
from keyedstate.state import ValueState
from keyedstate.state.registry.chosen_backend import ChosenBackend, KeySpace
from keyedstate.state.registry.keyed_backend import KeyedStateBackend


def files(entries: int, rounds: int) -> list[Result]:
    keys = Keys(entries)
    results = []
    with tempfile.TemporaryDirectory() as folder:
        storage = CheckpointStorage.open(folder)
        by_group: list[list[str]] = [[] for _ in range(GROUPS)]
        for group, key in zip(keys.groups, keys.keys, strict=True):
            by_group[group].append(key)
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        counter = iter(range(1_000_000))
        written: dict[str, Any] = {}

        def write_columns() -> float:
            path = Path(folder) / f"floor-{next(counter)}.arrow"
            started = time.perf_counter()
            schema = pa.schema([("key", pa.string()), ("value", pa.int64())])
            with (
                pa.OSFile(str(path), "wb") as file,
                pa.ipc.new_stream(file, schema, options=options) as stream,
            ):
                for group in by_group:
                    columns = [pa.array(group), pa.array(list(range(len(group))), pa.int64())]
                    stream.write_batch(pa.record_batch(columns, schema=schema))
            written["floor"] = path
            return time.perf_counter() - started

        def read_columns() -> float:
            started = time.perf_counter()
            found: dict[str, int] = {}
            with pa.OSFile(str(written["floor"]), "rb") as file, pa.ipc.open_stream(file) as stream:
                for batch in stream:
                    found.update(zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True))
            assert len(found) == entries
            return time.perf_counter() - started

        def write(name: str) -> Callable[[], float]:
            backend = open_backend(name)
            backend.get_state(ValueState("state", types.INT64))
            table = filled(backend._tables["state"], keys)

            def run() -> float:
                writer = SegmentWriter(storage, f"{name}-{next(counter)}.seg", backend.key_groups)
                started = time.perf_counter()
                backend.snapshot(1).run(writer)
                segment = writer.finish()
                seconds = time.perf_counter() - started
                assert segment.entries["state"] == len(table)
                written[name] = segment
                return seconds

            return run

        def restore(name: str) -> Callable[[], float]:
            config = Configuration({"backend": name})
            registry = PluginRegistry(config)
            plugin = registry.choose()

            def run() -> float:
                started = time.perf_counter()
                restored = KeyedStateBackend.open(
                    ChosenBackend(plugin, config.plugin_options(registry.options, name)),
                    KeySpace(types.STRING, KeyGroupRange(0, GROUPS - 1), GROUPS),
                    [SegmentHandle.open(storage, written[name])],
                )
                seconds = time.perf_counter() - started
                assert restored.num_entries() == entries
                restored.close()
                return seconds

            return run

        for verb, floor, make, limit in (
            ("snapshot written", write_columns, write, ""),
            ("restored", read_columns, restore, "at most 2.5"),
        ):
            found = medians({"floor": floor, **{name: make(name) for name in BACKENDS}}, rounds)
            for name in BACKENDS:
                results.append(
                    Result(
                        f"{entries:,} entries {verb}, {name}",
                        f"{entries / found[name]:,.0f} entries/s",
                        f"pyarrow {entries / found['floor']:,.0f} entries/s",
                        found[name] / found["floor"],
                        limit,
                    )
                )
    return results
