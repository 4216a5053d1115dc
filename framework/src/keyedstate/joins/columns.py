"""The columns of joined rows, and which rows a join emits."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

import pyarrow as pa

from keyedstate.errors import InvalidJoinError, did_you_mean
from keyedstate.runtime.functions.connected_inputs import ConnectedInput, ConnectedInputs, ordinal

#: Returns some values of a row.
_Getter = Callable[[Any], tuple[Any, ...]]
#: Returns a name in the form in which names are compared.
Fold = Callable[[str], str]


class JoinType(enum.Enum):
    """Which rows a join emits: SQL's."""

    INNER = "inner"
    LEFT = "left"
    RIGHT = "right"
    FULL = "full"
    SEMI = "semi"
    ANTI = "anti"

    @classmethod
    def of(cls, how: object) -> JoinType:
        """Return the type that a user names; raises `InvalidJoinError`."""
        try:
            return cls(how)
        except ValueError:
            known = [each.value for each in cls]
            hint = did_you_mean(how, known) if isinstance(how, str) else ""
            raise InvalidJoinError(
                f"how={how!r}", "there is no such join", f"Give one of {', '.join(map(repr, known))}.{hint}"
            ) from None

    @property
    def of_pairs(self) -> bool:
        """Whether the output has the columns of both sides, with a row for each pair."""
        return self not in (JoinType.SEMI, JoinType.ANTI)

    @property
    def keeps(self) -> tuple[bool, bool]:
        """Whether left rows, and whether right rows, come out that found no match."""
        return (
            self in (JoinType.LEFT, JoinType.FULL, JoinType.ANTI),
            self in (JoinType.RIGHT, JoinType.FULL),
        )


@dataclass(frozen=True)
class JoinedColumn:
    """An output column of a join without a function: the one at `place` in the input number `side`.

    `optional` is true where rows of the other input alone have null in it.
    """

    name: str
    side: int
    place: int
    optional: bool = False


@dataclass(frozen=True)
class WindowColumn:
    """An output column with the start or the end of a window, an instant."""

    name: str


@dataclass(frozen=True)
class RowKindColumn:
    """An output column with row kinds, strings without nulls."""

    name: str


def has_null(key: Any, *, compound: bool) -> bool:
    """Return whether a key, or a part of a compound one, is null and so equals no other."""
    return key is None or (compound and None in key)


def check_column(of_rows: str, name: str, schema: pa.Schema) -> None:
    """Raise `InvalidJoinError` for a column that rows do not have, which `of_rows` names: "the left rows"."""
    if name not in schema.names:
        raise InvalidJoinError(
            f"the column {name!r}",
            f"{of_rows} do not have it, but {', '.join(schema.names)}",
            f"Name one of these.{did_you_mean(name, schema.names)}",
        )


def deletion_place(of_rows: str, name: str, schema: pa.Schema) -> int:
    """Return the index of the column that marks deletions; raises `InvalidJoinError`, as `check_column`."""
    check_column(of_rows, name, schema)
    place: int = schema.names.index(name)
    type_ = schema.field(place).type
    if not pa.types.is_boolean(type_):
        reason = f"the column has the type {type_}, and says of a row whether it removes one"
        raise InvalidJoinError(f"deleted={name!r}", reason, "Give a boolean column.")
    return place


def joined_columns(
    inputs: ConnectedInputs,
    fold: Fold = lambda name: name,
    how: JoinType = JoinType.INNER,
    reserved: Sequence[str] = (),
) -> list[JoinedColumn]:
    """Return the columns of joined rows: the key's, the others of the left input, the others of the right.

    A name on both sides other than the key's, or equal to one of the key's, gets the prefix ``left_`` or
    ``right_``.  A semi or anti join has no columns of the right input.  Row kinds of an input are left out.

    Parameters
    ----------
    inputs : ConnectedInputs
    fold : callable, optional
        Returns a name in the form in which names are compared.
    how : JoinType, optional
    reserved : sequence of str, optional
        Names of other columns of the output: columns of the inputs with such a name get a prefix, too.

    Raises
    ------
    InvalidJoinError
        Where a name with its prefix is the name of another column.
    """
    first, second = inputs.first, inputs.second
    keeps_left, keeps_right = how.keeps
    keys = [JoinedColumn(name, 0, first.schema.names.index(name), keeps_right) for name in first.key_columns]
    sides = [
        [JoinedColumn(input_.schema.names[place], side, place, optional) for place in _others(input_)]
        for side, (input_, optional) in enumerate(((first, keeps_right), (second, keeps_left)))
    ]
    taken = {fold(name) for name in (*first.key_columns, *reserved)}
    if not how.of_pairs:
        sides[1] = []
    names = [{fold(column.name) for column in side} for side in sides]
    common = (names[0] & names[1]) | (taken & (names[0] | names[1]))
    for prefix, side in zip(("left_", "right_"), sides, strict=True):
        keys += [
            replace(column, name=prefix + column.name) if fold(column.name) in common else column
            for column in side
        ]
    refuse_equal_names(keys, fold)
    return keys


def _others(input_: ConnectedInput) -> list[int]:
    """Return the places of the columns of an input that are neither the key's nor row kinds."""
    not_among = (*input_.key_columns, input_.row_kind)
    return [place for place, name in enumerate(input_.schema.names) if name not in not_among]


def several_joined_columns(inputs: ConnectedInputs, fold: Fold = lambda name: name) -> list[JoinedColumn]:
    """Return the columns of joined rows of more than two inputs: the key's, and the others of each input.

    A name in several inputs, or equal to one of the key's, gets the prefix ``first_``, ``second_`` and so on.
    Raises as `joined_columns`.
    """
    first = inputs.inputs[0]
    made = [JoinedColumn(name, 0, first.schema.names.index(name)) for name in first.key_columns]
    sides = [
        [name for name in input_.schema.names if name not in input_.key_columns] for input_ in inputs.inputs
    ]
    uses = Counter(fold(name) for names in (first.key_columns, *sides) for name in {*names})
    for number, names in enumerate(sides):
        schema = inputs.inputs[number].schema
        for name in names:
            shown = name if uses[fold(name)] == 1 else f"{ordinal(number)}_{name}"
            made.append(JoinedColumn(shown, number, schema.names.index(name)))
    refuse_equal_names(made, fold)
    return made


def joined_schema(
    schemas: Sequence[pa.Schema], made: Sequence[JoinedColumn | RowKindColumn | WindowColumn]
) -> pa.Schema:
    """Return the types of the columns of joined rows, of inputs with these columns."""
    fields = []
    for each in made:
        if isinstance(each, WindowColumn):
            fields.append(pa.field(each.name, pa.timestamp("us", "UTC")))
        elif isinstance(each, RowKindColumn):
            fields.append(pa.field(each.name, pa.string(), nullable=False))
        else:
            field = schemas[each.side].field(each.place).with_name(each.name)
            fields.append(field.with_nullable(field.nullable or each.optional))
    return pa.schema(fields)


def refuse_equal_names(columns: Sequence[JoinedColumn | RowKindColumn], fold: Fold) -> None:
    """Raise `InvalidJoinError` where a name with its prefix is that of another column."""
    seen = set()
    for column in columns:
        if fold(column.name) in seen:
            raise InvalidJoinError(
                f"the column {column.name!r}",
                "two columns of the joined rows would have this name, because a name that several inputs "
                "have gets the prefix of its input",
                "Rename one of them.",
            )
        seen.add(fold(column.name))


class JoinedRows:
    """Makes the rows of `joined_columns` of a left row, a right row, or both.

    Attributes
    ----------
    of_left, of_right : callable
        Return the values of a left row, and those that follow of a right row; the row of a pair is their sum.
    """

    def __init__(self, inputs: ConnectedInputs) -> None:
        # Names do not matter here: only the output says which columns may not have the same one.
        left, right = map(_others, inputs.inputs)
        key_of_left, key_of_right = (
            [each.schema.names.index(name) for name in each.key_columns] for each in inputs.inputs
        )
        self.of_left, self.of_right = getter([*key_of_left, *left]), getter(right)
        self._key_of_right = getter(key_of_right)
        self._no_left, self._no_right = (None,) * len(left), (None,) * len(right)

    def alone(self, row: Any, *, of_right: bool) -> tuple[Any, ...]:
        """Return a row that found no match, with nulls for the other side."""
        if of_right:
            return self._key_of_right(row) + self._no_left + self.of_right(row)
        return self.of_left(row) + self._no_right


def getter(places: Sequence[int]) -> _Getter:
    """Return a function of a row that returns the values at some places."""
    if len(places) > 1:
        return itemgetter(*places)
    # With one place an itemgetter returns no tuple.
    return lambda row: tuple([row[place] for place in places])
