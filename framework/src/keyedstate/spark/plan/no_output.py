"""The output of a bootstrap, which needs only the state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from keyedstate.runtime.output import OutputSchema


class _NoOutput(OutputSchema):
    """Drops all rows, of any form."""

    def __init__(self) -> None:
        super().__init__(pa.schema([("dropped", pa.null())]))

    def __reduce__(self) -> Any:
        return _NoOutput, ()

    def to_batch(
        self, rows: Sequence[Any], key_of: Callable[[int], object] = lambda row: None
    ) -> pa.RecordBatch:
        return pa.record_batch([pa.nulls(0)], schema=self.schema)

    def conform(self, given: Any) -> list[pa.RecordBatch]:
        return []


NO_OUTPUT = _NoOutput()
