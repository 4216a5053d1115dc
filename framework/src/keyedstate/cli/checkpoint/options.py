"""The arguments and options that the checkpoint commands share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from keyedstate.checkpoint.reading.survey import Checkpoint, Survey
from keyedstate.checkpoint.savepoint.location import SnapshotLocation
from keyedstate.errors import UnknownEpochError

StatePath = Annotated[
    str,
    typer.Argument(
        metavar="PATH",
        help="A local path or URI: a checkpoint.dir, an operator's folder in it, one of its chk-<epoch> "
        "folders, or a savepoint.",
    ),
]
Uid = Annotated[
    str | None, typer.Option("--uid", metavar="UID", help="The operator, where PATH holds several.")
]
Epoch = Annotated[
    int | None,
    typer.Option("--epoch", metavar="N", min=0, help="The checkpoint of this epoch, not the newest one."),
]


def chosen_checkpoints(
    location: SnapshotLocation, found: Survey, epoch: int | None, *, newest: bool
) -> Sequence[Checkpoint]:
    """Return the checkpoints of an operator that the options choose, the newest first.

    Raises `UnknownEpochError` where it has none of the epoch that is asked for.
    """
    wanted = location.epoch if epoch is None else epoch
    # A folder without metadata is no checkpoint.
    known = [one for one in found.checkpoints if one.metadata or one.fault]
    if wanted is None:
        return known[:1] if newest else known
    chosen = [one for one in known if one.epoch == wanted]
    if not chosen or location.epoch not in (None, wanted):
        epochs = [one.epoch for one in known if one.epoch is not None]
        raise UnknownEpochError(found.operator.storage.location(), wanted, epochs)
    return chosen
