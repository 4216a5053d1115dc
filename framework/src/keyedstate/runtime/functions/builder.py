"""The base of declarations of windows and joins: side outputs, and a policy for rows without event time."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, ClassVar

from keyedstate.errors import SideOutputNameError
from keyedstate.runtime.event_time import DROP, FAIL, MISSING
from keyedstate.runtime.side_outputs import check_name

if TYPE_CHECKING:
    from typing_extensions import Self

#: The policies for rows without event time, as users write them.
_POLICIES: dict[object, str] = {"fail": FAIL, "drop": DROP, "side output": MISSING}


def missing_policy(missing: object, error: Any) -> str:
    """Return the policy for rows without event time that a user names.

    Raises `error`, made of the part of the declaration, the reason and the way out, for any other value.
    """
    if missing not in _POLICIES:
        raise error(
            f"missing={missing!r}", "there is no such policy", "Give 'fail', 'drop' or 'side output'."
        )
    return _POLICIES[missing]


class FunctionBuilder:
    """Declares a function step by step: each method returns another builder, the last one the function.

    `missing` is the policy for a row without event time: "fail", "drop" or "side output".
    """

    #: Raised for a wrong declaration, with its part, the reason and the way out.
    _error: ClassVar[Any]

    def __init__(self, missing: str) -> None:
        self._missing = missing_policy(missing, self._error)
        self._sides: dict[str, object] = {}

    def _changed(self, **attributes: object) -> Self:
        """Return another builder with other values of some attributes."""
        other = copy.copy(self)
        vars(other).update(attributes)
        return other

    def _with_side_output(self, name: str, schema: object) -> Self:
        """Return another builder with one more side output; its name must be new."""
        check_name(name)
        if name in self._sides:
            raise SideOutputNameError(name, "another output has that name")
        return self._changed(_sides={**self._sides, name: schema})
