"""The rows that a test gives to a function of several inputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from keyedstate.columns.connected import ConnectedColumns
from keyedstate.columns.keyed import routed
from keyedstate.errors import ConnectedFramesError, HarnessSchemaError, HarnessSettingError
from keyedstate.runtime import KeyedCoProcessFunction, KeyedFunction
from keyedstate.runtime.runners import KeyedOperator
from keyedstate.testing.harness.rows import KeyedInputRows
from keyedstate.time import EventTime


@dataclass(frozen=True)
class Input:
    """The second or a further input of a `KeyedCoProcessFunction`, for `Harness`.

    Attributes
    ----------
    schema : str, mapping, pyarrow.Schema or StructType
        The columns of its rows.
    key : str or sequence of str
        The key columns, with the types of those of the first input.
    event_time : EventTime or None
        All inputs have one, or none.
    row_kind : str or None
        The column of row kinds, as in ``keyed(df, "user", row_kind="kind")``.
    """

    schema: object
    key: str | Sequence[str]
    event_time: EventTime | None = None
    row_kind: str | None = None


class ConnectedInputRows:
    """The declared columns of several inputs with keys of the same types.

    Parameters
    ----------
    first : KeyedInputRows
    others : sequence of Input
        The second input and further ones.

    Attributes
    ----------
    connected : ConnectedInputs
    key_columns : tuple of str
        Those of the first input, as on Spark.
    key_serializer : TypeSerializer
    event_time : None
        Each input has its own.

    Raises
    ------
    HarnessSchemaError, HarnessSettingError
    """

    event_time = None

    def __init__(self, first: KeyedInputRows, others: Sequence[Input]) -> None:
        self._inputs = [first]
        for number, other in enumerate(others):
            argument = f"further[{number - 1}]" if number else "second"
            self._inputs.append(
                KeyedInputRows(other.schema, other.key, other.event_time, other.row_kind, argument)
            )
            try:
                self._columns = ConnectedColumns(*(each.columns for each in self._inputs))
            except ConnectedFramesError as error:
                raise HarnessSchemaError(argument, error.reason) from error
        if len({each.have_event_time for each in self._inputs}) > 1:
            raise HarnessSettingError(
                "the event time of the rows",
                "is known of one input and not of another",
                "Give each an event_time=, or none.",
            )
        self.key_columns = first.key_columns
        self.key_serializer = first.key_serializer
        self.connected = self._columns.inputs

    @property
    def have_event_time(self) -> bool:
        """Whether the rows of all inputs have event times."""
        return self.connected.have_event_time

    @property
    def event_times(self) -> dict[str, EventTime | None]:
        """The event time of each input."""
        return dict(zip(self.connected.names, (rows.event_time for rows in self._inputs), strict=True))

    @property
    def columns_by_input(self) -> dict[str, pa.Schema]:
        """The columns of each input."""
        return dict(zip(self.connected.names, (rows.schema for rows in self._inputs), strict=True))

    def side_columns(self, name: str, function: KeyedFunction) -> pa.Schema:
        """Return the columns of a side output that has those of an input.

        Raises
        ------
        HarnessSchemaError
        """
        assert isinstance(function, KeyedCoProcessFunction), "checked before"
        if name not in function.side_inputs:
            raise HarnessSchemaError("side_outputs", f"{name!r} does not say its columns")
        return self._inputs[function.side_inputs[name]].schema

    def bind(self, function: KeyedFunction) -> KeyedFunction:
        """Return a function for these rows."""
        assert isinstance(function, KeyedCoProcessFunction), "checked before"
        return function.for_inputs(self.connected)

    def largest_event_times(self, operator: KeyedOperator) -> dict[str, int]:
        """Return an operator's largest event times, by the name of the input."""
        return operator.largest_event_times

    def by_instance(
        self, number: int, rows: Sequence[Any], parallelism: int, max_parallelism: int
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield (instance, rows) of an input, of which the first one is number 0; as `KeyedInputRows` does.

        Raises
        ------
        InputRowError
        """
        together = self._columns.union(number, self._inputs[number].to_batch(rows))
        return routed(together, self.key_columns, parallelism, max_parallelism)
