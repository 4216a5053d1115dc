"""The columns of two inputs as one: the shared key, and a struct column with the other columns of each."""

from __future__ import annotations

import pyarrow as pa

from keyedstate.columns.keyed import KeyedColumns
from keyedstate.errors import ConnectedFramesError
from keyedstate.runtime.functions.two_inputs import FIRST_COLUMN, SECOND_COLUMN, ConnectedInputs


class ConnectedColumns:
    """The columns of two inputs with keys of the same types.

    Parameters
    ----------
    first, second : KeyedColumns

    Attributes
    ----------
    inputs : ConnectedInputs
    key_columns : tuple of str
        Those of the first input, as on Spark.

    Raises
    ------
    ConnectedFramesError
        Where the types of the keys differ.
    """

    def __init__(self, first: KeyedColumns, second: KeyedColumns) -> None:
        self._sides = (first, second)
        self.key_columns = first.key_columns
        if first.key_types != second.key_types:
            ours, theirs = (", ".join(map(str, side.key_types)) for side in self._sides)
            raise ConnectedFramesError(
                f"the key of the second one is {theirs}, and that of the first one {ours}"
            )
        self.inputs = ConnectedInputs(first.as_connected, second.as_connected)
        self._structs = [
            pa.struct([(f"c{place}", input_.schema.field(place).type) for place in input_.carried])
            for input_ in (self.inputs.first, self.inputs.second)
        ]

    def union(self, number: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows of the first input, number 0, or of the second, with the columns of both."""
        side = self._sides[number]
        input_ = self.inputs.second if number else self.inputs.first
        carried = [batch.column(place) for place in input_.carried]
        columns: list[pa.Array] = [pa.nulls(batch.num_rows, struct) for struct in self._structs]
        columns[number] = pa.StructArray.from_arrays(carried, fields=list(self._structs[number]))
        keys = [batch.column(name) for name in side.key_columns]
        names = [*self.key_columns, FIRST_COLUMN, SECOND_COLUMN]
        return pa.RecordBatch.from_arrays([*keys, *columns], names)
