"""``keyedstate checkpoint show``: the state of one operator in one checkpoint or savepoint."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from operator import itemgetter
from typing import Annotated, Any

import typer
from rich.console import Console

from keyedstate.checkpoint.format.json_converter import to_json
from keyedstate.checkpoint.format.manifest import AttemptManifest, CheckpointMetadata
from keyedstate.checkpoint.reading.json_values import time_of
from keyedstate.checkpoint.reading.survey import (
    backends_of,
    bytes_of,
    deltas_of,
    entries_of,
    files_of,
    survey,
)
from keyedstate.checkpoint.savepoint.location import SnapshotLocation
from keyedstate.checkpoint.savepoint.operator_snapshot import OperatorSnapshot
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.cli.checkpoint.options import Epoch, StatePath, Uid
from keyedstate.cli.output import Format, attributes, console, facts, print_json, shown_bytes, table
from keyedstate.cli.settings import ConfigFile, OutputFormat, open_storage
from keyedstate.errors import KeyedStateError
from keyedstate.keygroups import KeyGroupRange
from keyedstate.types import SerializerSnapshot

_PARTS = (
    "part", "key groups", "entries", "bytes", "written", "deltas", "rows in", "rows out",
    "restore ms", "process ms", "sync ms", "write ms",
)  # fmt: skip
_DURATIONS = ("restore_ms", "process_ms", "sync_ms", "write_ms")
_STATES = ("state", "kind", "value", "namespace", "time to live", "entries")
_OPERATOR_STATES = ("operator state", "kind", "value", "entries")
_NATIVE = ("metric of the backend", "value")
_FILES = ("file", "role", "key groups", "entries", "bytes")

Part = Annotated[
    int | None, typer.Option("--part", metavar="P", min=0, help="Only this partition, with its files.")
]


def show(
    path: StatePath,
    uid: Uid = None,
    epoch: Epoch = None,
    part: Part = None,
    config: ConfigFile = None,
    format: OutputFormat = Format.table,
) -> None:
    """Show one checkpoint of one operator: its states and their types, its parts, files and durations."""
    storage = open_storage(path, config)
    stored = OperatorSnapshot.open(storage, uid, epoch)
    metadata = stored.metadata
    if part is not None and part >= metadata.parallelism:
        last = metadata.parallelism - 1
        raise typer.BadParameter(f"{stored.location} has the parts 0 to {last}", param_hint="--part")
    parts = metadata.parts if part is None else (metadata.parts[part],)
    document = _document(stored, parts, _surroundings(storage, stored))
    if format is Format.json:
        print_json(document)
    else:
        _print(console(), document, with_files=part is not None)


def _surroundings(storage: CheckpointStorage, stored: OperatorSnapshot) -> dict[str, Any]:
    """Return the facts of a checkpoint that its metadata does not have."""
    uid = stored.storage.root.rstrip("/").rpartition("/")[2]
    (operator,) = SnapshotLocation.open(storage, uid).operators
    found = survey(operator)
    # None where clean-up has deleted it in between.
    checkpoint = next((one for one in found.checkpoints if one.path == stored.path), None)
    return {
        "status": "deleted" if checkpoint is None else checkpoint.status,
        "published": checkpoint and time_of(checkpoint.published_ms),
        "leased_until": checkpoint and time_of(checkpoint.leased_until_ms),
        "owner": None if found.owner is None else to_json(found.owner),
    }


def _document(
    stored: OperatorSnapshot, parts: Sequence[AttemptManifest], surroundings: Mapping[str, Any]
) -> dict[str, Any]:
    metadata = stored.metadata
    return {
        "location": stored.location,
        "kind": "savepoint" if stored.is_savepoint else "checkpoint",
        **surroundings,
        **attributes(metadata, "uid", "epoch", "query_id", "run_id", "parallelism", "max_parallelism"),
        "backends": backends_of(metadata),
        "key_columns": [{"name": name, "type": kind} for name, kind in metadata.key_columns],
        "watermark": time_of(metadata.watermark),
        "entries": entries_of(metadata),
        "files": len(metadata.data_files),
        "bytes": bytes_of(metadata),
        "bytes_written": sum(part.bytes for part in metadata.parts),
        "deltas": deltas_of(metadata),
        "states": _states(metadata),
        "operator_states": _operator_states(metadata),
        "parts": [_part(part) for part in parts],
    }


def _states(metadata: CheckpointMetadata) -> list[dict[str, Any]]:
    """Return the keyed states; one that two tasks have written with two types has a line for each."""
    found: dict[str, dict[str, Any]] = {}
    for part in metadata.parts:
        for state in part.states:
            known = _line(found, state, "key", "namespace", "value")
            known["entries"] += part.entries.get(known["name"], 0)
            known["ttl_ms"] = part.ttl_ms.get(known["name"], known.get("ttl_ms"))
    return sorted(found.values(), key=itemgetter("name"))


def _operator_states(metadata: CheckpointMetadata) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    files = [part.operator_state for part in metadata.parts if part.operator_state is not None]
    for file in files:
        for state in file.states:
            known = _line(found, state, "key", "value")
            entries = file.segment.entries.get(known["name"], 0)
            # Every task has written the same map.
            is_map = known["kind"] == "broadcast"
            known["entries"] = max(known["entries"], entries) if is_map else known["entries"] + entries
    return sorted(found.values(), key=itemgetter("name"))


def _line(found: dict[str, dict[str, Any]], document: Mapping[str, Any], *types: str) -> dict[str, Any]:
    """Return the line of a state with these types, possibly a new one."""
    line = {"name": str(document.get("name")), "kind": document.get("kind")}
    line |= {part: _type(document.get(part)) for part in types}
    return found.setdefault(json.dumps(line), {**line, "entries": 0})


def _type(document: Any) -> str:
    """Return a type as people write it, a record with its columns; as JSON where it is unknown."""
    try:
        serializer = SerializerSnapshot.from_json(document).restore_serializer()
    except (KeyedStateError, LookupError, TypeError, ValueError, AttributeError):
        return json.dumps(document, sort_keys=True)
    written = repr(serializer)
    return f"{written}: {serializer.arrow_type}" if "record_of" in written else written


def _part(part: AttemptManifest) -> dict[str, Any]:
    files = list(files_of(part))
    return {
        "partition": part.identity.partition,
        "attempt": part.identity.attempt,
        "key_groups": _key_groups(part.key_groups),
        "backend": f"{part.backend} {part.backend_version}",
        "entries": sum(part.entries.values()),
        "entries_by_state": dict(part.entries),
        "bytes": sum(file.bytes for _, file in files),
        "bytes_written": part.bytes,
        "deltas": len(part.deltas),
        **attributes(part, "rows_in", "rows_out", "rows_dropped", *_DURATIONS),
        "largest_event_time": time_of(part.largest_event_time),
        "full_snapshots": to_json(part.full_snapshots),
        "native": dict(part.metrics),
        "files": [
            {
                "path": file.path,
                "role": role,
                "key_groups": _key_groups(file.key_groups),
                "entries": sum(file.entries.values()),
                "bytes": file.bytes,
            }
            for role, file in files
        ],
    }


def _key_groups(key_groups: KeyGroupRange) -> list[int] | None:
    return [key_groups.start, key_groups.end] if key_groups else None


def _print(out: Console, document: Mapping[str, Any], *, with_files: bool) -> None:
    out.print(facts(_facts(document)))
    rows = [
        [
            state["name"],
            state["kind"],
            state["value"],
            "" if state["namespace"] == "VOID" else state["namespace"],
            "" if state["ttl_ms"] is None else str(timedelta(milliseconds=state["ttl_ms"])),
            f"{state['entries']:,}",
        ]
        for state in document["states"]
    ]
    operator_rows = [
        [state["name"], state["kind"], state["value"], f"{state['entries']:,}"]
        for state in document["operator_states"]
    ]
    for columns, lines in ((_STATES, rows), (_OPERATOR_STATES, operator_rows)):
        if lines:
            out.print()
            out.print(table(columns, lines, ("entries",)))
    out.print()
    out.print(table(_PARTS, [_part_row(part) for part in document["parts"]], _PARTS))
    native: Counter[str] = Counter()
    for part in document["parts"]:
        native.update(part["native"])
    if native:
        out.print()
        metrics = [[name, f"{value:,}"] for name, value in sorted(native.items())]
        out.print(table(_NATIVE, metrics, ("value",)))
    for part in document["parts"]:
        for report in part["full_snapshots"]:
            out.print(f"part {part['partition']}: {_full_snapshot(report)}")
        if with_files:
            out.print()
            rows = [
                [f["path"], f["role"], _shown_groups(f), f"{f['entries']:,}", shown_bytes(f["bytes"])]
                for f in part["files"]
            ]
            out.print(table(_FILES, rows, ("entries", "bytes")))


def _facts(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield document["kind"], document["location"]
    yield "operator", document["uid"]
    yield "epoch", f"{document['epoch']}, published {_moment(document['published'])}"
    if document["status"] != "complete":
        yield "status", document["status"]
    if document["leased_until"]:
        yield "leased by a reader", f"until {_moment(document['leased_until'])} at the latest"
    yield "query", document["query_id"]
    owner = document["owner"]
    order = "" if owner is None else f", {_order_of_run(document['run_id'], owner['runs'])}"
    yield "run", f"{document['run_id']}{order}"
    yield "keys", ", ".join(f"{column['name']} {column['type']}" for column in document["key_columns"])
    yield "parallelism", f"{document['parallelism']} of at most {document['max_parallelism']}"
    yield "backend", ", ".join(document["backends"])
    yield "watermark", _moment(document["watermark"])
    written = f"{shown_bytes(document['bytes_written'])} written by this epoch"
    yield "size", f"{shown_bytes(document['bytes'])} in {document['files']} files, {written}"


def _order_of_run(run_id: str, runs: Sequence[str]) -> str:
    if run_id not in runs:
        return "older than those that the owner's file remembers"
    newer = len(runs) - runs.index(run_id) - 1
    return f"the {newer}. before the newest" if newer else "the newest"


def _moment(iso: str | None) -> str:
    return "unknown" if iso is None else iso.replace("T", " ").replace("Z", " UTC")


def _shown_groups(line: Mapping[str, Any]) -> str:
    return "none" if line["key_groups"] is None else "{} to {}".format(*line["key_groups"])


def _part_row(part: Mapping[str, Any]) -> list[str]:
    return [
        str(part["partition"]),
        _shown_groups(part),
        f"{part['entries']:,}",
        shown_bytes(part["bytes"]),
        shown_bytes(part["bytes_written"]),
        str(part["deltas"]),
        f"{part['rows_in']:,}",
        f"{part['rows_out']:,}",
        *(f"{part[name]:,.1f}" for name in _DURATIONS),
    ]


def _full_snapshot(report: Mapping[str, Any]) -> str:
    how = "in the background" if report["background"] else "at the end of the epoch"
    if report["failure"] is not None:
        return f"a full snapshot of epoch {report['epoch']}, written {how}, failed: {report['error']}"
    return (
        f"its last full snapshot is of epoch {report['epoch']} and was written {how}: "
        f"{shown_bytes(report['bytes'])}, {report['entries']:,} entries; its synchronous part took "
        f"{report['sync_ms']:,.1f} ms, and writing it {report['async_ms']:,.1f} ms"
    )
