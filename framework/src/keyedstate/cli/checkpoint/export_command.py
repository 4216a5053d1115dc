"""``keyedstate checkpoint export``: stored state as files that other tools read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import pyarrow as pa
import typer

from keyedstate.checkpoint.reading.export_files import ExportFile, ExportFormat
from keyedstate.checkpoint.reading.state_reader import StateReader, reader_of
from keyedstate.checkpoint.reading.survey import bytes_of, entries_of
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.cli.checkpoint.leases import SnapshotLeases
from keyedstate.cli.checkpoint.options import Epoch, StatePath, Uid
from keyedstate.cli.output import Format, console, print_json, progress, shown_bytes, table
from keyedstate.cli.settings import ConfigFile, OutputFormat, open_storage, read_settings
from keyedstate.errors import TargetExistsError, did_you_mean
from keyedstate.memory import SORT
from keyedstate.memory.sorting.batch_sorter import BatchSorter
from keyedstate.options import managed_memory
from keyedstate.types.orders import ColumnOrder
from keyedstate.working_folder import WorkingFolder

Out = Annotated[
    str,
    typer.Argument(
        metavar="OUT",
        help="A folder, which gets a file for every state; or, ending in .parquet, .arrow, .csv or .jsonl, a "
        "file, which gets one state. A folder with another ending needs a slash after it.",
    ),
]
As = Annotated[
    ExportFormat | None,
    typer.Option("--as", help="What is written; by default what OUT ends in, else Parquet."),
]
States = Annotated[
    list[str] | None,
    typer.Option("--state", metavar="NAME", help="Only this state; may be repeated. By default all."),
]
Force = Annotated[bool, typer.Option("--force", help="Replace existing files.")]
AllowGeneric = Annotated[
    bool,
    typer.Option(
        "--allow-generic", help="Export states with pickled values too, as the bytes of the pickles."
    ),
]
Sort = Annotated[
    bool,
    typer.Option(
        "--sort",
        help="Write the entries in the order of their keys, then namespaces. What exceeds the sorters' share "
        "of memory.managed-size is sorted on disk, in the folder of TMPDIR.",
    ),
]


def export(
    path: StatePath,
    out: Out,
    uid: Uid = None,
    epoch: Epoch = None,
    state: States = None,
    as_: As = None,
    sort: Sort = False,
    force: Force = False,
    allow_generic: AllowGeneric = False,
    config: ConfigFile = None,
    format: OutputFormat = Format.table,
) -> None:
    """Write the entries of stored state as typed columns, one file for each state.

    The files appear when all of them are written, and none does if one cannot be.
    """
    _refuse_unknown_ending(out)
    with SnapshotLeases() as leases:
        stored = leases.open(open_storage(path, config), uid, epoch)
        readers = [
            reader_of(stored, name, allow_generic=allow_generic)
            for name in dict.fromkeys(state or [*stored.states(), *stored.operator_states()])
        ]
        folder, files = _targets(open_storage(out, config), as_, readers)
        taken = [name for name in files if folder.exists(name)]
        if taken and not force:
            raise TargetExistsError(
                folder.location(), taken, "export", "Name another folder, or give --force."
            )
        size, entries = bytes_of(stored.metadata), entries_of(stored.metadata)
        with progress("exporting", size) as advance, ExitStack() as unfinished:
            step = leases.renewing(lambda rows: advance(size * rows // max(entries, 1)))
            written = []
            for (name, kind), reader in zip(files.items(), readers, strict=True):
                file = ExportFile(folder, name, kind, reader.name, reader.schema)
                unfinished.callback(file.abort)
                batches = _batches(reader, step)
                file.write(_sorted(reader, batches, config) if sort else batches)
                written.append(file)
            for file in written:
                file.publish()
            unfinished.pop_all()
    if format is Format.json:
        documents = [
            {"state": file.state, "path": folder.location(file.name), "rows": file.rows, "bytes": file.bytes}
            for file in written
        ]
        metadata = stored.metadata
        print_json(
            {"location": stored.location, "uid": metadata.uid, "epoch": metadata.epoch, "files": documents}
        )
        return
    rows = [
        [file.state, f"{file.rows:,}", shown_bytes(file.bytes), folder.location(file.name)]
        for file in written
    ]
    console().print(table(["state", "rows", "bytes", "file"], rows, ("rows", "bytes")))


def _refuse_unknown_ending(out: str) -> None:
    """Refuse a name that looks like a file of a format that is not written."""
    # Of numbers alone, an ending is a date or a version in the name of a folder.
    ending = re.fullmatch(r".*[^/]\.([0-9]*[A-Za-z]\w*)", out)
    if ending is not None and ending[1] not in ExportFormat.__members__:
        known = ", ".join(f".{kind.value}" for kind in ExportFormat)
        suggestion = did_you_mean(ending[1].lower(), list(ExportFormat.__members__))
        message = (
            f"a file may end in {known}, and not in .{ending[1]}.{suggestion} A folder is named as {out}/"
        )
        raise typer.BadParameter(message, param_hint="OUT")


def _targets(
    storage: CheckpointStorage, chosen: ExportFormat | None, readers: Sequence[StateReader]
) -> tuple[CheckpointStorage, dict[str, ExportFormat]]:
    """Return the folder, and the files to write into it, in the order of the readers."""
    above, name = storage.parent()
    ending = name.rpartition(".")[2] if "." in name else ""
    if ending in ExportFormat.__members__:
        kind = ExportFormat[ending]
        if chosen not in (None, kind):
            raise typer.BadParameter(f"OUT ends in .{ending}", param_hint="--as")
        if len(readers) != 1:
            names = ", ".join(reader.name for reader in readers)
            message = f"a file gets one state, and there are {names}; name one with --state, or a folder"
            raise typer.BadParameter(message, param_hint="OUT")
        return above, {name: kind}
    kind = chosen or ExportFormat.parquet
    # A state may have any name; a file may not.
    return storage, {f"{quote(reader.name, safe=' ')}.{kind.value}": kind for reader in readers}


def _batches(reader: StateReader, step: Callable[[int], None]) -> Iterator[pa.RecordBatch]:
    for piece in reader.slices():
        for batch in reader.read(piece):
            yield batch
            step(batch.num_rows)


def _sorted(
    reader: StateReader, batches: Iterator[pa.RecordBatch], config: Path | None
) -> Iterator[pa.RecordBatch]:
    """Yield the entries in the order of their addresses."""
    memory = managed_memory(read_settings(config))
    columns = [reader.schema.names.index(name) for name in reader.address]
    order = ColumnOrder([*reader.address.values()])
    with (
        WorkingFolder() as folder,
        BatchSorter(order, columns, reader.schema, memory.manager, memory.share_of(SORT), folder) as sorter,
    ):
        for batch in batches:
            sorter.write(batch)
        yield from sorter.sorted()
