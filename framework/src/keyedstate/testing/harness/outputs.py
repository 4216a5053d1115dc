"""The output of the function of a harness."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from keyedstate.errors import HarnessSettingError
from keyedstate.runtime.side_outputs import Outputs


class HarnessOutputs:
    """The rows that a function has yielded; instances put those of its side outputs into `side_rows`."""

    def __init__(self, declared: Outputs, side_rows: dict[str, list[tuple[Any, ...]]]) -> None:
        self._declared = declared
        self._side_rows = side_rows
        self._outputs: list[tuple[Any, ...]] = []

    @property
    def outputs(self) -> list[tuple[Any, ...]]:
        """All rows that the function yielded since the beginning or the last `take_outputs`."""
        return list(self._outputs)

    def side_output(self, name: str) -> list[tuple[Any, ...]]:
        """Return the rows of a side output since the beginning or the last `take_outputs`.

        Raises
        ------
        HarnessSettingError
            For a side output that the function does not declare.
        """
        declared = self._declared.sides
        if name not in declared:
            known = ", ".join(map(repr, declared)) or "none"
            raise HarnessSettingError(
                f"the side output {name!r}", "is not declared", f"Declared are: {known}."
            )
        return list(self._side_rows.get(name, ()))

    def take_outputs(self) -> list[tuple[Any, ...]]:
        """Return `outputs` and clear them and the rows of side outputs."""
        taken, self._outputs = self._outputs, []
        self._side_rows.clear()
        return taken

    def _collect(self, outputs: Iterable[list[tuple[Any, ...]]]) -> list[tuple[Any, ...]]:
        """Return the outputs of one call, and store them when all have succeeded."""
        found = [row for output in outputs for row in output]
        self._outputs += found
        return found
