"""What all joins have in common: the types of both rows, and rows that cannot be joined."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from keyedstate.errors import (
    InvalidFunctionError,
    InvalidJoinError,
    MissingTimestampError,
    RowKindError,
    SideOutputNameError,
)
from keyedstate.joins.columns import Fold, JoinedColumn, RowKindColumn, WindowColumn, has_null
from keyedstate.runtime.event_time import DROP, FAIL, LATE, MISSING, TIMELESS
from keyedstate.runtime.functions.builder import missing_policy
from keyedstate.runtime.functions.connected_inputs import ConnectedInputs, KeyedCoProcessFunction
from keyedstate.runtime.functions.keyed import Context
from keyedstate.types import TypeSerializer, infer

if TYPE_CHECKING:
    from typing_extensions import Self

#: The metric of rows dropped because of a null in the key, which equals no other key.
NULL_KEY = "null key"
LEFT, RIGHT = "left", "right"
#: The side outputs of late rows, and of rows without event time.
LATE_LEFT = "late_left"
LATE_RIGHT = "late_right"
MISSING_LEFT = "missing_left"
MISSING_RIGHT = "missing_right"


def declared_side_outputs(late: object, missing: object) -> tuple[dict[str, None], str]:
    """Return the side outputs of a join that a user declares, and the policy for rows without event time.

    Raises `InvalidJoinError`.
    """
    if late not in ("drop", "side output"):
        raise InvalidJoinError(f"late={late!r}", "there is no such policy", "Give 'drop' or 'side output'.")
    policy = missing_policy(missing, InvalidJoinError)
    sides = dict.fromkeys((LATE_LEFT, LATE_RIGHT)) if late == "side output" else {}
    return sides | (dict.fromkeys((MISSING_LEFT, MISSING_RIGHT)) if policy == MISSING else {}), policy


def check_side_output(name: str, schema: object) -> None:
    """Refuse a side output of the user that has the name of one of late or missing rows, or no columns."""
    if name in JoinFunction.side_inputs:
        raise SideOutputNameError(name, "another output has that name")
    if schema is None:
        raise InvalidJoinError(
            f"the side output {name!r}", "its columns are missing", "Give them, as in 'id long'."
        )


class JoinFunction(KeyedCoProcessFunction):
    """The base of joins.

    Parameters
    ----------
    side_outputs : mapping
        Late rows go to those named `LATE_LEFT` and `LATE_RIGHT`; without them they are dropped.
    missing : str
        What is done with a row without event time: FAIL, DROP or MISSING of `keyedstate.runtime.event_time`.
    """

    #: Whether rows of the inputs may take earlier ones back; else inputs with row kinds are refused.
    takes_rows_back = False
    #: The method that declares the join, for the error about such an input.
    _declared_by = ""

    side_inputs = MappingProxyType({LATE_LEFT: 0, MISSING_LEFT: 0, LATE_RIGHT: 1, MISSING_RIGHT: 1})

    def __init__(self, side_outputs: Mapping[str, Any], missing: str) -> None:
        self.side_outputs = side_outputs
        self._missing = missing
        self._inputs: ConnectedInputs | None = None
        self._compound_key = False

    @abstractmethod
    def output_columns(
        self, inputs: ConnectedInputs, fold: Fold
    ) -> Sequence[JoinedColumn | RowKindColumn | WindowColumn] | None:
        """Return the columns of the output; None where a user's function makes the rows."""

    def _bound(self, inputs: ConnectedInputs) -> Self:
        """Return a copy for rows of these columns; raises `RowKindError` where it cannot take rows back."""
        kinds = [each.row_kind for each in inputs.inputs if each.row_kind is not None]
        if kinds and not self.takes_rows_back:
            raise RowKindError(kinds[0], f"{self._declared_by} takes no row back")
        bound = copy.copy(self)
        bound._inputs = inputs
        bound._compound_key = len(inputs.first.key_columns) > 1
        return bound

    def _need_event_time(self, inputs: ConnectedInputs, part: str, reason: str) -> None:
        """Raise `InvalidJoinError` where rows have no event times."""
        if not inputs.have_event_time:
            raise InvalidJoinError(
                part,
                f"{reason}, and no columns are named",
                "Give each, as in keyed(..., event_time=EventTime('ts', delay='10 minutes')).",
            )

    def _row_types(self) -> list[tuple[str, TypeSerializer[Any]]]:
        """Return the name of each side and the type of its kept rows."""
        return [(LEFT, infer(self._known.first.schema)), (RIGHT, infer(self._known.second.schema))]

    @property
    def _known(self) -> ConnectedInputs:
        """The columns of the rows."""
        if self._inputs is None:
            raise InvalidFunctionError(
                type(self).__name__,
                "it does not know the columns of its rows; declare the join with connect(...)",
            )
        return self._inputs

    # -- rows that cannot be joined -----------------------------------------------------------------------

    def _time_of(self, row: Any, ctx: Context, of_right: bool) -> int | None:
        """Return the event time of a row; a row without one is set aside, or raises an error."""
        time = ctx.timestamp
        if time is None:
            if self._missing == FAIL:
                raise MissingTimestampError(f"the {RIGHT if of_right else LEFT} input of the join")
            output = MISSING_RIGHT if of_right else MISSING_LEFT
            ctx._set_aside(None if self._missing == DROP else output, TIMELESS, row)
        return time

    def _set_late_aside(self, row: Any, ctx: Context, of_right: bool) -> None:
        """Emit a late row to its side output, or count it as dropped."""
        late = LATE_RIGHT if of_right else LATE_LEFT
        ctx._set_aside(late if late in self.side_outputs else None, LATE, row)

    def _null_in_key(self, ctx: Context) -> bool:
        """Return whether a part of the current key is null, which equals no other."""
        return has_null(ctx.key, compound=self._compound_key)

    def _has_null_key(self, ctx: Context) -> bool:
        """Return whether a part of the current key is null, and count the row as dropped then."""
        found = self._null_in_key(ctx)
        if found:
            ctx._dropped[NULL_KEY] += 1
        return found
