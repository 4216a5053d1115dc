"""Several outputs of one function: the rows that it yields, and those that `Context.output` puts out.

All of them leave the operator in one DataFrame: a column names the output of each row, and each output is a
struct column, null in the rows of others. A batch has the rows of one output; outputs are not ordered among
each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from keyedstate.errors import SideOutputNameError, UndeclaredSideOutputError
from keyedstate.runtime.output import OutputSchema

#: The column that names the output of a row, and the output of the rows that a function yields.
OUTPUT, MAIN = "output", "main"


def check_name(name: object) -> None:
    """Refuse a name that no side output can have; raises `SideOutputNameError`."""
    if not isinstance(name, str) or not name:
        raise SideOutputNameError(name, "its name is no text, or empty")
    if name in (OUTPUT, MAIN):
        raise SideOutputNameError(name, f"{OUTPUT!r} and {MAIN!r} are columns of their own")


class Outputs:
    """The columns of an operator's outputs: of the rows that the function yields, and of each side output."""

    def __init__(self, main: OutputSchema, sides: Mapping[str, OutputSchema]) -> None:
        self.main = main
        self.sides = dict(sides)
        structs = [(name, pa.struct(list(of.schema))) for name, of in {MAIN: main, **sides}.items()]
        self._tagged = pa.schema([pa.field(OUTPUT, pa.string(), nullable=False), *structs])

    @property
    def schema(self) -> pa.Schema:
        """The columns of the rows that leave the operator."""
        return self._tagged if self.sides else self.main.schema

    def tagged(self, name: str, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows of one output as they leave the operator."""
        if not self.sides:
            return rows
        fields = list(self._tagged)[1:]
        columns: list[Any] = [pa.nulls(rows.num_rows, field.type) for field in fields]
        place = self._tagged.get_field_index(name) - 1
        struct = fields[place].type
        columns[place] = pa.StructArray.from_arrays(rows.columns, fields=list(struct))
        tag = pa.repeat(pa.scalar(name, pa.string()), rows.num_rows)
        return pa.RecordBatch.from_arrays([tag, *columns], schema=self._tagged)

    def separate(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield the rows of each output that has any, from a batch that leaves the operator."""
        if not self.sides:
            yield MAIN, batch
            return
        for name, of in {MAIN: self.main, **self.sides}.items():
            rows = batch.filter(pc.equal(batch.column(OUTPUT), name))
            if rows.num_rows:
                yield name, pa.RecordBatch.from_arrays(rows.column(name).flatten(), schema=of.schema)


class SideRows:
    """Rows for side outputs that wait for their batch; `by_columns` says that they are put as batches."""

    def __init__(self, outputs: Outputs, *, by_columns: bool) -> None:
        self._outputs = outputs
        self._by_columns = by_columns
        self._waiting: dict[str, tuple[list[Any], list[Any]]] = {}

    def put(self, name: str, rows: Any, key: object) -> None:
        """Add a row, or a batch, that was made for a key; raises `UndeclaredSideOutputError`."""
        if name not in self._outputs.sides:
            raise UndeclaredSideOutputError(name, list(self._outputs.sides))
        of_output, keys = self._waiting.setdefault(name, ([], []))
        of_output.append(rows)
        keys.append(key)

    def take(self) -> Iterator[pa.RecordBatch]:
        """Yield all waiting rows as batches that leave the operator.

        Raises `OutputError` where a row does not have the declared columns.
        """
        while self._waiting:
            name, (rows, keys) = self._waiting.popitem()
            schema = self._outputs.sides[name]
            if self._by_columns:
                for given in rows:
                    for batch in schema.conform(given):
                        yield self._outputs.tagged(name, batch)
            else:
                yield self._outputs.tagged(name, schema.to_batch(rows, keys.__getitem__))

    def clear(self) -> None:
        """Drop all rows: those of a step that failed."""
        self._waiting.clear()
