"""Aggregates computed by a user's `AggregateFunction`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa

from keyedstate.aggregates.declaration import (
    Aggregate,
    BoundAggregate,
    Part,
    SinglePart,
    check_column,
    checked_where,
    values_type,
)
from keyedstate.errors import InvalidAggregateError, UnsupportedTypeError
from keyedstate.runtime.grouping import GroupedRows
from keyedstate.state import AggregateFunction
from keyedstate.types import TypeSerializer, infer


def aggregate_with(
    function: AggregateFunction[Any, Any, Any],
    *columns: str,
    accumulator: TypeSerializer[Any],
    result: object,
    name: str | None = None,
    where: str | None = None,
) -> Aggregate:
    """Return the result of a user's function over a column, or over several.

    The values of one key in a batch go into a new accumulator, which is merged into the stored one.

    Raises `InvalidAggregateError`.

    Parameters
    ----------
    function : keyedstate.state.AggregateFunction
        With `merge`.  It is called with the value of the column, a tuple where there are several columns;
        a null is None.
    columns : str
    accumulator : TypeSerializer
        The type of the accumulators: ``types.INT64``, ``types.list_of(types.STRING)``.
    result : TypeSerializer or what `keyedstate.types.infer` takes
        The type of the results; None is null.
    name : str, optional
        The name of the accumulators in a checkpoint; the function's class by default.  Two functions of one
        class over the same columns need one each.
    where : str, optional
        A column of booleans: rows in which it is false or null do not count.
    """
    if not isinstance(function, AggregateFunction):
        raise InvalidAggregateError(
            None, f"{function!r} is no AggregateFunction; derive its class from that and pass an instance"
        )
    title = type(function).__name__ if name is None else name
    if type(function).merge is AggregateFunction.merge:
        raise InvalidAggregateError(None, f"{type(function).__name__} has no merge(); write one")
    if not columns:
        raise InvalidAggregateError(None, f"{title} has no column; name at least one")
    for column in columns:
        check_column("aggregate_with", column)
    if not isinstance(accumulator, TypeSerializer):
        raise InvalidAggregateError(
            None, f"the accumulator type of {title} is {accumulator!r}; give one of keyedstate.types"
        )
    try:
        result_type = infer(result)
    except UnsupportedTypeError as error:
        raise InvalidAggregateError(None, f"the result type of {title} cannot be used: {error}") from error

    def bind(name: str, columns: tuple[str, ...], types: Sequence[pa.DataType]) -> BoundAggregate:
        values = [values_type(name, arrow_type) for arrow_type in types]
        return UserDefined(name, columns, function, values, accumulator, result_type)

    return Aggregate(title, tuple(columns), bind, where=checked_where("aggregate_with", where))


class UserDefined(SinglePart):
    """An aggregate by an `AggregateFunction`."""

    def __init__(
        self,
        name: str,
        columns: tuple[str, ...],
        function: AggregateFunction[Any, Any, Any],
        values: list[TypeSerializer[Any]],
        accumulator: TypeSerializer[Any],
        result: TypeSerializer[Any],
    ) -> None:
        super().__init__(name, columns, accumulator, result.arrow_type)
        self.function = function
        self._values = values
        self._result = result

    def reduce(self, columns: Sequence[pa.Array], rows: GroupedRows) -> list[Part]:
        order = pa.array(rows.rows_by_key)
        lists = [
            type.from_arrow(column.take(order)) for type, column in zip(self._values, columns, strict=True)
        ]
        values = lists[0] if len(lists) == 1 else list(zip(*lists, strict=True))
        create, add_all = self.function.create_accumulator, self.function.add_all
        return [
            [
                add_all(values[start:end], create()) if start < end else None
                for start, end in pairwise(rows.bounds.tolist())
            ]
        ]

    def both(self, stored: Any, new: Any) -> Any:
        # A copy: `merge` may change it in place, and a live snapshot may share the stored one.
        return self.function.merge(self.type.copy(stored), new)

    def results(self, parts: list[Part]) -> pa.Array:
        get, create = self.function.get_result, self.function.create_accumulator
        return self._result.to_arrow([get(create() if one is None else one) for one in parts[0]])
