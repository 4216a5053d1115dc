"""``keyedstate checkpoint verify``: whether every byte of stored state is as it was written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.console import Console

from keyedstate.checkpoint.format.json_converter import to_json
from keyedstate.checkpoint.reading.inspection import (
    Inspection,
    Inspector,
    Problem,
    data_files,
    problems_of_savepoint,
)
from keyedstate.checkpoint.reading.json_values import time_of
from keyedstate.checkpoint.reading.survey import Checkpoint, bytes_of, survey
from keyedstate.checkpoint.savepoint.location import LocationKind, SnapshotLocation, StoredOperator
from keyedstate.cli.checkpoint.leases import SnapshotLeases
from keyedstate.cli.checkpoint.options import StatePath, Uid, chosen_checkpoints
from keyedstate.cli.output import (
    Format,
    console,
    counted,
    print_json,
    progress,
    shown_bytes,
    shown_time,
    table,
)
from keyedstate.cli.settings import ConfigFile, OutputFormat, open_storage
from keyedstate.errors import CheckpointGoneError

AnyEpoch = Annotated[
    int | None, typer.Option("--epoch", metavar="N", min=0, help="Only the checkpoint of this epoch.")
]
Newest = Annotated[bool, typer.Option("--newest", help="Only the newest checkpoint of each operator.")]


def verify(
    path: StatePath,
    uid: Uid = None,
    epoch: AnyEpoch = None,
    newest: Newest = False,
    config: ConfigFile = None,
    format: OutputFormat = Format.table,
) -> None:
    """Read every byte of every file that checkpoints name; exit code 1 if one is damaged or missing.

    It also reports orphans: files that no checkpoint needs. A running query is not disturbed; a lease keeps
    its clean-up from what is read.
    """
    if newest and epoch is not None:
        raise typer.BadParameter("--newest and --epoch exclude each other")
    location = SnapshotLocation.open(open_storage(path, config), uid)
    with SnapshotLeases() as leases:
        inspectors = [
            _inspector(leases, location, operator, epoch, newest=newest) for operator in location.operators
        ]
        with progress("verifying", sum(inspector.bytes for inspector in inspectors)) as advance:
            inspections = [inspector.run(leases.renewing(advance)) for inspector in inspectors]
    own = [] if location.savepoint is None else problems_of_savepoint(location.savepoint)
    is_right = not own and not any(one.problems or not _was_read(one) for one in inspections)
    if format is Format.json:
        print_json(
            {
                "path": location.address,
                "kind": location.kind.value,
                "ok": is_right,
                "files": sum(one.files for one in inspections),
                "bytes": sum(one.bytes for one in inspections),
                "problems": to_json(own),
                "operators": [_document(one) for one in inspections],
            }
        )
    else:
        out = console()
        for one in inspections:
            _print(out, one, is_savepoint=location.kind is LocationKind.SAVEPOINT)
            out.print()
        for problem in own:
            _print_problem(out, problem, is_savepoint=True)
        out.print(_verdict(inspections, own))
    raise typer.Exit(0 if is_right else 1)


def _inspector(
    leases: SnapshotLeases,
    location: SnapshotLocation,
    operator: StoredOperator,
    epoch: int | None,
    *,
    newest: bool,
) -> Inspector:
    # Before the checkpoints: none of those that are listed may name what is written from now on.
    candidates = data_files(operator.storage)
    found = survey(operator)
    leased = []
    for checkpoint in chosen_checkpoints(location, found, epoch, newest=newest):
        try:
            leased.append(leases.take(operator, checkpoint))
        except CheckpointGoneError:
            # Clean-up was faster; that matters only for a checkpoint that was asked for.
            if epoch is not None or location.epoch is not None:
                raise
    return Inspector(found, leased, candidates)


def _document(one: Inspection) -> dict[str, Any]:
    whole = one.newest_whole
    return {
        "uid": one.survey.operator.uid,
        "location": one.survey.operator.storage.location(),
        "files": one.files,
        "bytes": one.bytes,
        "newest_whole_epoch": None if whole is None else whole.epoch,
        "checkpoints": [
            {
                "epoch": checkpoint.epoch,
                "status": _status(one, checkpoint),
                "problems": len(one.problems_of(checkpoint)),
            }
            for checkpoint in one.checkpoints
        ],
        "problems": to_json(one.problems),
        "orphans": None
        if one.orphans is None
        else [
            {"path": file.name, "bytes": file.bytes, "modified": time_of(file.modified_ms)}
            for file in one.orphans
        ],
    }


def _was_read(one: Inspection) -> bool:
    """Return whether there was a checkpoint, and one that lasted until it was read."""
    return any(checkpoint.path not in one.deleted for checkpoint in one.checkpoints)


def _status(one: Inspection, checkpoint: Checkpoint) -> str:
    if checkpoint.path in one.deleted:
        return "deleted"
    problems = one.problems_of(checkpoint)
    if problems:
        return problems[0].fault.value
    return checkpoint.status if checkpoint.metadata is None else "whole"


def _print(out: Console, one: Inspection, *, is_savepoint: bool) -> None:
    out.print(f"{one.survey.operator.uid}  {one.survey.operator.storage.location()}")
    rows = [_row(one, checkpoint) for checkpoint in one.checkpoints]
    if rows:
        out.print(table(["epoch", "status", "files", "bytes"], rows, ("epoch", "files", "bytes")))
    else:
        out.print("It has no checkpoint.")
    for problem in one.problems:
        _print_problem(out, problem, is_savepoint=is_savepoint)
    for orphan in one.orphans or ():
        out.print(f"{'orphan':<11}", style="yellow", end="")
        out.print(f"{orphan.name}: {shown_bytes(orphan.bytes)}, written {shown_time(orphan.modified_ms)}")
    if one.deleted:
        out.print("A checkpoint that is deleted was cleaned up by its query before all of it was read.")
    if one.orphans is None:
        out.print("Which files are orphans is unknown: metadata that may name them cannot be read.")
    if one.problems and not is_savepoint:
        whole = one.newest_whole
        none = "No checkpoint of it is whole."
        out.print(none if whole is None else f"Its newest whole checkpoint is that of epoch {whole.epoch}.")


def _row(one: Inspection, checkpoint: Checkpoint) -> list[str]:
    first = ["?" if checkpoint.epoch is None else str(checkpoint.epoch), _status(one, checkpoint)]
    metadata = checkpoint.metadata
    if metadata is None:
        return [*first, "", ""]
    return [*first, str(len(metadata.data_files)), shown_bytes(bytes_of(metadata))]


def _print_problem(out: Console, problem: Problem, *, is_savepoint: bool) -> None:
    needs = {"partition": problem.partitions}
    if not is_savepoint:
        needs = {"epoch": problem.epochs, **needs}
    where = ", ".join(
        f"{noun}{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"
        for noun, numbers in needs.items()
        if numbers
    )
    out.print(f"{problem.fault.value:<11}", style="bold red", end="")
    out.print(f"{problem.path}{f' ({where})' if where else ''}: {problem.detail}")


def _verdict(inspections: Sequence[Inspection], own: Sequence[Problem]) -> str:
    files, read = sum(one.files for one in inspections), sum(one.bytes for one in inspections)
    problems = [*own, *(problem for one in inspections for problem in one.problems)]
    faults = Counter(problem.fault.value for problem in problems)
    orphans = [file for one in inspections for file in one.orphans or ()]
    words = [f"{count} {fault}" for fault, count in faults.items()] or ["every byte is right"]
    if orphans:
        size = shown_bytes(sum(file.bytes for file in orphans))
        words.append(f"{counted(len(orphans), 'orphan')} of {size}")
    return f"{counted(files, 'data file')}, {shown_bytes(read)}: {', '.join(words)}."
