"""Two inputs of one operator: the function of both, and how their rows come in one batch.

Rows of both inputs travel together: the key columns are shared, and the other columns of an input are the
fields of one struct column, which is null in rows of the other input.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pyarrow as pa

from keyedstate.errors import InvalidFunctionError, OutputSchemaError
from keyedstate.runtime.functions.keyed import Context, KeyedFunction, OnTimerContext

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    R1 = TypeVarWithDefault("R1", default=Any)
    R2 = TypeVarWithDefault("R2", default=Any)
else:
    R1, R2 = TypeVar("R1"), TypeVar("R2")

#: The struct columns with the rows of the first and of the second input.
FIRST_COLUMN, SECOND_COLUMN = "__keyedstate_first", "__keyedstate_second"
#: The names of the inputs, where each has event times and metrics of its own.
INPUTS = ("1", "2")


@dataclass(frozen=True)
class ConnectedInput:
    """One of two inputs."""

    #: The columns that the function sees.
    schema: pa.Schema
    #: Those of them that make the key, in the order of its parts.
    key_columns: tuple[str, ...]
    #: The one with the event time of its rows.
    time_column: str | None

    @property
    def carried(self) -> tuple[int, ...]:
        """The indices of the columns in the struct column: all but those of the key, or else the first."""
        others = [index for index, name in enumerate(self.schema.names) if name not in self.key_columns]
        # A struct without fields would not show of which input a row is.
        return tuple(others) or (0,)

    def columns(self, keys: Sequence[pa.Array], carried: pa.StructArray) -> list[pa.Array]:
        """Return the columns of rows of this input: the key columns, and a struct column without nulls."""
        found = dict(zip(self.carried, carried.flatten(), strict=True))
        names = self.schema.names
        found.update((names.index(name), column) for name, column in zip(self.key_columns, keys, strict=True))
        return [found[index] for index in range(len(names))]

    def times(self, columns: Sequence[pa.Array]) -> pa.Array | None:
        """Return the column with the event time of rows, out of their columns; None without event time."""
        return None if self.time_column is None else columns[self.schema.names.index(self.time_column)]


@dataclass(frozen=True)
class ConnectedInputs:
    """Both inputs of an operator; the key columns of one have the types of those of the other."""

    first: ConnectedInput
    second: ConnectedInput

    @property
    def have_event_time(self) -> bool:
        """Whether the rows of both have event times."""
        return self.first.time_column is not None and self.second.time_column is not None

    def separate(
        self, batch: pa.RecordBatch, key_columns: Sequence[str]
    ) -> tuple[list[bool], list[list[pa.Array]]]:
        """Return for each row of a batch whether it is of the second input, and the columns of each input."""
        of_second = batch.column(SECOND_COLUMN).is_valid()
        batch = batch.select([*key_columns, FIRST_COLUMN, SECOND_COLUMN])
        *keys, carried, _ = batch.filter(batch.column(FIRST_COLUMN).is_valid()).columns
        first = self.first.columns(keys, carried)
        *keys, _, carried = batch.filter(of_second).columns
        return of_second.to_pylist(), [first, self.second.columns(keys, carried)]


class KeyedCoProcessFunction(KeyedFunction, Generic[R1, R2]):
    """Reads the rows of two inputs, which share the state of a key, and yields output rows.

    Flink's ``KeyedCoProcessFunction``: for two streams of different columns, such as orders and payments.
    The rows of one key come in the order in which they reached the task, whichever input they are of. Spark
    does not order the rows of one micro-batch that are of different inputs, or of different partitions of
    one input: compare their times where order matters.

    The watermark is the smaller one of the inputs'. ``KeyedCoProcessFunction[Order, Payment]`` names classes
    of rows, as `KeyedProcessFunction` does.

    Attributes
    ----------
    side_inputs : mapping of str to int
        The input whose columns a side output has that declares None: 0 for the first, 1 for the second.
    """

    side_inputs: Mapping[str, int] = MappingProxyType({})

    def for_inputs(self, inputs: ConnectedInputs) -> KeyedCoProcessFunction:
        """Return the function for rows of these columns; itself, unless it depends on them."""
        return self

    def process1(self, row: R1, ctx: Context) -> Iterable[Any] | None:
        """Handle one row of the first input; takes and returns rows as `KeyedProcessFunction.process`."""
        raise NotImplementedError

    def process2(self, row: R2, ctx: Context) -> Iterable[Any] | None:
        """Handle one row of the second input."""
        raise NotImplementedError

    def on_timer(self, time: int, ctx: OnTimerContext) -> Iterable[Any] | None:
        """Handle a timer of the key, which both inputs share; see `KeyedProcessFunction.on_timer`."""
        raise NotImplementedError

    def end_epoch(self, ctx: Context) -> Iterable[Any] | None:
        """End the epoch of one key with a row of either input; see `KeyedProcessFunction.end_epoch`."""
        raise NotImplementedError


def input_of_side_output(function: KeyedFunction, name: str) -> int:
    """Return the number of the input whose columns a side output has that declares none.

    Raises `OutputSchemaError` where a function of two inputs does not say which.
    """
    if not isinstance(function, KeyedCoProcessFunction):
        return 0
    if name not in function.side_inputs:
        raise OutputSchemaError(
            f"the side output {name!r} of a function of two inputs does not say its columns"
        )
    return function.side_inputs[name]


def check_inputs(function: KeyedFunction, *, connected: bool) -> None:
    """Refuse a function of two inputs where there is one, and the other way round.

    Raises `InvalidFunctionError`.
    """
    name = type(function).__name__
    if connected and not isinstance(function, KeyedCoProcessFunction):
        raise InvalidFunctionError(
            name, "it has one input and there are two; derive its class from KeyedCoProcessFunction"
        )
    if not connected and isinstance(function, KeyedCoProcessFunction):
        raise InvalidFunctionError(
            name, "it has two inputs and there is one; give it both, with connect(keyed(...), keyed(...))"
        )
