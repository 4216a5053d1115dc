"""The join by key of rows that may take others back, and whose own rows have row kinds.

Flink's ``StreamingJoinOperator`` and ``StreamingSemiAntiJoinOperator``: a row that comes adds its pairs, and
a row that is taken back takes back the pairs that it has with the rows that still live.  A row of an outer
side comes out with nulls as long as it has no match.  Joined rows have the kinds ``+I`` and ``-D`` in every
join, other than in Flink's inner one, which passes on the kind of its input: a row that is taken back need
not be replaced, because its replacement may have another key.

All rows of a key match each other, so a row has a match if the other side is not empty.  The end of a life
changes no result: a row that had a match keeps it when the match reaches its end.  Such rows are settled, and
never come out with nulls again.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from keyedstate.errors import InvalidJoinError, RowKindError, StateMigrationError
from keyedstate.joins.by_key.key_join import KeyJoinFunction
from keyedstate.joins.columns import (
    Fold,
    JoinedColumn,
    JoinedRows,
    JoinType,
    RowKindColumn,
    getter,
    joined_columns,
    refuse_equal_names,
)
from keyedstate.joins.join_function import LEFT, NULL_KEY, RIGHT
from keyedstate.runtime.functions.connected_inputs import ConnectedInput, ConnectedInputs
from keyedstate.runtime.functions.keyed import Context
from keyedstate.runtime.row_kinds import DELETE, INSERT, takes_back
from keyedstate.state import MapState, StateDescriptor, Ttl, ValueState
from keyedstate.time import Timer
from keyedstate.types import INT64, infer, list_of, row_of, row_type, tuple_of

if TYPE_CHECKING:
    from typing_extensions import Self

#: A row that lives: its number, when it ends, and its values.
_Living = tuple[int, int, Any]
_NUMBER = itemgetter(0)
_ROW = itemgetter(2)


class _Side:
    """The living rows of one side of the current key.

    They are in lists by the checksum of their bytes, so that a row which is taken back is found at once.

    Attributes
    ----------
    shown : bool or None
        Whether its rows come out alone while they have a match (True), or while they have none (False).
    """

    def __init__(
        self, input_: ConnectedInput, living: Any, settled: Any, shown: bool | None, *, of_right: bool
    ) -> None:
        plain = input_.without_row_kind.schema
        self._type = infer(plain)
        self._kind = input_.row_kind
        self._make: Callable[[Any], Any] | None = None
        if self._kind is not None:
            names = input_.schema.names
            self._kind_place = names.index(self._kind)
            values = getter([names.index(name) for name in plain.names])
            make = partial(tuple.__new__, row_type(tuple(plain.names)))
            self._make = lambda row: make(values(row))
        self._living = living
        #: The number of the first row that can still change; those before have had a match that has ended.
        self._settled = settled
        self.shown = shown
        self.of_right = of_right

    def read(self, row: Any) -> tuple[bool, Any]:
        """Return whether a row takes another one back, and the row without its row kind."""
        if self._make is None:
            return False, row
        assert self._kind is not None, "it has a place"
        return takes_back(self._kind, row[self._kind_place]), self._make(row)

    def is_empty(self) -> bool:
        return bool(self._living.is_empty())

    def rows(self) -> list[Any]:
        """Return the rows in the order in which they came."""
        return list(map(_ROW, self._in_order()))

    def changeable(self) -> list[Any]:
        """Return the rows that are not settled, in the order in which they came."""
        first = self._settled.value() or 0
        return [row for number, _, row in self._in_order() if number >= first]

    def is_settled(self, number: int) -> bool:
        return number < (self._settled.value() or 0)

    def settle(self, next_number: int) -> None:
        """Settle all rows that live."""
        self._settled.update(next_number)

    def add(self, row: Any, number: int, end: int) -> int:
        """Add a row, and return its checksum."""
        checksum = zlib.crc32(self._type.to_bytes(row))
        # Not in place: a snapshot that is being written may share the list.
        self._living.put(checksum, [*(self._living.get(checksum) or ()), (number, end, row)])
        return checksum

    def take_back(self, row: Any) -> tuple[_Living, int | None, int] | None:
        """Remove the last one of the rows that equal a row, and return it with its checksum.

        In the middle is its end, unless another row of that checksum has the same one and so the same timer.
        None where there is no such row.
        """
        wanted = self._type.to_bytes(row)
        checksum = zlib.crc32(wanted)
        found = self._living.get(checksum) or ()
        place = self._last_equal(found, wanted)
        if place is None:
            # A row that was kept before a column was added or widened is in the list of its former bytes.
            kept = {old: rows for old, rows in self._living.items() if old != checksum}
            equal = {old: self._last_equal(rows, wanted) for old, rows in kept.items()}
            numbers = {kept[old][at][0]: old for old, at in equal.items() if at is not None}
            if not numbers:
                return None
            checksum = numbers[max(numbers)]
            found, place = kept[checksum], equal[checksum]
            assert place is not None, "it has a number"
        taken, others = found[place], [*found[:place], *found[place + 1 :]]
        self._put(checksum, others)
        shared = any(end == taken[1] for _, end, _ in others)
        return taken, None if shared else taken[1], checksum

    def _last_equal(self, living: Sequence[_Living], wanted: bytes) -> int | None:
        """Return the place of the last one of some rows that has these bytes, or None."""
        for place in reversed(range(len(living))):
            if self._type.to_bytes(living[place][2]) == wanted:
                return place
        return None

    def end(self, checksum: int, time: int) -> bool:
        """Remove the rows of a checksum that end at a time; return whether there are some."""
        found = self._living.get(checksum) or ()
        others = [each for each in found if each[1] != time]
        self._put(checksum, others)
        return len(others) < len(found)

    def clear(self) -> None:
        self._settled.clear()

    def _put(self, checksum: int, living: list[_Living]) -> None:
        if living:
            self._living.put(checksum, living)
        else:
            self._living.remove(checksum)

    def _in_order(self) -> list[_Living]:
        return sorted((each for some in self._living.values() for each in some), key=_NUMBER)


class ChangingJoinFunction(KeyJoinFunction):
    """Joins rows of two inputs by their key alone, with row kinds; made by `keyedstate.joins.join`.

    `row_kind` is the name of the output column with them.
    """

    takes_rows_back = True

    def __init__(
        self, how: JoinType, ttl: Ttl | None, side_outputs: Mapping[str, Any], missing: str, row_kind: str
    ) -> None:
        super().__init__(how, ttl, side_outputs, missing)
        self._row_kind = row_kind

    def for_inputs(self, inputs: ConnectedInputs) -> Self:
        """Return the function for rows of these columns.

        Raises
        ------
        InvalidJoinError
            Where they have no event times, and rows live by the watermark.
        RowKindError
            Where the row kinds are a column of the key.
        """
        for each in inputs.inputs:
            if each.row_kind is not None and each.row_kind in each.key_columns:
                raise RowKindError(each.row_kind, "it is a column of the key")
        return super().for_inputs(inputs)

    def output_columns(self, inputs: ConnectedInputs, fold: Fold) -> list[JoinedColumn | RowKindColumn]:
        columns: list[JoinedColumn | RowKindColumn] = []
        columns += joined_columns(inputs, fold, self.how, reserved=[self._row_kind])
        columns.append(RowKindColumn(self._row_kind))
        refuse_equal_names(columns, fold)
        return columns

    def states(self) -> list[StateDescriptor[Any]]:
        """Return the states, which are no attributes: the rows of both sides, and numbers of rows."""
        return [
            *(
                MapState(f"{name}-rows", INT64, list_of(tuple_of(INT64, INT64, type_)))
                for name, type_ in self._row_types()
            ),
            *(ValueState(f"{name}-settled", INT64) for name, _ in self._row_types()),
            self._numbers(),
        ]

    def _numbers(self) -> StateDescriptor[Any]:
        """The state with the number of the next row, whose type has `how` as the name of its only field.

        So each checkpoint says it, and a join with another one is refused before its first row.
        """
        return ValueState("next-row", row_of({self.how.value: INT64}))

    def _next_number(self) -> int:
        """Return the number of the next row of the current key."""
        found = self._next.value()
        return 0 if found is None else int(found[0])

    def _row_types(self) -> list[tuple[str, Any]]:
        kept = self._known.without_row_kinds
        return [(LEFT, infer(kept.first.schema)), (RIGHT, infer(kept.second.schema))]

    def open(self, ctx: Context) -> None:
        try:
            self._next = ctx.state(self._numbers())
        except StateMigrationError:
            raise InvalidJoinError(
                f"join({self.how.value!r}) with row kinds",
                "its state is of a join with another how=, or without row kinds, which emitted other rows",
                "Declare the join as it was, or give it a new uid.",
            ) from None
        left, right, left_settled, right_settled = (ctx.state(state) for state in self.states()[:-1])
        self._numbered = row_of({self.how.value: INT64}).make
        first, second = self._known.first, self._known.second
        keeps_left, keeps_right = self.how.keeps
        of_left = True if self.how is JoinType.SEMI else False if keeps_left else None
        self._left = _Side(first, left, left_settled, of_left, of_right=False)
        self._right = _Side(second, right, right_settled, False if keeps_right else None, of_right=True)
        self._joined = JoinedRows(self._known.without_row_kinds)
        self._register_timers(ctx)

    def process1(self, row: Any, ctx: Context) -> Iterable[Any] | None:
        return self._process(row, ctx, self._left, self._right)

    def process2(self, row: Any, ctx: Context) -> Iterable[Any] | None:
        return self._process(row, ctx, self._right, self._left)

    def _process(self, given: Any, ctx: Context, mine: _Side, others: _Side) -> Iterable[Any] | None:
        end = self._end_of(given, ctx, mine.of_right)
        if end is None:
            return None
        back, row = mine.read(given)
        if self._null_in_key(ctx):
            if mine.shown is False:
                return self._rows_alone([row], mine, DELETE if back else INSERT)
            ctx._dropped[NULL_KEY] += 1
            return None
        return self._take_back(row, mine, others) if back else self._add(row, end, mine, others)

    def _add(self, row: Any, end: int, mine: _Side, others: _Side) -> list[Any]:
        made = self._switched(others, matched=True) if mine.is_empty() else []
        matched = not others.is_empty()
        if mine.shown is matched:
            made += self._rows_alone([row], mine, INSERT)
        made += self._pairs(row, mine, others, INSERT)
        number = self._next_number()
        self._next.update(self._numbered((number + 1,)))
        namespace = 2 * mine.add(row, number, end) + mine.of_right
        if self._by_watermark:
            self._timers.register_event_time_timer(namespace, end)
        elif self._ttl is not None:
            self._timers.register_processing_time_timer(namespace, end)
        return made

    def _take_back(self, row: Any, mine: _Side, others: _Side) -> list[Any] | None:
        found = mine.take_back(row)
        if found is None:
            # The row has ended, and Flink leaves such rows out.
            return None
        (number, _, row), end, checksum = found
        if end is not None:
            self._delete_timers(2 * checksum + mine.of_right, end)
        made = self._pairs(row, mine, others, DELETE)
        matched = not others.is_empty() or mine.is_settled(number)
        if mine.shown is matched:
            made += self._rows_alone([row], mine, DELETE)
        if mine.is_empty():
            made += self._switched(others, matched=False)
            self._clear_if_empty()
        return made

    def _pairs(self, row: Any, mine: _Side, others: _Side, kind: str) -> list[Any]:
        if not self.how.of_pairs:
            return []
        of_left, of_right, last = self._joined.of_left, self._joined.of_right, (kind,)
        if mine.of_right:
            right = of_right(row) + last
            return [of_left(other) + right for other in others.rows()]
        left = of_left(row)
        return [left + of_right(other) + last for other in others.rows()]

    def _switched(self, side: _Side, *, matched: bool) -> list[Any]:
        """Return how the rows of a side change that have their first match, or have lost their last one."""
        if side.shown is None:
            return []
        return self._rows_alone(side.changeable(), side, INSERT if side.shown is matched else DELETE)

    def _rows_alone(self, rows: Iterable[Any], side: _Side, kind: str) -> list[Any]:
        return [(*self._alone(row, of_right=side.of_right), kind) for row in rows]

    def _on_timer(self, timer: Timer) -> None:
        """Remove the rows that end; what has been emitted is final from now on."""
        checksum, of_right = divmod(timer.namespace, 2)
        mine, others = (self._right, self._left) if of_right else (self._left, self._right)
        if mine.end(checksum, timer.time) and others.shown is not None and not others.is_empty():
            others.settle(self._next_number())
        self._clear_if_empty()

    def _clear_if_empty(self) -> None:
        if self._left.is_empty() and self._right.is_empty():
            self._next.clear()
            self._left.clear()
            self._right.clear()
