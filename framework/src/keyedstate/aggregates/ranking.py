"""Aggregates that order the rows of a key by some columns: max_by, min_by, and the largest values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from keyedstate.aggregates.declaration import (
    Aggregate,
    BoundAggregate,
    Part,
    SinglePart,
    check_column,
    checked_where,
    of_column,
    values_type,
)
from keyedstate.aggregates.number_columns import Numbers
from keyedstate.aggregates.ordering import (
    Flags,
    Integers,
    best_rows,
    float_order,
    order_key,
    order_of,
    ordered_type,
    ranked_rows,
)
from keyedstate.backend import Column
from keyedstate.errors import InvalidAggregateError
from keyedstate.runtime.grouping import GroupedRows
from keyedstate.tables import array_of, column_of, is_numeric
from keyedstate.types import list_of, nullable, row_of

#: What an aggregate is ordered by: a column, or several, of which the first that differs decides.
By = str | Sequence[str]


def max_by(*columns: str, by: By, ties: str = "first", where: str | None = None) -> Aggregate:
    """Return the values of columns in the row that is the largest by others: ``max_by("item", by="price")``.

    Parameters
    ----------
    columns : str
        One column gives its value, several give a struct, and none gives the whole row as a struct.
    by : str or sequence of str
        The columns that order the rows; the first that differs decides.  Rows with a null in one of them do
        not count.  NaN is larger than any other number, structs are compared field by field.
    ties : {"first", "last"}, optional
        Which of several largest rows counts, in the order in which rows reach the operator.
    where : str, optional
        A column of booleans: rows in which it is false or null do not count.
    """
    return best("max_by", columns, by, largest=True, ties=ties, where=where)


def min_by(*columns: str, by: By, ties: str = "first", where: str | None = None) -> Aggregate:
    """Return the values of columns in the row that is the smallest by others; see `max_by`."""
    return best("min_by", columns, by, largest=False, ties=ties, where=where)


def best(
    function: str,
    columns: tuple[str, ...],
    by: By,
    *,
    largest: bool,
    ties: str,
    where: str | None,
    ignore_nulls: bool = False,
) -> Aggregate:
    """Return an aggregate that takes the values of the largest or smallest row."""
    order = order_columns(function, by)
    for column in columns:
        check_column(function, column)
    if ties not in ("first", "last"):
        raise InvalidAggregateError(None, f"{function}() is given ties={ties!r}; give 'first' or 'last'")
    bind = partial(
        BestRow,
        single=len(columns) == 1,
        order=len(order),
        largest=largest,
        last=ties == "last",
        ignore_nulls=ignore_nulls,
    )
    details = ["ties last"] if ties == "last" and function in ("max_by", "min_by") else []
    details += ["ignore nulls"] if ignore_nulls else []
    return Aggregate(
        function,
        columns,
        bind,
        " ".join(details),
        by=order,
        where=checked_where(function, where),
        whole_rows=not columns,
    )


def order_columns(function: str, by: By) -> tuple[str, ...]:
    """Return the columns that order rows; raises `InvalidAggregateError` for none and for no names."""
    order = (by,) if isinstance(by, str) else tuple(by) if isinstance(by, (list, tuple)) else (by,)
    if not order:
        raise InvalidAggregateError(None, f"{function}() is given by={by!r}; name a column that orders rows")
    for column in order:
        check_column(function, column)
    return order


class BestRow(BoundAggregate):
    """The parts are the needed columns of the best row; without a row the columns of the order are None."""

    def __init__(
        self,
        name: str,
        columns: tuple[str, ...],
        types: Sequence[pa.DataType],
        *,
        single: bool,
        order: int,
        largest: bool,
        last: bool,
        ignore_nulls: bool,
    ) -> None:
        self._order = columns[-order:]
        self._values = columns[:-order]
        of_order = [ordered_type(name, type) for type in types[-order:]]
        parts = {column: values_type(name, type) for column, type in zip(columns, types, strict=True)}
        self._key = order_key(of_order)
        self._largest = largest
        self._last = last
        self._ignore_nulls = ignore_nulls
        self._single = single
        fields = [pa.field(column, parts[column].arrow_type) for column in self._values]
        super().__init__(name, tuple(parts), parts, fields[0].type if single else pa.struct(fields))
        self.by_columns = all(
            is_numeric(type) and type == parts[column].arrow_type
            for column, type in zip(columns, types, strict=True)
        )
        names = list(parts)
        self._places = [names.index(column) for column in self._order]
        self._value_places = [names.index(column) for column in self._values]

    def picked(self, columns: Sequence[pa.Array], rows: GroupedRows) -> Integers:
        """Return the best row of each key, -1 for a key without one."""
        order, valid = order_of([columns[place] for place in self._places])
        if self._ignore_nulls:
            of_value = columns[self._value_places[0]].is_valid().to_numpy(zero_copy_only=False)
            valid = of_value if valid is None else valid & of_value
        return best_rows(rows, order, valid, largest=self._largest, last=self._last)

    def reduce(self, columns: Sequence[pa.Array], rows: GroupedRows) -> list[Part]:
        return self.parts_of(columns, self.picked(columns, rows))

    def parts_of(self, columns: Sequence[pa.Array], picked: Integers) -> list[Part]:
        """Return the parts of picked rows."""
        types = self.parts.values()
        return [type.from_arrow(column) for type, column in zip(types, _taken(columns, picked), strict=True)]

    def reduce_columns(self, columns: Sequence[pa.Array], rows: GroupedRows) -> list[Column]:
        return self.columns_of(columns, self.picked(columns, rows))

    def columns_of(self, columns: Sequence[pa.Array], picked: Integers) -> list[Column]:
        """Return the parts of picked rows as columns."""
        return list(map(column_of, _taken(columns, picked)))

    def wins(self, stored: list[Part], new: list[Part]) -> list[bool]:
        """Return which new rows are better than the stored ones; one without a stored row is better, too."""
        key, first_part = self._key, self._places[0]
        olds, news = (self._of_order(parts) for parts in (stored, new))
        there = zip(stored[first_part], new[first_part], strict=True)
        wins = []
        for (o, n), old, other in zip(there, olds, news, strict=True):
            if n is None or o is None:
                wins.append(o is None)
                continue
            one, two = key(old), key(other)
            wins.append(self._last if one == two else (two > one) is self._largest)
        return wins

    def _of_order(self, parts: list[Part]) -> list[Any]:
        if len(self._places) == 1:
            return parts[self._places[0]]
        return list(zip(*(parts[place] for place in self._places), strict=True))

    def merge(self, stored: list[Part], new: list[Part]) -> list[Part]:
        wins = self.wins(stored, new)
        return [
            [n if won else o for o, n, won in zip(old, other, wins, strict=True)]
            for old, other in zip(stored, new, strict=True)
        ]

    def wins_of_columns(self, stored: list[Column], new: list[Column]) -> Flags:
        """Return the same as `wins`."""
        better = np.full(len(new[0]), self._last)
        for place in reversed(self._places):
            old, other = (_comparable(column.values) for column in (stored[place], new[place]))
            better = np.where(old == other, better, (other > old) == self._largest)
        first_part = self._places[0]
        wins: Flags = ~stored[first_part].there | (new[first_part].there & better)
        return wins

    def merge_columns(self, stored: list[Column], new: list[Column]) -> list[Column]:
        return self.chosen_columns(stored, new, self.wins_of_columns(stored, new))

    def chosen_columns(self, stored: list[Column], new: list[Column], wins: Flags) -> list[Column]:
        """Return new parts where they win, and stored ones elsewhere."""
        merged = []
        for of_stored, of_new in zip(stored, new, strict=True):
            there = None
            if of_stored.present is not None or of_new.present is not None:
                there = np.where(wins, of_new.there, of_stored.there)
            merged.append(Column(np.where(wins, of_new.values, of_stored.values), there))
        return merged

    def results(self, parts: list[Part]) -> pa.Array:
        types = list(self.parts.values())
        columns = [types[place].to_arrow(parts[place]) for place in self._value_places]
        there = [value is not None for value in parts[self._places[0]]]
        return self._result(columns, np.array(there, np.bool_))

    def results_of(self, parts: list[Column]) -> pa.Array:
        types = list(self.parts.values())
        columns = [array_of(parts[place], types[place].arrow_type) for place in self._value_places]
        return self._result(columns, parts[self._places[0]].there)

    def _result(self, columns: list[pa.Array], there: Any) -> pa.Array:
        if self._single:
            return columns[0]
        mask = None if there.all() else pa.array(~there)
        return pa.StructArray.from_arrays(columns, fields=list(self.result_type), mask=mask)


def _taken(columns: Sequence[pa.Array], picked: Integers) -> list[pa.Array]:
    indices = pa.array(picked, mask=picked < 0)
    return [column.take(indices) for column in columns]


def _comparable(values: Numbers) -> Numbers:
    return float_order(values) if values.dtype == np.float64 else values


def top_k(column: str, k: int, *, smallest: bool = False, where: str | None = None) -> Aggregate:
    """Return the `k` largest values of a column as an array, the largest first; nulls are left out.

    It is empty where there is no value.  Equal values count each.

    Parameters
    ----------
    column : str
    k : int
        The state of a key has up to so many values, and is read and written as a whole.
    smallest : bool, default False
        Return the smallest values, the smallest first.
    where : str, optional
        A column of booleans: rows in which it is false or null do not count.
    """
    check_count("top_k", "k", k)
    bind = partial(_TopValues, k=k, largest=not smallest)
    return of_column("top_k", column, bind, where, f"{'smallest' if smallest else 'largest'} {k}")


def check_count(function: str, parameter: str, count: object) -> None:
    """Raise `InvalidAggregateError` for what is no number of rows."""
    if type(count) is not int or count < 1:
        raise InvalidAggregateError(
            None, f"{function}() is given {parameter}={count!r}; give a number from 1"
        )


class _TopValues(SinglePart):
    never_null = True

    def __init__(
        self, name: str, columns: tuple[str, ...], arrow_type: pa.DataType, *, k: int, largest: bool
    ) -> None:
        value_type = ordered_type(name, arrow_type)
        super().__init__(name, columns, list_of(value_type), pa.list_(value_type.arrow_type))
        self._value_type = value_type
        self._k = k
        self._largest = largest
        self._key: Callable[[Any], Any] = order_key([value_type])

    def reduce(self, columns: Sequence[pa.Array], rows: GroupedRows) -> list[Part]:
        order, valid = order_of(columns, [self._largest])
        places, bounds = ranked_rows(rows, order, valid, self._k)
        values = self._value_type.from_arrow(columns[0].take(pa.array(places)))
        return [[values[start:end] or None for start, end in pairwise(bounds.tolist())]]

    def both(self, stored: list[Any], new: list[Any]) -> list[Any]:
        return sorted([*stored, *new], key=self._key, reverse=self._largest)[: self._k]

    def results(self, parts: list[Part]) -> pa.Array:
        return self.type.to_arrow([values or [] for values in parts[0]])


def top_by(
    k: int,
    *columns: str,
    by: By,
    descending: bool | Sequence[bool] = True,
    where: str | None = None,
) -> Aggregate:
    """Return the `k` first rows in an order as an array of structs, the first one first.

    It is empty where there is no row.  Of equal rows the earlier one comes first.

    Parameters
    ----------
    k : int
        The state of a key has up to so many rows, and is read and written as a whole.
    columns : str
        The columns of the structs; all columns without any.
    by : str or sequence of str
        The columns that order the rows; the first that differs decides.  Rows with a null in one of them do
        not count.
    descending : bool or sequence of bool, default True
        Whether the largest comes first, for each column of `by` where there are several.
    where : str, optional
        A column of booleans: rows in which it is false or null do not count.
    """
    check_count("top_by", "k", k)
    order = order_columns("top_by", by)
    for column in columns:
        check_column("top_by", column)
    falls = directions("top_by", order, descending)
    bind = partial(TopRows, k=k, descending=falls)
    shown = "".join("d" if each else "a" for each in falls)
    return Aggregate(
        "top_by",
        columns,
        bind,
        f"first {k} {shown}",
        by=order,
        where=checked_where("top_by", where),
        whole_rows=not columns,
    )


def directions(function: str, order: Sequence[str], descending: object) -> tuple[bool, ...]:
    """Return whether each column of an order descends; raises `InvalidAggregateError`."""
    given = [descending] * len(order) if isinstance(descending, bool) else descending
    if (
        not isinstance(given, (list, tuple))
        or len(given) != len(order)
        or not all(isinstance(each, bool) for each in given)
    ):
        raise InvalidAggregateError(
            None,
            f"{function}() is given descending={descending!r}; give a boolean, or one for each of "
            f"{', '.join(order)}",
        )
    return tuple(given)


class TopRows(SinglePart):
    """The accumulator is the list of the first rows."""

    never_null = True

    def __init__(
        self,
        name: str,
        columns: tuple[str, ...],
        types: Sequence[pa.DataType],
        *,
        k: int,
        descending: Sequence[bool],
    ) -> None:
        order = columns[-len(descending) :]
        shown = list(dict.fromkeys(columns[: -len(descending)]))
        needed = dict(zip(columns, types, strict=True))
        parts = {column: nullable(values_type(name, type)) for column, type in needed.items()}
        #: The type of a row: the shown columns, and those of the order.
        self.row_type = row_of(parts)
        self._shown = shown
        fields = [pa.field(column, parts[column].arrow_type) for column in shown]
        super().__init__(name, tuple(needed), list_of(self.row_type), pa.list_(pa.struct(fields)))
        self._k = k
        names = list(needed)
        self._places = [names.index(column) for column in order]
        self._descending = tuple(descending)
        directions = ("descending" if falls else "ascending" for falls in descending)
        #: In words, as in ``price descending, ts ascending``.
        self.order = ", ".join(map(" ".join, zip(order, directions, strict=True)))
        self._sorts: list[tuple[Callable[[Any], Any], bool]] = []
        for place, falls in zip(reversed(self._places), reversed(self._descending), strict=True):
            key = order_key([ordered_type(name, needed[names[place]])])
            self._sorts.append((partial(_keyed, key, place), falls))

    def reduce(self, columns: Sequence[pa.Array], rows: GroupedRows) -> list[Part]:
        order, valid = order_of([columns[place] for place in self._places], self._descending)
        places, bounds = ranked_rows(rows, order, valid, self._k)
        taken = [column.take(pa.array(places)) for column in columns]
        found = self.row_type.from_arrow(pa.StructArray.from_arrays(taken, names=list(self.row_type.names)))
        return [[found[start:end] or None for start, end in pairwise(bounds.tolist())]]

    def both(self, stored: list[Any], new: list[Any]) -> list[Any]:
        rows = [*stored, *new]
        # From the last column to the first: sorting keeps the order of equal rows, also in reverse.
        for key, falls in self._sorts:
            rows.sort(key=key, reverse=falls)
        return rows[: self._k]

    def results(self, parts: list[Part]) -> pa.Array:
        made = self.type.to_arrow([rows or [] for rows in parts[0]])
        structs = made.flatten()
        shown = [structs.field(column) for column in self._shown]
        lengths = [0, *map(len, (rows or () for rows in parts[0]))]
        offsets = pa.array(np.cumsum(lengths), pa.int32())
        struct = pa.StructArray.from_arrays(shown, fields=list(self.result_type.value_type))
        return pa.ListArray.from_arrays(offsets, struct, type=self.result_type)


def _keyed(key: Callable[[Any], Any], place: int, row: Any) -> Any:
    return key(row[place])
