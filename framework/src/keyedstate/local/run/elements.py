"""What a run gives its sink: rows, and what happens to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa


@dataclass(frozen=True)
class Restored:
    """A run has begun: from the checkpoint of an epoch and of the run that wrote it, or without one.

    Where it is not the first element, the run has returned to that checkpoint: the rows since come again.
    """

    #: Of the checkpoint.
    epoch: int | None = None
    run_id: str | None = None
    #: Of the run that begins; empty where it keeps no state.
    own_run_id: str = ""
    #: The runs that this one has superseded.  What they have left of other epochs is not needed any more.
    superseded: tuple[str, ...] = ()


@dataclass(frozen=True)
class Prepare:
    """The rows so far are those of an epoch and those before it: a sink makes them durable now."""

    epoch: int
    run_id: str


@dataclass(frozen=True)
class Committed:
    """The checkpoint of an epoch is published: the rows before it are not repeated any more."""

    epoch: int


#: What a run gives its sink, in order.
Element: TypeAlias = "pa.RecordBatch | Restored | Prepare | Committed"
