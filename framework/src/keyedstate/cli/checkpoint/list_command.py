"""``keyedstate checkpoint list``: the operators and checkpoints under a path, and unpublished epochs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import typer
from rich.console import Console

from keyedstate.checkpoint.format.json_converter import to_json
from keyedstate.checkpoint.reading.json_values import time_of
from keyedstate.checkpoint.reading.survey import (
    Checkpoint,
    Survey,
    UnpublishedEpoch,
    backends_of,
    bytes_of,
    deltas_of,
    entries_of,
    survey,
)
from keyedstate.checkpoint.savepoint.location import SnapshotLocation
from keyedstate.cli.checkpoint.options import StatePath, Uid
from keyedstate.cli.checkpoint.savepoint_facts import savepoint_document, savepoint_table
from keyedstate.cli.output import Format, console, counted, print_json, shown_bytes, shown_time, table
from keyedstate.cli.settings import ConfigFile, OutputFormat, open_storage

_COLUMNS = (
    "epoch", "status", "published (UTC)", "parallelism", "backend", "entries", "bytes", "written", "deltas",
)  # fmt: skip
_NUMBERS = ("epoch", "parallelism", "entries", "bytes", "written", "deltas")


def list_checkpoints(
    path: StatePath, uid: Uid = None, config: ConfigFile = None, format: OutputFormat = Format.table
) -> None:
    """List the operators and checkpoints under a path; exit code 1 if one of them cannot be read."""
    location = SnapshotLocation.open(open_storage(path, config), uid)
    surveys = [_narrowed(survey(operator), location.epoch) for operator in location.operators]
    if format is Format.json:
        print_json(
            {
                "path": location.address,
                "kind": location.kind.value,
                "savepoint": None if location.savepoint is None else savepoint_document(location.savepoint),
                "operators": [_document(one) for one in surveys],
            }
        )
    else:
        out = console()
        if location.savepoint is not None:
            out.print(savepoint_table(location.savepoint))
            out.print()
        for number, one in enumerate(surveys):
            if number:
                out.print()
            _print(out, one)
    raise typer.Exit(1 if any(one.has_problem for one in surveys) else 0)


def _narrowed(one: Survey, epoch: int | None) -> Survey:
    if epoch is None:
        return one
    chosen = tuple(checkpoint for checkpoint in one.checkpoints if checkpoint.epoch == epoch)
    return replace(one, checkpoints=chosen, unpublished=())


def _document(one: Survey) -> dict[str, Any]:
    newest = one.newest
    return {
        "uid": one.operator.uid,
        "location": one.operator.storage.location(),
        "owner": None if one.owner is None else to_json(one.owner),
        "problem": one.owner_problem,
        "newest_epoch": None if newest is None else newest.epoch,
        "checkpoints": [_checkpoint(checkpoint) for checkpoint in one.checkpoints],
        "unpublished": [
            {
                "epoch": epoch.epoch,
                "left_over": epoch.is_left_over,
                "run_id": epoch.run_id,
                "finished_partitions": epoch.finished,
                "begun_partitions": epoch.begun,
                "attempts": [
                    {name: getattr(attempt, name) for name in ("run_id", "partition", "attempt", "finished")}
                    for attempt in epoch.attempts
                ],
            }
            for epoch in one.unpublished
        ],
    }


def _checkpoint(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return a checkpoint as JSON values; what its metadata says is null where that cannot be read."""
    metadata = checkpoint.metadata
    return {
        "epoch": checkpoint.epoch,
        "status": checkpoint.status,
        "problem": checkpoint.problem,
        "published": time_of(checkpoint.published_ms),
        "leased_until": time_of(checkpoint.leased_until_ms),
        "run_id": metadata and metadata.run_id,
        "parallelism": metadata and metadata.parallelism,
        "max_parallelism": metadata and metadata.max_parallelism,
        "backends": metadata and backends_of(metadata),
        "entries": metadata and entries_of(metadata),
        "bytes": metadata and bytes_of(metadata),
        "bytes_written": metadata and sum(part.bytes for part in metadata.parts),
        "deltas": metadata and deltas_of(metadata),
    }


def _print(out: Console, found: Survey) -> None:
    out.print(f"{found.operator.uid}  {found.operator.storage.location()}")
    owner = found.owner
    if owner is not None:
        runs = f"{counted(len(owner.runs), 'run')} since epoch {owner.first_epoch}"
        out.print(f"query {owner.query_id}, max parallelism {owner.max_parallelism}, {runs}")
    rows = [(-1 if one.epoch is None else one.epoch, _row(one)) for one in found.checkpoints]
    for epoch in found.unpublished:
        status = "left over" if epoch.is_left_over else "unpublished"
        rows.append((epoch.epoch, [str(epoch.epoch), status, "-", *[""] * 6]))
    # An epoch may have both: a folder that lacks its metadata, and attempts.
    rows.sort(key=lambda row: row[0], reverse=True)
    if rows:
        out.print(table(_COLUMNS, [row for _, row in rows], _NUMBERS))
    else:
        out.print("No epoch has begun yet.")
    if found.owner_problem:
        out.print(found.owner_problem)
    for checkpoint in found.checkpoints:
        name = "the savepoint" if checkpoint.epoch is None else f"epoch {checkpoint.epoch}"
        if checkpoint.problem:
            out.print(f"{name}: {checkpoint.problem}")
        if checkpoint.leased_until_ms is not None:
            until = shown_time(checkpoint.leased_until_ms)
            out.print(f"{name}: leased by a reader until {until} at the latest")
    for epoch in found.unpublished:
        out.print(f"epoch {epoch.epoch}: {_words(epoch)}")


def _row(checkpoint: Checkpoint) -> list[str]:
    metadata = checkpoint.metadata
    name = "?" if checkpoint.epoch is None else str(checkpoint.epoch)
    first = [name, checkpoint.status, shown_time(checkpoint.published_ms)]
    if metadata is None:
        return [*first, *[""] * 6]
    return [
        *first,
        str(metadata.parallelism),
        ", ".join(backends_of(metadata)),
        f"{entries_of(metadata):,}",
        shown_bytes(bytes_of(metadata)),
        shown_bytes(sum(part.bytes for part in metadata.parts)),
        str(deltas_of(metadata)),
    ]


def _words(epoch: UnpublishedEpoch) -> str:
    words = f"{counted(len(set(epoch.finished)), 'partition')} finished"
    if epoch.begun:
        words += f", {len(epoch.begun)} began and did not finish yet"
    twice = sorted({partition for partition in epoch.finished if epoch.finished.count(partition) > 1})
    if twice:
        words += f", and finished more than once: {', '.join(map(str, twice))}"
    if epoch.is_left_over:
        return f"{words}; a later epoch has a checkpoint, so the next clean-up deletes what is left"
    return f"{words}, in run {epoch.run_id}"
