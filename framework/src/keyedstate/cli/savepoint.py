"""``keyedstate savepoint``: the state of a query as one self-contained folder."""

from __future__ import annotations

import contextlib
import enum
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from keyedstate.checkpoint.savepoint.canonical import convert_savepoint, savepoint_of_checkpoint
from keyedstate.checkpoint.savepoint.location import SnapshotLocation
from keyedstate.checkpoint.savepoint.savepoint import SavepointFolder, SavepointWriter
from keyedstate.checkpoint.savepoint.stop_request import StopRequest
from keyedstate.checkpoint.storage.filesystem import CheckpointStorage
from keyedstate.cli.checkpoint.leases import SnapshotLeases
from keyedstate.cli.checkpoint.options import Epoch, StatePath, Uid
from keyedstate.cli.checkpoint.savepoint_facts import savepoint_document, savepoint_table
from keyedstate.cli.output import Format, console, facts, print_json, progress
from keyedstate.cli.settings import ConfigFile, OutputFormat, open_storage
from keyedstate.errors import QueryNotStoppedError
from keyedstate.options import CHECKPOINT_COMPRESSION
from keyedstate.spark.addresses import without_hadoop_scheme
from keyedstate.spark.query.creation import query_folders
from keyedstate.spark.savepoint.savepoint import Savepoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

app = typer.Typer(
    help="Savepoints: create one of a query that runs or not, fork a query from one, convert, delete.",
    no_args_is_help=True,
)

CheckpointDir = Annotated[
    str,
    typer.Argument(
        metavar="CHECKPOINT_DIR",
        help="The option checkpoint.dir of the query: the folder with the state of its operators.",
    ),
]
NewSavepoint = Annotated[str, typer.Argument(metavar="SAVEPOINT", help="The new folder: empty or missing.")]
OldSavepoint = Annotated[str, typer.Argument(metavar="SAVEPOINT", help="A savepoint.")]
SparkCheckpoint = Annotated[
    str | None,
    typer.Option(
        "--spark-checkpoint",
        metavar="LOCATION",
        help="The query's checkpointLocation: with its offsets the savepoint can be forked. Without it only "
        "a new query can start from the savepoint.",
    ),
]
Uids = Annotated[
    list[str] | None,
    typer.Option("--uid", metavar="UID", help="Only this operator; may be repeated. By default all."),
]
AnEpoch = Annotated[
    int | None,
    typer.Option("--epoch", metavar="N", min=0, help="The state after this epoch, not after the newest one."),
]
NewSparkCheckpoint = Annotated[
    str,
    typer.Argument(
        metavar="SPARK_CHECKPOINT", help="The checkpointLocation of the new query: empty or missing."
    ),
]
NewCheckpointDir = Annotated[
    str, typer.Argument(metavar="CHECKPOINT_DIR", help="The option checkpoint.dir of the new query.")
]
Compression = Annotated[
    str | None,
    typer.Option(
        "--compression",
        metavar="CODEC",
        help="zstd, lz4 or none: compress every file again. By default each keeps what it has.",
    ),
]
Drain = Annotated[
    bool,
    typer.Option(
        "--drain", help="Use up all input first, and fire all event-time timers, for a query that ends."
    ),
]
Timeout = Annotated[
    float,
    typer.Option(
        "--timeout", metavar="SECONDS", min=1.0, help="How long to wait for a driver that takes it."
    ),
]


class SparkTimeout(str, enum.Enum):
    """The timeouts of applyInPandasWithState."""

    processing_time = "ProcessingTimeTimeout"
    event_time = "EventTimeTimeout"


Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


@app.command("create")
def create(
    checkpoint_dir: CheckpointDir,
    savepoint: NewSavepoint,
    spark_checkpoint: SparkCheckpoint = None,
    uid: Uids = None,
    epoch: AnEpoch = None,
    config: ConfigFile = None,
    format: OutputFormat = Format.table,
) -> None:
    """Make a savepoint of a query's checkpoints; a running query is not disturbed."""
    with progress("writing the savepoint") as report:
        made = Savepoint.create(
            open_storage(savepoint, config),
            open_storage(checkpoint_dir, config),
            None if spark_checkpoint is None else _spark_storage(spark_checkpoint, config),
            uids=uid or None,
            epoch=epoch,
            progress=report,
        )
    _print_savepoint(made, format)


@app.command("from-spark")
def from_spark(
    checkpoint: Annotated[
        str, typer.Argument(metavar="CHECKPOINT", help="The checkpointLocation of a stopped query.")
    ],
    savepoint: NewSavepoint,
    uid: Annotated[
        list[str] | None,
        typer.Option(
            "--uid",
            metavar="[N=]UID",
            help="The uid of the only operator, or of Spark's operator N; may be repeated. By default those "
            "that the drop-in gives.",
        ),
    ] = None,
    epoch: Annotated[
        int | None,
        typer.Option("--epoch", metavar="N", min=0, help="The state after this micro-batch, not the newest."),
    ] = None,
    ttl: Annotated[
        list[str] | None,
        typer.Option(
            "--ttl", metavar="STATE=DURATION", help="The time to live of a state; needed for each with one."
        ),
    ] = None,
    timeout: Annotated[
        SparkTimeout | None,
        typer.Option("--timeout", help="That of applyInPandasWithState; needed with a watermark."),
    ] = None,
    watermark_delay: Annotated[
        str | None,
        typer.Option(
            "--watermark-delay",
            metavar="DURATION",
            help="That of withWatermark; needed where the watermark moves after the micro-batch.",
        ),
    ] = None,
    config: ConfigFile = None,
    format: OutputFormat = Format.table,
) -> None:
    """Make a savepoint of a stopped query whose state is in Spark's own state stores.

    The operators are transformWithState, also in pandas, and applyInPandasWithState. A fork of the savepoint
    continues on keyedstate. Spark reads the state: without a master in its configuration on this machine.
    """
    from keyedstate.savepoints import from_spark

    made = from_spark(
        checkpoint,
        open_storage(savepoint, config),
        uids=_uids(uid or []),
        epoch=epoch,
        ttl=dict(_pair(each, "--ttl") for each in ttl or ()),
        timeout=None if timeout is None else timeout.value,
        watermark_delay=watermark_delay,
        spark=_spark_session(),
    )
    _print_savepoint(made, format)


@app.command("stop")
def stop(
    checkpoint_dir: CheckpointDir,
    savepoint: NewSavepoint,
    uid: Uids = None,
    drain: Drain = False,
    timeout: Timeout = 60.0,
    config: ConfigFile = None,
    format: OutputFormat = Format.table,
) -> None:
    """Ask the driver of a running query to finish its micro-batch, to stop it and to take its savepoint.

    The driver opens SAVEPOINT by the same name: use a folder or URI that it reaches too.
    """
    target = open_storage(savepoint, config)
    folder = query_folders(open_storage(checkpoint_dir, config), uid or None, None)[0]
    # Refused here too, before a query is asked for anything.
    SavepointWriter(target).abort()
    request = StopRequest.new(target.uri, drain=drain, seconds=timeout)
    err = Console(stderr=True)
    try:
        request.write(folder)
        with err.status("waiting for the driver") if err.is_terminal else contextlib.nullcontext():
            answer = request.await_answer(folder, timeout)
    finally:
        request.delete(folder)
    if answer.status == "failed":
        raise QueryNotStoppedError(f"of {folder.location}", answer.answer, "")
    if answer.answer:
        print(f"keyedstate: the query had failed before: {answer.answer}", file=sys.stderr)
    _print_savepoint(SavepointFolder.open(target), format)


@app.command("fork")
def fork(
    savepoint: OldSavepoint,
    spark_checkpoint: NewSparkCheckpoint,
    checkpoint_dir: NewCheckpointDir,
    config: ConfigFile = None,
    format: OutputFormat = Format.table,
) -> None:
    """Prepare a new query that continues from a savepoint, at its offsets; the old query is not affected."""
    targets = _spark_storage(spark_checkpoint, config), open_storage(checkpoint_dir, config)
    with progress("forking") as report:
        made = Savepoint.open(open_storage(savepoint, config)).fork(*targets, progress=report)
    locations = [target.location() for target in targets]
    if format is Format.json:
        print_json(
            {
                "query_id": made.query_id,
                "epoch": made.epoch,
                "operators": list(made.operators),
                "spark_checkpoint": locations[0],
                "checkpoint_dir": locations[1],
            }
        )
        return
    out = console()
    lines = [("query", made.query_id), ("continues after epoch", str(made.epoch))]
    out.print(facts([*lines, ("operators", ", ".join(made.operators))]))
    out.print()
    out.print("Start it with the same program, a sink of its own, and:")
    out.print(f'  .option("checkpointLocation", "{locations[0]}")')
    out.print(f"  --conf spark.keyedstate.checkpoint.dir={locations[1]}")


@app.command("convert")
def convert(
    path: StatePath,
    savepoint: NewSavepoint,
    uid: Uid = None,
    epoch: Epoch = None,
    compression: Compression = None,
    config: ConfigFile = None,
    format: OutputFormat = Format.table,
) -> None:
    """Write a savepoint, or one operator's checkpoint, as a new savepoint in the newest format.

    Any backend reads it. A savepoint is converted with its offsets of Spark; a checkpoint has none, so that
    what is made of it cannot be forked.
    """
    if compression is not None:
        try:
            CHECKPOINT_COMPRESSION.parse(compression)
        except ValueError:
            message = f"{compression!r} is not {CHECKPOINT_COMPRESSION.expected}"
            raise typer.BadParameter(message, param_hint="--compression") from None
    source, target = open_storage(path, config), open_storage(savepoint, config)
    with SnapshotLeases() as leases, progress("writing the savepoint") as report:
        advance = leases.renewing(report)
        if uid is None and epoch is None and SnapshotLocation.open(source).savepoint is not None:
            made = convert_savepoint(source, target, compression=compression, progress=advance)
        else:
            stored = leases.open(source, uid, epoch)
            made = savepoint_of_checkpoint(stored, target, compression=compression, progress=advance)
    _print_savepoint(made, format)


@app.command("delete")
def delete(
    savepoint: OldSavepoint, yes: Yes = False, config: ConfigFile = None, format: OutputFormat = Format.table
) -> None:
    """Delete a savepoint, or the files of an unfinished one; other files in the folder stay."""
    storage = open_storage(savepoint, config)
    location = storage.location()
    if not yes:
        if not sys.stdin.isatty():
            raise typer.BadParameter("give it where no terminal can ask", param_hint="--yes")
        if not typer.confirm(f"Delete the savepoint {location}?", err=True):
            raise typer.Exit(2)
    left = SavepointFolder.delete(storage)
    if format is Format.json:
        print_json({"location": location, "left": list(left)})
        return
    out = console()
    out.print(f"The savepoint {location} is deleted.")
    for path in left:
        out.print(f"Left, since it is not the savepoint's: {path}")


def _uids(given: list[str]) -> str | dict[int, str] | None:
    if len(given) == 1 and "=" not in given[0]:
        return given[0]
    pairs = [_pair(each, "--uid") for each in given]
    if not all(number.isdecimal() for number, _ in pairs):
        raise typer.BadParameter("the part before '=' is the number of an operator", param_hint="--uid")
    return {int(number): uid for number, uid in pairs} or None


def _pair(given: str, option: str) -> tuple[str, str]:
    name, equals, value = given.partition("=")
    if not (name and equals and value):
        raise typer.BadParameter(f"{given!r} has no '=' between two parts", param_hint=option)
    return name, value


def _spark_session() -> SparkSession:
    """Return the session of the process, or a new one, by default on this machine."""
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

    # The workers must be this interpreter, not whichever python3 comes first on the PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    master = SparkConf().get("spark.master", "local[*]")
    builder = SparkSession.builder.appName("keyedstate savepoint from-spark").master(master or "local[*]")
    return builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()


def _spark_storage(uri: str, config: Path | None) -> CheckpointStorage:
    return open_storage(without_hadoop_scheme(uri), config)


def _print_savepoint(savepoint: SavepointFolder, format: Format) -> None:
    if format is Format.json:
        print_json(savepoint_document(savepoint))
        return
    console().print(savepoint_table(savepoint))
