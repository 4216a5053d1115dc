"""A feed: a channel in the process of the run, from which each subtask of an operator has a channel."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from keyedstate.keygroups import KEY_GROUP_COLUMN
from keyedstate.local.channels.elements import Barrier, Watermark
from keyedstate.local.parallel.connection import Connection


class Feed:
    """Sends the rows of a channel to the subtasks that own their key groups, each by its connection.

    The channel is that of a source, or the rows that a subtask of another operator yields, of the operator's
    input `number`. Where it has ended, barriers still follow.
    """

    def __init__(
        self, number: int, name: str, connections: Sequence[Connection], max_parallelism: int
    ) -> None:
        self.number = number
        self.name = name
        self._connections = connections
        self._max_parallelism = max_parallelism

    @property
    def waits(self) -> bool:
        """Whether a subtask has no room for more rows."""
        return any(connection.unsent for connection in self._connections)

    def send_rows(self, rows: pa.RecordBatch) -> None:
        """Send rows, which have key groups, to the subtasks that own these; their order stays."""
        groups = rows.column(KEY_GROUP_COLUMN).to_numpy().astype(np.int64)
        owners = groups * len(self._connections) // self._max_parallelism
        for number, connection in enumerate(self._connections):
            of_subtask = np.flatnonzero(owners == number)
            if len(of_subtask):
                connection.put(rows.take(pa.array(of_subtask)))

    def send(self, element: Watermark | Barrier) -> None:
        """Send an element to all subtasks."""
        for connection in self._connections:
            connection.put(element)
