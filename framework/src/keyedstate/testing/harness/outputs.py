"""What the function of a harness has put out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from keyedstate.errors import HarnessSettingError
from keyedstate.runtime.side_outputs import Outputs


class HarnessOutputs:
    """The rows that a function has yielded, and those that it has put out to side outputs.

    Parameters
    ----------
    declared : Outputs
    side_rows : dict of str to list
        Where the instances put the rows of side outputs.
    """

    def __init__(self, declared: Outputs, side_rows: dict[str, list[tuple[Any, ...]]]) -> None:
        self._declared = declared
        self._side_rows = side_rows
        self._outputs: list[tuple[Any, ...]] = []

    @property
    def outputs(self) -> list[tuple[Any, ...]]:
        """Everything that the function yielded since the beginning or the last `take_outputs`."""
        return list(self._outputs)

    def side_output(self, name: str) -> list[tuple[Any, ...]]:
        """Return the rows that were put out to a side output since the beginning or the last `take_outputs`.

        Raises
        ------
        HarnessSettingError
            For one that the function does not declare.
        """
        declared = self._declared.sides
        if name not in declared:
            known = ", ".join(map(repr, declared)) or "none"
            raise HarnessSettingError(
                f"the side output {name!r}", "is not declared", f"Declared are: {known}."
            )
        return list(self._side_rows.get(name, ()))

    def take_outputs(self) -> list[tuple[Any, ...]]:
        """Return `outputs` and forget them, and those of side outputs."""
        taken, self._outputs = self._outputs, []
        self._side_rows.clear()
        return taken

    def _collect(self, outputs: Iterable[list[tuple[Any, ...]]]) -> list[tuple[Any, ...]]:
        """Return the outputs of one call, and keep them once all are there."""
        found = [row for output in outputs for row in output]
        self._outputs += found
        return found
