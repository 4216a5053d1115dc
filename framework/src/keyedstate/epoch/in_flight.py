"""Rows in flight: rows of an unaligned checkpoint that its state does not contain yet.

They are a list in the operator state of the task that had received them. After a restart every task reads all
of them, and processes those of its key groups before any other rows; the positions of the sources are behind
them.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from keyedstate.keygroups import KEY_GROUP_COLUMN, KeyGroupRange
from keyedstate.state.operator.backend import OperatorStateBackend
from keyedstate.state.operator.list_states import UnionListState
from keyedstate.types import BYTES

#: Each element is an Arrow stream.
_STATE = UnionListState("_rows_in_flight", BYTES)


def has_rows_in_flight(states: OperatorStateBackend) -> bool:
    """Return whether restored operator state has rows in flight."""
    return states.entries_by_state().get(_STATE.meta.name, 0) > 0


def put_rows_in_flight(states: OperatorStateBackend, batches: Sequence[pa.RecordBatch]) -> None:
    """Let the next snapshot have rows, which have key groups; `take_rows_in_flight` removes them."""
    if not batches:
        return
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    states.get_state(_STATE).add(sink.getvalue().to_pybytes())


def take_rows_in_flight(states: OperatorStateBackend, key_groups: KeyGroupRange) -> list[pa.RecordBatch]:
    """Remove the rows in flight, and return those of the given key groups."""
    if _STATE.meta.name not in states.entries_by_state():
        # A task with operator state processes rows in another way: it has none for this alone.
        return []
    found = []
    for stream in states.get_state(_STATE).get():
        for batch in pa.ipc.open_stream(stream):
            groups = batch.column(KEY_GROUP_COLUMN).to_numpy()
            own = (groups >= key_groups.start) & (groups <= key_groups.end)
            found.append(batch.filter(pa.array(own)))
    states.remove_state(_STATE.meta.name)
    return [batch for batch in found if batch.num_rows]
