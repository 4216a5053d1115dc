"""Several inputs of one operator: the function of all, and how their rows come in one batch.

Rows of all inputs travel together: the key columns are shared, and the other columns of an input are the
fields of one struct column, which is null in rows of the other inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import pyarrow as pa

from keyedstate.errors import InvalidFunctionError, OutputSchemaError
from keyedstate.runtime.functions.keyed import Context, KeyedFunction, OnTimerContext

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    R1 = TypeVarWithDefault("R1", default=Any)
    R2 = TypeVarWithDefault("R2", default=Any)
else:
    R1, R2 = TypeVar("R1"), TypeVar("R2")

#: What the names of the methods begin with that handle the rows of an input.
_PROCESS = "process"


def struct_column(number: int) -> str:
    """Return the name of the struct column with the rows of an input; the first one is number 0."""
    return f"__keyedstate_input_{number + 1}"


def input_names(count: int) -> tuple[str, ...]:
    """Return the names of the inputs, where each has event times and metrics of its own."""
    return tuple(str(number + 1) for number in range(count))


def process_method(number: int) -> str:
    """Return the name of the method that handles the rows of an input; the first one is number 0."""
    return f"{_PROCESS}{number + 1}"


def ordinal(number: int) -> str:
    """Return which input the one of a number is, in words: ``first`` for number 0."""
    words = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
    return words[number] if number < len(words) else f"{number + 1}th"


@dataclass(frozen=True)
class ConnectedInput:
    """One of several inputs."""

    #: The columns that the function sees.
    schema: pa.Schema
    #: Those of them that make the key, in the order of its parts.
    key_columns: tuple[str, ...]
    #: The one with the event time of its rows.
    time_column: str | None
    #: The one with the row kinds, where rows may take earlier ones back.
    row_kind: str | None = None

    @property
    def without_row_kind(self) -> ConnectedInput:
        """The input without its column of row kinds."""
        if self.row_kind is None:
            return self
        schema = self.schema.remove(self.schema.names.index(self.row_kind))
        return replace(self, schema=schema, row_kind=None)

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
    """The inputs of an operator; their key columns have the same types."""

    inputs: tuple[ConnectedInput, ...]

    @property
    def first(self) -> ConnectedInput:
        """The left input of a join."""
        return self.inputs[0]

    @property
    def second(self) -> ConnectedInput:
        """The right input of a join."""
        return self.inputs[1]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the inputs."""
        return input_names(len(self.inputs))

    @property
    def without_row_kinds(self) -> ConnectedInputs:
        """The inputs without their columns of row kinds."""
        return ConnectedInputs(tuple(each.without_row_kind for each in self.inputs))

    @property
    def have_event_time(self) -> bool:
        """Whether the rows of all have event times."""
        return all(each.time_column is not None for each in self.inputs)

    def separate(
        self, batch: pa.RecordBatch, key_columns: Sequence[str]
    ) -> tuple[list[int], list[list[pa.Array]]]:
        """Return for each row of a batch the number of its input, and the columns of each input."""
        numbers = np.zeros(batch.num_rows, np.uint8)
        columns = []
        for number, each in enumerate(self.inputs):
            own = batch.column(struct_column(number)).is_valid()
            numbers[own.to_numpy(zero_copy_only=False)] = number
            rows = batch.select([*key_columns, struct_column(number)]).filter(own)
            *keys, carried = rows.columns
            columns.append(each.columns(keys, carried))
        return numbers.tolist(), columns


class KeyedCoProcessFunction(KeyedFunction, Generic[R1, R2]):
    """Reads the rows of two inputs or more, which share the state of a key, and yields output rows.

    Flink's ``KeyedCoProcessFunction``: for two streams of different columns, such as orders and payments.
    A function of more inputs has a method for each: ``process3(row, ctx)`` handles the rows of the third.
    The rows of one key come in the order in which they reached the task, whichever input they are of. Spark
    does not order the rows of one micro-batch that are of different inputs, or of different partitions of
    one input: compare their times where order matters.

    The watermark is the smallest one of the inputs'. ``KeyedCoProcessFunction[Order, Payment]`` names
    classes of rows of the first two inputs, as `KeyedProcessFunction` does.

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

    def _processes(self) -> Sequence[Callable[[Any, Context], Any]]:
        """Return the methods that handle the rows of the inputs, in their order."""
        found: list[Callable[[Any, Context], Any]] = [self.process1, self.process2]
        while (method := getattr(self, process_method(len(found)), None)) is not None:
            found.append(method)
        return found

    def on_timer(self, time: int, ctx: OnTimerContext) -> Iterable[Any] | None:
        """Handle a timer of the key, which all inputs share; see `KeyedProcessFunction.on_timer`."""
        raise NotImplementedError

    def end_epoch(self, ctx: Context) -> Iterable[Any] | None:
        """End the epoch of one key with a row of any input; see `KeyedProcessFunction.end_epoch`."""
        raise NotImplementedError


def input_of_side_output(function: KeyedFunction, name: str) -> int:
    """Return the number of the input whose columns a side output has that declares none.

    Raises `OutputSchemaError` where a function of several inputs does not say which.
    """
    if not isinstance(function, KeyedCoProcessFunction):
        return 0
    if name not in function.side_inputs:
        raise OutputSchemaError(
            f"the side output {name!r} of a function of several inputs does not say its columns"
        )
    return function.side_inputs[name]


def number_of_inputs(function: KeyedFunction) -> int:
    """Return how many inputs a function handles the rows of."""
    if not isinstance(function, KeyedCoProcessFunction):
        return 1
    return len(function._processes())


def check_inputs(function: KeyedFunction, inputs: int) -> None:
    """Refuse a function of another number of inputs; raises `InvalidFunctionError`."""
    name, handled = type(function).__name__, number_of_inputs(function)
    if handled == inputs:
        return
    if handled == 1:
        reason = f"it has one input and there are {inputs}; derive its class from KeyedCoProcessFunction"
    elif inputs == 1:
        reason = (
            f"it has {handled} inputs and there is one; give it all, with connect(keyed(...), keyed(...))"
        )
    elif handled < inputs:
        method = process_method(handled)
        reason = f"it has {handled} inputs and there are {inputs}; define {method}(self, row, ctx)"
    else:
        method = process_method(inputs)
        reason = f"it has {handled} inputs and there are {inputs}; connect a keyed(...) for {method}(), too"
    raise InvalidFunctionError(name, reason)
