"""``keyedstate checkpoint show``: what one checkpoint or savepoint holds of one operator."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Annotated, Any

import typer
from rich.console import Console

from keyedstate.checkpoint import AttemptManifest, CheckpointMetadata, CheckpointStorage, to_json
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
from keyedstate.cli.checkpoint.options import Epoch, StatePath, Uid
from keyedstate.cli.output import Format, console, print_json, shown_bytes, table
from keyedstate.cli.settings import ConfigFile, OutputFormat, open_storage
from keyedstate.errors import KeyedStateError
from keyedstate.types import SerializerSnapshot

_PARTS = (
    "part", "key groups", "entries", "bytes", "written", "deltas", "rows in", "rows out",
    "restore ms", "process ms", "sync ms", "write ms",
)  # fmt: skip
_FILES = ("file", "holds", "key groups", "entries", "bytes")

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
    """Return what is known of a checkpoint and does not stand in its metadata."""
    uid = stored.storage.root.rstrip("/").rpartition("/")[2]
    (operator,) = SnapshotLocation.open(storage, uid).operators
    found = survey(operator)
    # None where clean-up has deleted it in between.
    checkpoint = next((one for one in found.checkpoints if one.path == stored.path), None)
    return {
        "status": "deleted" if checkpoint is None else checkpoint.status.value,
        "published": None if checkpoint is None else time_of(checkpoint.published_ms),
        "held_until": None if checkpoint is None else time_of(checkpoint.held_until_ms),
        "owner": None if found.owner is None else to_json(found.owner),
    }


def _document(
    stored: OperatorSnapshot, parts: Sequence[AttemptManifest], surroundings: Mapping[str, Any]
) -> dict[str, Any]:
    metadata = stored.metadata
    return {
        "location": stored.location,
        "kind": "savepoint" if stored.is_savepoint else "checkpoint",
        "uid": metadata.uid,
        "epoch": metadata.epoch,
        **surroundings,
        "query_id": metadata.query_id,
        "run_id": metadata.run_id,
        "parallelism": metadata.parallelism,
        "max_parallelism": metadata.max_parallelism,
        "backends": backends_of(metadata),
        "key_columns": [{"name": name, "type": kind} for name, kind in metadata.key_columns],
        "watermark": time_of(metadata.watermark),
        "entries": entries_of(metadata),
        "files": len(set().union(*(part.data_files for part in metadata.parts))),
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
            name = str(state.get("name"))
            line = {
                "name": name,
                "kind": state.get("kind"),
                "key": _type(state.get("key")),
                "namespace": _type(state.get("namespace")),
                "value": _type(state.get("value")),
            }
            known = found.setdefault(json.dumps(line), {**line, "entries": 0, "ttl_ms": None})
            known["entries"] += part.entries.get(name, 0)
            known["ttl_ms"] = part.ttl_ms.get(name, known["ttl_ms"])
    return sorted(found.values(), key=lambda line: line["name"])


def _operator_states(metadata: CheckpointMetadata) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for part in metadata.parts:
        for state in part.operator_state.states if part.operator_state else ():
            name = str(state.get("name"))
            line = {
                "name": name,
                "kind": state.get("kind"),
                "key": _type(state.get("key")),
                "value": _type(state.get("value")),
            }
            known = found.setdefault(json.dumps(line), {**line, "entries": 0})
            entries = part.operator_state.segment.entries.get(name, 0) if part.operator_state else 0
            # Every task has written the same map.
            is_map = state.get("kind") == "broadcast"
            known["entries"] = max(known["entries"], entries) if is_map else known["entries"] + entries
    return sorted(found.values(), key=lambda line: line["name"])


def _type(document: Any) -> str:
    """Return a type as people write it, a record with its columns; its JSON face where it is unknown."""
    try:
        serializer = SerializerSnapshot.from_json(document).restore_serializer()
    except (KeyedStateError, LookupError, TypeError, ValueError, AttributeError):
        return json.dumps(document, sort_keys=True)
    written = repr(serializer)
    return f"{written}: {serializer.arrow_type}" if "record_of" in written else written


def _part(part: AttemptManifest) -> dict[str, Any]:
    return {
        "partition": part.identity.partition,
        "attempt": part.identity.attempt,
        "key_groups": [part.key_groups.start, part.key_groups.end] if part.key_groups else None,
        "backend": f"{part.backend} {part.backend_version}",
        "entries": sum(part.entries.values()),
        "entries_by_state": dict(part.entries),
        "bytes": sum(file.bytes for _, file in files_of(part)),
        "bytes_written": part.bytes,
        "deltas": len(part.deltas),
        "rows_in": part.rows_in,
        "rows_out": part.rows_out,
        "rows_dropped": dict(part.rows_dropped),
        "largest_event_time": time_of(part.largest_event_time),
        "restore_ms": part.restore_ms,
        "process_ms": part.process_ms,
        "sync_ms": part.sync_ms,
        "write_ms": part.write_ms,
        "full_snapshots": [to_json(full) for full in part.full_snapshots],
        "files": [
            {
                "path": file.path,
                "holds": role,
                "key_groups": [file.key_groups.start, file.key_groups.end] if file.key_groups else None,
                "entries": sum(file.entries.values()),
                "bytes": file.bytes,
            }
            for role, file in files_of(part)
        ],
    }


def _print(out: Console, document: Mapping[str, Any], *, with_files: bool) -> None:
    out.print(table(["", ""], list(_facts(document))))
    if document["states"]:
        out.print()
        rows = [
            [
                state["name"],
                state["kind"],
                state["value"],
                _namespace(state),
                _lifetime(state),
                f"{state['entries']:,}",
            ]
            for state in document["states"]
        ]
        out.print(
            table(["state", "kind", "value", "namespace", "time to live", "entries"], rows, ("entries",))
        )
    if document["operator_states"]:
        out.print()
        rows = [
            [state["name"], state["kind"], state["value"], f"{state['entries']:,}"]
            for state in document["operator_states"]
        ]
        out.print(table(["operator state", "kind", "value", "entries"], rows, ("entries",)))
    out.print()
    out.print(table(_PARTS, [_part_row(part) for part in document["parts"]], _PARTS))
    for part in document["parts"]:
        for full in part["full_snapshots"]:
            out.print(f"part {part['partition']}: {_full_snapshot(full)}", markup=False, soft_wrap=True)
        if with_files:
            out.print()
            rows = [
                [
                    file["path"],
                    file["holds"],
                    _groups(file),
                    f"{file['entries']:,}",
                    shown_bytes(file["bytes"]),
                ]
                for file in part["files"]
            ]
            out.print(table(_FILES, rows, ("entries", "bytes")))


def _facts(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield document["kind"], document["location"]
    yield "operator", document["uid"]
    yield "epoch", f"{document['epoch']}, published {_moment(document['published'])}"
    if document["status"] != "complete":
        yield "status", document["status"]
    if document["held_until"]:
        yield "held by a reader", f"until {_moment(document['held_until'])} at the latest"
    yield "query", document["query_id"]
    owner = document["owner"]
    of_runs = "" if owner is None else f", {_place_of_run(document['run_id'], owner['runs'])}"
    yield "run", f"{document['run_id']}{of_runs}"
    yield "keys", ", ".join(f"{column['name']} {column['type']}" for column in document["key_columns"])
    yield "parallelism", f"{document['parallelism']} of at most {document['max_parallelism']}"
    yield "backend", ", ".join(document["backends"])
    yield "watermark", _moment(document["watermark"])
    written = f"{shown_bytes(document['bytes_written'])} written by this epoch"
    yield "size", f"{shown_bytes(document['bytes'])} in {document['files']} files, {written}"


def _place_of_run(run_id: str, runs: Sequence[str]) -> str:
    if run_id not in runs:
        return "older than those that the owner's file remembers"
    return (
        "the newest" if run_id == runs[-1] else f"the {len(runs) - runs.index(run_id) - 1}. before the newest"
    )


def _moment(iso: str | None) -> str:
    return "unknown" if iso is None else iso.replace("T", " ").replace("Z", " UTC")


def _namespace(state: Mapping[str, Any]) -> str:
    return "" if state["namespace"] == "VOID" else str(state["namespace"])


def _lifetime(state: Mapping[str, Any]) -> str:
    return "" if state["ttl_ms"] is None else str(timedelta(milliseconds=state["ttl_ms"]))


def _groups(line: Mapping[str, Any]) -> str:
    groups = line["key_groups"]
    return "none" if groups is None else f"{groups[0]} to {groups[1]}"


def _part_row(part: Mapping[str, Any]) -> list[str]:
    durations = ("restore_ms", "process_ms", "sync_ms", "write_ms")
    return [
        str(part["partition"]),
        _groups(part),
        f"{part['entries']:,}",
        shown_bytes(part["bytes"]),
        shown_bytes(part["bytes_written"]),
        str(part["deltas"]),
        f"{part['rows_in']:,}",
        f"{part['rows_out']:,}",
        *(f"{part[name]:,.1f}" for name in durations),
    ]


def _full_snapshot(full: Mapping[str, Any]) -> str:
    how = "in the background" if full["background"] else "synchronously"
    if full["failure"] is not None:
        return f"a full snapshot of epoch {full['epoch']}, written {how}, failed: {full['error']}"
    return (
        f"its last full snapshot is of epoch {full['epoch']} and was written {how}: "
        f"{shown_bytes(full['bytes'])}, {full['entries']:,} entries; it blocked the task for "
        f"{full['sync_ms']:,.1f} ms and took {full['async_ms']:,.1f} ms"
    )
