"""What a source is: channels of rows, each with an offset from which it can be read again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from keyedstate.errors import SourceError


class SourceChannel(Protocol):
    """One channel of a source: rows in an order that is the same whenever they are read.

    Attributes
    ----------
    name : str
        The same after a restart, and different from those of the other channels.
    """

    name: str

    def read(self) -> pa.RecordBatch | None:
        """Return the next rows; a batch without rows if there are none yet, None at the end."""

    def offset(self) -> Any:
        """Return the position behind the rows that were read, as a value that JSON can represent."""

    def seek(self, offset: Any) -> None:
        """Continue behind the rows of an offset, which may come from an earlier process."""


@runtime_checkable
class Source(Protocol):
    """Rows in one or more channels.

    Attributes
    ----------
    schema : pyarrow.Schema
        The columns of every batch.
    """

    schema: pa.Schema

    def channels(self) -> Sequence[SourceChannel]:
        """Return new readers of all channels, each at its beginning."""


def other_source(channel: str) -> SourceError:
    """Return the error of a channel whose last position is that of another kind of source."""
    return SourceError(
        f"the channel {channel!r}",
        "its position in the last checkpoint is that of another kind of source",
        "Give the source that was read before, or another uid to begin without state.",
    )
