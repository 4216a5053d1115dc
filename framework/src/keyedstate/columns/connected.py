"""The columns of inputs as one: the shared key, and a struct column with the other columns of each."""

from __future__ import annotations

import pyarrow as pa

from keyedstate.columns.keyed import KeyedColumns
from keyedstate.errors import ConnectedFramesError
from keyedstate.runtime.functions.connected_inputs import ConnectedInputs, ordinal, struct_column


class ConnectedColumns:
    """The columns of several inputs with keys of the same types.

    Parameters
    ----------
    sides : KeyedColumns

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

    def __init__(self, *sides: KeyedColumns) -> None:
        self._sides = sides
        self.key_columns = sides[0].key_columns
        for number, side in enumerate(sides):
            if side.key_types != sides[0].key_types:
                ours, theirs = (", ".join(map(str, each.key_types)) for each in (sides[0], side))
                raise ConnectedFramesError(
                    f"the key of the {ordinal(number)} one is {theirs}, and that of the first one {ours}"
                )
        self.inputs = ConnectedInputs(tuple(side.as_connected for side in sides))
        self._structs = [
            pa.struct([(f"c{place}", input_.schema.field(place).type) for place in input_.carried])
            for input_ in self.inputs.inputs
        ]

    def union(self, number: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows of an input, of which the first one is number 0, with the columns of all."""
        side, input_ = self._sides[number], self.inputs.inputs[number]
        carried = [batch.column(place) for place in input_.carried]
        columns: list[pa.Array] = [pa.nulls(batch.num_rows, struct) for struct in self._structs]
        columns[number] = pa.StructArray.from_arrays(carried, fields=list(self._structs[number]))
        keys = [batch.column(name) for name in side.key_columns]
        names = [*self.key_columns, *map(struct_column, range(len(self._sides)))]
        return pa.RecordBatch.from_arrays([*keys, *columns], names)
