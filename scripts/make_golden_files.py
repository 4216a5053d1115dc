"""Write the golden files of the contract kit that are not there yet, in the format of this version.

`python scripts/make_golden_files.py` is run once for a new format version or a new content, and its files are
committed.  A file that is there is never written again: it is there to be read, whatever wrote it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from keyedstate.backend import StateKind
from keyedstate.checkpoint.format.manifest import AttemptManifest, CheckpointMetadata, TaskIdentity
from keyedstate.checkpoint.format.segment import SegmentWriter
from keyedstate.checkpoint.format.segment_format import FORMAT_VERSION
from keyedstate.checkpoint.protocol.operator_folder import OperatorFolder
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.state import StateDescriptor, ValueState
from keyedstate.state.clock import ManualClock
from keyedstate.state.registry.keyed_backend import KeyedStateBackend
from keyedstate.testing.contract.keyed import KeyedInstances
from keyedstate.testing.contract.suites import golden
from keyedstate.types import STRING, TypeSerializer

Fill = Callable[[KeyedStateBackend], None]


def main() -> None:
    """Write what is missing and say what was there."""
    root = golden.FOLDER / f"format-{FORMAT_VERSION}"
    contents: dict[str, Fill] = {kind.value: _fill_kind(kind, golden.STATES[kind]) for kind in StateKind}
    contents |= {f"ttl-{kind.value}": _fill_kind(kind, golden.EXPIRING[kind]) for kind in StateKind}
    contents["types"] = _fill_types(golden.TYPES)
    contents["pandas"] = _fill_types(golden.pandas_types())
    for uid, fill in contents.items():
        if (root / uid).exists():
            print(f"{root / uid} is there and stays as it is")
        else:
            write(root, uid, fill)
            print(f"{root / uid} written")


def write(root: Path, uid: str, fill: Fill) -> None:
    """Write a published checkpoint of an operator."""
    folder = OperatorFolder(CheckpointStorage.open(root), uid)
    with tempfile.TemporaryDirectory() as temporary:
        instances = KeyedInstances("nested-map", Path(temporary), {})
        parts = []
        opened = instances.open_all(
            golden.PARALLELISM,
            key=golden.KEY,
            max_parallelism=golden.MAX_PARALLELISM,
            clock=ManualClock(golden.WRITTEN_MS),
        )
        for partition, backend in enumerate(opened):
            fill(backend)
            identity = TaskIdentity(
                uid=uid,
                query_id="golden",
                run_id="golden",
                epoch=0,
                partition=partition,
                parallelism=golden.PARALLELISM,
                max_parallelism=golden.MAX_PARALLELISM,
                attempt=partition,
                nonce=f"golden-{partition}",
            )
            writer = SegmentWriter(folder.storage, folder.data_path(identity), backend.key_groups)
            backend.snapshot(0).run(writer)
            segment = writer.finish()
            parts.append(
                AttemptManifest(
                    identity=identity,
                    key_groups=backend.key_groups,
                    backend=instances.plugin.name,
                    backend_version=instances.plugin.description.version,
                    states=tuple(meta.to_json() for meta in backend.metas()),
                    segments=(segment,),
                    entries=backend.entries_by_state(),
                    rows_in=0,
                    rows_out=0,
                    largest_event_time=None,
                    sync_ms=0.0,
                    write_ms=0.0,
                    restore_ms=0.0,
                    process_ms=0.0,
                    bytes=segment.bytes,
                    key_columns=(("key", "string"),),
                )
            )
        instances.close()
    folder.write_metadata(CheckpointMetadata.of(parts))


def own(backend: KeyedStateBackend, key: str | None) -> bool:
    """Make a key the current one; return whether it belongs to the instance."""
    try:
        backend.set_current_key(key)
    except ValueError:
        return False
    return True


def _fill_kind(kind: StateKind, state: StateDescriptor[Any]) -> Fill:
    def fill(backend: KeyedStateBackend) -> None:
        backend.get_state(state, "w1", STRING)
        for number, key, namespace in golden.numbered():
            if own(backend, key):
                golden.write(kind, backend.get_state(state, namespace, STRING), number)

    return fill


def _fill_types(known: Mapping[str, tuple[TypeSerializer[Any], Any]]) -> Fill:
    def fill(backend: KeyedStateBackend) -> None:
        for name, (type_, value) in known.items():
            handle = backend.get_state(ValueState(name, type_))
            for key in golden.KEYS[:2]:
                if own(backend, key):
                    handle.update(value)

    return fill


if __name__ == "__main__":
    main()
